//! Traffic that is none of our business reaches the stack as it came; but at a VIP all is ours.

use std::net::IpAddr;

use xdp_prog::reason::{DropReason, PassReason};

use super::{
    super::packet::{IPV4, IPV6, Link, Packet},
    CLIENT_V4, CLIENT_V6, Case, EDGE_V4, IN, TCP, V4_TCP, V4_UDP, V6_TCP, V6_UDP, VIP_V4, VIP_V6,
    case, tcp, udp, v4, v6,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(other_ether_types());
    cases.extend(group_addresses());
    cases.extend(other_protocols());
    cases.extend(icmp());
    cases.extend(no_service());
    cases
}

fn other_ether_types() -> impl Iterator<Item = Case> {
    // The payload would be a packet for a service, were it looked at.
    let packet = tcp(V4_TCP.1).bytes();
    [
        ("arp", 0x0806),
        ("rarp", 0x8035),
        ("lldp", 0x88cc),
        ("mpls", 0x8847),
        ("pppoe_session", 0x8864),
        ("pause", 0x8808),
        ("macsec", 0x88e5),
        ("old_double_vlan", 0x9100),
        ("llc_length", 0x0026),
        ("swapped_ipv4", 0x0008),
        ("swapped_ipv6", 0xdd86),
    ]
    .into_iter()
    .map(move |(name, ether_type)| {
        case(
            format!("ether_type_{name}_is_not_ip"),
            IN.frame(ether_type, &packet),
        )
        .passes(PassReason::NotIp)
    })
}

fn group_addresses() -> impl Iterator<Item = Case> {
    [
        ("broadcast", [0xff; 6]),
        ("multicast_v4", [0x01, 0x00, 0x5e, 0, 0, 1]),
        ("multicast_v6", [0x33, 0x33, 0, 0, 0, 1]),
        ("lldp_bridge", [0x01, 0x80, 0xc2, 0, 0, 0x0e]),
    ]
    .into_iter()
    .flat_map(|(name, destination)| {
        let link = Link { destination, ..IN };
        [("v4", tcp(V4_TCP.1)), ("v6", tcp(V6_TCP.1))].map(|(family, packet)| {
            case(
                format!("{name}_mac_with_packet_for_{family}_service_passes"),
                link.carry(&packet),
            )
            .passes(PassReason::GroupAddress)
        })
    })
}

fn other_protocols() -> impl Iterator<Item = Case> {
    // What follows the IP header looks like ports of a service.
    let ports = |to: u16| [&40_000_u16.to_be_bytes()[..], &to.to_be_bytes(), &[0; 28]].concat();
    [
        ("igmp", 2),
        ("egp", 8),
        ("dccp", 33),
        ("rsvp", 46),
        ("gre", 47),
        ("esp", 50),
        ("no_next_header", 59),
        ("ospf", 89),
        ("pim", 103),
        ("vrrp", 112),
        ("udplite", 136),
        ("reserved", 255),
    ]
    .into_iter()
    .flat_map(move |(name, protocol)| {
        [
            ("v4", CLIENT_V4, VIP_V4, V4_TCP.1.1),
            ("v6", CLIENT_V6, VIP_V6, V6_TCP.1.1),
        ]
        .map(|(family, client, vip, port)| {
            let packet = Packet::ip(client, vip, protocol, &ports(port));
            case(
                format!("{name}_over_{family}_to_vip_drops"),
                IN.carry(&packet),
            )
            .drops(DropReason::VipProtocol)
        })
    })
    // In IPv4 these numbers announce no extension headers.
    .chain(
        [
            ("hop_by_hop", 0),
            ("routing", 43),
            ("fragment", 44),
            ("authentication", 51),
            ("destination_options", 60),
            ("mobility", 135),
        ]
        .map(|(name, protocol)| {
            let inside = [&[TCP, 0, 0, 0, 0, 0, 0, 0], &ports(V4_TCP.1.1)[..]].concat();
            let packet = Packet::ip(CLIENT_V4, VIP_V4, protocol, &inside);
            case(
                format!("{name}_number_in_ipv4_is_not_followed"),
                IN.carry(&packet),
            )
            .drops(DropReason::VipProtocol)
        }),
    )
}

fn icmp() -> Vec<Case> {
    let message = [3, 4, 0, 0, 0, 0, 5, 0x78];
    let to_this_machine = IN.carry(&Packet::echo(CLIENT_V4, EDGE_V4));
    let of_v6 = IN.carry(&Packet::ip(CLIENT_V4, VIP_V4, 58, &message));
    let of_v4 = IN.carry(&Packet::ip(CLIENT_V6, VIP_V6, 1, &message));
    vec![
        case("echo_to_v4_address_of_this_machine_passes", to_this_machine).passes(PassReason::Icmp),
        case("icmpv6_number_in_ipv4_to_vip_drops", of_v6).drops(DropReason::VipIcmp),
        case("icmp_number_in_ipv6_to_vip_drops", of_v4).drops(DropReason::VipIcmp),
    ]
}

fn no_service() -> Vec<Case> {
    let other_bit = |address: IpAddr, byte: usize| match address {
        IpAddr::V4(address) => {
            let mut octets = address.octets();
            octets[byte] ^= 1;
            IpAddr::from(octets)
        }
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[byte] ^= 1;
            IpAddr::from(octets)
        }
    };
    let mut cases: Vec<_> = [
        ("tcp_to_address_of_this_machine", tcp((EDGE_V4, 80))),
        ("tcp_to_unknown_v4_address", tcp((v4(203, 0, 113, 99), 80))),
        ("tcp_to_unknown_v6_address", tcp((v6(0xf, 99), 80))),
        (
            "v4_reply_from_a_service",
            Packet::tcp(V4_TCP.1, (CLIENT_V4, 40_000), b"200"),
        ),
        (
            "v6_reply_from_a_service",
            Packet::tcp(V6_TCP.1, (CLIENT_V6, 40_000), b"200"),
        ),
    ]
    .into_iter()
    .map(|(name, packet)| {
        case(format!("{name}_passes"), IN.carry(&packet)).passes(PassReason::NoService)
    })
    .collect();
    for byte in 0..4 {
        let packet = tcp((other_bit(VIP_V4, byte), 80));
        cases.push(
            case(
                format!("v4_address_that_differs_in_byte_{byte}_passes"),
                IN.carry(&packet),
            )
            .passes(PassReason::NoService),
        );
    }
    for byte in 0..16 {
        let packet = tcp((other_bit(VIP_V6, byte), 80));
        cases.push(
            case(
                format!("v6_address_that_differs_in_byte_{byte}_passes"),
                IN.carry(&packet),
            )
            .passes(PassReason::NoService),
        );
    }
    let empty = |tables: &mut _| *tables = Default::default();
    for (name, packet) in [
        ("v4_tcp", tcp(V4_TCP.1)),
        ("v4_udp", udp(V4_UDP.1)),
        ("v6_tcp", tcp(V6_TCP.1)),
        ("v6_udp", udp(V6_UDP.1)),
    ] {
        let draft = case(
            format!("{name}_passes_with_empty_tables"),
            IN.carry(&packet),
        );
        cases.push(draft.with(empty).passes(PassReason::NoService));
    }
    for (name, ether_type, packet) in [
        ("v6_packet_announced_as_v4", IPV4, tcp(V6_TCP.1)),
        ("v4_packet_announced_as_v6", IPV6, tcp(V4_TCP.1)),
    ] {
        let draft = case(
            format!("{name}_passes"),
            IN.frame(ether_type, &packet.bytes()),
        );
        cases.push(draft.passes(PassReason::MalformedIp));
    }
    cases
}
