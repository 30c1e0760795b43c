//! Fragments: the first one shows the ports, and the others follow it. None is hashed as if it had ports.

use std::net::IpAddr;

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, ADDRESS_SHARED, ADDRESS_VIP, Datagram, EdgeMac,
        LocalFlow, MODE_L2DSR, SERVICE_NODE_PORT, SERVICE_SOURCE_RANGES, Tuple,
    },
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{
        packet::{End, IPV4, Packet, RST, forged_v4},
        tables::{TableSet, address_key},
    },
    BACK, CLIENT_V4, CLIENT_V6, Case, Draft, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, STRANGER_V4,
    UDP, V4_TCP, V4_UDP, V6_TCP, V6_UDP, VIP_V4, VIP_V6, Way, case, client, pods,
    pods::{
        HERE_V4, POD_V4, POD_V6, PODS_V4_SCTP, PODS_V4_TCP, PODS_V4_UDP, PODS_V6_SCTP, PODS_V6_TCP,
        PODS_V6_UDP, TAG_V4, TAG_V6, TARGET,
    },
    sent_in_v4, sent_in_v6, tcp, time_exceeded, udp, v4, v6, way,
};

/// (name, offset in units of eight bytes, more fragments)
const PIECES: [(&str, u16, bool); 4] = [
    ("first", 0, true),
    ("middle", 1, true),
    ("last", 185, false),
    ("farthest", 0x1fff, false),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(alone());
    cases.extend(order());
    cases.extend(hidden_ports());
    cases.extend(addresses());
    cases.extend(hidden_node_ports());
    cases.extend(services());
    cases.extend(to_pods());
    cases.extend(lost_at_the_node());
    cases.extend(whole_datagrams());
    cases.extend(encapsulated());
    cases
}

/// An IPv6 fragment header: reserved byte, offset, flags, identification.
fn fragment_header(offset: u16, flags: u16) -> Vec<u8> {
    let field = offset << 3 | flags;
    [&[0], &field.to_be_bytes()[..], &[0xde, 0xad, 0xbe, 0xef]].concat()
}

/// Fragments that come alone, in each place of a datagram.
fn alone() -> Vec<Case> {
    let mut cases = Vec::new();
    let elsewhere_v4 = (v4(203, 0, 113, 99), 80);
    let elsewhere_v6 = (v6(0xf, 99), 80);
    for (name, offset, more) in PIECES {
        let v4 = |packet: &Packet| packet.clone().fragment(offset, more);
        let v6 = |packet: &Packet| {
            let header = fragment_header(offset, u16::from(more));
            packet.clone().extensions(&[(44, &header)])
        };
        for (kind, service, packet) in [
            ("v4_tcp", V4_TCP, tcp(V4_TCP.1)),
            ("v4_udp", V4_UDP, udp(V4_UDP.1)),
            ("v6_tcp", V6_TCP, tcp(V6_TCP.1)),
            ("v6_udp", V6_UDP, udp(V6_UDP.1)),
        ] {
            let is_v4 = kind.starts_with("v4");
            let piece = if is_v4 { v4(&packet) } else { v6(&packet) };
            let sent = if is_v4 { sent_in_v4 } else { sent_in_v6 };
            let draft = case(format!("{name}_fragment_of_{kind}_alone"), IN.carry(&piece));
            cases.push(match offset {
                0 => draft.transmits(service.0, &piece, sent(&piece)),
                1 if kind.ends_with("tcp") => draft.drops(DropReason::FragmentOpaque),
                _ => draft.drops(DropReason::FragmentOutOfOrder),
            });
        }
        for (kind, piece) in [
            ("v4", v4(&tcp(elsewhere_v4))),
            ("v6", v6(&tcp(elsewhere_v6))),
        ] {
            cases.push(
                case(
                    format!("{name}_fragment_of_{kind}_elsewhere"),
                    IN.carry(&piece),
                )
                .passes(PassReason::FragmentNotOurs),
            );
        }
    }
    cases
}

