//! Frames that XDP answers itself: too large, expired, or nobody's.

use etherparse::TcpHeader;
use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, ADDRESS_VIP, CONFIG_NODE, EdgeMac, MODE_IPIP,
        SERVICE_DROP_WHEN_EMPTY,
    },
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{
        packet::{IPV6, Link, Packet, SERVICE_VLAN, VLAN, patched},
        tables::{TableSet, address_key},
    },
    BACK, CLIENT_V4, CLIENT_V6, Case, EDGE_V4, End, IN, NODE_V4, V4_IN_V6, V4_L2, V4_TCP, V4_UDP,
    V6_IN_V4, V6_TCP, V6_UDP, VIP_V4, VIP_V6, case, client, port_unreachable, reset, reset_of_syn,
    tcp, time_exceeded, too_big, udp, v4, v6,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(unknown_ports());
    cases.extend(empty_services());
    cases.extend(segments());
    cases.extend(tagged());
    cases.extend(sizes());
    cases.extend(mtus());
    cases.extend(unanswerable());
    cases.extend(allowances());
    cases
}

const OTHER_V4: End = (VIP_V4, 81);
const OTHER_V6: End = (VIP_V6, 81);
const SCTP: u8 = 132;

/// A service without backends in the place of each of these.
fn emptied(tables: &mut TableSet) {
    for service in 1..=8 {
        tables.set_owner(service, 0);
    }
}

fn sctp(to: End) -> Packet {
    let (source, port) = client(to);
    let ports = [port.to_be_bytes(), to.1.to_be_bytes()].concat();
    let chunk = [&ports[..], &[0, 0, 0, 9, 1, 2, 3, 4, 1, 0, 0, 4]].concat();
    Packet::ip(source, to.0, SCTP, &chunk)
}

fn unknown_ports() -> Vec<Case> {
    let mut cases: Vec<_> = [
        ("other_v4_port", OTHER_V4),
        ("other_v6_port", OTHER_V6),
        ("swapped_v4_port", (VIP_V4, 80_u16.swap_bytes())),
        ("v4_port_zero", (VIP_V4, 0)),
        ("v4_port_of_a_udp_service", V4_UDP.1),
        ("v6_port_of_a_udp_service", V6_UDP.1),
        ("v6_port_of_a_v4_service", (VIP_V6, V4_IN_V6.1.1)),
    ]
    .into_iter()
    .map(|(name, to)| {
        case(format!("tcp_to_{name}_is_reset"), IN.carry(&tcp(to)))
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(to, 18)))
    })
    .collect();
    for (name, packet) in [
        ("udp_to_v4_port_of_a_tcp_service", udp(V4_TCP.1)),
        ("udp_to_v6_port_of_a_tcp_service", udp(V6_TCP.1)),
        ("sctp_to_v4_port_of_a_tcp_service", sctp(V4_TCP.1)),
        ("sctp_to_v6_port_of_a_tcp_service", sctp(V6_TCP.1)),
    ] {
        cases.push(
            case(format!("{name}_is_unreachable"), IN.carry(&packet)).replies(
                ReplyReason::PortUnreachable,
                BACK.carry(&port_unreachable(&packet)),
            ),
        );
    }
    // What else a machine does with its address is its kernel's business.
    for (name, flags) in [
        ("node_port", ADDRESS_NODE_PORT),
        ("decapsulating", ADDRESS_LOCAL),
        ("virtual_and_node_port", ADDRESS_VIP | ADDRESS_NODE_PORT),
        ("unmarked", 0),
    ] {
        cases.push(
            case(
                format!("unknown_port_of_a_{name}_address_passes"),
                IN.carry(&tcp(OTHER_V4)),
            )
            .with(|tables| tables.address(VIP_V4, flags))
            .passes(PassReason::NoService),
        );
    }
    cases.push(
        case("other_protocol_to_a_vip_drops", {
            IN.carry(&Packet::ip(CLIENT_V4, VIP_V4, 47, &[0; 12]))
        })
        .drops(DropReason::VipProtocol),
    );
    cases.push(
        case("unknown_port_from_an_edge_by_l2dsr_passes", {
            IN.carry(&tcp(OTHER_V4))
        })
        .with(|tables| {
            tables.config.flags |= CONFIG_NODE;
            tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
        })
        .passes(PassReason::NoService),
    );
    cases
}

