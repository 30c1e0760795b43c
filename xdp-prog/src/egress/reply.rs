//! What a pod answers: source address and port become those that the client talks to.

use core::mem::offset_of;

use super::{
    ChecksumField, Memory, Outcome, Skb, flows, fragments, hairpin,
    headers::{Headers, Part},
    mss::{self, Clamp},
    own,
    rewrite::{correct, set_source, view_mut},
};
use crate::{
    abi::{PodFlow, Tuple},
    csum::Sum,
    parse::TcpFlags,
    reason::DropReason,
    wire::{
        protocol,
        transport::{Ports, Sctp, Tcp, Udp},
    },
};

/// Translates a packet with ports, if it answers a flow to a pod.
#[inline(always)]
pub(super) fn translate<S: Skb, T: Memory>(
    skb: &mut S,
    tables: &T,
    packet: &Headers,
) -> Result<Outcome, DropReason> {
    let transport = packet.l4
        + match packet.protocol {
            protocol::TCP => Tcp::LENGTH,
            protocol::SCTP => Sctp::LENGTH,
            _ => Udp::LENGTH,
        };
    if transport > packet.end {
        return Ok(Outcome::Untouched);
    }
    skb.pull(transport);
    let Some(&ports) = skb.view::<Ports>(packet.l4) else {
        return Ok(Outcome::Untouched);
    };
    let flags = match packet.protocol {
        protocol::TCP => match skb.view::<Tcp>(packet.l4) {
            Some(header) => TcpFlags(header.flags),
            None => return Ok(Outcome::Untouched),
        },
        _ => TcpFlags::default(),
    };
    let key = Tuple::new(
        packet.destination,
        packet.source,
        ports.destination,
        ports.source,
        packet.protocol,
    );
    // Who begins a connection answers nothing.
    let flow = if flags.begins_connection() {
        None
    } else {
        flows::answer(tables, &key, packet.protocol, flags)
    };
    let Some(flow) = flow else {
        // A translated reply may leave from a NodePort too.
        if !skb.is_translated() {
            own::remember(tables, packet, &ports, flags);
        }
        return Ok(Outcome::Untouched);
    };
    if packet.part == Part::First {
        fragments::publish(tables, packet, &ports);
    }
    let clamp = if flags.accepts_connection() {
        mss::clamp(skb, tables, packet, &flow)
    } else {
        Clamp::NONE
    };
    let checksum = rewrite(skb, packet, ports.source, &flow, clamp)?;
    hairpin::finish(skb, tables, packet, &flow, &key, checksum)
}

/// Translates source address and port, and returns where the checksum lies, if that covers addresses.
#[inline(always)]
fn rewrite<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    port: [u8; 2],
    flow: &PodFlow,
    clamp: Clamp,
) -> Result<Option<ChecksumField>, DropReason> {
    let addresses = Sum::ZERO.replace_words(packet.source.words(), flow.address.words());
    let field = match packet.protocol {
        protocol::TCP => ChecksumField {
            offset: packet.l4 + offset_of!(Tcp, checksum),
            zero_is_none: false,
        },
        protocol::UDP => ChecksumField {
            offset: packet.l4 + offset_of!(Udp, checksum),
            zero_is_none: true,
        },
        // SCTP's checksum covers no addresses, and its ports are never translated.
        _ => {
            set_source(skb, packet, flow.address, addresses)?;
            return Ok(None);
        }
    };
    let new_port = flow.port();
    let segment = Sum::ZERO
        .replace_u16(u16::from_be_bytes(port), u16::from_be_bytes(new_port))
        .add_sum(clamp.difference);
    // First, because the helper takes away what was seen of the packet.
    correct(skb, field, addresses, segment)?;
    set_source(skb, packet, flow.address, addresses)?;
    let ports: &mut Ports = view_mut(skb, packet.l4)?;
    ports.source = new_port;
    if clamp.offset != 0 {
        *view_mut(skb, clamp.offset)? = clamp.value;
    }
    Ok(Some(field))
}