/// Name, service, datagram, and what makes the frame in which its pieces leave.
type Sent = (&'static str, (Way, End), Packet, fn(&Packet) -> Vec<u8>);

/// Datagrams of three pieces each.
fn datagrams() -> [Sent; 4] {
    let payload: Vec<u8> = (0..=255).cycle().take(600).collect();
    let tcp = |to| Packet::tcp(client(to), to, &payload);
    let udp = |to| Packet::udp(client(to), to, &payload);
    [
        ("v4_tcp", V4_TCP, tcp(V4_TCP.1), sent_in_v4),
        ("v4_udp", V4_UDP, udp(V4_UDP.1), sent_in_v4),
        ("v6_tcp", V6_TCP, tcp(V6_TCP.1), sent_in_v6),
        ("v6_udp", V6_UDP, udp(V6_UDP.1), sent_in_v6),
    ]
}

const ID: u32 = 0x00c0_ffee;
/// Bytes of payload in each piece.
const SIZE: usize = 256;

/// Later fragments follow the first one, by the ports that it has shown.
fn order() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, (way, to), packet, sent) in datagrams() {
        let from = client(to);
        let pieces = packet.pieces(SIZE, ID);
        let [first, second, third] = &pieces[..] else {
            panic!("600 bytes are three pieces");
        };
        let frame = |piece: &Packet| IN.carry(piece);
        let name = |what: &str| format!("{kind}_fragments_{what}");
        let follows = |what: &str, earlier: &[&Packet], piece: &Packet| {
            let draft = case(name(what), frame(piece));
            let draft = earlier
                .iter()
                .fold(draft, |draft, piece| draft.after(frame(piece)));
            draft.transmits(way, piece, sent(piece))
        };
        let lost = |what: &str, earlier: &[&Packet], piece: &Packet| {
            let draft = case(name(what), frame(piece));
            let draft = earlier
                .iter()
                .fold(draft, |draft, piece| draft.after(frame(piece)));
            draft.drops(DropReason::FragmentOutOfOrder)
        };
        let other = packet.pieces(SIZE, ID + 1);
        cases.extend([
            follows("second_behind_the_first", &[first], second),
            follows("last_behind_both", &[first, second], third),
            follows("last_before_the_second", &[first], third),
            follows("second_twice", &[first, second], second),
            follows("first_twice", &[first], first),
            follows("second_behind_the_first_twice", &[first, first], second),
            follows(
                "of_two_datagrams_interleaved",
                &[first, &other[0], &other[1]],
                second,
            ),
            follows(
                "of_two_datagrams_interleaved_the_other",
                &[first, &other[0], second],
                &other[2],
            ),
            follows("first_behind_the_others", &[third, second], first),
            lost("in_reverse_order_begin_with_the_last", &[], third),
            lost("in_reverse_order_go_on_with_the_second", &[third], second),
            lost("of_another_datagram_have_not_come", &[first], &other[1]),
        ]);
        // What is remembered for thirty seconds.
        for (what, seconds, is_known) in [("young", 0, true), ("old", 31, false)] {
            let draft =
                case(name(&format!("behind_a_{what}_first")), frame(second)).with(|tables| {
                    let (key, datagram) = published(from, to, packet.protocol(), seconds);
                    tables.datagrams.insert(key, datagram);
                });
            cases.push(if is_known {
                draft.transmits(way, second, sent(second))
            } else {
                draft.drops(DropReason::FragmentOutOfOrder)
            });
        }
        // The same number is another datagram's where anything else differs.
        for (what, from, to, protocol) in [
            ("client", (another(from.0), from.1), to, packet.protocol()),
            ("address", from, (another(to.0), to.1), packet.protocol()),
            ("protocol", from, to, packet.protocol() ^ 1),
        ] {
            cases.push(
                case(name(&format!("of_another_{what}")), frame(second))
                    .with(|tables| tables.datagrams.extend([published(from, to, protocol, 0)]))
                    .drops(DropReason::FragmentOutOfOrder),
            );
        }
    }
    cases
}

/// Another address of the same family.
fn another(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => v4(203, 0, 113, 77),
        IpAddr::V6(_) => v6(0xf, 77),
    }
}

