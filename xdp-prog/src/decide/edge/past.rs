//! Packets of slots that have had other owners: segments and datagrams, their fragments, and ICMP errors about them.
//!
//! A new connection goes to the slot's current owner. So does a segment of any other connection, with tries: the node
//! returns it if it does not know its connection, and the edge goes on with the walk over the slot's past
//! owners. The owner that kept the connection is remembered in a pin, which sends the following segments straight to it.
//!
//! Nothing tells the first datagram of a flow from the others, and a pod that gets one of another pod's flow does not refuse
//! it. So for some minutes after the slot has changed hands, the walk of a datagram without a pin begins at the newest past
//! owner. A service without backends refuses it at once: a datagram that nobody knew would end at its last node, and a client
//! waits for the refusal. What begins an association of SCTP goes the same way: were it sent to the current owner straight, what follows it
//! would meet the client's last association at a past owner.
//!
//! The rules for owners that return nothing are in `keep.rs`. They are not for a packet that another edge has sent by L2 DSR:
//! this machine's own pods are asked about it one after the other.

use crate::{
    abi::{MODE_IPIP, Tuple},
    decide::{
        allowance::take_return,
        edge::{
            affinity::Affinity,
            keep,
            send::Try,
            walk::{DATAGRAM_SECONDS, Walk},
        },
        flow_of::{flow_of, opaque_tuple, segment_of},
        message::Messages,
        owner::{ANY_BACKEND, FoundService, no_owner},
    },
    frame::Frame,
    ip::with_packet,
    parse::Packet,
    reason::DropReason,
    stage::Stage,
    verdict::Verdict,
    world::{HandOver, PinTable, World},
};

/// A packet whose owner is looked for.
struct Question {
    flow: Tuple,
    /// Not 0 if the packet begins a connection; a word, because the verifier knows nothing of it.
    begins: u64,
    /// Not 0 if the packet is an ICMP error about the flow.
    is_error: u64,
}

/// Decides which owner of its slot gets a packet.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let known = tables.handed_over();
    let question = with_packet!(frame,
        packet => read(frame, tables, &packet, known),
        reason => Err(Verdict::Pass(reason)));
    match question {
        Ok(question) => choose(frame, tables, &question, known),
        Err(verdict) => verdict,
    }
}

#[inline(always)]
fn read<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
    known: HandOver,
) -> Result<Question, Verdict<'t>> {
    let Some(flow) = flow_of(frame, packet, known.ports) else {
        return Err(Verdict::Drop(DropReason::TableChanged));
    };
    let segment = segment_of(frame, packet);
    Ok(Question {
        flow: opaque_tuple(tables, &flow.tuple()),
        begins: tables.opaque(segment.flags.begins_connection().into()),
        is_error: tables.opaque((packet.protocol == A::ICMP).into()),
    })
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "32 bits in a word")]
fn choose<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
    question: &Question,
    known: HandOver,
) -> Verdict<'t> {
    let Some(found) = FoundService::handed_over(tables, known.service) else {
        return Verdict::Drop(DropReason::TableChanged);
    };
    let reach = found.reach(frame, tables);
    // Pods of this machine tell what they know, as behind IP-in-IP.
    let asked_as = if reach == ANY_BACKEND {
        found.entry.mode
    } else {
        MODE_IPIP
    };
    let [asked_as, reach] = [asked_as, reach].map(|word| tables.opaque(word.into()));
    let (flow, begins) = (&question.flow, question.begins != 0);
    let affinity = Affinity::of(&found.entry, flow.source(), reach);
    let walk = Walk::of(tables, known.backend, flow.protocol());
    let walk = walk.by_mode(tables, asked_as as u32);
    let walk = walk.within(reach as u32);
    let first = Try::first(known.detail, 0).by_mode(found.entry.mode);
    let to = |(backend, tries)| {
        tables.hand_over(HandOver {
            backend,
            detail: first.with_left(tries).0,
            ..known
        });
        Verdict::Continue(Stage::Send)
    };
    if !walk.has_returns() {
        return match keep::owner(tables, &walk, flow, &affinity, begins) {
            0 if question.is_error != 0 => Verdict::Drop(DropReason::NoBackend),
            0 => no_owner(tables, known.service),
            owner => to((owner, 0)),
        };
    }
    if walk.is_of_datagrams() {
        return match owner_for_datagram(tables, &walk, flow, &affinity) {
            (0, _) if question.is_error != 0 => Verdict::Drop(DropReason::NoBackend),
            (0, _) => no_owner(tables, known.service),
            chosen => to(chosen),
        };
    }
    if !begins
        && walk.is_pinned()
        && let Some((backend, _)) = pinned(tables, &walk, flow)
    {
        return to((backend, walk.all_tries()));
    }
    let kept = affinity.kept(tables, &walk);
    if begins {
        let owner = if kept == 0 { walk.current() } else { kept };
        // A SYN that nobody gets says nothing.
        if owner == 0 {
            return no_owner(tables, known.service);
        }
        if walk.is_pinned() {
            walk.mark_pins(tables, flow, owner);
        }
        affinity.note(tables, owner);
        return to((owner, 0));
    }
    if kept != 0 {
        return to((kept, walk.all_tries()));
    }
    match walk.current() {
        0 if !walk.has_past() => no_owner(tables, known.service),
        // The service has lost all of its backends, which says nothing about its connections.
        0 => match walk.newest(tables) {
            Some(newest) => to(newest),
            None if question.is_error != 0 => Verdict::Drop(DropReason::NoBackend),
            None => no_owner(tables, known.service),
        },
        owner => to((owner, walk.all_tries())),
    }
}

