//! The flow that a bare packet belongs to, or that an ICMP error is about, and what a packet says of its connection.

use zerocopy::transmute;

use super::message::{Messages, quoted};
use crate::{
    abi::{AddressKey, Tuple},
    flow::FlowKey,
    frame::Frame,
    parse::{Packet, Segment},
    wire::{protocol, transport::Tcp},
    world::Relay,
};

/// Returns the flow of a packet whose ports an earlier stage has found. An ICMP error is about the flow that it quotes,
/// in the direction of the error.
#[inline(always)]
pub(crate) fn flow_of<F: Frame, A: Messages>(
    frame: &F,
    packet: &Packet<A>,
    ports: u32,
) -> Option<FlowKey<A>> {
    if packet.protocol == A::ICMP {
        Some(quoted(frame, packet)?.flow)
    } else {
        Some(packet.flow_of(ports))
    }
}

/// Reads the TCP header of a packet; all of it is zero if there is none.
#[inline(always)]
pub(crate) fn segment_of<F: Frame, A>(frame: &F, packet: &Packet<A>) -> Segment {
    if packet.protocol != protocol::TCP || packet.is_later_fragment() {
        return Segment::default();
    }
    match frame.view::<Tcp>(packet.l4) {
        Some(header) => Segment::of(header),
        None => Segment::default(),
    }
}

/// Returns a tuple of which the kernel's verifier knows nothing, so that it checks the code that follows once for all
/// families and protocols.
#[inline(always)]
pub(crate) fn opaque_tuple<T: Relay>(tables: &T, tuple: &Tuple) -> Tuple {
    let words: [u64; 5] = transmute!(*tuple);
    transmute!(words.map(|word| tables.opaque(word)))
}

/// Returns an address of which the verifier knows nothing either, not even its family.
#[inline(always)]
pub(crate) fn opaque_address<T: Relay>(tables: &T, address: AddressKey) -> AddressKey {
    transmute!(address.words().map(|word| tables.opaque(word)))
}
