//! Fragments of replies: later ones follow the first, which has the ports.
//!
//! A node's kernel sends the fragments of a datagram in order, whether the pod or the kernel itself made them.

use super::{Memory, Outcome, Skb, flows, hairpin, headers::Headers, rewrite::set_source};
use crate::{
    abi::{Datagram, Tuple},
    csum::Sum,
    reason::DropReason,
    wire::transport::Ports,
};

/// Publishes the ports of a datagram's first fragment.
#[inline(always)]
pub(super) fn publish<T: Memory>(tables: &T, packet: &Headers, ports: &Ports) {
    let datagram = Datagram::new(ports.source, ports.destination, tables.now());
    tables.publish(&key(packet), &datagram);
}

/// Translates a later fragment if its first one was translated.
#[inline(always)]
pub(super) fn later<S: Skb, T: Memory>(
    skb: &mut S,
    tables: &T,
    packet: &Headers,
) -> Result<Outcome, DropReason> {
    let Some(datagram) = tables.datagram(&key(packet)) else {
        return Ok(Outcome::Untouched);
    };
    if !datagram.is_awaited(tables.now()) {
        return Ok(Outcome::Untouched);
    }
    let key = Tuple::new(
        packet.destination,
        packet.source,
        datagram.destination_port(),
        datagram.source_port(),
        packet.protocol,
    );
    let Some(flow) = flows::find(tables, &key) else {
        return Ok(Outcome::Untouched);
    };
    let source = flow.service_address(&key);
    let difference = Sum::ZERO.replace_words(packet.source.words(), source.words());
    set_source(skb, packet, source, difference)?;
    hairpin::finish(skb, packet, &flow, &key, None)
}

#[inline(always)]
fn key(packet: &Headers) -> Tuple {
    Tuple::fragments(
        packet.source,
        packet.destination,
        packet.identification.to_ne_bytes(),
        packet.protocol,
    )
}
