//! The ways beside the plain one: their frames, and what the tables know of their flows.
//!
//! ```text
//! node       edge -> node, within it: client -> VIP     becomes client -> pod, to the stack
//! reply      pod -> client                              becomes VIP -> client
//! nat        client -> VIP                              becomes edge -> backend
//! nat_reply  backend -> edge                            becomes VIP -> client
//! ```
//!
//! A flow is the same one in all of them: number `n` differs from the others in the low bits of one
//! address and in one port, by [`client`].

use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::Result;
use aya::{
    Ebpf,
    maps::{
        HashMap,
        lpm_trie::{Key, LpmTrie},
    },
};
use fastpath::clock::monotonic_ns;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, AddressKey, BACKEND_LOCAL, BACKEND_NAT, BACKEND_POD, BACKEND_V4, BACKEND_V6,
        Backend, Config, EdgePrefix, NAT_ANSWERED, NAT_OPEN, NatForward, NatLink, NatMark,
        NatReverse, Pod, PodFlow, PodKey, SERVICE_NAT, SERVICE_PODS, Tag, Tuple, map,
    },
    bench::{PATTERN_LENGTH, Pattern, client},
    wire::{
        ethernet::Ethernet,
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp, Udp},
    },
};

use super::{
    Case, System,
    frames::{self, EDGE_V4, EDGE_V6, Family, PORT, Protocol},
    tables,
};

/// The port of the service whose backends are pods.
const POD_SERVICE_PORT: u16 = 81;
/// The port of the service of NAT mode.
const NAT_SERVICE_PORT: u16 = 82;
/// The port that pods and backends of NAT mode listen on.
const TARGET_PORT: u16 = 8080;
/// First of NAT mode's ports, and their number: those of [`client`].
const NAT_PORTS: (u16, u16) = (32_768, 64);
/// Edges that a node trusts.
const EDGES: u8 = 64;
/// Backends of NAT mode: one for all flows that share a port.
const NAT_BACKENDS: u32 = 160;

/// Number of flows that a table must know at most.
pub(super) const MOST_FLOWS: u32 = 10_000;

/// Addresses of one family.
struct Addresses {
    vip: IpAddr,
    /// The client of the first flow.
    client: IpAddr,
    /// The edge that sends to this node.
    edge: IpAddr,
    /// This machine.
    here: IpAddr,
    pod: IpAddr,
    /// The backend of NAT mode that has the first flow.
    backend: IpAddr,
}

fn addresses(family: Family) -> Addresses {
    match family {
        Family::V4 => Addresses {
            vip: frames::VIP_V4.into(),
            client: frames::CLIENT_V4.into(),
            edge: frames::backend_v4(EDGES - 1).into(),
            here: EDGE_V4.into(),
            pod: Ipv4Addr::new(172, 16, 0, 1).into(),
            backend: Ipv4Addr::new(172, 17, 0, 0).into(),
        },
        Family::V6 => Addresses {
            vip: frames::VIP_V6.into(),
            client: frames::CLIENT_V6.into(),
            edge: frames::backend_v6(EDGES - 1).into(),
            here: EDGE_V6.into(),
            pod: Ipv6Addr::new(0x2001, 0xdb8, 4, 0, 0, 0, 0, 1).into(),
            backend: Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 0).into(),
        },
    }
}

