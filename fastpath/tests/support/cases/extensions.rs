//! IPv4 options and IPv6 extension headers in front of the ports.

use xdp_prog::reason::{DropReason, ReplyReason};

use super::{
    super::packet::{IPV6, Packet, patched},
    BACK, CLIENT_V6, Case, IN, TCP, TO_NODE_V4, TO_NODE_V6, V4_IN_V6, V4_L2, V4_TCP, V4_UDP,
    V6_IN_V4, V6_L2, V6_TCP, V6_UDP, VIP_V6, case, reset_of_syn, sent_in_v4, sent_in_v6, tcp, udp,
};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const PAD: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];
/// Authentication header of 24 bytes: length 4 counts words beyond the first two.
const AUTH_24: [u8; 23] = [
    4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(options());
    cases.extend(followed());
    cases.extend(chains());
    cases.extend(not_followed());
    cases.extend(forged());
    cases
}

fn options() -> Vec<Case> {
    let mut cases = Vec::new();
    for words in 1..=10_usize {
        // Record route, padded with no-operations: bytes that could pass for ports.
        let mut options = vec![1; words * 4];
        options[0] = 7;
        options[1] = u8::try_from(words * 4).unwrap();
        let packet = tcp(V4_TCP.1).options(&options);
        cases.push(
            case(
                format!("tcp_behind_{words}_words_of_options"),
                IN.carry(&packet),
            )
            .transmits(V4_TCP.0, &packet, sent_in_v4(&packet)),
        );
    }
    let option = [0x94, 4, 0, 0];
    let (datagram, six, l2) = (
        udp(V4_UDP.1).options(&option),
        tcp(V4_IN_V6.1).options(&option),
        tcp(V4_L2.1).options(&[1; 40]),
    );
    cases.extend([
        case("udp_behind_options", IN.carry(&datagram)).transmits(
            V4_UDP.0,
            &datagram,
            sent_in_v4(&datagram),
        ),
        case("options_go_in_v6", IN.carry(&six)).transmits(V4_IN_V6.0, &six, sent_in_v6(&six)),
        case("options_by_l2dsr", IN.carry(&l2)).transmits(
            V4_L2.0,
            &l2,
            TO_NODE_V4.carry(&l2.next_hop()),
        ),
        // At the fixed offset lie the ports of a service, behind the options others.
        case("ports_are_not_read_from_options", {
            IN.carry(&tcp((super::VIP_V4, 81)).options(&[0x9c, 0x40, 0, 80]))
        })
        .replies(ReplyReason::Reset, {
            BACK.carry(&reset_of_syn((super::VIP_V4, 81), 18))
        }),
    ]);
    cases
}

fn followed() -> Vec<Case> {
    let mut cases = Vec::new();
    let long = [&[31], &[0; 254][..]].concat();
    for (name, header) in [
        ("hop_by_hop", (HOP_BY_HOP, &PAD[..])),
        (
            "routing_without_segments_left",
            (ROUTING, &[0, 4, 0, 0, 0, 0, 0]),
        ),
        ("authentication_of_24_bytes", (AUTHENTICATION, &AUTH_24)),
        ("destination_options", (DESTINATION, &PAD)),
        ("destination_options_of_256_bytes", (DESTINATION, &long)),
        ("mobility", (MOBILITY, &PAD)),
    ] {
        for (protocol, service, packet) in [
            ("tcp", V6_TCP, tcp(V6_TCP.1)),
            ("udp", V6_UDP, udp(V6_UDP.1)),
        ] {
            let packet = packet.extensions(&[header]);
            cases.push(
                case(format!("{protocol}_behind_{name}"), IN.carry(&packet)).transmits(
                    service.0,
                    &packet,
                    sent_in_v6(&packet),
                ),
            );
        }
    }
    let in_v4 = tcp(V6_IN_V4.1).extensions(&[(HOP_BY_HOP, &PAD)]);
    let l2 = tcp(V6_L2.1).extensions(&[(DESTINATION, &PAD)]);
    cases.extend([
        case("extension_header_goes_in_v4", IN.carry(&in_v4)).transmits(
            V6_IN_V4.0,
            &in_v4,
            sent_in_v4(&in_v4),
        ),
        case("extension_header_by_l2dsr", IN.carry(&l2)).transmits(
            V6_L2.0,
            &l2,
            TO_NODE_V6.carry(&l2.next_hop()),
        ),
        case("icmpv6_behind_hop_by_hop_drops", {
            IN.carry(&Packet::echo(CLIENT_V6, VIP_V6).extensions(&[(HOP_BY_HOP, &PAD)]))
        })
        .drops(DropReason::IcmpOptions),
    ]);
    cases
}

