//! ICMP to addresses of ours: echo, and errors that quote flows.

use std::net::IpAddr;

use etherparse::TcpHeader;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, ADDRESS_VIP, BACKEND_LOCAL, BACKEND_POD, BACKEND_V4,
        Backend, CONFIG_NODE, EdgeMac, MODE_IPIP, SERVICE_PODS, SERVICE_SOURCE_RANGES, ServiceWord,
        Tag,
    },
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{
        hash,
        packet::{End, Link, Packet, SERVICE_VLAN, VLAN},
        tables::{TableSet, address_key},
    },
    BACK, CLIENT_V4, CLIENT_V6, Case, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, TCP, TO_NODE_V4,
    TO_NODE_V6, UDP, V4_IN_V6, V4_L2, V4_TCP, V4_UDP, V6_L2, V6_TCP, V6_UDP, VIP_V4, VIP_V6, Way,
    case, client, other_node, sent_in_v4, sent_in_v6, to_other_node, v4, v6, way,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(echoes());
    cases.extend(echoes_in_pieces());
    cases.extend(echoes_with_options());
    cases.extend(forwarded());
    cases.extend(quotes());
    cases.extend(policies());
    cases.extend(malformed());
    cases.extend(delivered());
    cases.extend(not_delivered());
    cases
}

/// Where errors come from: a router on the way to the client.
const ROUTER_V4: IpAddr = v4(198, 51, 100, 254);
const ROUTER_V6: IpAddr = v6(0xc, 254);
const POD_V4: IpAddr = v4(10, 77, 0, 9);
const POD_V6: IpAddr = v6(0x77, 9);
const POD_PORT: u16 = 8080;
const POD: u32 = 9;

fn router(to: IpAddr) -> IpAddr {
    if to.is_ipv4() { ROUTER_V4 } else { ROUTER_V6 }
}

/// The error about packets that are too big for a path of 1400 bytes.
fn too_big(to: IpAddr, quote: &[u8]) -> Packet {
    let kind = if to.is_ipv4() { (3, 4) } else { (2, 0) };
    Packet::icmp(router(to), to, kind, [0, 0, 5, 0x78], quote)
}

/// What a server at `from` sent to the client: a TCP segment.
fn segment(from: End) -> Packet {
    let to = client(from);
    let mut header = TcpHeader::new(from.1, to.1, 0x0506_0708, 0x1000);
    header.ack = true;
    header.acknowledgment_number = 0x0102_0305;
    Packet::tcp_with(from, to, header, b"HTTP/1.0 200 OK\r\n\r\n0").hop_limit(50)
}

/// What a server at `from` sent to the client: a datagram.
fn datagram(from: End) -> Packet {
    Packet::udp(from, client(from), b"an answer").hop_limit(50)
}

fn ip_header(packet: &Packet) -> usize {
    if packet.ends().0.is_ipv4() { 20 } else { 40 }
}

/// The first bytes of a packet: its IP header and so many more.
fn cut(packet: &Packet, transport: usize) -> Vec<u8> {
    packet.bytes()[..ip_header(packet) + transport].to_vec()
}

