//! What no service can have: dropped at a VIP, where all is ours, and left to the stack at every other address, but
//! where NodePorts are if it hides its ports.

use std::net::IpAddr;

use xdp_prog::{
    abi::{ADDRESS_INNER, ADDRESS_LOCAL, ADDRESS_NODE_PORT, ADDRESS_SHARED, ADDRESS_VIP},
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::packet::{IPV4, IPV6, Packet, forged_v4, patched},
    BACK, CLIENT_V4, CLIENT_V6, Case, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, STRANGER_V4,
    STRANGER_V6, TCP, V4_TCP, V4_UDP, V6_TCP, V6_UDP, VIP_V4, VIP_V6, case, port_unreachable, tcp,
    udp,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, vip) in [("v4", VIP_V4), ("v6", VIP_V6)] {
        for (what, frame, at_a_vip, elsewhere) in kinds(vip) {
            let name = |address: &str| format!("{family}_{what}_at_{address}");
            cases.push(case(name("a_vip"), frame.clone()).drops(at_a_vip));
            for (address, flags) in ADDRESSES {
                let draft = case(name(address), frame.clone());
                let draft = draft.with(|tables| tables.address(vip, flags));
                cases.push(match elsewhere(flags) {
                    PassReason::ExtensionDepth | PassReason::TruncatedTransport
                        if flags & ADDRESS_NODE_PORT != 0 =>
                    {
                        draft.drops(DropReason::NodePortHeaders)
                    }
                    reason => draft.passes(reason),
                });
            }
        }
    }
    cases.extend(ports_of_nat_mode());
    cases.extend(inner_destinations());
    cases
}

/// What an address may be that is not a VIP alone.
const ADDRESSES: [(&str, u32); 5] = [
    ("an_unknown_address", 0),
    ("a_vip_of_the_stacks", ADDRESS_INNER),
    ("a_shared_address", ADDRESS_SHARED),
    ("a_vip_that_the_machine_has", ADDRESS_VIP | ADDRESS_LOCAL),
    ("a_node_port_address", ADDRESS_NODE_PORT),
];

type Kind = (&'static str, Vec<u8>, DropReason, fn(u32) -> PassReason);

fn kinds(vip: IpAddr) -> Vec<Kind> {
    let (client, stranger, segment, datagram) = if vip.is_ipv4() {
        (CLIENT_V4, STRANGER_V4, tcp(V4_TCP.1), udp(V4_UDP.1))
    } else {
        (CLIENT_V6, STRANGER_V6, tcp(V6_TCP.1), udp(V6_UDP.1))
    };
    let ip = |protocol: u8, bytes: &[u8]| IN.carry(&Packet::ip(client, vip, protocol, bytes));
    let mut kinds: Vec<Kind> = Vec::new();
    for (what, protocol) in [("gre", 47), ("esp", 50)] {
        kinds.push((
            what,
            ip(protocol, &[0; 24]),
            DropReason::VipProtocol,
            |_| PassReason::Protocol,
        ));
    }
    for (what, protocol, length) in [
        ("half_a_udp_header", 17, 7),
        ("half_a_tcp_header", 6, 19),
        ("half_an_sctp_header", 132, 11),
    ] {
        let bytes = &segment.payload()[..length];
        kinds.push((what, ip(protocol, bytes), DropReason::VipTransport, |_| {
            PassReason::TruncatedTransport
        }));
    }
    kinds.push((
        "ip_in_ip_of_a_stranger",
        IN.carry(&datagram.within(stranger, vip)),
        DropReason::VipEncap,
        left_encapsulated,
    ));
    let icmp = |kind: u8| IN.carry(&Packet::icmp(client, vip, (kind, 0), [0; 4], &[0; 12]));
    let others = if vip.is_ipv4() {
        [("echo_reply", 0), ("timestamp", 13)]
    } else {
        [("echo_reply", 129), ("multicast_listener_query", 130)]
    };
    for (what, kind) in others {
        kinds.push((what, icmp(kind), DropReason::VipIcmp, |_| PassReason::Icmp));
    }
    if vip.is_ipv4() {
        let short = forged_v4(segment.bytes(), 0, &[0x44]);
        kinds.push((
            "header_too_short",
            IN.frame(IPV4, &short),
            DropReason::VipHeaders,
            |_| PassReason::MalformedIp,
        ));
        return kinds;
    }
    let pad: (u8, &[u8]) = (60, &[0, 1, 4, 0, 0, 0, 0]);
    let chained = |chain: &[(u8, &[u8])]| IN.carry(&segment.clone().extensions(chain));
    let beyond = patched(segment.clone().extensions(&[pad]).bytes(), 41, &[30]);
    kinds.extend([
        (
            "routing_header",
            chained(&[(43, &[0, 4, 1, 0, 0, 0, 0])]),
            DropReason::VipHeaders,
            (|_| PassReason::RoutingHeader) as fn(u32) -> PassReason,
        ),
        (
            "five_extension_headers",
            chained(&[pad; 5]),
            DropReason::VipHeaders,
            |_| PassReason::ExtensionDepth,
        ),
        (
            "extension_header_beyond_the_packet",
            IN.frame(IPV6, &beyond),
            DropReason::VipHeaders,
            |_| PassReason::MalformedIp,
        ),
        (
            "ip_in_ip_of_a_stranger_behind_an_extension_header",
            IN.carry(&datagram.within(stranger, vip).extensions(&[pad])),
            DropReason::VipEncap,
            left_encapsulated,
        ),
    ]);
    kinds
}

/// IP-in-IP of a stranger is none of ours where nothing is opened, and untrusted where something is.
fn left_encapsulated(flags: u32) -> PassReason {
    match flags & ADDRESS_LOCAL {
        0 => PassReason::EncapNotOurs,
        _ => PassReason::EncapUntrusted,
    }
}

/// A port of NAT mode's at a VIP is one that nothing serves.
fn ports_of_nat_mode() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, vip) in [("v4", VIP_V4), ("v6", VIP_V6)] {
        let packet = udp((vip, 61_001));
        let at = |name: &str, flags: u32| {
            let name = format!("{family}_port_of_nat_mode_at_{name}");
            case(name, IN.carry(&packet)).with(|tables| {
                (tables.config.nat_port, tables.config.nat_ports) = (61_001, 1);
                tables.address(vip, flags);
            })
        };
        cases.extend([
            at("a_vip", ADDRESS_VIP).replies(
                ReplyReason::PortUnreachable,
                BACK.carry(&port_unreachable(&packet)),
            ),
            at("a_shared_address", ADDRESS_SHARED).passes(PassReason::NatNotOurs),
        ]);
    }
    cases
}