/// Returns the frames of a system off the plain way.
pub(super) fn pattern(system: System, family: Family, protocol: Protocol) -> Option<Pattern> {
    let known = addresses(family);
    let (_, port) = client(0);
    let to_vip = |to| ((known.client, port), (known.vip, to));
    // What differs between the flows: the address of the source or the destination, and either port.
    let (ends, by_source, by_source_port) = match system {
        System::Pass | System::Node => (to_vip(POD_SERVICE_PORT), true, true),
        System::Nat => (to_vip(NAT_SERVICE_PORT), true, true),
        System::PassSkb | System::Reply => (
            ((known.pod, TARGET_PORT), (known.client, port)),
            false,
            false,
        ),
        System::NatReply => (
            ((known.backend, TARGET_PORT), (known.here, port)),
            true,
            false,
        ),
        System::Floor | System::Static | System::Hit | System::Guideway => return None,
    };
    let is_within = matches!(system, System::Pass | System::Node);
    let outer = if is_within { family.header_length() } else { 0 };
    let l3 = Ethernet::LENGTH + outer;
    let l4 = l3 + family.header_length();
    let mut frame = frames::ethernet_header(frames::MACS_OUT, family);
    if is_within {
        let (number, tag) = match family {
            Family::V4 => (protocol::IPV4, offset_of!(Ipv4, identification)),
            Family::V6 => (protocol::IPV6, offset_of!(Ipv6, class_label) + 2),
        };
        let mut header = ip_header(number, PATTERN_LENGTH - l3, known.edge, known.here);
        header[tag..tag + 2].copy_from_slice(&pod_tag(known.pod).0.to_be_bytes());
        frame.append(&mut header);
    }
    let ((source, source_port), (destination, destination_port)) = ends;
    let payload = PATTERN_LENGTH - l4;
    frame.append(&mut ip_header(
        protocol.number(),
        payload,
        source,
        destination,
    ));
    frame.append(&mut transport(
        protocol,
        source_port,
        destination_port,
        payload,
    ));

    let (source_at, length) = match family {
        Family::V4 => (l3 + offset_of!(Ipv4, addresses), 4),
        Family::V6 => (l3 + offset_of!(Ipv6, source), 16),
    };
    let end = source_at + if by_source { length } else { 2 * length };
    let port_at = if by_source_port {
        l4 + offset_of!(Ports, source)
    } else {
        l4 + offset_of!(Ports, destination)
    };
    let mut bytes = [0; PATTERN_LENGTH];
    bytes.copy_from_slice(&frame);
    let [.., a, b, c, d] = bytes[..end] else {
        return None;
    };
    #[expect(clippy::cast_possible_truncation, reason = "offsets below 120")]
    Some(Pattern {
        bytes,
        address: u32::from_be_bytes([a, b, c, d]),
        address_at: (end - 4) as u32,
        port_at: port_at as u32,
        reserved: 0,
    })
}

fn ip_header(number: u8, payload: usize, source: IpAddr, destination: IpAddr) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            frames::ipv4_header(number, Ipv4::LENGTH + payload, source, destination)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            frames::ipv6_header(number, payload, source, destination)
        }
        _ => unreachable!("both ends are of one family"),
    }
}

/// A segment with a checksum that is any but zero, which would mean that there is none.
fn transport(protocol: Protocol, source: u16, destination: u16, length: usize) -> Vec<u8> {
    let mut segment = frames::transport(protocol);
    segment.resize(length, 0);
    segment[..2].copy_from_slice(&source.to_be_bytes());
    segment[2..4].copy_from_slice(&destination.to_be_bytes());
    match protocol {
        Protocol::Udp => {
            segment[4..6].copy_from_slice(&frames::length_field(length));
            segment[offset_of!(Udp, checksum)] = 1;
        }
        Protocol::Tcp => segment[offset_of!(Tcp, checksum)] = 1,
    }
    segment
}

/// Fills everything that does not depend on the flows.
pub(super) fn fill(product: &mut Ebpf) -> Result<()> {
    let config = Config {
        nat_port: NAT_PORTS.0,
        nat_ports: NAT_PORTS.1,
        index_seed: tables::INDEX_SEED,
        index_mask: tables::BUCKETS - 1,
        ..Config::default()
    };
    tables::array(product, map::CONFIG)?.set(0, config, 0)?;
    let mut services = Vec::new();
    for family in Family::ALL {
        let known = addresses(family);
        let mut vips: HashMap<_, AddressKey, u32> =
            HashMap::try_from(tables::map_mut(product, map::VIPS)?)?;
        vips.insert(key(known.here), ADDRESS_LOCAL, 0)?;
        fill_edges(product, family)?;
        fill_backends(product, family)?;
        for protocol in Protocol::ALL {
            let pods = service_id(System::Node, family, protocol);
            tables::set_service(
                product,
                family,
                protocol,
                POD_SERVICE_PORT,
                pods,
                SERVICE_PODS,
            )?;
            let nat = service_id(System::Nat, family, protocol);
            tables::set_service(
                product,
                family,
                protocol,
                NAT_SERVICE_PORT,
                nat,
                SERVICE_NAT,
            )?;
            let mut table: HashMap<_, PodKey, Pod> =
                HashMap::try_from(tables::map_mut(product, map::PODS)?)?;
            let pod = PodKey::new(pods, pod_tag(known.pod));
            table.insert(pod, Pod::new(pod, pod_id(family)), 0)?;
            for (port, id) in [
                (PORT, tables::service_id(family, protocol)),
                (POD_SERVICE_PORT, pods),
                (NAT_SERVICE_PORT, nat),
            ] {
                services.push((tables::index_key(family, protocol, port), id));
            }
        }
    }
    tables::fill_index(product, &services)
}

fn fill_edges(product: &mut Ebpf, family: Family) -> Result<()> {
    let mut edges: LpmTrie<_, EdgePrefix, u32> =
        LpmTrie::try_from(tables::map_mut(product, map::TRUSTED_EDGES)?)?;
    for index in 0..EDGES {
        let edge = match family {
            Family::V4 => frames::backend_v4(index).into(),
            Family::V6 => frames::backend_v6(index).into(),
        };
        let prefix = Key::new(EdgePrefix::HOST_BITS, EdgePrefix::new(key(edge)));
        edges.insert(&prefix, 1, 0)?;
    }
    Ok(())
}