/// Four headers are followed, a fifth is not.
fn chains() -> Vec<Case> {
    let chain: [(u8, &[u8]); 5] = [
        (HOP_BY_HOP, &PAD),
        (DESTINATION, &PAD),
        (ROUTING, &[0, 4, 0, 0, 0, 0, 0]),
        (AUTHENTICATION, &AUTH_24),
        (DESTINATION, &PAD),
    ];
    let mut cases: Vec<_> = (2..=4)
        .map(|length| {
            let packet = tcp(V6_TCP.1).extensions(&chain[..length]);
            case(
                format!("tcp_behind_{length}_extension_headers"),
                IN.carry(&packet),
            )
            .transmits(V6_TCP.0, &packet, sent_in_v6(&packet))
        })
        .collect();
    cases.extend((5..=6).map(|length| {
        let chain: Vec<_> = chain.into_iter().cycle().take(length).collect();
        case(
            format!("tcp_behind_{length}_extension_headers_drops"),
            IN.carry(&tcp(V6_TCP.1).extensions(&chain)),
        )
        .drops(DropReason::VipHeaders)
    }));
    cases
}

fn not_followed() -> Vec<Case> {
    let routing = |kind: u8, left: u8| {
        let header = [0, kind, left, 0, 0, 0, 0];
        IN.carry(&tcp(V6_TCP.1).extensions(&[(ROUTING, &header)]))
    };
    let ports = &tcp(V6_TCP.1).bytes()[40..];
    vec![
        case(
            "routing_header_type_0_with_a_segment_left_drops",
            routing(0, 1),
        )
        .drops(DropReason::VipHeaders),
        case(
            "routing_header_type_4_with_segments_left_drops",
            routing(4, 255),
        )
        .drops(DropReason::VipHeaders),
        case("routing_header_behind_others_drops", {
            let chain: [(u8, &[u8]); 3] = [
                (HOP_BY_HOP, &PAD),
                (DESTINATION, &PAD),
                (ROUTING, &[0, 2, 1, 0, 0, 0, 0]),
            ];
            IN.carry(&tcp(V6_TCP.1).extensions(&chain))
        })
        .drops(DropReason::VipHeaders),
        case("esp_behind_an_extension_header_drops", {
            let packet = Packet::ip(CLIENT_V6, VIP_V6, 50, ports);
            IN.carry(&packet.extensions(&[(DESTINATION, &PAD)]))
        })
        .drops(DropReason::VipProtocol),
        case("host_identity_is_not_followed", {
            let packet = Packet::ip(CLIENT_V6, VIP_V6, TCP, ports);
            IN.carry(&packet.extensions(&[(139, &PAD)]))
        })
        .drops(DropReason::VipProtocol),
        case("experimental_header_is_not_followed", {
            let packet = Packet::ip(CLIENT_V6, VIP_V6, TCP, ports);
            IN.carry(&packet.extensions(&[(253, &PAD)]))
        })
        .drops(DropReason::VipProtocol),
        case("nothing_behind_an_extension_header_drops", {
            let packet = Packet::ip(CLIENT_V6, VIP_V6, 59, &[]);
            IN.carry(&packet.extensions(&[(DESTINATION, &PAD)]))
        })
        .drops(DropReason::VipProtocol),
    ]
}

