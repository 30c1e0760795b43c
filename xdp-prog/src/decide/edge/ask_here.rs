//! Is the flow of a bare packet known at a pod of this machine, which is edge and node in one, or a node to which an edge has
//! sent by L2 DSR?
//!
//! What a node returns to an edge goes on here in the same run: to the next owner of the slot, which is asked by another
//! tail call if it is a pod of this machine too, and gets the packet sent to its node otherwise.

use crate::{
    abi::{Backend, PodKey, Tag, Tuple},
    decide::{
        edge::{
            send::Try,
            walk::{Refusal, Walk, WithId},
        },
        flow_of::{flow_of, opaque_tuple, segment_of},
        message::Messages,
        node::known,
        owner::{ANY_BACKEND, FoundService, flow_hash, no_owner, slot_index},
    },
    frame::Frame,
    ip::with_packet,
    parse::{Packet, Segment},
    reason::DropReason,
    stage::Stage,
    verdict::Verdict,
    world::{HandOver, World},
};

/// What the owners of a slot are asked about.
struct Question {
    flow: Tuple,
    segment: Segment,
    /// Index of the slot.
    index: u32,
    /// Where a packet goes on that a pod gets.
    delivery: Stage,
    /// The flags of backends that may get the packet; a word, because it may lie on the BPF stack.
    reach: u64,
}

/// Decides whether the pod that an earlier stage has chosen gets a bare packet, or which owner is next.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let known = tables.handed_over();
    let question = with_packet!(frame,
        packet => read(frame, tables, &packet, known),
        reason => Err(Verdict::Pass(reason)));
    match question {
        Ok(question) => ask(tables, &question, known),
        Err(verdict) => verdict,
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "32 bits in a word")]
fn read<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
    known: HandOver,
) -> Result<Question, Verdict<'t>> {
    let (Some(flow), Some(found)) = (
        flow_of(frame, packet, known.ports),
        FoundService::handed_over(tables, known.service),
    ) else {
        return Err(Verdict::Drop(DropReason::TableChanged));
    };
    let hash = flow_hash(tables, found.entry.affinity, &flow);
    let reach = found.reach(frame, tables);
    let table = if reach == ANY_BACKEND {
        found.entry.word
    } else {
        found.entry.local
    };
    Ok(Question {
        flow: opaque_tuple(tables, &flow.tuple()),
        segment: segment_of(frame, packet),
        index: tables.opaque(slot_index(table, hash).into()) as u32,
        delivery: if packet.protocol == A::ICMP {
            Stage::IcmpLocal
        } else {
            Stage::Local
        },
        reach: tables.opaque(reach.into()),
    })
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "32 bits in a word")]
fn ask<'t, T: World>(tables: &T, question: &Question, known: HandOver) -> Verdict<'t> {
    let Some(pod) = tables.backend(known.backend) else {
        return Verdict::Drop(DropReason::TableChanged);
    };
    let (flow, attempt) = (&question.flow, Try(known.detail));
    let walk = Walk::of(tables, question.index, flow.protocol());
    let walk = walk.within(question.reach as u32);
    let walk = walk.with_flags(question.segment.flags);
    let is_current = walk.current() == known.backend;
    if (is_current || is_delivered_to(tables, known, pod))
        && known::is_known(tables, flow, pod, &question.segment, false)
    {
        walk.found(tables, flow, known.backend, attempt.left());
        return Verdict::Continue(question.delivery);
    }
    let (backend, tries) = match walk.step(tables, flow, &WithId(known.backend), attempt.left()) {
        Ok((0, _)) if walk.is_of_datagrams() => {
            return match question.delivery {
                Stage::IcmpLocal => Verdict::Drop(DropReason::NoBackend),
                _ => no_owner(tables, known.service),
            };
        }
        // Somebody must have it at last.
        Ok((0, _)) | Err(Refusal::OutOfTurn(_)) => return Verdict::Continue(question.delivery),
        Ok(chosen) => chosen,
        Err(Refusal::Dropped(reason)) => return Verdict::Drop(reason),
    };
    walk.expect(tables, flow, backend, tries);
    tables.hand_over(HandOver {
        backend,
        detail: attempt.with_left(tries).0,
        ..known
    });
    match tables.backend(backend) {
        Some(next) if next.is_own_pod() && tries != 0 => Verdict::Continue(Stage::AskHere),
        _ => Verdict::Continue(Stage::Send),
    }
}

/// Tells whether packets of the service are delivered to the pod: it has not gone.
#[inline(always)]
fn is_delivered_to<T: World>(tables: &T, known: HandOver, pod: &Backend) -> bool {
    let key = PodKey::new(known.service, Tag(pod.tag));
    match tables.pod(&key) {
        Some(named) => named.backend(key) == Some(known.backend),
        None => false,
    }
}