/// What a first fragment of a datagram with number [`ID`] has published that many seconds ago.
fn published(from: End, to: End, protocol: u8, seconds: u64) -> (Tuple, Datagram) {
    let identification = match to.0 {
        IpAddr::V4(_) => ID & 0xffff,
        IpAddr::V6(_) => ID,
    };
    let key = Tuple::fragments(
        address_key(from.0),
        address_key(to.0),
        identification.to_be_bytes(),
        protocol,
    );
    let seen = match seconds {
        // A slow machine needs minutes from here to the case: young is what comes from the future.
        0 => coarse_ns() + 3_600_000_000_000,
        _ => coarse_ns().wrapping_sub(seconds * 1_000_000_000),
    };
    (
        key,
        Datagram::new(from.1.to_be_bytes(), to.1.to_be_bytes(), seen),
    )
}

/// A head that does not show all of the transport header, or that a later fragment could write over.
fn hidden_ports() -> Vec<Case> {
    let mut cases = Vec::new();
    // (protocol number, length of its header)
    for (name, protocol, header) in [("tcp", 6_u8, 20_usize), ("udp", 17, 8), ("sctp", 132, 12)] {
        for (family, from, vip) in [("v4", CLIENT_V4, VIP_V4), ("v6", CLIENT_V6, VIP_V6)] {
            let packet = Packet::ip(from, vip, protocol, &[0x11; 64]);
            let frame = |length: usize, offset: u16| {
                IN.carry(&packet.piece(&packet.payload()[..length], offset, true, ID))
            };
            for length in [0, 4, header - 1] {
                cases.push(
                    case(
                        format!("{family}_{name}_first_fragment_of_{length}_bytes"),
                        frame(length, 0),
                    )
                    .drops(DropReason::FragmentOpaque),
                );
            }
            // RFC 1858 section 4: offset 1 lies within a TCP header, and so do 2, and 1 of SCTP.
            for offset in 1..4_u16 {
                let draft = case(
                    format!("{family}_{name}_fragment_at_offset_{offset}"),
                    frame(64, offset),
                );
                cases.push(draft.drops(if usize::from(offset) * 8 < header {
                    DropReason::FragmentOpaque
                } else {
                    DropReason::FragmentOutOfOrder
                }));
            }
        }
    }
    let (way, to) = V4_TCP;
    let pieces = tcp(to).pieces(24, ID);
    cases.extend([
        case("first_fragment_with_just_the_tcp_header", {
            IN.carry(&tcp(to).piece(&tcp(to).payload()[..20], 0, true, ID))
        })
        .transmits(
            way,
            &pieces[0]
                .clone()
                .with_payload(tcp(to).payload()[..20].to_vec()),
            {
                sent_in_v4(
                    &pieces[0]
                        .clone()
                        .with_payload(tcp(to).payload()[..20].to_vec()),
                )
            },
        ),
        case("overlap_of_the_tcp_header_behind_its_first_fragment", {
            IN.carry(&tcp(to).piece(&[0; 16], 1, false, ID))
        })
        .after(IN.carry(&pieces[0]))
        .drops(DropReason::FragmentOpaque),
        case("fragment_of_icmp_to_vip_without_its_first_one_drops", {
            IN.carry(&Packet::echo(CLIENT_V4, VIP_V4).fragment(3, false))
        })
        .drops(DropReason::FragmentOutOfOrder),
        case("v6_fragment_without_payload_drops", {
            let header = [&[6], &fragment_header(0, 1)[..]].concat();
            IN.carry(&Packet::ip(CLIENT_V6, VIP_V6, 44, &header))
        })
        .drops(DropReason::FragmentOpaque),
        // RFC 7112 has the whole chain of headers in the first fragment; here it goes on behind.
        case(
            "v6_first_fragment_with_options_behind_the_fragment_header_drops",
            {
                let header = fragment_header(0, 1);
                let chain: [(u8, &[u8]); 2] = [(44, &header), (60, &[0, 1, 4, 0, 0, 0, 0])];
                IN.carry(&tcp(V6_TCP.1).extensions(&chain))
            },
        )
        .drops(DropReason::FragmentOpaque),
        case("v6_fragment_header_cut_short_is_malformed", {
            let packet = Packet::ip(CLIENT_V6, VIP_V6, 44, &[6, 0, 0, 1]);
            [IN.carry(&packet), vec![0; 8]].concat()
        })
        .drops(DropReason::VipHeaders),
    ]);
    cases
}