/// Returns the owner that a datagram goes to, and the tries that are left after it; id 0 if there is none.
#[inline(always)]
fn owner_for_datagram<T: World>(
    tables: &T,
    walk: &Walk,
    flow: &Tuple,
    affinity: &Affinity,
) -> (u32, u32) {
    if walk.is_pinned()
        && let Some((backend, table)) = pinned(tables, walk, flow)
    {
        return match table {
            PinTable::Kept => {
                affinity.renew(tables, backend);
                (backend, walk.all_tries())
            }
            PinTable::Young => (backend, walk.tries_after(tables, backend)),
        };
    }
    let kept = affinity.kept(tables, walk);
    if kept != 0 {
        affinity.note(tables, kept);
        // It stays there when the owner takes no new connections any more.
        walk.expect(tables, flow, kept, 0);
        return (kept, 0);
    }
    if walk.current() != 0
        && walk.has_just_changed(tables, DATAGRAM_SECONDS)
        && let Some((newest, tries)) = walk.newest(tables)
        && take_return(tables)
    {
        walk.expect(tables, flow, newest, tries);
        return (newest, tries);
    }
    affinity.note(tables, walk.current());
    (walk.current(), 0)
}

/// Returns the backend that a flow is pinned to, if it may be tried, and no SYN has come since, and the table that has the
/// pin. A young pin is kept once its owner would have returned the flow. That of datagrams to the current owner stays young:
/// it spares them walks for some minutes, and later they go there without it.
#[inline(always)]
fn pinned<T: World>(tables: &T, walk: &Walk, flow: &Tuple) -> Option<(u32, PinTable)> {
    if let Some(pin) = walk.valid_pin(tables, PinTable::Kept, flow)
        && !pin.is_marked()
    {
        return Some((pin.backend(), PinTable::Kept));
    }
    let pin = walk.valid_pin(tables, PinTable::Young, flow)?;
    if pin.is_marked() {
        return None;
    }
    let is_passing = walk.is_of_datagrams() && pin.backend() == walk.current();
    if !is_passing && pin.has_stood(tables.now()) {
        tables.set_pin(PinTable::Kept, flow, pin);
        tables.remove_pin(PinTable::Young, flow);
        return Some((pin.backend(), PinTable::Kept));
    }
    Some((pin.backend(), PinTable::Young))
}
