//! Replies of pods: the source becomes the address and port that the client talks to, and the destination port
//! becomes the client's own.

use core::mem::offset_of;

use super::{
    ChecksumField, Memory, Outcome, Skb, flows, fragments, hairpin,
    headers::{Headers, Part},
    local_flows,
    mss::{self, Clamp},
    rewrite::{correct, set_source, view_mut},
};
use crate::{
    abi::{PodFlow, Tuple},
    csum::Sum,
    parse::{self, Segment},
    reason::DropReason,
    wire::{
        protocol,
        transport::{Ports, Tcp, Udp},
    },
};

/// Translates a packet with ports if it answers a flow to a pod.
#[inline(always)]
pub(super) fn translate<S: Skb, T: Memory>(
    skb: &mut S,
    tables: &T,
    packet: &Headers,
) -> Result<Outcome, DropReason> {
    let transport = packet.l4 + parse::transport_length(packet.protocol);
    if transport > packet.end {
        return Ok(Outcome::Untouched);
    }
    skb.pull(transport);
    let Some(&ports) = skb.view::<Ports>(packet.l4) else {
        return Ok(Outcome::Untouched);
    };
    let segment = match packet.protocol {
        protocol::TCP => match skb.view::<Tcp>(packet.l4) {
            Some(header) => Segment::of(header),
            None => return Ok(Outcome::Untouched),
        },
        _ => Segment::default(),
    };
    let flags = segment.flags;
    let key = Tuple::new(
        packet.destination,
        packet.source,
        ports.destination,
        ports.source,
        packet.protocol,
    );
    // A SYN is no reply.
    let flow = if flags.begins_connection() {
        None
    } else {
        flows::find_and_renew(tables, &key, &segment)
    };
    let Some(flow) = flow else {
        // A reply that was translated at another device may leave from a NodePort too.
        if skb.is_translated() || local_flows::remember(tables, packet, &ports, flags) {
            return Ok(Outcome::Untouched);
        }
        return match flows::may_be_uncopied(tables, &key, flags) {
            true => Err(DropReason::FlowNotCopied),
            false => Ok(Outcome::Untouched),
        };
    };
    if packet.part == Part::First {
        fragments::publish(tables, packet, &ports);
    }
    let clamp = if flags.accepts_connection() {
        mss::clamp(skb, tables, packet, &flow)
    } else {
        Clamp::NONE
    };
    let checksum = rewrite(skb, packet, &ports, &flow, &key, clamp)?;
    hairpin::finish(skb, packet, &flow, &key, checksum)
}

/// Translates source address and both ports; returns the place of the checksum if it covers addresses.
#[inline(always)]
fn rewrite<S: Skb>(
    skb: &mut S,
    packet: &Headers,
    ports: &Ports,
    flow: &PodFlow,
    key: &Tuple,
    clamp: Clamp,
) -> Result<Option<ChecksumField>, DropReason> {
    let source = flow.service_address(key);
    let addresses = Sum::ZERO.replace_words(packet.source.words(), source.words());
    let field = match packet.protocol {
        protocol::TCP => ChecksumField {
            offset: packet.l4 + offset_of!(Tcp, checksum),
            zero_is_none: false,
        },
        protocol::UDP => ChecksumField {
            offset: packet.l4 + offset_of!(Udp, checksum),
            zero_is_none: true,
        },
        // SCTP ports are never translated, and its checksum does not cover addresses.
        _ => {
            set_source(skb, packet, source, addresses)?;
            return Ok(None);
        }
    };
    let new = Ports {
        source: flow.port(),
        destination: flow.client_port(),
    };
    let segment = ports.replaced_by(new).add_sum(clamp.difference);
    // The checksum comes first, because the helper invalidates the pointers into the packet.
    correct(skb, packet, field, addresses, segment)?;
    set_source(skb, packet, source, addresses)?;
    *view_mut::<Ports, _>(skb, packet.l4)? = new;
    if clamp.offset != 0 {
        *view_mut(skb, clamp.offset)? = clamp.value;
    }
    Ok(Some(field))
}