/// The kernel would put such pieces together, and answer what may be for a NodePort.
fn hidden_node_ports() -> Vec<Case> {
    const UNITS_OF_TCP: u16 = 3;
    let mut cases = Vec::new();
    for (family, from, node) in [("v4", CLIENT_V4, EDGE_V4), ("v6", CLIENT_V6, EDGE_V6)] {
        let draft = |name: String, piece: Packet| {
            let flags = ADDRESS_NODE_PORT | ADDRESS_LOCAL;
            case(name, IN.carry(&piece)).with(|tables| tables.address(node, flags))
        };
        for (name, protocol, units) in [("tcp", 6_u8, UNITS_OF_TCP), ("sctp", 132, 2)] {
            let packet = Packet::ip(from, node, protocol, &[0x11; 64]);
            let piece =
                |length: usize, offset| packet.piece(&packet.payload()[..length], offset, true, ID);
            cases.push(
                draft(
                    format!("{family}_{name}_piece_of_8_bytes_to_a_node_drops"),
                    piece(8, 0),
                )
                .drops(DropReason::FragmentOpaque),
            );
            for offset in 1..=units {
                let draft = draft(
                    format!("{family}_{name}_piece_at_offset_{offset}_to_a_node"),
                    piece(16, offset),
                );
                cases.push(if offset < units {
                    draft.drops(DropReason::FragmentOpaque)
                } else {
                    draft.passes(PassReason::FragmentNotOurs)
                });
            }
        }
        // What has no ports is the node's: ESP and AH.
        for (name, protocol) in [("esp", 50), ("ah", 51)] {
            let packet = Packet::ip(from, node, protocol, &[0x11; 64]);
            cases.push(
                draft(
                    format!("{family}_{name}_first_fragment_to_a_node_passes"),
                    packet.piece(packet.payload(), 0, true, ID),
                )
                .passes(PassReason::FragmentNotOurs),
            );
        }
    }
    let chain: [(u8, &[u8]); 2] = [(44, &fragment_header(0, 1)), (60, &[0, 1, 4, 0, 0, 0, 0])];
    let packet = tcp((EDGE_V6, 30_080)).extensions(&chain);
    cases.push(
        case(
            "v6_options_behind_the_fragment_header_to_a_node_drop",
            IN.carry(&packet),
        )
        .with(|tables| tables.address(EDGE_V6, ADDRESS_NODE_PORT | ADDRESS_LOCAL))
        .drops(DropReason::FragmentOpaque),
    );
    cases
}

/// Whose address it is decides about what finds no flow.
fn addresses() -> Vec<Case> {
    let (way, to) = V4_UDP;
    let first = udp(to).fragment(0, true);
    let later = udp(to).fragment(2, false);
    let unknown = Packet::udp(client(to), (VIP_V4, 9), b"query");
    let at_node = |tables: &mut TableSet| tables.address(VIP_V4, ADDRESS_NODE_PORT | ADDRESS_LOCAL);
    vec![
        case(
            "fragment_to_address_that_is_vip_and_local_passes",
            IN.carry(&later),
        )
        .with(|tables| tables.address(VIP_V4, ADDRESS_VIP | ADDRESS_LOCAL))
        .passes(PassReason::FragmentNotOurs),
        case(
            "fragment_to_service_address_that_is_no_vip_passes",
            IN.carry(&first),
        )
        .with(|tables| tables.vips.clear())
        .passes(PassReason::FragmentNotOurs),
        case(
            "first_fragment_to_a_node_port_is_balanced",
            IN.carry(&first),
        )
        .with(at_node)
        .transmits(way, &first, sent_in_v4(&first)),
        case("later_fragment_to_a_node_port_follows", IN.carry(&later))
            .with(at_node)
            .after(IN.carry(&first))
            .transmits(way, &later, sent_in_v4(&later)),
        case(
            "later_fragment_to_a_node_port_alone_passes",
            IN.carry(&later),
        )
        .with(at_node)
        .passes(PassReason::FragmentNotOurs),
        case("first_fragment_to_another_port_of_a_node_passes", {
            IN.carry(&unknown.clone().fragment(0, true))
        })
        .with(at_node)
        .passes(PassReason::NoService),
        case("later_fragment_to_another_port_of_a_node_passes", {
            IN.carry(&unknown.clone().fragment(2, false))
        })
        .with(at_node)
        .after(IN.carry(&unknown.fragment(0, true)))
        .passes(PassReason::FragmentNotOurs),
        case("fragment_of_ping_to_a_node_passes", {
            IN.carry(&Packet::echo(CLIENT_V4, VIP_V4).fragment(0, true))
        })
        .with(at_node)
        .passes(PassReason::FragmentNotOurs),
        case("tiny_fragment_to_a_node_without_node_ports_passes", {
            IN.carry(&tcp(V4_TCP.1).piece(&[0; 8], 0, true, ID))
        })
        .with(|tables| tables.address(VIP_V4, ADDRESS_SHARED | ADDRESS_LOCAL))
        .passes(PassReason::FragmentNotOurs),
        case("fragment_of_ipip_to_a_node_with_node_ports_passes", {
            IN.carry(&udp(to).within(PEER_V4, VIP_V4).fragment(0, true))
        })
        .with(at_node)
        .passes(PassReason::FragmentNotOurs),
    ]
}