/// Echo requests in fragments, each of which is answered.
fn echoes_in_pieces() -> Vec<Case> {
    const SIZE: usize = 256;
    const ID: u32 = 0x00c0_ffee;
    let mut cases = Vec::new();
    let body: Vec<u8> = (1..=255).cycle().step_by(7).take(600).collect();
    for (family, client, vip, kinds) in [
        ("v4", CLIENT_V4, VIP_V4, (8, 0)),
        ("v6", CLIENT_V6, VIP_V6, (128, 129)),
    ] {
        let message = |from, to, kind| {
            let packet = Packet::icmp(from, to, (kind, 0), [0xbe, 0xef, 0, 1], &body);
            packet.class(0xb8).pieces(SIZE, ID)
        };
        let (request, reply) = (message(client, vip, kinds.0), message(vip, client, kinds.1));
        let name = |what: &str| format!("{family}_echo_in_pieces_{what}");
        let first = || IN.carry(&request[0]);
        for (place, at) in ["first", "second", "last"].into_iter().enumerate() {
            let draft = case(name(at), IN.carry(&request[place].clone().hop_limit(33)));
            let (draft, hop_limit) = match place {
                0 => (draft, 64),
                _ => (draft.after(first()), 32),
            };
            let reply = reply[place].clone().hop_limit(hop_limit);
            cases.push(draft.replies(ReplyReason::EchoReply, BACK.carry(&reply)));
        }
        let padded = [IN.carry(&request[2]), vec![0; 20]].concat();
        let last = reply[2].clone().hop_limit(63);
        cases.extend([
            case(name("with_padding"), padded)
                .after(first())
                .replies(ReplyReason::EchoReply, BACK.carry(&last)),
            case(name("later_with_the_last_hop"), {
                IN.carry(&request[1].clone().hop_limit(1))
            })
            .after(first())
            .drops(DropReason::Unanswerable),
            case(name("later_without_the_first"), IN.carry(&request[1]))
                .drops(DropReason::FragmentOutOfOrder),
            case(name("first_of_a_reply"), {
                IN.carry(&message(client, vip, kinds.1)[0])
            })
            .drops(DropReason::FragmentedIcmp),
            // Else two machines could be made to answer each other.
            case(name("later_of_a_reply"), IN.carry(&request[1]))
                .after(IN.carry(&message(client, vip, kinds.1)[0]))
                .drops(DropReason::FragmentOutOfOrder),
            case(name("from_a_vip"), IN.carry(&message(vip, vip, kinds.0)[0]))
                .drops(DropReason::SourceIsVip),
            case(name("cut_inside_the_header"), {
                let whole = Packet::icmp(client, vip, (kinds.0, 0), [0; 4], b"");
                IN.carry(&whole.piece(&whole.payload()[..7], 0, true, ID))
            })
            .drops(DropReason::FragmentedIcmp),
            case(name("from_no_host"), {
                let nobody = if vip.is_ipv4() {
                    v4(224, 0, 0, 1)
                } else {
                    "ff02::1".parse().unwrap()
                };
                IN.carry(&message(nobody, vip, kinds.0)[0])
            })
            .drops(DropReason::Unanswerable),
        ]);
    }
    let options = Packet::echo(CLIENT_V4, VIP_V4)
        .fragment(0, true)
        .options(&[1, 1, 1, 0]);
    cases.push(
        case("v4_echo_in_pieces_with_options", IN.carry(&options))
            .drops(DropReason::FragmentedIcmp),
    );
    cases
}

/// An echo request, or the reply to it.
fn message(from: IpAddr, to: IpAddr, reply: bool, body: &[u8]) -> Packet {
    let kind = match (to_v4(from), reply) {
        (true, false) => (8, 0),
        (true, true) => (0, 0),
        (false, false) => (128, 0),
        (false, true) => (129, 0),
    };
    Packet::icmp(from, to, kind, [0xbe, 0xef, 0, 1], body)
}