fn empty_services() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, to) in [("v4", V4_TCP.1), ("v6", V6_TCP.1), ("l2dsr", V4_L2.1)] {
        let draft = || case(format!("empty_{name}_tcp_service"), IN.carry(&tcp(to))).with(emptied);
        cases.push(draft().replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(to, 18))));
        let mut dropped = draft()
            .with(|tables| {
                for service in &mut tables.service {
                    service.flags |= SERVICE_DROP_WHEN_EMPTY;
                }
            })
            .drops(DropReason::NoLocalBackend);
        dropped.name.push_str("_with_backends_elsewhere");
        cases.push(dropped);
    }
    for (name, to) in [("v4", V4_UDP.1), ("v6", V6_UDP.1)] {
        let packet = udp(to);
        cases.push(
            case(format!("empty_{name}_udp_service"), IN.carry(&packet))
                .with(emptied)
                .replies(
                    ReplyReason::PortUnreachable,
                    BACK.carry(&port_unreachable(&packet)),
                ),
        );
    }
    for (name, to) in [("v4", OTHER_V4), ("v6", OTHER_V6)] {
        let packet = sctp(to);
        cases.push(
            case(format!("empty_{name}_sctp_service"), IN.carry(&packet))
                .with(|tables| tables.service(9, to, SCTP, MODE_IPIP, &[0]))
                .replies(
                    ReplyReason::PortUnreachable,
                    BACK.carry(&port_unreachable(&packet)),
                ),
        );
    }
    cases
}

/// How a segment is reset depends on its ACK, and what it acknowledges on all that it occupies
/// (RFC 9293 section 3.10.7.1).
fn segments() -> Vec<Case> {
    let mut cases = Vec::new();
    for to in [OTHER_V4, OTHER_V6] {
        let family = if to.0.is_ipv4() { "v4" } else { "v6" };
        let segment = |change: &dyn Fn(&mut TcpHeader), payload: &[u8]| {
            let mut header = TcpHeader::new(40_000, to.1, 0xffff_fff0, 1024);
            header.acknowledgment_number = 0x0a0b_0c0d;
            change(&mut header);
            Packet::tcp_with(client(to), to, header, payload)
        };
        let named = |name: &str, packet: &Packet| {
            case(
                format!("{family}_{name}_to_an_unknown_port"),
                IN.carry(packet),
            )
        };
        for (name, packet, acknowledged) in [
            ("syn", segment(&|h| h.syn = true, b""), 0xffff_fff1),
            ("fin", segment(&|h| h.fin = true, b"end"), 0xffff_fff4),
            ("no_flags", segment(&|_| {}, b"x"), 0xffff_fff1),
            (
                "syn_and_fin_with_data_beyond_the_last_number",
                segment(&|h| (h.syn, h.fin) = (true, true), &[7; 33]),
                0x13,
            ),
            (
                "syn_with_options",
                segment(
                    &|h| {
                        h.syn = true;
                        h.set_options_raw(&[2, 4, 5, 180, 4, 2, 1, 1]).unwrap();
                    },
                    b"",
                ),
                0xffff_fff1,
            ),
        ] {
            let answer = reset(to, client(to), acknowledged);
            cases.push(named(name, &packet).replies(ReplyReason::Reset, BACK.carry(&answer)));
        }
        let mut header = TcpHeader::new(to.1, 40_000, 0x0a0b_0c0d, 0);
        header.rst = true;
        let answer = Packet::tcp_with(to, client(to), header, b"").fresh();
        for (name, packet) in [
            ("ack", segment(&|h| h.ack = true, b"")),
            ("data", segment(&|h| (h.ack, h.psh) = (true, true), b"more")),
            (
                "fin_with_ack",
                segment(&|h| (h.ack, h.fin) = (true, true), b""),
            ),
            (
                "syn_with_ack",
                segment(&|h| (h.ack, h.syn) = (true, true), b""),
            ),
        ] {
            cases.push(named(name, &packet).replies(ReplyReason::Reset, BACK.carry(&answer)));
        }
        for (name, packet) in [
            ("rst", segment(&|h| h.rst = true, b"")),
            (
                "rst_with_ack",
                segment(&|h| (h.rst, h.ack) = (true, true), b""),
            ),
        ] {
            cases.push(named(name, &packet).drops(DropReason::Unanswerable));
        }
    }
    let options = tcp(OTHER_V4).options(&[1; 8]);
    let hop_by_hop = tcp(OTHER_V6).extensions(&[(0, &[0, 1, 4, 0, 0, 0, 0])]);
    cases.extend([
        case("v4_options_are_not_answered_in_kind", IN.carry(&options))
            .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(OTHER_V4, 18))),
        case(
            "v6_extensions_are_not_answered_in_kind",
            IN.carry(&hop_by_hop),
        )
        .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(OTHER_V6, 18))),
        // The data offset points beyond the packet: no payload, as far as can be seen.
        case("tcp_header_longer_than_its_packet_is_reset", {
            let packet = Packet::tcp(client(OTHER_V4), OTHER_V4, b"");
            patched(IN.carry(&packet), 14 + 20 + 12, &[0xf0])
        })
        .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(OTHER_V4, 0))),
    ]);
    cases
}

