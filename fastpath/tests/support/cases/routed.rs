//! What hangs on the kernel's routes: RSTs for tags that name no pod here, and what the stack would send back.

use std::net::IpAddr;

use etherparse::TcpHeader;
use xdp_prog::{
    abi::{ADDRESS_INNER, ADDRESS_VIP, CONFIG_NODE, EdgeMac},
    process::Action,
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{
        packet::{ACK, End, Link, Packet, SERVICE_VLAN, VLAN},
        routes::{
            ABOVE, APART, BESIDE, BY_ABOVE, BY_APART, BY_BESIDE, BY_LOOPBACK, BY_TAGGED,
            BY_TAGGED_APART, LOOPBACK, Route, TO_EDGE, TO_TAGGED_EDGE, UNRESOLVED,
        },
        tables::padded,
    },
    CLIENT_V4, CLIENT_V6, Case, EDGE_V4, EDGE_V6, IN, PEER_V4, V4_TCP, V6_TCP, VIP_V4, VIP_V6,
    case, client, counted,
    pods::{PODS_V4_TCP, PODS_V6_TCP, case_here},
    reset, tcp,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, to) in [("v4", PODS_V4_TCP.1), ("v6", PODS_V6_TCP.1)] {
        cases.extend(resets(family, to));
        cases.extend(ways_of_resets(family, to));
        cases.extend(resets_by_vlans(family, to));
    }
    cases.extend(backends_that_the_fib_knows());
    cases.extend(sent_back());
    cases.extend(sent_on_at_a_vip());
    cases
}

/// Tags of frames that come in.
const TAGS: [(&str, &[(u16, u16)]); 3] = [
    ("untagged", &[]),
    ("tagged", &[(VLAN, 0x6064)]),
    ("double_tagged", &[(SERVICE_VLAN, 5), (VLAN, 0x0fff)]),
];
/// The edge that the kernel has a way to and this machine, by outer family.
const OUTERS: [(&str, IpAddr, IpAddr); 2] = [
    ("v4", TO_EDGE[0].to, EDGE_V4),
    ("v6", TO_EDGE[1].to, EDGE_V6),
];

/// A frame in which an edge sends a packet with the tag of no pod.
fn from_edge(link: &Link<'_>, packet: &Packet, edge: IpAddr, own: IpAddr) -> Vec<u8> {
    const NOBODY: u16 = 0x3ff;
    link.carry(&packet.within(edge, own).tag(NOBODY))
}

fn segment(from: End, to: End, change: impl FnOnce(&mut TcpHeader), payload: &[u8]) -> Packet {
    let mut header = TcpHeader::new(from.1, to.1, 0x0102_0304, 1024);
    header.acknowledgment_number = 0x0a0b_0c0d;
    change(&mut header);
    Packet::tcp_with(from, to, header, payload)
}

/// The RST for a segment with the acknowledgement of [`segment`].
fn reset_of_ack(from: End, to: End) -> Packet {
    let mut header = TcpHeader::new(from.1, to.1, 0x0a0b_0c0d, 0);
    header.rst = true;
    Packet::tcp_with(from, to, header, b"").fresh()
}

/// The frame's link layer where an answer goes by a route.
fn by<'a>(route: &Route, tags: &'a [(u16, u16)]) -> Link<'a> {
    Link {
        destination: route.neighbour.unwrap(),
        source: route.device.mac,
        tags,
    }
}

/// In frames of all kinds, where the client is behind the device that the edge is behind.
fn resets(family: &str, to: End) -> Vec<Case> {
    let mut cases = Vec::new();
    let route = like(to.0, BY_ABOVE);
    let from = (route.to, 40_000);
    for (what, packet, answer) in [
        (
            "ack",
            segment(from, to, |header| header.ack = true, b""),
            reset_of_ack(to, from),
        ),
        (
            "data",
            segment(from, to, |h| (h.ack, h.psh) = (true, true), &[7; 900]),
            reset_of_ack(to, from),
        ),
        (
            "fin_without_ack",
            segment(from, to, |header| header.fin = true, b"end"),
            reset(to, from, 0x0102_0308),
        ),
    ] {
        for (outer, edge, own) in OUTERS {
            for (how, tags) in TAGS {
                let input = from_edge(&Link { tags, ..IN }, &packet, edge, own);
                let output = by(&route, tags).carry(&answer);
                let name = format!("{family}_{what}_in_{outer}_{how}_for_an_unknown_pod_is_reset");
                cases.push(case_here(name, input).ends(
                    Action::Transmit,
                    output,
                    counted(ReplyReason::Reset.index()),
                ));
            }
        }
    }
    cases
}