fn echoes() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, client, vip) in [("v4", CLIENT_V4, VIP_V4), ("v6", CLIENT_V6, VIP_V6)] {
        for length in [0, 1, 4, 56, 57, 1400, 1452, 3000, 8900] {
            let body: Vec<u8> = (1..=255).cycle().step_by(3).take(length).collect();
            let request = message(client, vip, false, &body).hop_limit(9).class(0xb8);
            let reply = message(vip, client, true, &body).hop_limit(64).class(0xb8);
            cases.push(
                case(
                    format!("{family}_echo_of_{length}_bytes_to_a_vip"),
                    IN.carry(&request),
                )
                .replies(ReplyReason::EchoReply, BACK.carry(&reply)),
            );
        }
        for (name, tags) in [
            ("one_tag", &[(VLAN, 9)][..]),
            ("two_tags", &[(SERVICE_VLAN, 5), (VLAN, 9)]),
        ] {
            cases.push(
                case(
                    format!("{family}_echo_with_{name}"),
                    Link { tags, ..IN }.carry(&message(client, vip, false, b"ping!")),
                )
                .replies(
                    ReplyReason::EchoReply,
                    Link { tags, ..BACK }.carry(&message(vip, client, true, b"ping!")),
                ),
            );
        }
        cases.push(
            case(
                format!("{family}_echo_with_the_last_hop"),
                IN.carry(&message(client, vip, false, b"").hop_limit(1)),
            )
            .replies(
                ReplyReason::EchoReply,
                BACK.carry(&message(vip, client, true, b"")),
            ),
        );
        cases.push(
            case(
                format!("{family}_echo_reply_to_a_vip_drops"),
                IN.carry(&message(client, vip, true, b"")),
            )
            .drops(DropReason::VipIcmp),
        );
        let mut padded = IN.carry(&message(client, vip, false, b"x"));
        let answer = BACK.carry(&message(vip, client, true, b"x"));
        padded.extend([0xee; 9]);
        cases.push(
            case(format!("{family}_echo_loses_its_padding"), padded)
                .replies(ReplyReason::EchoReply, answer),
        );
        for (name, flags) in [("node_port", ADDRESS_NODE_PORT), ("local", ADDRESS_LOCAL)] {
            cases.push(
                case(
                    format!("{family}_echo_to_a_{name}_address_passes"),
                    IN.carry(&message(client, vip, false, b"")),
                )
                .with(|tables| tables.address(vip, flags))
                .passes(PassReason::Icmp),
            );
        }
    }
    for (name, source, vip) in [
        ("v4_multicast", v4(224, 0, 0, 5), VIP_V4),
        ("v4_loopback", v4(127, 0, 0, 1), VIP_V4),
        ("v6_unspecified", "::".parse().unwrap(), VIP_V6),
        ("v6_multicast", "ff02::5".parse().unwrap(), VIP_V6),
    ] {
        cases.push(
            case(
                format!("echo_from_{name}_is_not_answered"),
                IN.carry(&message(source, vip, false, b"")),
            )
            .drops(DropReason::Unanswerable),
        );
    }
    let options: (u8, &[u8]) = (60, &[0, 1, 4, 0, 0, 0, 0]);
    let optioned = message(CLIENT_V4, VIP_V4, false, b"").options(&[148, 4, 0, 0]);
    let extended = message(CLIENT_V6, VIP_V6, false, b"").extensions(&[options]);
    for (name, packet) in [("router_alert", optioned), ("extension_headers", extended)] {
        let case_of = |what| case(format!("echo_with_{name}_{what}"), IN.carry(&packet));
        cases.extend([
            case_of("drops").drops(DropReason::IcmpOptions),
            case_of("passes_where_the_address_is_a_nodes_too")
                .with(|tables| {
                    tables.address(VIP_V4, ADDRESS_VIP | ADDRESS_LOCAL);
                    tables.address(VIP_V6, ADDRESS_VIP | ADDRESS_LOCAL);
                })
                .passes(PassReason::Icmp),
        ]);
    }
    cases
}

