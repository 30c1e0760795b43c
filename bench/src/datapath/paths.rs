//! The frames of the paths other than the plain one.
//!
//! ```text
//! node       edge -> node, within it: client -> VIP     becomes client -> pod, to the stack
//! reply      pod -> client                              becomes VIP -> client
//! nat        client -> VIP                              becomes edge -> backend
//! nat_reply  backend -> edge                            becomes VIP -> client
//! retry      node -> edge, within it: client -> VIP     becomes edge -> next node, the same within it
//! ```
//!
//! The flows are the same on all paths. Flow `n` differs from the others in the low bits of one address and in
//! one port, as [`client`] says.

use std::{mem::offset_of, net::IpAddr};

use xdp_prog::{
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
    System,
    frames::{self, Family, PORT, Protocol},
    past,
    tables::{self, CaseAddresses, TARGET_PORT},
};

/// The fields that differ from flow to flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Varying {
    /// Source address and port.
    Source,
    /// Destination address and port.
    Destination,
    /// Source address and destination port.
    Across,
}

/// Returns the frames of a system that is not on the plain path.
pub(super) fn pattern(system: System, family: Family, protocol: Protocol) -> Option<Pattern> {
    let CaseAddresses {
        client: client_address,
        edge,
        here,
        pod,
        backend,
        stranger,
        unknown_client,
        ..
    } = tables::addresses(family);
    let (_, port) = client(0);
    let from_client = |to| ((client_address, port), to, Varying::Source);
    let to_client = |from| (from, (client_address, port), Varying::Destination);
    let (source, destination, varying) = match system {
        System::Floor | System::Static | System::Hit | System::Guideway | System::Slots => {
            return None;
        }
        System::NodeReturn => {
            let service = tables::service(system, family, protocol)?;
            let to = (service.address, service.port);
            ((unknown_client, port), to, Varying::Source)
        }
        System::Pass
        | System::Node
        | System::NodeTries
        | System::NodeFirst
        | System::NodeAsked
        | System::Nat
        | System::Services
        | System::NodePort
        | System::L2Dsr
        | System::Past
        | System::Pinned
        | System::Retry => {
            let service = tables::service(system, family, protocol)?;
            from_client((service.address, service.port))
        }
        System::Miss => from_client((stranger, PORT)),
        System::PassSkb | System::Reply => to_client((pod, TARGET_PORT)),
        System::OtherEgress => to_client((stranger, PORT)),
        System::NatReply => ((backend, TARGET_PORT), (here, port), Varying::Across),
    };
    // The outer header's source and tag.
    let within = match system {
        System::Pass | System::Node | System::NodeFirst => Some((edge, tables::pod_tag(pod))),
        System::NodeTries | System::NodeAsked | System::NodeReturn => {
            Some((edge, past::with_tries(tables::pod_tag(pod))))
        }
        System::Retry => {
            let (node, pod) = past::owner_of_retries(family)?;
            Some((node, past::with_tries(tables::pod_tag(pod)).returned()))
        }
        _ => None,
    };
    let outer = within.map_or(0, |_| family.header_length());
    let l3 = Ethernet::LENGTH + outer;
    let l4 = l3 + family.header_length();
    let mut frame = frames::ethernet_header(frames::MACS_OUT, family);
    if let Some((source, tag)) = within {
        let (number, tag_at) = match family {
            Family::V4 => (protocol::IPV4, offset_of!(Ipv4, identification)),
            Family::V6 => (protocol::IPV6, offset_of!(Ipv6, class_label) + 2),
        };
        let mut header = ip_header(number, PATTERN_LENGTH - l3, source, here);
        header[tag_at..tag_at + 2].copy_from_slice(&tag.0.to_be_bytes());
        frame.append(&mut header);
    }
    let payload = PATTERN_LENGTH - l4;
    frame.append(&mut ip_header(
        protocol.number(),
        payload,
        source.0,
        destination.0,
    ));
    frame.append(&mut transport(protocol, source.1, destination.1, payload));

    // Only the last four bytes of an address differ.
    let (source_at, length) = match family {
        Family::V4 => (l3 + offset_of!(Ipv4, source), 4),
        Family::V6 => (l3 + offset_of!(Ipv6, source) + 12, 16),
    };
    let destination_at = source_at + length;
    let (address_at, service_at) = match varying {
        Varying::Source | Varying::Across => (source_at, destination_at),
        Varying::Destination => (destination_at, source_at),
    };
    let port_at = match varying {
        Varying::Source => l4 + offset_of!(Ports, source),
        Varying::Destination | Varying::Across => l4 + offset_of!(Ports, destination),
    };
    let bytes: [u8; PATTERN_LENGTH] = frame.try_into().ok()?;
    let low_bits = |at: usize| Some(u32::from_be_bytes(*bytes[at..].first_chunk()?));
    #[expect(clippy::cast_possible_truncation, reason = "offsets below 120")]
    Some(Pattern {
        bytes,
        address: low_bits(address_at)?,
        address_at: address_at as u32,
        port_at: port_at as u32,
        service: low_bits(service_at)?,
        service_at: service_at as u32,
        services: match system {
            System::Services => tables::SERVICES,
            _ => 1,
        },
    })
}

pub(super) fn ip_header(
    number: u8,
    payload: usize,
    source: IpAddr,
    destination: IpAddr,
) -> Vec<u8> {
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

/// Returns a segment with a nonzero checksum. In UDP, zero would mean that there is none.
fn transport(protocol: Protocol, source: u16, destination: u16, length: usize) -> Vec<u8> {
    let mut segment = frames::transport(protocol, source, destination);
    segment.resize(length, 0);
    match protocol {
        Protocol::Udp => {
            segment[4..6].copy_from_slice(&frames::length_field(length));
            segment[offset_of!(Udp, checksum)] = 1;
        }
        Protocol::Tcp => segment[offset_of!(Tcp, checksum)] = 1,
    }
    segment
}