/// The frame's tags are those of no other device than the one that it came in by.
fn ways_of_resets(family: &str, to: End) -> Vec<Case> {
    const ELSEWHERE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x5e];
    let to_another_mac = Link {
        destination: ELSEWHERE,
        ..IN
    };
    let mut ways = vec![
        ("another_cable", IN, like(to.0, BY_APART), APART.ifindex),
        ("another_vlan", IN, like(to.0, BY_BESIDE), BESIDE.ifindex),
        (
            "a_device_with_another_mac",
            to_another_mac,
            like(to.0, BY_ABOVE),
            ABOVE.ifindex,
        ),
    ];
    if to.0.is_ipv4() {
        ways.push(("the_device_itself", IN, BY_LOOPBACK, LOOPBACK.ifindex));
    }
    let mut cases = Vec::new();
    for (what, link, route, ifindex) in ways {
        let from = (route.to, 40_000);
        let packet = segment(from, to, |header| header.ack = true, b"");
        for (how, tags) in TAGS {
            let input = from_edge(&Link { tags, ..link }, &packet, TO_EDGE[0].to, EDGE_V4);
            let action = if ifindex == LOOPBACK.ifindex {
                Action::Transmit
            } else {
                Action::Redirect(ifindex)
            };
            cases.push(
                case_here(format!("{family}_{how}_is_reset_by_{what}"), input).ends(
                    action,
                    by(&route, &[]).carry(&reset_of_ack(to, from)),
                    counted(ReplyReason::Reset.index()),
                ),
            );
        }
    }
    let from = (like(to.0, UNRESOLVED).to, 40_000);
    let packet = Packet::segment(from, to, ACK, b"");
    cases.push(
        case_here(
            format!("{family}_of_a_client_behind_an_unknown_neighbour_is_not_reset"),
            from_edge(&IN, &packet, TO_EDGE[0].to, EDGE_V4),
        )
        .drops(DropReason::UnknownPod),
    );
    cases
}

/// Where the way to the client is a known VLAN device, the tag is that device's, whatever the frame came with.
fn resets_by_vlans(family: &str, to: End) -> Vec<Case> {
    const OTHERS: [(&str, &[(u16, u16)]); 4] = [
        TAGS[0],
        TAGS[1],
        TAGS[2],
        ("tagged_for_another_vlan", &[(VLAN, 0x6065)]),
    ];
    let mut cases = Vec::new();
    for (what, routes, id, action) in [
        ("the_vlan", BY_TAGGED, 0x064, Action::Transmit),
        (
            "a_vlan_of_another_cable",
            BY_TAGGED_APART,
            0xabc,
            Action::Redirect(APART.ifindex),
        ),
    ] {
        let route = like(to.0, routes);
        let from = (route.to, 40_000);
        let packet = segment(from, to, |header| header.ack = true, b"");
        for (edge, of_edge) in [
            ("an_edge_elsewhere", TO_EDGE),
            ("an_edge_there", TO_TAGGED_EDGE),
        ] {
            for (how, tags) in OTHERS {
                let input = from_edge(&Link { tags, ..IN }, &packet, of_edge[0].to, EDGE_V4);
                // Priority and all, where it came by that device.
                let came_by = edge == "an_edge_there" && id == 0x064 && tags == TAGS[1].1;
                let tag = [(VLAN, if came_by { 0x6064 } else { id })];
                let name = format!("{family}_{how}_from_{edge}_is_reset_by_{what}");
                cases.push(case_here(name, input).ends(
                    action,
                    by(&route, &tag).carry(&reset_of_ack(to, from)),
                    counted(ReplyReason::Reset.index()),
                ));
            }
        }
    }
    cases
}

/// Without a next hop of their own.
fn backends_that_the_fib_knows() -> Vec<Case> {
    let mut cases = Vec::new();
    for (way, backend, packet, own) in [
        (V4_TCP.0, 1, tcp(V4_TCP.1), EDGE_V4),
        (V6_TCP.0, 2, tcp(V6_TCP.1), EDGE_V6),
    ] {
        for (what, routes, tags, action) in [
            (
                "a_cable",
                BY_APART,
                &[][..],
                Action::Redirect(APART.ifindex),
            ),
            ("the_vlan", BY_TAGGED, &[(VLAN, 0x064)], Action::Transmit),
            (
                "a_vlan_of_another_cable",
                BY_TAGGED_APART,
                &[(VLAN, 0xabc)],
                Action::Redirect(APART.ifindex),
            ),
        ] {
            let route = like(own, routes);
            let sent = packet.next_hop().within(own, route.to);
            let name = format!("backend_at_{}_is_reached_by_{what}", route.to);
            cases.push(
                case(name, IN.carry(&packet))
                    .with(|tables| {
                        tables.config.source_v4 = padded(EDGE_V4);
                        tables.config.source_v6 = padded(EDGE_V6);
                        tables.backends[backend].next_hop = 0;
                        tables.backends[backend].address = padded(route.to);
                    })
                    .forwards(action, way, packet.length(), by(&route, tags).carry(&sent)),
            );
        }
    }
    cases
}