/// Echo requests with IPv4 options. The VIP enters itself where it is asked to, and there is room.
fn echoes_with_options() -> Vec<Case> {
    let IpAddr::V4(vip) = VIP_V4 else {
        unreachable!("it is an IPv4 address")
    };
    let [a, b, c, d] = vip.octets();
    let mut cases = Vec::new();
    let repeated: [(&str, &[u8], &[u8]); 7] = [
        ("no_operations", &[1; 4], &[1; 4]),
        ("an_end", &[0, 9, 9, 9], &[0, 9, 9, 9]),
        (
            "a_route_to_record",
            &[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[7, 11, 8, a, b, c, d, 0, 0, 0, 0, 0],
        ),
        (
            "a_route_that_ends_here",
            &[1, 7, 11, 8, 192, 0, 2, 7, 0, 0, 0, 0],
            &[1, 7, 11, 12, 192, 0, 2, 7, a, b, c, d],
        ),
        (
            "a_full_route",
            &[7, 7, 8, 192, 0, 2, 7, 0],
            &[7, 7, 8, 192, 0, 2, 7, 0],
        ),
        (
            "full_timestamps",
            &[68, 8, 9, 0x20, 0, 0, 0, 7],
            &[68, 8, 9, 0x30, 0, 0, 0, 7],
        ),
        (
            "timestamps_of_others",
            &[68, 12, 5, 3, 192, 0, 2, 7, 0, 0, 0, 0],
            &[68, 12, 5, 3, 192, 0, 2, 7, 0, 0, 0, 0],
        ),
    ];
    for (name, asked, answered) in repeated {
        let request = message(CLIENT_V4, VIP_V4, false, b"ping!").options(asked);
        let reply = message(VIP_V4, CLIENT_V4, true, b"ping!").options(answered);
        cases.push(
            case(format!("echo_with_{name}_is_answered"), IN.carry(&request))
                .replies(ReplyReason::EchoReply, BACK.carry(&reply)),
        );
    }
    let refused: [(&str, &[u8]); 9] = [
        (
            "two_options",
            &[7, 7, 4, 0, 0, 0, 0, 68, 8, 9, 0x11, 0, 0, 0, 7, 0],
        ),
        ("an_empty_option", &[7, 0, 4, 0]),
        ("an_option_without_pointer", &[7, 2, 4, 0]),
        ("an_option_beyond_the_header", &[7, 9, 4, 0, 0, 0, 0, 0]),
        ("a_pointer_into_the_option", &[7, 7, 3, 0, 0, 0, 0, 0]),
        (
            "a_timestamp_pointer_into_the_option",
            &[68, 8, 4, 0, 0, 0, 0, 0],
        ),
        ("timestamps_without_flags", &[68, 3, 5, 0]),
        ("unknown_flags", &[68, 8, 5, 2, 0, 0, 0, 0]),
        ("too_many_without_room", &[68, 4, 5, 0xf0]),
    ];
    for (name, options) in refused {
        let request = message(CLIENT_V4, VIP_V4, false, b"").options(options);
        cases.push(
            case(format!("echo_with_{name}_drops"), IN.carry(&request))
                .drops(DropReason::IcmpOptions),
        );
    }
    cases
}

fn to_v4(address: IpAddr) -> bool {
    address.is_ipv4()
}

/// Errors take the way of the flow's packets.
fn forwarded() -> Vec<Case> {
    type Sent = fn(&Packet) -> Vec<u8>;
    let to_l2_v4: Sent = |packet| TO_NODE_V4.carry(&packet.next_hop());
    let to_l2_v6: Sent = |packet| TO_NODE_V6.carry(&packet.next_hop());
    let paths: [(&str, (Way, End), u8, Sent); 8] = [
        ("v4_tcp", V4_TCP, TCP, sent_in_v4),
        ("v4_udp", V4_UDP, UDP, sent_in_v4),
        ("v6_tcp", V6_TCP, TCP, sent_in_v6),
        ("v6_udp", V6_UDP, UDP, sent_in_v6),
        ("v4_in_v6", V4_IN_V6, TCP, sent_in_v6),
        ("v4_l2dsr", V4_L2, TCP, to_l2_v4),
        ("v6_l2dsr", V6_L2, TCP, to_l2_v6),
        ("v6_in_v4", super::V6_IN_V4, TCP, sent_in_v4),
    ];
    let mut cases = Vec::new();
    for (name, (way, vip), protocol, sent) in paths {
        let reply = if protocol == TCP {
            segment(vip)
        } else {
            datagram(vip)
        };
        let whole = reply.length() - ip_header(&reply);
        for transport in [8, 12, whole] {
            let error = too_big(vip.0, &cut(&reply, transport));
            cases.push(
                case(
                    format!("error_about_{name}_with_{transport}_bytes_of_transport"),
                    IN.carry(&error),
                )
                .transmits(way, &error, sent(&error)),
            );
        }
    }
    for (family, kinds, (way, vip), sent) in [
        (
            "v4",
            &[(3, 0), (3, 3), (11, 0), (12, 0)][..],
            V4_TCP,
            sent_in_v4 as Sent,
        ),
        ("v6", &[(1, 4), (3, 0), (4, 1)], V6_TCP, sent_in_v6),
    ] {
        for kind in kinds {
            let quote = cut(&segment(vip), 8);
            let error = Packet::icmp(router(vip.0), vip.0, *kind, [0; 4], &quote);
            cases.push(
                case(
                    format!("{family}_error_{}_{}_follows_the_flow", kind.0, kind.1),
                    IN.carry(&error),
                )
                .transmits(way, &error, sent(&error)),
            );
        }
    }
    // Source quench, redirect, router advertisement; router and neighbour discovery, multicast listeners.
    for (family, kinds, vip) in [
        ("v4", &[4, 5, 9, 10, 13, 42][..], V4_TCP.1),
        ("v6", &[130, 133, 134, 135, 136, 137, 143], V6_TCP.1),
    ] {
        for kind in kinds {
            let quote = segment(vip).bytes();
            let message = Packet::icmp(router(vip.0), vip.0, (*kind, 0), [0; 4], &quote);
            cases.push(
                case(
                    format!("{family}_message_{kind}_to_a_vip_drops"),
                    IN.carry(&message),
                )
                .drops(DropReason::VipIcmp),
            );
        }
    }
    cases.extend([by_the_flows_slot(V4_TCP.1), by_the_flows_slot(V6_TCP.1)]);
    cases
}

/// The slot is the one of the packets from the client.
fn by_the_flows_slot(vip: End) -> Case {
    const OWNER: u32 = 4;
    let error = too_big(vip.0, &cut(&segment(vip), 8));
    let seed = super::world().config.hash_seed;
    let slot = hash::slot(seed, client(vip), vip, TCP, 3);
    let mut owners = [3; 8];
    owners[slot] = OWNER;
    let outer = error.next_hop().within(EDGE_V4, other_node(OWNER));
    case(
        format!("error_goes_to_the_owner_of_the_flow_to_{}", vip.0),
        IN.carry(&error),
    )
    .with(|tables| tables.service(9, vip, TCP, MODE_IPIP, &owners))
    .transmits(way(9, OWNER), &error, to_other_node(OWNER).carry(&outer))
}

/// What a quote may look like.
fn quotes() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut v4 = |name: &str, quote: Vec<u8>| {
        let error = too_big(VIP_V4, &quote);
        cases.push(
            case(format!("v4_quote_{name}_is_followed"), IN.carry(&error)).transmits(
                V4_TCP.0,
                &error,
                sent_in_v4(&error),
            ),
        );
    };
    let reply = segment(V4_TCP.1);
    v4("with_options", reply.clone().options(&[1; 12]).bytes());
    let longest = reply.clone().options(&[1; 40]).bytes();
    v4("with_most_options_and_8_bytes", longest[..68].to_vec());
    v4(
        "of_a_first_fragment",
        reply.clone().fragment(0, true).bytes(),
    );
    v4("with_an_expired_ttl", reply.clone().hop_limit(0).bytes());
    let mut v6 = |name: &str, (way, _): (Way, End), vip: End, quote: Vec<u8>| {
        let error = too_big(vip.0, &quote);
        cases.push(
            case(format!("v6_quote_{name}_is_followed"), IN.carry(&error)).transmits(
                way,
                &error,
                sent_in_v6(&error),
            ),
        );
    };
    let reply = datagram(V6_UDP.1);
    let first = reply.extensions(&[(44, &[0, 0, 1, 0, 0, 0, 7])]);
    v6("of_a_first_fragment", V6_UDP, V6_UDP.1, first.bytes());
    v6(
        "of_a_first_fragment_and_8_bytes",
        V6_UDP,
        V6_UDP.1,
        first.bytes()[..56].to_vec(),
    );
    cases
}