/// Answers keep the tags.
fn tagged() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, tags) in [
        ("one_tag", &[(VLAN, 0x6009)][..]),
        ("two_tags", &[(SERVICE_VLAN, 5), (VLAN, 0x0fff)]),
    ] {
        let (there, back) = (Link { tags, ..IN }, Link { tags, ..BACK });
        for (kind, packet, reason, answer) in [
            (
                "tcp_v4",
                tcp(OTHER_V4),
                ReplyReason::Reset,
                reset_of_syn(OTHER_V4, 18),
            ),
            (
                "tcp_v6",
                tcp(OTHER_V6),
                ReplyReason::Reset,
                reset_of_syn(OTHER_V6, 18),
            ),
            (
                "udp_v4",
                udp(OTHER_V4),
                ReplyReason::PortUnreachable,
                port_unreachable(&udp(OTHER_V4)),
            ),
            (
                "udp_v6",
                udp(OTHER_V6),
                ReplyReason::PortUnreachable,
                port_unreachable(&udp(OTHER_V6)),
            ),
        ] {
            cases.push(
                case(
                    format!("{kind}_with_{name}_is_answered"),
                    there.carry(&packet),
                )
                .replies(reason, back.carry(&answer)),
            );
        }
    }
    cases
}

/// Quotes of every length modulo four, up to the longest and beyond.
fn sizes() -> Vec<Case> {
    let mut cases = Vec::new();
    for to in [OTHER_V4, OTHER_V6] {
        let family = if to.0.is_ipv4() { "v4" } else { "v6" };
        for payload in [0, 1, 2, 3, 4, 5, 31, 520, 521, 1183, 1184, 1185, 1400] {
            let body: Vec<u8> = (1..=255).cycle().step_by(7).take(payload).collect();
            let packet = Packet::udp(client(to), to, &body);
            let answer = port_unreachable(&packet);
            let (room, longest) = if to.0.is_ipv4() {
                (28, 576)
            } else {
                (48, 1280)
            };
            assert!(answer.length() <= longest && answer.length() <= packet.length() + room);
            cases.push(
                case(
                    format!("{family}_datagram_of_{payload}_bytes_is_unreachable"),
                    IN.carry(&packet),
                )
                .replies(ReplyReason::PortUnreachable, BACK.carry(&answer)),
            );
        }
        let packet = udp(to);
        let mut padded = IN.carry(&packet);
        padded.extend([0xee; 11]);
        cases.push(
            case(format!("{family}_padding_is_not_quoted"), padded).replies(
                ReplyReason::PortUnreachable,
                BACK.carry(&port_unreachable(&packet)),
            ),
        );
        let mut padded = IN.carry(&tcp(to));
        padded.extend([0xee; 6]);
        cases.push(
            case(format!("{family}_padding_is_not_acknowledged"), padded)
                .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(to, 18))),
        );
        let large = Packet::udp(client(to), to, &[0x5a; 8_900]);
        cases.push(
            case(
                format!("{family}_jumbo_frame_is_unreachable"),
                IN.carry(&large),
            )
            .replies(
                ReplyReason::PortUnreachable,
                BACK.carry(&port_unreachable(&large)),
            ),
        );
        let large = Packet::tcp(client(to), to, &[0x5a; 8_900]);
        cases.push(
            case(format!("{family}_jumbo_frame_is_reset"), IN.carry(&large))
                .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(to, 8_900))),
        );
    }
    for packet in [
        udp(OTHER_V4).options(&[1; 40]),
        udp(OTHER_V6).extensions(&[(60, &[0, 1, 4, 0, 0, 0, 0])]),
    ] {
        let family = if packet.ether_type() == IPV6 {
            "v6"
        } else {
            "v4"
        };
        cases.push(
            case(
                format!("{family}_datagram_is_quoted_with_all_headers"),
                IN.carry(&packet),
            )
            .replies(
                ReplyReason::PortUnreachable,
                BACK.carry(&port_unreachable(&packet)),
            ),
        );
    }
    cases.push(
        case("answer_needs_headroom", IN.carry(&udp(OTHER_V6)))
            .headroom(48)
            .replies(
                ReplyReason::PortUnreachable,
                BACK.carry(&port_unreachable(&udp(OTHER_V6))),
            ),
    );
    cases
}

