//! A packet that a node has returned, because it does not know its connection.
//!
//! The owners of the flow's slot are tried one after the other. The tries that the tag tells are counted from the list's
//! end, so a list that grows meanwhile shifts nothing:
//!
//! ```text
//! tries left at the node    count + 1   count       ...   1           0
//! tried                     current     newest past ...   oldest past current, which delivers whatever it is
//!                           or the pin
//! ```
//!
//! Each try is pinned, and the last one takes the pin away. So the pin that stays is that of the owner which kept the
//! connection. The packet must come from the node that it was sent to, and to the outer source that it had.

use crate::{
    abi::{AddressKey, BACKEND_V4, Backend, DeliveryKey, MAX_PAST_OWNERS, Past, Pin, Tag, Tuple},
    decide::{
        address::outer_addresses,
        answer::Allowance,
        edge::{
            balance::{is_unspecified, outer_source_of},
            past::{all_tries, first_of, valid_pin},
            send::Try,
        },
        owner::{checked_service, flow_hash, slot_index},
    },
    family::Family,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Decap, Outer, Verdict},
    wire::protocol,
    world::{Answer, HandOver, PinTable, World},
};

/// How many flows a CPU of an edge looks for the owners of, and how many segments one of a node returns: ten thousand a
/// second, as many at once. A flood of segments of no connection costs no more than these.
pub const ALLOWANCE: Allowance = Allowance::new(100_000, 10_000);

/// The outer header of a returned packet, in whole words, because it lies on the BPF stack.
struct Sender {
    /// The node.
    node: AddressKey,
    /// The outer source that the packet had.
    edge: AddressKey,
    /// The tag.
    tag: u64,
}

impl Sender {
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the tag")]
    const fn tag(&self) -> Tag {
        Tag(self.tag as u16)
    }
}

/// Chooses the next owner, for which [`send`](super::send) goes on with the packet behind the outer header.
///
/// # Errors
///
/// Returns the verdict on a packet that is not tried again.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Result<Decap, Verdict<'t>> {
    let decap = with_packet!(frame, outer => open(&outer), reason => Err(Verdict::Pass(reason)))?;
    let Some(decap) = decap.relayed(tables) else {
        return Err(Verdict::Drop(DropReason::StageMissing));
    };
    let known = with_packet!(frame, decap.inner, at decap.inner_l3,
        packet => next(frame, tables, &packet, &decap),
        _ => Err(not_returned(tables)))?;
    tables.hand_over(known);
    Ok(decap)
}

#[inline(always)]
fn open<'t, A: Ip>(outer: &Packet<A>) -> Result<Decap, Verdict<'t>> {
    match outer.protocol {
        protocol::IPV4 => Ok(Decap::of(outer, Family::V4)),
        protocol::IPV6 => Ok(Decap::of(outer, Family::V6)),
        _ => Err(Verdict::Pass(PassReason::Protocol)),
    }
}

/// Leaves a packet that cannot be returned for the node role: it is from an edge that writes no tags.
#[inline(always)]
fn not_returned<'t, T: World>(tables: &T) -> Verdict<'t> {
    DeliveryKey::hand_over_not_returned(tables);
    Verdict::Continue(Stage::Decap)
}

#[inline(always)]
fn next<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    decap: &Decap,
) -> Result<HandOver, Verdict<'t>> {
    if packet.length > decap.inner_room || packet.is_fragment || packet.protocol != protocol::TCP {
        return Err(not_returned(tables));
    }
    let Ok(flow) = parse::flow(frame, packet) else {
        return Err(not_returned(tables));
    };
    let Some((entry, check)) = A::service(tables, &flow) else {
        return Err(not_returned(tables));
    };
    let found = checked_service(tables, entry.id(), check)?;
    let hash = flow_hash(tables, found.entry.affinity, &flow);
    let index = slot_index(found.entry.word, hash);
    let slot = tables.slot(index).unwrap_or_default();
    if !slot.has_past() {
        return Err(not_returned(tables));
    }
    let past = tables.past(index);
    let tuple = flow.tuple();
    let walk = Walk {
        index,
        past,
        current: slot.owner(),
    };
    let Some((node, edge)) = outer_addresses(frame, decap.l3) else {
        return Err(not_returned(tables));
    };
    let sender = Sender {
        node,
        edge,
        tag: decap.tag.0.into(),
    };
    if parse::tcp_flags(frame, packet).begins_connection() {
        return Err(Verdict::Drop(DropReason::ReturnUnexpected));
    }
    let (backend, tries) = match walk.step(tables, &tuple, &sender) {
        Ok((0, _)) => return Err(Verdict::Answer(Answer::refuse_inner(A::FAMILY))),
        Ok(chosen) => chosen,
        // This machine may be a router between an edge and its nodes.
        Err(Refusal::SentElsewhere) => return Err(not_returned(tables)),
        Err(Refusal::Dropped(reason)) => return Err(Verdict::Drop(reason)),
    };
    Ok(HandOver {
        service: found.id,
        backend,
        ports: flow.ports(),
        detail: Try::again(tries).0,
    })
}

/// Why a packet is not tried again.
enum Refusal {
    /// Its outer destination is not where this machine has packets returned to.
    SentElsewhere,
    Dropped(DropReason),
}

/// The owners of a slot, which are tried one after the other.
struct Walk {
    /// Index of the slot.
    index: u32,
    past: Past,
    /// Id of the current owner; 0 for none.
    current: u32,
}