/// A fragment is subject to what its service asks for.
fn services() -> Vec<Case> {
    let (way, to) = V4_UDP;
    let first = udp(to).fragment(0, true);
    let later = udp(to).fragment(2, false);
    let ranges = |tables: &mut TableSet| {
        tables.service[way.service as usize].flags |= SERVICE_SOURCE_RANGES;
        tables.admit(way.service, v4(10, 0, 0, 0), 8);
    };
    let local_flow = |tables: &mut TableSet| {
        tables.service[way.service as usize].flags |= SERVICE_NODE_PORT;
        tables.address(VIP_V4, ADDRESS_NODE_PORT);
        let (from, port) = client(to);
        let key = Tuple::new(
            address_key(from),
            address_key(to.0),
            port.to_be_bytes(),
            to.1.to_be_bytes(),
            UDP,
        );
        tables
            .local_flows
            .insert(key, LocalFlow::new(u64::MAX, false));
    };
    let large = Packet::udp(client(to), to, &[0x55; 1460]).fragment(0, true);
    vec![
        case(
            "first_fragment_from_outside_the_source_ranges_drops",
            IN.carry(&first),
        )
        .with(ranges)
        .drops(DropReason::SourceRange),
        case(
            "later_fragment_from_outside_the_source_ranges_drops",
            IN.carry(&later),
        )
        .with(ranges)
        .after(IN.carry(&first))
        .drops(DropReason::FragmentOutOfOrder),
        case(
            "later_fragment_is_judged_by_the_source_ranges_too",
            IN.carry(&later),
        )
        .with(ranges)
        .with(|tables| tables.datagrams.extend([published_of(&later, to)]))
        .drops(DropReason::SourceRange),
        case("first_fragment_of_a_local_flow_passes", IN.carry(&first))
            .with(local_flow)
            .passes(PassReason::LocalFlow),
        case("later_fragment_of_a_local_flow_passes", IN.carry(&later))
            .with(local_flow)
            .after(IN.carry(&first))
            .passes(PassReason::FragmentNotOurs),
        case(
            "later_fragment_of_a_service_that_is_gone_drops",
            IN.carry(&later),
        )
        .with(|tables| {
            tables.service[way.service as usize].word.0 = 0;
            tables.datagrams.extend([published_of(&later, to)]);
        })
        .drops(DropReason::TableChanged),
        case("large_first_fragment_does_not_fit", IN.carry(&large))
            .drops(DropReason::FragmentationNeeded),
        case(
            "first_fragment_with_expired_ttl_is_answered",
            IN.carry(&first.clone().hop_limit(1)),
        )
        .replies(
            ReplyReason::TimeExceeded,
            BACK.carry(&time_exceeded(&first.clone().hop_limit(1))),
        ),
        case("fragment_flag_beside_reserved_and_df_bits", {
            IN.frame(IPV4, &forged_v4(udp(to).bytes(), 6, &[0xe0, 2]))
        })
        .drops(DropReason::FragmentOutOfOrder),
        case("v6_fragment_behind_other_extensions_follows", {
            IN.carry(&behind_extensions(2))
        })
        .after(IN.carry(&behind_extensions(0)))
        .transmits(
            V6_UDP.0,
            &behind_extensions(2),
            sent_in_v6(&behind_extensions(2)),
        ),
    ]
}