fn mtus() -> Vec<Case> {
    let mut cases = Vec::new();
    let sized = |to: End, length: usize| {
        let header = Packet::udp(client(to), to, b"").length();
        Packet::udp(client(to), to, &vec![0x55; length - header])
    };
    let with_mtu = |mtu: u32| {
        move |tables: &mut TableSet| {
            for hop in &mut tables.next_hops {
                hop.mtu = mtu;
            }
        }
    };
    for (name, to, length, mtu, told) in [
        ("v4_in_v4", V4_UDP.1, 1481, 1500, 1480),
        ("v6_in_v6", V6_UDP.1, 1461, 1500, 1460),
        ("v4_in_v4_of_a_small_path", V4_UDP.1, 600, 200, 180),
        ("v4_in_v4_of_no_path", V4_UDP.1, 69, 60, 68),
        (
            "v6_in_v6_of_a_path_too_small_for_v6",
            V6_UDP.1,
            1281,
            1300,
            1280,
        ),
        ("v4_in_v4_jumbo", V4_UDP.1, 9000, 9000, 8980),
        ("v6_in_v6_jumbo", V6_UDP.1, 9000, 9000, 8960),
    ] {
        let packet = sized(to, length);
        cases.push(
            case(format!("{name}_is_told_its_mtu"), IN.carry(&packet))
                .with(with_mtu(mtu))
                .replies(
                    ReplyReason::PacketTooBig,
                    BACK.carry(&too_big(&packet, told)),
                ),
        );
    }
    for (name, to, length, mtu) in [
        ("v4_of_68_bytes", V4_UDP.1, 68, 80),
        ("v6_of_1280_bytes", V6_UDP.1, 1280, 1300),
    ] {
        cases.push(
            case(
                format!("{name}_is_as_small_as_can_be_asked_for"),
                IN.carry(&sized(to, length)),
            )
            .with(with_mtu(mtu))
            .drops(DropReason::MtuExceeded),
        );
    }
    let fragmentable = sized(V4_UDP.1, 1481).fragmentable();
    cases.push(
        case("v4_that_may_be_fragmented_drops", IN.carry(&fragmentable))
            .drops(DropReason::FragmentationNeeded),
    );
    for (name, to) in [("v4_in_v6", V4_IN_V6.1), ("v6_in_v4", V6_IN_V4.1)] {
        let packet = tcp(to).hop_limit(1);
        cases.push(case(format!("{name}_expires"), IN.carry(&packet)).replies(
            ReplyReason::TimeExceeded,
            BACK.carry(&time_exceeded(&packet)),
        ));
    }
    cases
}

fn unanswerable() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, source) in [
        ("unspecified", v4(0, 0, 0, 0)),
        ("this_network", v4(0, 1, 2, 3)),
        ("loopback", v4(127, 0, 0, 1)),
        ("multicast", v4(224, 0, 0, 1)),
        ("reserved", v4(240, 0, 0, 1)),
        ("broadcast", v4(255, 255, 255, 255)),
        ("unspecified_v6", "::".parse().unwrap()),
        ("loopback_v6", "::1".parse().unwrap()),
        ("mapped_v6", "::ffff:198.51.100.7".parse().unwrap()),
        ("multicast_v6", "ff02::1".parse().unwrap()),
    ] {
        let to = if source.is_ipv4() { OTHER_V4 } else { OTHER_V6 };
        cases.push(
            case(
                format!("{name}_source_is_not_reset"),
                IN.carry(&Packet::tcp((source, 40_000), to, b"")),
            )
            .drops(DropReason::Unanswerable),
        );
        cases.push(
            case(
                format!("{name}_source_is_told_nothing"),
                IN.carry(&Packet::udp((source, 40_000), to, b"query").hop_limit(1)),
            )
            .drops(DropReason::Unanswerable),
        );
    }
    cases
}