fn policies() -> Vec<Case> {
    let error = too_big(VIP_V4, &cut(&segment(V4_TCP.1), 8));
    let frame = IN.carry(&error);
    let named = |name: &str| case(name, frame.clone());
    let restricted = |tables: &mut TableSet| {
        tables.service[1].flags |= SERVICE_SOURCE_RANGES;
    };
    vec![
        named("error_about_a_client_out_of_range_drops")
            .with(restricted)
            .drops(DropReason::SourceRange),
        // The client counts, not the router.
        named("error_about_a_client_in_range_is_forwarded")
            .with(restricted)
            .with(|tables| tables.admit(1, CLIENT_V4, 32))
            .transmits(V4_TCP.0, &error, sent_in_v4(&error)),
        named("error_about_an_empty_service_drops")
            .with(|tables| tables.set_owner(1, 0))
            .drops(DropReason::NoBackend),
        named("error_about_a_flow_of_the_machine_itself_passes")
            .with(|tables| tables.backends[1].flags |= BACKEND_LOCAL)
            .passes(PassReason::LocalBackend),
        named("error_about_a_service_in_flux_drops")
            .with(|tables| tables.service[1].word = ServiceWord::default())
            .drops(DropReason::TableChanged),
        case("expired_error_is_not_answered", {
            IN.carry(&error.clone().hop_limit(1))
        })
        .drops(DropReason::Unanswerable),
        case("error_too_large_for_the_path_is_not_answered", {
            IN.carry(&too_big(VIP_V4, &segment(V4_TCP.1).bytes()))
        })
        .with(|tables| tables.next_hops[1].mtu = 100)
        .drops(DropReason::Unanswerable),
        named("error_about_a_node_port_flow_is_forwarded")
            .with(|tables| tables.address(VIP_V4, ADDRESS_NODE_PORT))
            .transmits(V4_TCP.0, &error, sent_in_v4(&error)),
    ]
}