/// What the first fragment of the datagram of this one has published just now.
fn published_of(piece: &Packet, to: End) -> (Tuple, Datagram) {
    let bytes = piece.bytes();
    let (key, datagram) = published(client(to), to, piece.protocol(), 0);
    let (source, destination, ..) = key.parts();
    let identification = [0, 0, bytes[4], bytes[5]];
    let key = Tuple::fragments(source, destination, identification, piece.protocol());
    (key, datagram)
}

fn behind_extensions(offset: u16) -> Packet {
    let header = fragment_header(offset, u16::from(offset == 0));
    let chain: [(u8, &[u8]); 3] = [
        (0, &[0, 1, 4, 0, 0, 0, 0]),
        (60, &[0, 1, 4, 0, 0, 0, 0]),
        (44, &header),
    ];
    udp(V6_UDP.1).extensions(&chain)
}

/// Fragments to pods of this machine: bare, and in each family of outer headers.
fn to_pods() -> Vec<Case> {
    let payload: Vec<u8> = (0..=255).cycle().take(600).collect();
    let mut cases = Vec::new();
    type Make = fn(End, End, &[u8]) -> Packet;
    for (kind, (way, to), make) in [
        ("v4_tcp", PODS_V4_TCP, Packet::tcp as Make),
        ("v4_udp", PODS_V4_UDP, Packet::udp),
        ("v4_sctp", PODS_V4_SCTP, Packet::sctp),
        ("v6_tcp", PODS_V6_TCP, Packet::tcp),
        ("v6_udp", PODS_V6_UDP, Packet::udp),
        ("v6_sctp", PODS_V6_SCTP, Packet::sctp),
    ] {
        let (pod, tag) = if to.0.is_ipv4() {
            (POD_V4, TAG_V4)
        } else {
            (POD_V6, TAG_V6)
        };
        // The pieces of the translated datagram are the translated pieces.
        let pieces = make(client(to), to, &payload).pieces(SIZE, ID);
        let outputs = make(client(to), (pod, TARGET), &payload).pieces(SIZE, ID);
        type Carry = Box<dyn Fn(&Packet) -> Vec<u8>>;
        let carries: [(&str, Carry); 3] = [
            ("bare", Box::new(|piece| IN.carry(piece))),
            ("in_v4", {
                Box::new(move |piece| IN.carry(&piece.within(PEER_V4, EDGE_V4).tag(tag)))
            }),
            ("in_v6", {
                Box::new(move |piece| IN.carry(&piece.within(PEER_V6, EDGE_V6).tag(tag)))
            }),
        ];
        for (how, carry) in carries {
            for (index, (piece, output)) in pieces.iter().zip(&outputs).enumerate() {
                let draft = case(
                    format!("{kind}_fragment_{index}_{how}_to_a_pod"),
                    carry(piece),
                )
                .with(pods::node);
                let draft = pieces[..index]
                    .iter()
                    .fold(draft, |draft, piece| draft.after(carry(piece)));
                cases.push(draft.delivers(way, piece.length(), IN.carry(output)));
            }
            cases.push(
                case(
                    format!("{kind}_fragments_{how}_to_a_pod_out_of_order"),
                    carry(&pieces[1]),
                )
                .with(pods::node)
                .drops(DropReason::FragmentOutOfOrder),
            );
        }
    }
    cases
}

