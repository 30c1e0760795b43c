//! TCP of a slot that has had other owners.
//!
//! A new connection goes to the slot's current owner. So does a segment of any other connection, with tries: the node
//! returns it if it does not know its connection, and [`returned`](super::returned) tries the slot's past owners. The
//! owner that kept the connection is remembered in a pin, which sends the following segments straight to it.

use crate::{
    abi::{MAX_PAST_OWNERS, Past, Pin, Tuple},
    decide::{edge::send::Try, owner::no_owner},
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    stage::Stage,
    verdict::Verdict,
    world::{HandOver, PinTable, Pins, World},
};

/// Decides which owner of its slot gets a packet.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let known = tables.handed_over();
    with_packet!(frame, packet => choose(frame, tables, &packet, known), reason => Verdict::Pass(reason))
}

#[inline(always)]
fn choose<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    known: HandOver,
) -> Verdict<'t> {
    let (index, hash) = (known.backend, known.detail);
    let owner = tables.slot(index).unwrap_or_default().owner();
    let past = tables.past(index);
    let begins = parse::tcp_flags(frame, packet).begins_connection();
    let flow = packet.flow_of(known.ports).tuple();
    let to = |backend, tries| {
        tables.hand_over(HandOver {
            backend,
            detail: Try::first(hash, tries).0,
            ..known
        });
        Verdict::Continue(Stage::Send)
    };
    if past.is_pinned() {
        if begins {
            tables.remove_pin(PinTable::Kept, &flow);
            tables.remove_pin(PinTable::Young, &flow);
        } else if let Some(backend) = pinned(tables, &flow) {
            return to(backend, all_tries(past));
        }
    }
    match owner {
        0 if begins || past.count() == 0 => no_owner(tables, known.service),
        // The service has lost all of its backends, which says nothing about its connections.
        0 => match first_of(tables, past) {
            Some((backend, tries)) => to(backend, tries),
            None => no_owner(tables, known.service),
        },
        owner if begins => to(owner, 0),
        owner => to(owner, all_tries(past)),
    }
}

/// Returns the newest past owner that may be tried, and the tries that are left after it.
#[inline(always)]
pub(super) fn first_of<T: World>(tables: &T, past: Past) -> Option<(u32, u32)> {
    for place in 0..MAX_PAST_OWNERS {
        if place >= past.count() {
            break;
        }
        let id = tables.past_owner(past.offset() + place).backend();
        if tables.backend(id)?.may_be_tried() {
            return Some((id, past.count() - place));
        }
    }
    None
}

/// Returns the tries of a packet that goes to the current owner first: one for each past owner, and one for the current
/// owner again.
#[inline(always)]
pub const fn all_tries(past: Past) -> u32 {
    match past.count() {
        0 => 0,
        count => count + 1,
    }
}

/// Returns the backend that a flow is pinned to, if it may be tried. A young pin is kept from now on.
#[inline(always)]
fn pinned<T: World>(tables: &T, flow: &Tuple) -> Option<u32> {
    if let Some(pin) = valid_pin(tables, PinTable::Kept, flow) {
        return Some(pin.backend());
    }
    let pin = valid_pin(tables, PinTable::Young, flow)?;
    tables.set_pin(PinTable::Kept, flow, pin);
    tables.remove_pin(PinTable::Young, flow);
    Some(pin.backend())
}

/// Returns the pin of a flow, if the backend is still the one that it was made for, and may be tried.
#[inline(always)]
pub(super) fn valid_pin<T: World>(tables: &T, table: PinTable, flow: &Tuple) -> Option<Pin> {
    let pin = Pins::pin(tables, table, flow)?;
    let backend = tables.backend(pin.backend())?;
    (backend.may_be_tried() && pin.is_of(flow, backend)).then_some(pin)
}
