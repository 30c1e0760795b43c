//! Packets that are delivered as others of their flow were in the last second.
//!
//! A note says: an earlier packet of this flow passed all checks and went to this pod. The checks are those of
//! [`Stage::Decap`] and of the flow's entry: the outer source is a trusted edge, the outer destination is this machine,
//! the tag names one of its pods, and the flow is in `FLOWS` or `FLOWS_DATAGRAM` under the client's own port. A packet with a
//! note needs no table but that of backends.
//!
//! A note expires after a second, and when the tables of services, pods, addresses or edges change
//! ([`Config::notes_generation`](crate::abi::Config::notes_generation)). A packet that may begin or end the flow does not use
//! notes. Only packets without IP options, extension headers and fragmentation have them.

use crate::{
    abi::{Backend, Config, DeliveryKey, DeliveryKeys, Tag},
    family::Family,
    frame::Frame,
    parse::{self, TcpFlags},
    stage::Stage,
    verdict::{Decap, Delivery, Verdict},
    wire::{
        ethernet,
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp},
    },
    words::{join_u16, words},
    world::World,
};

/// Delivers a frame of [`Stage::Receive`], or leaves it for [`Stage::Decap`], with the key of the note that is missing.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    match find(frame, tables) {
        Ok(delivery) => Verdict::Deliver(delivery),
        Err(note_key) => {
            note_key.hand_over(tables);
            Verdict::Continue(Stage::Decap)
        }
    }
}

/// First byte of an IPv4 header without options.
const PLAIN_V4: u8 = 0x45;

/// Finds the delivery of a packet.
///
/// # Errors
///
/// Returns the key of its note if there is none yet.
#[inline(always)]
fn find<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Result<Delivery<'t>, DeliveryKey> {
    let Some(config) = tables.config() else {
        return Err(DeliveryKey::NONE);
    };
    let Some(packet) = read(frame, &config.delivery_keys) else {
        return Err(DeliveryKey::NONE);
    };
    let now = tables.now();
    let key = packet.note_key(config, now);
    if !packet.flags.goes_on() {
        return Err(key);
    }
    let Some(note) = tables.noted_delivery(key, now) else {
        return Err(key);
    };
    match tables.backend(note.backend()) {
        Some(backend) if backend.is_own_pod() => {
            Ok(packet.delivery(note.service(), note.backend(), backend))
        }
        _ => Err(key),
    }
}

/// An IP header without options or extension headers, of a packet in one piece.
struct Header {
    family: Family,
    /// Offset in the frame.
    l3: usize,
    /// Offset of what follows.
    l4: usize,
    /// Length of the packet in bytes.
    length: usize,
    traffic_class: u8,
    protocol: u8,
    tag: Tag,
    /// Source and destination, IPv6 addresses folded.
    addresses: u64,
}

#[inline(always)]
fn header<F: Frame>(frame: &F, family: Family, l3: usize, keys: &DeliveryKeys) -> Option<Header> {
    match family {
        Family::V4 => {
            let header: &Ipv4 = frame.view(l3)?;
            let is_plain = header.version_ihl == PLAIN_V4 && !header.is_fragment();
            is_plain.then_some(Header {
                family,
                l3,
                l4: l3 + Ipv4::LENGTH,
                length: header.total_length(),
                traffic_class: header.tos,
                protocol: header.protocol,
                tag: Tag(u16::from_be_bytes(header.identification)),
                addresses: DeliveryKeys::addresses_v4(header.source, header.destination),
            })
        }
        Family::V6 => {
            let header: &Ipv6 = frame.view(l3)?;
            let [source, destination] = [header.source, header.destination].map(words);
            (header.version() == 6).then_some(Header {
                family,
                l3,
                l4: l3 + Ipv6::LENGTH,
                length: header.total_length(),
                traffic_class: header.traffic_class(),
                protocol: header.next_header,
                tag: Tag(header.label_tag()),
                addresses: keys.addresses_v6(source, destination),
            })
        }
    }
}

/// A client's packet in an edge's outer header.
struct Encapsulated {
    outer: Header,
    inner: Header,
    /// Both ports in wire order, the source's first.
    ports: u32,
    flags: TcpFlags,
}

#[inline(always)]
fn read<F: Frame>(frame: &F, keys: &DeliveryKeys) -> Option<Encapsulated> {
    let Ok(link) = parse::any_link(frame) else {
        return None;
    };
    let family = match link.ether_type {
        ethernet::IPV4 => Family::V4,
        _ => Family::V6,
    };
    // The program `guideway` has checked that the frame is long enough.
    let outer = header(frame, family, link.l3, keys)?;
    let family = match outer.protocol {
        protocol::IPV4 => Family::V4,
        protocol::IPV6 => Family::V6,
        _ => return None,
    };
    let inner = header(frame, family, outer.l4, keys)?;
    let transport = match inner.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => parse::transport_length(inner.protocol),
        _ => return None,
    };
    if inner.l3 + inner.length > outer.l3 + outer.length
        || inner.l4 + transport > inner.l3 + inner.length
    {
        return None;
    }
    let (ports, flags) = match inner.protocol {
        protocol::TCP => {
            let header: &Tcp = frame.view(inner.l4)?;
            (header.ports, TcpFlags(header.flags))
        }
        _ => (*frame.view::<Ports>(inner.l4)?, TcpFlags::default()),
    };
    Some(Encapsulated {
        outer,
        inner,
        ports: join_u16(ports.source, ports.destination),
        flags,
    })
}

impl Encapsulated {
    /// Returns the key of its note.
    #[inline(always)]
    fn note_key(&self, config: &Config, now: u64) -> DeliveryKey {
        let Self { outer, inner, .. } = self;
        let keys = &config.delivery_keys;
        let kind = u64::from(outer.tag.noted_bits()) << 16
            | u64::from(inner.protocol) << 8
            | outer.family.bit() << 1
            | inner.family.bit();
        let flow = keys.flow(inner.addresses, self.ports);
        keys.key(flow, outer.addresses, kind, config.notes_generation, now)
    }

    #[inline(always)]
    fn delivery<'t>(&self, service: u32, id: u32, backend: &'t Backend) -> Delivery<'t> {
        let Self { outer, inner, .. } = self;
        Delivery {
            service,
            id,
            backend,
            decap: Some(Decap {
                l3: outer.l3,
                inner_l3: inner.l3,
                inner_room: outer.l3 + outer.length - inner.l3,
                is_plain: true,
                inner: inner.family,
                outer_class: outer.traffic_class,
                tag: outer.tag,
            }),
            l3: inner.l3,
            l4: inner.l4,
            length: inner.length,
            family: inner.family,
            protocol: inner.protocol,
            flags: self.flags,
            is_later: false,
            ports: self.ports,
            note_key: DeliveryKey::NONE,
        }
    }
}
