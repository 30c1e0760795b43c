//! Packets of slots that have had other owners: TCP segments, their fragments, and ICMP errors about them.
//!
//! A new connection goes to the slot's current owner. So does a segment of any other connection, with tries: the node
//! returns it if it does not know its connection, and the edge goes on with the walk over the slot's past
//! owners. The owner that kept the connection is remembered in a pin, which sends the following segments straight to it.

use crate::{
    abi::Tuple,
    decide::{
        edge::{
            send::Try,
            walk::{Walk, valid_pin},
        },
        flow_of::{flow_of, segment_of},
        message::Messages,
        owner::no_owner,
    },
    frame::Frame,
    ip::with_packet,
    parse::Packet,
    reason::DropReason,
    stage::Stage,
    verdict::Verdict,
    world::{HandOver, PinTable, World},
};

/// Decides which owner of its slot gets a packet.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let known = tables.handed_over();
    with_packet!(frame, packet => choose(frame, tables, &packet, known), reason => Verdict::Pass(reason))
}

#[inline(always)]
fn choose<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    known: HandOver,
) -> Verdict<'t> {
    let walk = Walk::of(tables, known.backend);
    let begins = segment_of(frame, packet).flags.begins_connection();
    let to = |(backend, tries)| {
        tables.hand_over(HandOver {
            backend,
            detail: Try::first(known.detail, tries).0,
            ..known
        });
        Verdict::Continue(Stage::Send)
    };
    if walk.is_pinned()
        && let Some(flow) = flow_of(frame, packet, known.ports)
    {
        let flow = flow.tuple();
        if begins {
            tables.remove_pin(PinTable::Kept, &flow);
            tables.remove_pin(PinTable::Young, &flow);
        } else if let Some(backend) = pinned(tables, &flow) {
            return to((backend, walk.all_tries()));
        }
    }
    match walk.current() {
        0 if begins || !walk.has_past() => no_owner(tables, known.service),
        // The service has lost all of its backends, which says nothing about its connections.
        0 => match walk.newest(tables) {
            Some(newest) => to(newest),
            None if packet.protocol == A::ICMP => Verdict::Drop(DropReason::NoBackend),
            None => no_owner(tables, known.service),
        },
        owner if begins => to((owner, 0)),
        owner => to((owner, walk.all_tries())),
    }
}

/// Returns the backend that a flow is pinned to, if it may be tried. A young pin is kept once its owner would have
/// returned the flow.
#[inline(always)]
fn pinned<T: World>(tables: &T, flow: &Tuple) -> Option<u32> {
    if let Some(pin) = valid_pin(tables, PinTable::Kept, flow) {
        return Some(pin.backend());
    }
    let pin = valid_pin(tables, PinTable::Young, flow)?;
    if pin.has_stood(tables.now()) {
        tables.set_pin(PinTable::Kept, flow, pin);
        tables.remove_pin(PinTable::Young, flow);
    }
    Some(pin.backend())
}