impl Walk {
    /// Returns the id of the next owner, and the tries that are left after it; id 0 if there is none.
    #[inline(always)]
    fn step<T: World>(
        &self,
        tables: &T,
        flow: &Tuple,
        sender: &Sender,
    ) -> Result<(u32, u32), Refusal> {
        let tries = sender.tag().tries();
        let count = self.past.count();
        if tries == 0 || tries > all_tries(self.past) {
            return Err(Refusal::Dropped(DropReason::ReturnUnexpected));
        }
        let is_first = tries == count + 1;
        let tried = if is_first {
            self.current
        } else {
            tables
                .past_owner(self.past.offset() + count - tries)
                .backend()
        };
        if !is_from(tables, tried, sender) {
            if !is_first || !self.unpin(tables, flow, sender) {
                return Err(refusal(tables, tried, sender));
            }
            if self.current != 0 {
                return Ok((self.current, tries));
            }
        } else if is_first || self.begins_with_past(tables, tries) {
            if !take_allowance(tables) {
                return Err(Refusal::Dropped(DropReason::ReturnLimited));
            }
            // The owner that did not know the flow may be the one that it is pinned to.
            if self.past.is_pinned() {
                tables.remove_pin(PinTable::Kept, flow);
            }
        }
        Ok(self.following(tables, flow, count + 1 - tries))
    }

    /// Tells whether so many tries are those of the first one, where the slot has no current owner.
    #[inline(always)]
    fn begins_with_past<T: World>(&self, tables: &T, tries: u32) -> bool {
        self.current == 0 && first_of(tables, self.past).is_some_and(|(_, first)| first == tries)
    }

    /// Takes the pin to the sender away, if there is one.
    #[inline(always)]
    fn unpin<T: World>(&self, tables: &T, flow: &Tuple, sender: &Sender) -> bool {
        if !self.past.is_pinned() {
            return false;
        }
        for table in [PinTable::Kept, PinTable::Young] {
            if let Some(pin) = valid_pin(tables, table, flow)
                && is_from(tables, pin.backend(), sender)
            {
                tables.remove_pin(table, flow);
                return true;
            }
        }
        false
    }

    /// Pins the flow to the first owner from this place of the list that may be tried, else goes back to the current
    /// one.
    #[inline(always)]
    fn following<T: World>(&self, tables: &T, flow: &Tuple, from: u32) -> (u32, u32) {
        let count = self.past.count();
        for step in 0..MAX_PAST_OWNERS {
            let place = from + step;
            if place >= count {
                break;
            }
            let id = tables.past_owner(self.past.offset() + place).backend();
            if let Some(backend) = tables.backend(id)
                && backend.may_be_tried()
            {
                tables.set_pin(PinTable::Young, flow, Pin::new(flow, id, backend));
                tables.mark_pinned(self.index);
                return (id, count - place);
            }
        }
        tables.remove_pin(PinTable::Young, flow);
        (self.current, 0)
    }
}

/// Tells whether a returned packet was sent to this backend: it comes from its node, with its tag, and to the outer
/// source that packets to it have.
#[inline(always)]
fn is_from<T: World>(tables: &T, id: u32, sender: &Sender) -> bool {
    let Some(backend) = tables.backend(id) else {
        return false;
    };
    if id == 0 || Tag(backend.tag).pod_bits() != sender.tag().pod_bits() {
        return false;
    }
    let node = if backend.flags & BACKEND_V4 != 0 {
        AddressKey::v4(backend.address_v4())
    } else {
        AddressKey::v6(backend.address)
    };
    node.words() == sender.node.words() && is_to_source(tables, backend, sender)
}

/// Tells whether a returned packet came to the outer source that packets to this backend have.
#[inline(always)]
fn is_to_source<T: World>(tables: &T, backend: &Backend, sender: &Sender) -> bool {
    let Some(source) = source_towards(tables, backend) else {
        return false;
    };
    let edge = if backend.flags & BACKEND_V4 != 0 {
        let [a, b, c, d, ..] = *source;
        AddressKey::v4([a, b, c, d])
    } else {
        AddressKey::v6(*source)
    };
    edge.words() == sender.edge.words()
}

/// Returns why a packet is refused that was not sent to this backend.
#[inline(always)]
fn refusal<T: World>(tables: &T, id: u32, sender: &Sender) -> Refusal {
    match tables.backend(id) {
        Some(backend) if id != 0 && !is_to_source(tables, backend, sender) => {
            Refusal::SentElsewhere
        }
        _ => Refusal::Dropped(DropReason::ReturnRefused),
    }
}

/// Returns the outer source of packets to a backend. What the kernel's FIB tells of a next hop has none.
#[inline(always)]
fn source_towards<'t, T: World>(tables: &'t T, backend: &Backend) -> Option<&'t [u8; 16]> {
    let outer = if backend.flags & BACKEND_V4 != 0 {
        Outer::V4
    } else {
        Outer::V6
    };
    if backend.next_hop != 0
        && let Some(hop) = tables.next_hop(backend.next_hop)
        && !is_unspecified(&hop.source)
    {
        return Some(&hop.source);
    }
    outer_source_of(tables.config()?, outer)
}

/// Takes one from the allowance of this CPU, if there is one left.
#[inline(always)]
pub fn take_allowance<T: World>(tables: &T) -> bool {
    match ALLOWANCE.take(tables.returns_full_at(), tables.now()) {
        Some(full_at) => {
            tables.set_returns_full_at(full_at);
            true
        }
        None => false,
    }
}