/// Extension headers that reach beyond the packet.
fn forged() -> Vec<Case> {
    let packet = tcp(V6_TCP.1).extensions(&[(DESTINATION, &PAD)]);
    let stretched = |units: u8| patched(packet.bytes(), 41, &[units]);
    let payload = |bytes: usize| {
        let forged = u16::try_from(bytes).unwrap().to_be_bytes();
        IN.frame(IPV6, &patched(packet.bytes(), 4, &forged))
    };
    let padded = |mut frame: Vec<u8>| {
        frame.resize(frame.len() + 2100, 0);
        frame
    };
    let exact = Packet::ip(
        CLIENT_V6,
        VIP_V6,
        DESTINATION,
        &[TCP, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    vec![
        case(
            "options_beyond_the_frame_are_malformed",
            IN.frame(IPV6, &stretched(255)),
        )
        .drops(DropReason::VipHeaders),
        case("options_beyond_the_packet_are_malformed", {
            padded(IN.frame(IPV6, &stretched(255)))
        })
        .drops(DropReason::VipHeaders),
        case(
            "options_up_to_the_packets_end_leave_no_transport",
            IN.carry(&exact),
        )
        .drops(DropReason::VipTransport),
        case(
            "options_that_swallow_the_ports_leave_no_transport",
            IN.frame(IPV6, &stretched(4)),
        )
        .drops(DropReason::VipTransport),
        case("payload_that_ends_inside_an_extension_header", payload(7))
            .drops(DropReason::VipHeaders),
        case("payload_that_ends_behind_an_extension_header", payload(8))
            .drops(DropReason::VipTransport),
        case("frame_that_ends_inside_an_extension_header", {
            let short = Packet::ip(CLIENT_V6, VIP_V6, HOP_BY_HOP, &[TCP, 0, 1, 4, 0, 0, 0]);
            IN.carry(&short)
        })
        .drops(DropReason::VipHeaders),
        case("frame_that_ends_before_an_extension_header", {
            IN.carry(&Packet::ip(CLIENT_V6, VIP_V6, HOP_BY_HOP, &[]))
        })
        .drops(DropReason::VipHeaders),
        case("second_header_beyond_the_frame", {
            let first = [&[DESTINATION], &PAD[..]].concat();
            IN.carry(&Packet::ip(CLIENT_V6, VIP_V6, HOP_BY_HOP, &first))
        })
        .drops(DropReason::VipHeaders),
        case("shortest_authentication_header_is_eight_bytes", {
            let packet = tcp(V6_TCP.1).extensions(&[(AUTHENTICATION, &[0; 7])]);
            IN.carry(&packet)
        })
        .transmits(
            V6_TCP.0,
            &tcp(V6_TCP.1).extensions(&[(AUTHENTICATION, &[0; 7])]),
            sent_in_v6(&tcp(V6_TCP.1).extensions(&[(AUTHENTICATION, &[0; 7])])),
        ),
        case("longest_authentication_header_beyond_the_packet", {
            let packet = tcp(V6_TCP.1).extensions(&[(AUTHENTICATION, &[255, 0, 0, 0, 0, 0, 0])]);
            IN.carry(&packet)
        })
        .drops(DropReason::VipHeaders),
        case("chain_of_zero_bytes_is_a_chain_of_hop_by_hop", {
            let zeros = [0; 64];
            IN.carry(&Packet::ip(CLIENT_V6, VIP_V6, HOP_BY_HOP, &zeros))
        })
        .drops(DropReason::VipHeaders),
        case("empty_packet_with_padding_behind_it", {
            padded(IN.carry(&Packet::ip(CLIENT_V6, VIP_V6, TCP, &[])))
        })
        .drops(DropReason::VipTransport),
    ]
}