fn fill_backends(product: &mut Ebpf, family: Family) -> Result<()> {
    let known = addresses(family);
    let flag = match family {
        Family::V4 => BACKEND_V4,
        Family::V6 => BACKEND_V6,
    };
    let pod = Backend {
        flags: flag | BACKEND_LOCAL | BACKEND_POD,
        pod: key(known.pod),
        port: TARGET_PORT.to_be_bytes(),
        tag: pod_tag(known.pod).0,
        ..Backend::default()
    };
    tables::array(product, map::BACKENDS)?.set(pod_id(family), pod, 0)?;
    for index in 0..NAT_BACKENDS {
        let backend = Backend {
            next_hop: tables::first_backend(family),
            flags: flag | BACKEND_NAT,
            pod: key(plus(known.backend, index)),
            port: TARGET_PORT.to_be_bytes(),
            ..Backend::default()
        };
        tables::array(product, map::BACKENDS)?.set(nat_id(family, index), backend, 0)?;
    }
    Ok(())
}

/// Makes the flows known, as if each had been used just now.
pub(super) fn fill_flows(product: &mut Ebpf, case: Case, device: u32) -> Result<()> {
    let Case {
        family, protocol, ..
    } = case;
    let known = addresses(family);
    let number = protocol.number();
    let now = monotonic_ns();
    let outer = u8::try_from(family.header_length())?;
    let vip = key(known.vip);
    let (answered, told) = match protocol {
        Protocol::Udp => (map::FLOWS_DATAGRAM, NAT_OPEN | NAT_ANSWERED),
        Protocol::Tcp => (map::FLOWS, NAT_OPEN),
    };
    let mark = NatMark::new(now, told);
    let link = link();
    for flow in 0..MOST_FLOWS {
        let (bits, port) = client(flow);
        let from = key(plus(known.client, bits));
        let port = port.to_be_bytes();
        let target = TARGET_PORT.to_be_bytes();
        let mut flows: HashMap<_, Tuple, PodFlow> =
            HashMap::try_from(tables::map_mut(product, answered)?)?;
        let tuple = Tuple::new(from, key(known.pod), port, target, number);
        let to_pod = PodFlow::new(&tuple, vip, POD_SERVICE_PORT.to_be_bytes(), outer, 0, now);
        flows.insert(tuple, to_pod, 0)?;

        let service = NAT_SERVICE_PORT.to_be_bytes();
        let forward = Tuple::new(from, vip, port, service, number);
        let backend = key(plus(known.backend, bits));
        let reverse = Tuple::new(backend, key(known.here), target, port, number);
        let fingerprint = link.fingerprint(device);
        let id = nat_id(family, bits);
        let entry = NatForward::new(&forward, &reverse, id, fingerprint, mark);
        let mut table: HashMap<_, Tuple, NatForward> =
            HashMap::try_from(tables::map_mut(product, map::NAT_FORWARD)?)?;
        table.insert(forward, entry, 0)?;
        let entry = NatReverse::new(&reverse, &forward, device, link.with_mtu(1500), mark);
        let mut table: HashMap<_, Tuple, NatReverse> =
            HashMap::try_from(tables::map_mut(product, map::NAT_REVERSE)?)?;
        table.insert(reverse, entry, 0)?;
    }
    Ok(())
}

/// How frames to the client begin.
fn link() -> NatLink {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = frames::MACS_OUT;
    NatLink::new([g, h, i, j, k, l, a, b, c, d, e, f], [0; 2], 0)
}

/// Returns the id of a service that is not on the plain way.
pub(super) const fn service_id(system: System, family: Family, protocol: Protocol) -> u32 {
    let block = if matches!(system, System::Nat) { 8 } else { 4 };
    block + tables::service_id(family, protocol)
}

const fn pod_id(family: Family) -> u32 {
    301 + family as u32
}

const fn nat_id(family: Family, index: u32) -> u32 {
    401 + family as u32 * NAT_BACKENDS + index
}

fn pod_tag(pod: IpAddr) -> Tag {
    Tag::pod(key(pod))
}

/// Adds to the low bits of an address.
fn plus(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() + bits).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() + u128::from(bits)).into(),
    }
}

fn key(address: IpAddr) -> AddressKey {
    match address {
        IpAddr::V4(address) => AddressKey::v4(address.octets()),
        IpAddr::V6(address) => AddressKey::v6(address.octets()),
    }
}