fn malformed() -> Vec<Case> {
    let mut cases = Vec::new();
    let v4 = segment(V4_TCP.1);
    let v6 = segment(V6_TCP.1);
    let mut other_version = v4.bytes();
    other_version[0] = 0x65;
    let mut short_header = v4.bytes();
    short_header[0] = 0x44;
    for (name, vip, quote) in [
        ("v4_without_a_quote", VIP_V4, vec![]),
        ("v4_with_half_a_header", VIP_V4, v4.bytes()[..12].to_vec()),
        ("v4_with_7_bytes_of_transport", VIP_V4, cut(&v4, 7)),
        ("v4_with_options_instead_of_ports", VIP_V4, {
            v4.clone().options(&[1; 12]).bytes()[..28].to_vec()
        }),
        ("v4_with_a_quote_of_v6", VIP_V4, v6.bytes()),
        ("v4_with_another_version", VIP_V4, other_version),
        ("v4_with_a_short_header", VIP_V4, short_header),
        ("v4_about_a_later_fragment", VIP_V4, {
            v4.clone().fragment(5, true).bytes()
        }),
        ("v4_about_another_address", VIP_V4, {
            segment((EDGE_V4, 80)).bytes()
        }),
        ("v4_about_a_packet_from_the_client", VIP_V4, {
            super::tcp(V4_TCP.1).bytes()
        }),
        ("v4_about_a_port_without_service", VIP_V4, {
            segment((VIP_V4, 81)).bytes()
        }),
        ("v6_without_a_quote", VIP_V6, vec![]),
        ("v6_with_7_bytes_of_transport", VIP_V6, cut(&v6, 7)),
        ("v6_with_a_quote_of_v4", VIP_V6, v4.bytes()),
        ("v6_about_a_later_fragment", VIP_V6, {
            v6.clone()
                .extensions(&[(44, &[0, 0, 9, 0, 0, 0, 7])])
                .bytes()
        }),
        ("v6_about_another_address", VIP_V6, {
            segment((EDGE_V6, 80)).bytes()
        }),
        ("v6_about_a_port_without_service", VIP_V6, {
            segment((VIP_V6, 81)).bytes()
        }),
    ] {
        let frame = IN.carry(&too_big(vip, &quote));
        cases.push(
            case(format!("error_{name}_to_a_vip_drops"), frame.clone())
                .drops(DropReason::MalformedIcmp),
        );
        cases.push(
            case(format!("error_{name}_to_a_node_passes"), frame)
                .with(|tables| tables.address(vip, ADDRESS_NODE_PORT))
                .passes(PassReason::Icmp),
        );
    }
    for length in [0, 1, 7] {
        cases.push(
            case(
                format!("icmp_of_{length}_bytes_to_a_vip_drops"),
                IN.carry(&Packet::ip(CLIENT_V4, VIP_V4, 1, &vec![3; length])),
            )
            .drops(DropReason::MalformedIcmp),
        );
    }
    // Our own echo reply, for one.
    let echo = Packet::icmp(VIP_V4, CLIENT_V4, (0, 0), [0; 4], b"ping");
    cases.push(
        case(
            "error_about_icmp_drops",
            IN.carry(&too_big(VIP_V4, &echo.bytes())),
        )
        .drops(DropReason::MalformedIcmp),
    );
    cases
}