/// Who forges an edge's address reaches no port of this machine.
fn inner_destinations() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, own, vip) in [("v4", EDGE_V4, VIP_V4), ("v6", EDGE_V6, VIP_V6)] {
        for (outer, from, to) in [("v4", PEER_V4, EDGE_V4), ("v6", PEER_V6, EDGE_V6)] {
            for (kind, make) in [
                ("datagram", datagram as fn(IpAddr) -> Packet),
                ("segment", |to| tcp((to, 8472))),
                ("runt", |to| Packet::ip(client(to), to, TCP, &[0; 5])),
                ("fragment", |to| datagram(to).pieces(8, 7).swap_remove(0)),
                ("later_fragment", |to| {
                    datagram(to).pieces(8, 7).swap_remove(1)
                }),
                ("echo", |to| Packet::echo(client(to), to)),
                ("other_protocol", |to| {
                    Packet::ip(client(to), to, 47, &[0; 8])
                }),
            ] {
                let frame = |to_inner: IpAddr| IN.carry(&make(to_inner).within(from, to));
                let name = |what: &str| format!("{family}_{kind}_in_{outer}_for_{what}");
                // Edges ask nodes so whether they take outer headers off.
                let is_open = kind == "echo";
                let to_itself = case(name("the_machine_itself"), frame(own));
                cases.push(if is_open {
                    to_itself.decapsulates(IN.carry(&make(own)))
                } else {
                    to_itself.drops(DropReason::InnerNotOurs)
                });
                for (what, flags) in [
                    ("a_node_port_address", ADDRESS_LOCAL | ADDRESS_NODE_PORT),
                    (
                        "an_address_of_its_own_that_is_shared",
                        ADDRESS_LOCAL | ADDRESS_SHARED,
                    ),
                    ("an_unknown_address", 0),
                ] {
                    let draft = case(name(what), frame(vip));
                    let draft = draft.with(|tables| tables.address(vip, flags));
                    cases.push(if is_open && flags & ADDRESS_LOCAL != 0 {
                        draft.decapsulates(IN.carry(&make(vip)))
                    } else {
                        draft.drops(DropReason::InnerNotOurs)
                    });
                }
                for (what, flags) in [
                    ("a_vip", ADDRESS_VIP),
                    ("a_vip_of_the_stacks", ADDRESS_INNER),
                    ("a_vip_that_the_machine_has", ADDRESS_VIP | ADDRESS_LOCAL),
                ] {
                    let draft = case(name(what), frame(vip));
                    let draft = draft.with(|tables| tables.address(vip, flags));
                    cases.push(draft.decapsulates(IN.carry(&make(vip))));
                }
            }
        }
    }
    cases
}

fn client(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { CLIENT_V4 } else { CLIENT_V6 }
}

fn datagram(to: IpAddr) -> Packet {
    Packet::udp((client(to), 40_000), (to, 9), &[0x55; 24])
}