/// What is for a VIP that is no pod's here, and the stack would send to where the edge is.
fn sent_back() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, from) in [("v4", CLIENT_V4), ("v6", CLIENT_V6)] {
        let mut ways = vec![
            ("the_device_of_the_edge", like(from, BY_ABOVE), true),
            ("an_unknown_neighbour", like(from, UNRESOLVED), true),
            ("another_vlan", like(from, BY_BESIDE), false),
            ("another_cable", like(from, BY_APART), false),
        ];
        if from.is_ipv4() {
            ways.push(("the_device_itself", BY_LOOPBACK, true));
        }
        for (what, route, is_sent_back) in ways {
            let datagram = Packet::udp((from, 40_000), (route.to, 9), &[0x55; 64]);
            let pieces = datagram.pieces(32, 0xc0de);
            for (kind, packet) in [
                ("datagram", &datagram),
                ("segment", &Packet::tcp((from, 40_000), (route.to, 9), b"")),
                ("fragment", &pieces[0]),
                ("echo", &Packet::echo(from, route.to)),
                ("other_protocol", &Packet::ip(from, route.to, 47, &[0; 8])),
            ] {
                for (outer, edge, own) in OUTERS {
                    let (how, tags) = TAGS[1];
                    let link = Link { tags, ..IN };
                    let name = format!("{family}_{kind}_in_{outer}_{how}_that_goes_on_by_{what}");
                    let draft = case_here(name, from_edge(&link, packet, edge, own));
                    let draft = draft.with(|tables| tables.address(route.to, ADDRESS_INNER));
                    cases.push(if is_sent_back {
                        draft.drops(DropReason::SentBack)
                    } else {
                        draft.decapsulates(link.carry(packet))
                    });
                }
            }
        }
        // Of an edge to which there is no way, the ingress device is all that tells.
        let packet = Packet::udp((from, 40_000), (like(from, BY_ABOVE).to, 9), b"");
        cases.push(
            case_here(
                format!("{family}_of_an_edge_to_which_there_is_no_way_goes_on"),
                from_edge(&IN, &packet, PEER_V4, EDGE_V4),
            )
            .with(|tables| tables.address(like(from, BY_ABOVE).to, ADDRESS_INNER))
            .decapsulates(IN.carry(&packet)),
        );
        let nowhere = Packet::udp((from, 40_000), (from, 9), b"");
        cases.push(
            case_here(
                format!("{family}_to_which_there_is_no_way_is_the_stacks"),
                from_edge(&IN, &nowhere, TO_EDGE[0].to, EDGE_V4),
            )
            .with(|tables| tables.address(from, ADDRESS_INNER))
            .decapsulates(IN.carry(&nowhere)),
        );
    }
    cases
}

/// By L2 DSR, what came for a VIP and no service goes to the stack only where that keeps it.
fn sent_on_at_a_vip() -> Vec<Case> {
    let (_, tags) = TAGS[1];
    let mut cases = Vec::new();
    let of_an_edge = |name: String, vip: IpAddr, tags| {
        let to = (vip, 9);
        let packet = Packet::tcp(client(to), to, b"");
        case(name, Link { tags, ..IN }.carry(&packet)).with(|tables| {
            tables.config.flags |= CONFIG_NODE;
            tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
            tables.address(vip, ADDRESS_VIP);
        })
    };
    let pairs = [BY_ABOVE, BY_BESIDE, BY_APART, UNRESOLVED];
    for route in pairs.into_iter().flatten().chain([BY_LOOPBACK]) {
        let name = format!("l2dsr_to_a_vip_at_{}_that_is_elsewhere", route.to);
        cases.push(of_an_edge(name.clone(), route.to, &[]).drops(DropReason::SentBack));
        let name = name + "_tagged";
        cases.push(of_an_edge(name, route.to, tags).drops(DropReason::SentBack));
    }
    for vip in [VIP_V4, VIP_V6] {
        let name = format!("l2dsr_to_a_vip_at_{vip}_that_is_not_elsewhere");
        cases.push(of_an_edge(name, vip, tags).passes(PassReason::NoService));
    }
    cases
}

/// The route of the address's family.
fn like(address: IpAddr, [v4, v6]: [Route; 2]) -> Route {
    if address.is_ipv4() { v4 } else { v6 }
}