/// Makes a backend of a service a pod of this machine.
fn with_pod(service: u32, pod: IpAddr) -> impl FnOnce(&mut TableSet) {
    move |tables| {
        tables.backends[POD as usize] = Backend {
            address: super::padded(EDGE_V4),
            flags: BACKEND_V4 | BACKEND_LOCAL | BACKEND_POD,
            pod: address_key(pod),
            port: POD_PORT.to_be_bytes(),
            tag: Tag::pod(address_key(pod)).0,
            ..Backend::default()
        };
        tables.service[service as usize].flags |= SERVICE_PODS;
        tables.pod(service, POD);
    }
}

fn tag(packet: &Packet, pod: IpAddr) -> Packet {
    packet.clone().tag(Tag::pod(address_key(pod)).0)
}

const fn to_pod(service: u32) -> Way {
    way(service, POD)
}

/// Errors to pods of this machine quote the pod's own packet.
fn delivered() -> Vec<Case> {
    type Reply = fn(End) -> Packet;
    let mut cases = Vec::new();
    for (name, (way, vip), pod, reply) in [
        ("v4_tcp", V4_TCP, POD_V4, segment as Reply),
        ("v4_udp", V4_UDP, POD_V4, datagram),
        ("v6_tcp", V6_TCP, POD_V6, segment),
        ("v6_udp", V6_UDP, POD_V6, datagram),
    ] {
        let (sent, own) = (reply(vip), reply((pod, POD_PORT)));
        let whole = sent.length() - ip_header(&sent);
        let mut cuts = vec![8, 16, 18, 20, whole];
        cuts.retain(|cut| *cut <= whole);
        cuts.dedup();
        for transport in cuts {
            let error = too_big(vip.0, &cut(&sent, transport));
            // A pod sees the checksum of its own packet, as far as it is quoted whole.
            let mut quote = cut(&own, transport);
            if name.ends_with("tcp") && (16..20).contains(&transport) {
                let at = ip_header(&own) + 16;
                quote[at..].copy_from_slice(&cut(&sent, transport)[at..]);
            }
            let translated = Packet::icmp(
                router(vip.0),
                pod,
                if vip.0.is_ipv4() { (3, 4) } else { (2, 0) },
                [0, 0, 5, 0x78],
                &quote,
            );
            for (family, node, peer) in [("v4", EDGE_V4, PEER_V4), ("v6", EDGE_V6, PEER_V6)] {
                let outer = tag(&error.within(peer, node), pod);
                for (tags_name, tags) in [("no_tag", &[][..]), ("a_tag", &[(VLAN, 9)])] {
                    let link = Link { tags, ..IN };
                    cases.push(
                        case(
                            format!(
                                "error_about_{name}_in_{family}_with_{transport}_bytes_and_{tags_name}"
                            ),
                            link.carry(&outer),
                        )
                        .with(with_pod(way.service, pod))
                        .delivers(to_pod(way.service), error.length(), link.carry(&translated)),
                    );
                }
            }
            cases.push(
                case(
                    format!("bare_error_about_{name}_with_{transport}_bytes"),
                    IN.carry(&error),
                )
                .with(with_pod(way.service, pod))
                .with(|tables| tables.set_owner(way.service, POD))
                .delivers(
                    to_pod(way.service),
                    error.length(),
                    IN.carry(&translated),
                ),
            );
        }
    }
    cases.extend(delivered_specially());
    cases
}