/// What comes encapsulated and finds no flow would only travel back to the edge.
fn lost_at_the_node() -> Vec<Case> {
    let (_, to) = PODS_V4_TCP;
    let payload = [0x55; 300];
    let packet = Packet::tcp(client(to), to, &payload);
    let pieces = packet.pieces(SIZE, ID);
    let within = |piece: &Packet, tag| IN.carry(&piece.within(PEER_V4, EDGE_V4).tag(tag));
    let here = |name: &str, input| case(name, input).with(pods::node);
    let unknown = |piece: &Packet| within(piece, 0x3ff);
    let hairpin = Packet::udp((POD_V4, 40_000), PODS_V4_UDP.1, &payload).pieces(SIZE, ID);
    let seen = Packet::udp((VIP_V4, 40_000), (POD_V4, TARGET), &payload).pieces(SIZE, ID);
    let node_port = (v4(192, 0, 2, 2), 30_000);
    let far = Packet::udp(client(node_port), node_port, &payload).pieces(SIZE, ID);
    let far_seen = Packet::udp(client(node_port), (POD_V4, TARGET), &payload).pieces(SIZE, ID);
    let anywhere = |tables: &mut TableSet| {
        tables.service(23, (v4(0, 0, 0, 0), 30_000), UDP, MODE_L2DSR, &[HERE_V4]);
        tables.service[23].flags = tables.service[15].flags;
        tables.pod(23, HERE_V4);
    };
    let l2dsr = |tables: &mut TableSet| {
        tables.service[PODS_V4_UDP.0.service as usize].mode = MODE_L2DSR;
        tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
    };
    let bare = Packet::udp(client(to), PODS_V4_UDP.1, &payload).pieces(SIZE, ID);
    let bare_seen = Packet::udp(client(to), (POD_V4, TARGET), &payload).pieces(SIZE, ID);
    let delivered = |draft: Draft, way: Way, piece: &Packet, output: &Packet| {
        draft.delivers(way, piece.length(), IN.carry(output))
    };
    vec![
        here("ping_in_pieces_drops_at_the_node", {
            within(&Packet::echo(CLIENT_V4, VIP_V4).fragment(0, true), TAG_V4)
        })
        .drops(DropReason::FragmentedIcmp),
        here("tiny_fragment_drops_at_the_node", {
            within(&packet.piece(&packet.payload()[..8], 0, true, ID), TAG_V4)
        })
        .drops(DropReason::FragmentOpaque),
        here("fragment_from_a_stranger_is_left_alone", {
            IN.carry(&pieces[0].within(STRANGER_V4, EDGE_V4).tag(TAG_V4))
        })
        .passes(PassReason::EncapUntrusted),
        here(
            "later_fragment_behind_a_strangers_first_drops",
            within(&pieces[1], TAG_V4),
        )
        .after(IN.carry(&pieces[0].within(STRANGER_V4, EDGE_V4).tag(TAG_V4)))
        .drops(DropReason::FragmentOutOfOrder),
        here("fragment_beyond_the_outer_packet_drops", {
            let bytes = pieces[0].bytes();
            IN.carry(&Packet::ip(PEER_V4, EDGE_V4, 4, &bytes[..bytes.len() - 1]).tag(TAG_V4))
        })
        .drops(DropReason::MalformedInner),
        here(
            "first_fragment_of_a_syn_for_an_unknown_pod_drops",
            unknown(&pieces[0]),
        )
        .drops(DropReason::UnknownPodSyn),
        delivered(
            here(
                "first_fragment_of_a_datagram_for_an_unknown_pod",
                unknown(&bare[0]),
            ),
            PODS_V4_UDP.0,
            &bare[0],
            &bare_seen[0],
        ),
        delivered(
            here(
                "later_fragment_of_a_datagram_for_an_unknown_pod",
                unknown(&bare[1]),
            )
            .after(unknown(&bare[0])),
            PODS_V4_UDP.0,
            &bare[1],
            &bare_seen[1],
        ),
        here("first_fragment_of_an_ack_for_an_unknown_pod_drops", {
            let ack = Packet::segment(client(to), to, RST, &payload);
            unknown(&ack.pieces(SIZE, ID)[0])
        })
        .drops(DropReason::UnknownPod),
        delivered(
            here(
                "first_fragment_of_a_pod_to_itself",
                within(&hairpin[0], TAG_V4),
            ),
            PODS_V4_UDP.0,
            &hairpin[0],
            &seen[0],
        ),
        delivered(
            here(
                "later_fragment_of_a_pod_to_itself",
                within(&hairpin[1], TAG_V4),
            )
            .after(within(&hairpin[0], TAG_V4)),
            PODS_V4_UDP.0,
            &hairpin[1],
            &seen[1],
        ),
        delivered(
            here(
                "first_fragment_to_another_machines_node_port",
                within(&far[0], TAG_V4),
            )
            .with(anywhere),
            self::way(23, HERE_V4),
            &far[0],
            &far_seen[0],
        ),
        delivered(
            here(
                "later_fragment_to_another_machines_node_port",
                within(&far[1], TAG_V4),
            )
            .with(anywhere)
            .after(within(&far[0], TAG_V4)),
            self::way(23, HERE_V4),
            &far[1],
            &far_seen[1],
        ),
        delivered(
            here("first_fragment_by_l2dsr", IN.carry(&bare[0])).with(l2dsr),
            PODS_V4_UDP.0,
            &bare[0],
            &bare_seen[0],
        ),
        delivered(
            here("later_fragment_by_l2dsr", IN.carry(&bare[1]))
                .with(l2dsr)
                .after(IN.carry(&bare[0])),
            PODS_V4_UDP.0,
            &bare[1],
            &bare_seen[1],
        ),
        here(
            "later_fragment_by_l2dsr_without_a_pod_drops",
            IN.carry(&bare[1]),
        )
        .with(l2dsr)
        .with(|tables| tables.service[PODS_V4_UDP.0.service as usize].local.0 = 0)
        .after(IN.carry(&bare[0]))
        .drops(DropReason::UnknownPod),
    ]
}

