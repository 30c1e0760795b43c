//! A packet that a node has returned, because it does not know its flow.
//!
//! The packet must come from the node that it was sent to, and to the outer source that it had. The walk tells
//! which owner is next. Datagrams have a stage of their own, which reads the packet anew: the kernel verifies the two kinds
//! of walks apart.

use crate::{
    abi::{AddressKey, BACKEND_V4, Backend, DeliveryKey, MODE_IPIP, Tag, Tuple},
    decide::{
        address::outer_addresses,
        edge::{
            balance::{is_unspecified, outer_source_of},
            send::Try,
            walk::{Ignorant, Refusal, Walk},
        },
        flow_of::opaque_tuple,
        head::Head,
        message::{Kind, Messages, kind, quoted},
        owner::{checked_service, flow_hash, slot_index},
    },
    family::Family,
    flow::FlowKey,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{Packet, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Decap, Outer, Verdict},
    wire::protocol,
    world::{Answer, HandOver, PinTable, World},
};

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

/// Chooses the next owner, for which [`send`](super::send) goes on with the packet behind the outer header. Packets of
/// datagrams are left for their own stage, unless this is it.
///
/// # Errors
///
/// Returns the verdict on a packet that is not tried again.
#[inline(always)]
pub fn decide<'t, const OF_DATAGRAMS: bool, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<Decap, Verdict<'t>> {
    let decap = with_packet!(frame, outer => open(&outer), reason => Err(Verdict::Pass(reason)))?;
    let Some(decap) = decap.relayed(frame, tables) else {
        return Err(Verdict::Drop(DropReason::StageMissing));
    };
    let question = with_packet!(frame, decap.inner, at decap.inner_l3,
        packet => read(frame, tables, &packet, &decap),
        _ => Err(not_returned(tables)))?;
    if !OF_DATAGRAMS && question.flow.protocol() != protocol::TCP {
        return Err(Verdict::Continue(Stage::ReturnedDatagram));
    }
    // A constant: the compiler leaves the other kind of walk out.
    let kind = if OF_DATAGRAMS {
        protocol::UDP
    } else {
        protocol::TCP
    };
    let known = next(frame, tables, &question, &decap, kind)?;
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

/// What the owners of a slot are asked about.
struct Question {
    flow: Tuple,
    /// Service id.
    service: u32,
    /// Index of the slot.
    index: u32,
    flags: TcpFlags,
}

/// Finds the slot of the flow of a packet that may be returned.
#[inline(always)]
fn read<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    decap: &Decap,
) -> Result<Question, Verdict<'t>> {
    if packet.length > decap.inner_room {
        return Err(not_returned(tables));
    }
    let Some((flow, flags)) = flow_and_flags(frame, tables, packet) else {
        return Err(not_returned(tables));
    };
    let Some((entry, check)) = A::service(tables, &flow) else {
        return Err(not_returned(tables));
    };
    let found = checked_service(tables, entry.id(), check)?;
    let hash = flow_hash(tables, found.entry.affinity, &flow);
    let index = slot_index(found.entry.word, hash);
    if found.entry.mode != MODE_IPIP || !tables.slot(index).unwrap_or_default().has_past() {
        return Err(not_returned(tables));
    }
    if flags.begins_connection() {
        return Err(Verdict::Drop(DropReason::ReturnUnexpected));
    }
    Ok(Question {
        flow: opaque_tuple(tables, &flow.tuple()),
        service: found.id,
        index,
        flags,
    })
}

/// Chooses the owner that is next. What was read is relayed, so that the kernel verifies this once for both families.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
fn next<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
    question: &Question,
    decap: &Decap,
    protocol: u8,
) -> Result<HandOver, Verdict<'t>> {
    let tag = u64::from(decap.tag.0);
    let words = [
        question.service.into(),
        question.index.into(),
        tag,
        question.flags.0.into(),
    ];
    let Some([service, index, tag, flags]) = tables.relay(words) else {
        return Err(Verdict::Drop(DropReason::StageMissing));
    };
    let flow = &question.flow;
    let Some((node, edge)) = outer_addresses(frame, decap.l3) else {
        return Err(not_returned(tables));
    };
    let sender = Sender { node, edge, tag };
    let walk = Walk::of(tables, index as u32, protocol).with_flags(TcpFlags(flags as u8));
    let (backend, tries) = match walk.step(tables, flow, &sender, sender.tag().tries()) {
        // Inside an outer header, a datagram gets no answer. Without a pin, the flow's next one is refused as it comes.
        Ok((0, _)) if walk.is_of_datagrams() => {
            tables.remove_pin(PinTable::Young, flow);
            return Err(Verdict::Drop(DropReason::NoBackend));
        }
        Ok((0, _)) => return Err(Verdict::Answer(Answer::refuse_inner(decap.inner))),
        Ok(chosen) => chosen,
        // This machine may be a router between an edge and its nodes.
        Err(Refusal::OutOfTurn(tried)) if is_sent_elsewhere(tables, tried, &sender) => {
            return Err(not_returned(tables));
        }
        Err(Refusal::OutOfTurn(_)) => return Err(Verdict::Drop(DropReason::ReturnRefused)),
        Err(Refusal::Dropped(reason)) => return Err(Verdict::Drop(reason)),
    };
    walk.expect(tables, flow, backend, tries);
    Ok(HandOver {
        service: service as u32,
        backend,
        ports: flow.ports(),
        detail: Try::again(tries).0,
    })
}

/// Returns the flow that a packet belongs to, or that an ICMP error quotes, and the TCP flags if there are any.
#[inline(always)]
fn flow_and_flags<F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
) -> Option<(FlowKey<A>, TcpFlags)> {
    if packet.protocol == A::ICMP {
        return match kind(frame, packet) {
            Kind::Error => Some((quoted(frame, packet)?.flow, TcpFlags::default())),
            Kind::EchoRequest | Kind::Solicitation | Kind::CutShort | Kind::Other => None,
        };
    }
    match Head::read(frame, tables, packet) {
        Ok(head) => Some((head.flow(packet), head.flags)),
        Err(_) => None,
    }
}

impl Ignorant for Sender {
    /// The packet comes from the backend's node, with its tag, and to the outer source that packets to it have.
    #[inline(always)]
    fn is<T: World>(&self, tables: &T, id: u32) -> bool {
        let Some(backend) = tables.backend(id) else {
            return false;
        };
        if id == 0 || Tag(backend.tag).pod_bits() != self.tag().pod_bits() {
            return false;
        }
        let node = if backend.flags & BACKEND_V4 != 0 {
            AddressKey::v4(backend.address_v4())
        } else {
            AddressKey::v6(backend.address)
        };
        node.words() == self.node.words() && is_to_source(tables, backend, self)
    }
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

/// Tells whether a packet came to another address than packets to this backend have returns sent to.
#[inline(always)]
fn is_sent_elsewhere<T: World>(tables: &T, id: u32, sender: &Sender) -> bool {
    match tables.backend(id) {
        Some(backend) => id != 0 && !is_to_source(tables, backend, sender),
        None => false,
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