fn delivered_specially() -> Vec<Case> {
    let mut cases = Vec::new();
    let error_to = |to: IpAddr, quote: &Packet| too_big(to, &quote.bytes());
    let by_peer = |error: &Packet| tag(&error.within(PEER_V4, EDGE_V4), POD_V4);

    let (sent, own) = (
        segment(V4_TCP.1).options(&[1; 12]),
        segment((POD_V4, POD_PORT)).options(&[1; 12]),
    );
    let error = error_to(VIP_V4, &sent);
    cases.push(
        case("error_about_a_packet_with_options_is_delivered", {
            IN.carry(&by_peer(&error))
        })
        .with(with_pod(1, POD_V4))
        .delivers(to_pod(1), error.length(), IN.carry(&error_to(POD_V4, &own))),
    );

    // A datagram without a checksum keeps none.
    let bare = |from: End| {
        let ports = [from.1.to_be_bytes(), client(from).1.to_be_bytes()].concat();
        let header = [&ports[..], &[0, 12, 0, 0, 1, 2, 3, 4]].concat();
        Packet::ip(from.0, client(from).0, UDP, &header)
    };
    let error = error_to(VIP_V4, &bare(V4_UDP.1));
    cases.push(
        case("error_about_a_datagram_without_checksum_is_delivered", {
            IN.carry(&by_peer(&error))
        })
        .with(with_pod(2, POD_V4))
        .delivers(to_pod(2), error.length(), {
            IN.carry(&error_to(POD_V4, &bare((POD_V4, POD_PORT))))
        }),
    );

    // A NodePort's packet carries the edge's address, which is none of this machine's.
    let (node_port, other) = ((PEER_V4, 30_080), v4(0, 0, 0, 0));
    let error = error_to(PEER_V4, &segment(node_port));
    cases.push(
        case("error_about_a_node_port_of_another_machine_is_delivered", {
            IN.carry(&by_peer(&error))
        })
        .with(|tables| tables.service(9, (other, 30_080), TCP, MODE_IPIP, &[1]))
        .with(with_pod(9, POD_V4))
        .delivers(to_pod(9), error.length(), {
            IN.carry(&error_to(POD_V4, &segment((POD_V4, POD_PORT))))
        }),
    );

    // From an edge by L2 DSR: this machine chooses among its own pods.
    let error = error_to(VIP_V4, &segment(V4_L2.1));
    cases.push(
        case("error_from_an_edge_by_l2dsr_is_delivered", IN.carry(&error))
            .with(with_pod(7, POD_V4))
            .with(|tables| {
                tables.config.flags |= CONFIG_NODE;
                tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
                tables.set_owner(8, POD);
                tables.service[7].local = tables.service[8].word;
            })
            .delivers(to_pod(7), error.length(), {
                IN.carry(&error_to(POD_V4, &segment((POD_V4, POD_PORT))))
            }),
    );
    cases
}

fn not_delivered() -> Vec<Case> {
    let mut cases = Vec::new();
    let within = |packet: &Packet| packet.within(PEER_V4, EDGE_V4);
    let error = too_big(VIP_V4, &segment(V4_TCP.1).bytes());
    cases.push(
        case("error_about_a_pod_that_is_not_here_drops", {
            IN.carry(&within(&error).tag(0x123))
        })
        .with(with_pod(1, POD_V4))
        .drops(DropReason::UnknownPod),
    );
    for (name, packet) in [
        (
            "error_about_no_service",
            too_big(VIP_V4, &segment((VIP_V4, 81)).bytes()),
        ),
        (
            "error_about_a_service_without_pods",
            too_big(VIP_V4, &segment(V4_L2.1).bytes()),
        ),
        ("error_without_a_quote", too_big(VIP_V4, &[])),
        (
            "error_about_another_address",
            too_big(VIP_V4, &segment((CLIENT_V4, 80)).bytes()),
        ),
        ("echo", Packet::echo(CLIENT_V4, VIP_V4)),
        (
            "half_a_message",
            Packet::ip(CLIENT_V4, VIP_V4, 1, &[8, 0, 0]),
        ),
    ] {
        cases.push(
            case(
                format!("{name}_in_an_outer_header_is_decapsulated"),
                IN.carry(&tag(&within(&packet), POD_V4)),
            )
            .with(with_pod(1, POD_V4))
            .decapsulates(IN.carry(&packet)),
        );
    }
    cases
}