/// Not every fragment field makes a fragment.
fn whole_datagrams() -> Vec<Case> {
    let packet = tcp(V4_TCP.1);
    let fragmentable = packet.clone().fragmentable();
    // RFC 3514 calls it evil; RFC 791 has it zero.
    let reserved = |packet: &Packet| forged_v4(packet.bytes(), 6, &[0x80, 0]);
    let evil = {
        let inner = reserved(&packet.next_hop());
        let outer = packet.next_hop().within(EDGE_V4, super::NODE_V4).bytes();
        super::TO_NODE_V4.frame(IPV4, &[&outer[..20], &inner].concat())
    };
    let mut cases = vec![
        case("v4_without_df_is_balanced", IN.carry(&fragmentable)).transmits(
            V4_TCP.0,
            &fragmentable,
            sent_in_v4(&fragmentable),
        ),
        case(
            "v4_with_reserved_bit_is_balanced",
            IN.frame(IPV4, &reserved(&packet)),
        )
        .transmits(V4_TCP.0, &packet, evil),
    ];
    // RFC 6946: a fragment header that splits nothing; its reserved bits are ignored.
    for (name, flags) in [("atomic", 0), ("atomic_with_reserved_bits", 0b110)] {
        for (protocol, service, packet) in [
            ("tcp", V6_TCP, tcp(V6_TCP.1)),
            ("udp", V6_UDP, udp(V6_UDP.1)),
        ] {
            let packet = packet.extensions(&[(44, &fragment_header(0, flags))]);
            cases.push(
                case(
                    format!("v6_{name}_fragment_of_{protocol}_is_balanced"),
                    IN.carry(&packet),
                )
                .transmits(service.0, &packet, sent_in_v6(&packet)),
            );
        }
    }
    cases
}

/// IP-in-IP in pieces is put together by the stack.
fn encapsulated() -> Vec<Case> {
    let inner = tcp(V4_TCP.1);
    let mut cases: Vec<_> = PIECES
        .into_iter()
        .map(|(name, offset, more)| {
            let outer = inner.within(PEER_V4, EDGE_V4).fragment(offset, more);
            case(format!("{name}_fragment_of_ipip_passes"), IN.carry(&outer))
                .passes(PassReason::FragmentNotOurs)
        })
        .collect();
    let outer = inner.within(PEER_V6, EDGE_V6);
    let split = outer.clone().extensions(&[(44, &fragment_header(0, 1))]);
    let atomic = outer.extensions(&[(44, &fragment_header(0, 0))]);
    let inner_piece = inner.clone().fragment(3, true);
    cases.extend([
        case("fragment_of_v6_ipip_passes", IN.carry(&split)).passes(PassReason::FragmentNotOurs),
        case(
            "atomic_fragment_of_v6_ipip_is_decapsulated",
            IN.carry(&atomic),
        )
        .decapsulates(IN.carry(&tcp(V4_TCP.1))),
        case(
            "fragment_inside_whole_ipip_is_decapsulated",
            IN.carry(&inner_piece.within(PEER_V4, EDGE_V4)),
        )
        .decapsulates(IN.carry(&inner_piece)),
        case(
            "first_fragment_of_a_service_without_pods_is_decapsulated",
            {
                let first = inner.clone().fragment(0, true);
                IN.carry(&first.within(PEER_V4, EDGE_V4))
            },
        )
        .decapsulates(IN.carry(&inner.clone().fragment(0, true))),
    ]);
    cases
}
