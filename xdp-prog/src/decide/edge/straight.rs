//! Packets of slots that have had other owners, as far as the current owner and a kept pin tell where they go.
//!
//! Most need no more. A connection that began after the slot's last change has no pin and is at the current owner; an older one
//! is pinned to the owner that has kept it. Their packets go on at once, as [`past`](super::past) and [`send`](super::send)
//! would send them.

use crate::{
    abi::{Backend, MODE_IPIP, Pin, Slot, Tuple},
    decide::{
        edge::{
            balance::LutLookup,
            walk::{DATAGRAM_SECONDS, returns},
        },
        flow_of::opaque_tuple,
        owner::current_owner,
    },
    flow::FlowKey,
    frame::Frame,
    ip::Ip,
    parse::{self, Packet},
    verdict::Owner,
    wire::protocol,
    world::{PinTable, World},
};

/// A backend that gets a packet, and how often nodes may return it.
pub(super) type Chosen<'t> = (Owner<'t>, u32);

/// Returns the owner that gets a packet of a slot, by the service's id, the slot's index and its word; `None` leaves that to [`past`](super::past).
#[inline(always)]
pub(super) fn choose<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    flow: &FlowKey<A>,
    lookup: &LutLookup,
    (service, index, slot): (u32, u32, Slot),
) -> Option<Chosen<'t>> {
    if lookup.has_affinity || lookup.mode != MODE_IPIP {
        return None;
    }
    let current = current_owner(tables, service, slot, lookup.hash)?;
    if !is_apart(tables, current.backend) {
        return None;
    }
    let past = tables.past(index);
    let all_tries = match past.count() {
        0 => return None,
        count => count + 1,
    };
    let begins = parse::tcp_flags(frame, packet).begins_connection();
    if past.is_pinned() {
        // A SYN marks pins.
        if begins {
            return None;
        }
        let flow = opaque_tuple(tables, &flow.tuple());
        match tables.pin(PinTable::Kept, &flow) {
            Some(pin) => {
                let backend = pinned(tables, &flow, pin)?;
                let id = pin.backend();
                return Some((
                    Owner {
                        id,
                        backend,
                        ..current
                    },
                    all_tries,
                ));
            }
            None if tables.pin(PinTable::Young, &flow).is_some() => return None,
            None => {}
        }
    }
    match packet.protocol {
        protocol::TCP if begins => Some((current, 0)),
        protocol::TCP => Some((current, all_tries)),
        _ if tables
            .past_owner(past.offset())
            .has_ended_within(DATAGRAM_SECONDS, tables.now()) =>
        {
            None
        }
        _ => Some((current, 0)),
    }
}

/// Returns the backend that a kept pin names, if the pin alone tells that the flow is there.
#[inline(always)]
fn pinned<'t, T: World>(tables: &'t T, flow: &Tuple, pin: Pin) -> Option<&'t Backend> {
    if pin.is_marked() {
        return None;
    }
    let backend = tables.backend(pin.backend())?;
    let counts = backend.may_be_pinned() && pin.is_of(flow, backend);
    if counts && is_apart(tables, backend) {
        Some(backend)
    } else {
        None
    }
}

/// Tells whether a backend is at another machine, to which the way is known, and which returns what it does not know.
#[inline(always)]
fn is_apart<T: World>(tables: &T, backend: &Backend) -> bool {
    !backend.is_own_pod() && backend.next_hop != 0 && returns(tables, backend)
}