fn allowances() -> Vec<Case> {
    const SECOND: u64 = 1_000_000_000;
    let packet = udp(OTHER_V4);
    let frame = IN.carry(&packet);
    let answer = BACK.carry(&port_unreachable(&packet));
    let draft = |name: &str| case(name, frame.clone());
    let other = Packet::udp((v4(198, 51, 100, 8), 40_000), OTHER_V4, b"query");
    let burst = |name: &str, frames: usize, last: &[u8]| {
        (0..frames).fold(case(name, last.to_vec()), |draft, _| {
            draft.after(frame.clone())
        })
    };
    let used_up_by = move |tables: &mut TableSet, source| {
        tables
            .answers
            .insert(address_key(source), coarse_ns() + 3600 * SECOND);
    };
    vec![
        burst("tenth_answer_in_a_row_is_given", 9, &frame)
            .replies(ReplyReason::PortUnreachable, answer.clone()),
        burst("source_has_used_up_its_allowance", 30, &frame).drops(DropReason::AnswerLimited),
        burst(
            "other_sources_have_their_own_allowance",
            30,
            &IN.carry(&other),
        )
        .replies(
            ReplyReason::PortUnreachable,
            BACK.carry(&port_unreachable(&other)),
        ),
        draft("v4_allowance_is_kept_by_address")
            .with(|tables| used_up_by(tables, CLIENT_V4))
            .drops(DropReason::AnswerLimited),
        draft("v4_allowance_of_another_source_does_not_count")
            .with(|tables| used_up_by(tables, v4(198, 51, 100, 8)))
            .replies(ReplyReason::PortUnreachable, answer.clone()),
        case("v6_allowance_is_kept_by_address", IN.carry(&tcp(OTHER_V6)))
            .with(|tables| used_up_by(tables, CLIENT_V6))
            .drops(DropReason::AnswerLimited),
        case("v6_allowance_of_another_source_does_not_count", {
            IN.carry(&tcp(OTHER_V6))
        })
        .with(|tables| used_up_by(tables, v6(0xc, 8)))
        .replies(ReplyReason::Reset, BACK.carry(&reset_of_syn(OTHER_V6, 18))),
        case("resets_are_limited", IN.carry(&tcp(OTHER_V4)))
            .with(|tables| used_up_by(tables, CLIENT_V4))
            .drops(DropReason::AnswerLimited),
        case("told_mtus_are_limited", {
            IN.carry(&Packet::udp(client(V4_UDP.1), V4_UDP.1, &[0; 1460]))
        })
        .with(|tables| used_up_by(tables, CLIENT_V4))
        .drops(DropReason::AnswerLimited),
        case(
            "expiries_are_limited",
            IN.carry(&udp(V4_UDP.1).hop_limit(1)),
        )
        .with(|tables| used_up_by(tables, CLIENT_V4))
        .drops(DropReason::AnswerLimited),
        case("echo_replies_are_not_limited", {
            IN.carry(&Packet::echo(CLIENT_V4, VIP_V4))
        })
        .with(|tables| used_up_by(tables, CLIENT_V4))
        .replies(ReplyReason::EchoReply, {
            let echo = Packet::icmp(VIP_V4, CLIENT_V4, (0, 0), [0, 7, 0, 1], b"ping");
            BACK.carry(&echo)
        }),
        draft("old_use_of_an_allowance_is_forgotten")
            .with(|tables| {
                let past = coarse_ns() - 1;
                tables.answers.insert(address_key(CLIENT_V4), past);
            })
            .replies(ReplyReason::PortUnreachable, answer),
        draft("all_sources_together_have_used_up_their_allowance")
            .with(|tables| tables.answers_of_all = coarse_ns() + 3600 * SECOND)
            .drops(DropReason::AnswerLimited),
        case("forwarding_takes_no_allowance", IN.carry(&udp(V4_UDP.1)))
            .with(|tables| {
                used_up_by(tables, CLIENT_V4);
                tables.answers_of_all = coarse_ns() + 3600 * SECOND;
            })
            .transmits(
                V4_UDP.0,
                &udp(V4_UDP.1),
                super::TO_NODE_V4.carry(&udp(V4_UDP.1).next_hop().within(EDGE_V4, NODE_V4)),
            ),
    ]
}
