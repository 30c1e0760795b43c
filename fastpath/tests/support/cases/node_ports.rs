//! NodePorts: on several addresses of the node, looked up at any address behind an edge, and beside the
//! kernel's own flows.

use std::net::IpAddr;

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, LocalFlow, MODE_IPIP, SERVICE_NODE_PORT, SERVICE_PODS,
        Tuple,
    },
    reason::{DropReason, PassReason},
};

use super::{
    super::{
        packet::{ACK, End, FIN, Packet, RST, SYN},
        tables::{TableSet, address_key},
    },
    Case, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, TCP, UDP, case, client,
    pods::{self, HERE_V4, HERE_V6, POD_V4, POD_V6, TAG_V4, TAG_V6, TARGET},
    v4, v6, way,
};

const PORT: u16 = 30_080;
/// Another address of this machine.
const SECOND_V4: IpAddr = v4(192, 0, 2, 77);
const SECOND_V6: IpAddr = v6(0xe, 77);
const ANY_V4: IpAddr = v4(0, 0, 0, 0);
const ANY_V6: IpAddr = v6_any();

const fn v6_any() -> IpAddr {
    IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
}

type Make = fn(End, End, &[u8]) -> Packet;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(addresses());
    cases.extend(behind_an_edge());
    cases.extend(local_flows());
    cases.extend(lifetimes());
    cases
}

/// The same NodePort at every address that has it, each a service of its own.
fn node_ports(tables: &mut TableSet) {
    pods::node(tables);
    for own in [EDGE_V4, EDGE_V6, SECOND_V4, SECOND_V6] {
        tables.address(own, ADDRESS_LOCAL | ADDRESS_NODE_PORT);
    }
    let mut id = 23;
    for address in [EDGE_V4, SECOND_V4, EDGE_V6, SECOND_V6] {
        let pod = pod_like(address).0;
        tables.service(id, (address, PORT), TCP, MODE_IPIP, &[pod]);
        tables.service[id as usize].flags = SERVICE_PODS | SERVICE_NODE_PORT;
        id += 1;
    }
    for (address, protocol) in [(ANY_V4, TCP), (ANY_V4, UDP), (ANY_V6, TCP), (ANY_V6, UDP)] {
        let pod = pod_like(address).0;
        tables.service(id, (address, PORT), protocol, MODE_IPIP, &[pod]);
        tables.service[id as usize].flags = SERVICE_PODS | SERVICE_NODE_PORT;
        tables.local_table(id, &[pod]);
        tables.pod(id, pod);
        id += 1;
    }
}

/// Backend id, address and tag of the pod of a family.
fn pod_like(address: IpAddr) -> (u32, IpAddr, u16) {
    match address {
        IpAddr::V4(_) => (HERE_V4, POD_V4, TAG_V4),
        IpAddr::V6(_) => (HERE_V6, POD_V6, TAG_V6),
    }
}

fn addresses() -> Vec<Case> {
    let mut cases = Vec::new();
    for (service, address) in (23..).zip([EDGE_V4, SECOND_V4, EDGE_V6, SECOND_V6]) {
        let to = (address, PORT);
        let packet = Packet::tcp(client(to), to, b"");
        let (id, pod, _) = pod_like(address);
        let udp = Packet::udp(client(to), to, b"");
        let other = Packet::tcp(client(to), (address, PORT + 1), b"");
        cases.extend([
            case(format!("node_port_at_{address}"), IN.carry(&packet))
                .with(node_ports)
                .delivers(way(service, id), packet.length(), {
                    IN.carry(&Packet::tcp(client(to), (pod, TARGET), b""))
                }),
            case(
                format!("node_port_at_{address}_has_one_protocol"),
                IN.carry(&udp),
            )
            .with(node_ports)
            .passes(PassReason::NoService),
            case(
                format!("other_port_at_{address}_is_the_kernels"),
                IN.carry(&other),
            )
            .with(node_ports)
            .passes(PassReason::NoService),
        ]);
    }
    let nobody = (v4(192, 0, 2, 78), PORT);
    cases.push(
        case("node_port_of_any_address_is_none_of_bare_packets", {
            IN.carry(&Packet::tcp(client(nobody), nobody, b""))
        })
        .with(node_ports)
        .passes(PassReason::NoService),
    );
    cases
}

/// A packet that an edge passes on still carries the edge's address.
fn behind_an_edge() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, service, make, to, own, peer) in [
        ("v4_tcp", 27, Packet::tcp as Make, PEER_V4, EDGE_V4, PEER_V4),
        ("v4_udp", 28, Packet::udp, PEER_V4, EDGE_V6, PEER_V6),
        ("v6_tcp", 29, Packet::tcp, PEER_V6, EDGE_V4, PEER_V4),
        ("v6_udp", 30, Packet::udp, PEER_V6, EDGE_V6, PEER_V6),
    ] {
        let to = (to, PORT);
        let (id, pod, tag) = pod_like(to.0);
        let packet = make(client(to), to, b"hello");
        let output = IN.carry(&make(client(to), (pod, TARGET), b"hello"));
        let other = make(client(to), (to.0, PORT + 1), b"");
        let for_an_unknown_pod = case(
            format!("{kind}_node_port_of_another_machine_for_an_unknown_pod"),
            IN.carry(&packet.within(peer, own).tag(0x3ff)),
        )
        .with(node_ports);
        cases.extend([
            case(
                format!("{kind}_node_port_of_another_machine"),
                IN.carry(&packet.within(peer, own).tag(tag)),
            )
            .with(node_ports)
            .delivers(way(service, id), packet.length(), output.clone()),
            if kind.ends_with("tcp") {
                for_an_unknown_pod.drops(DropReason::UnknownPodSyn)
            } else {
                for_an_unknown_pod.delivers(way(service, id), packet.length(), output)
            },
            case(
                format!("{kind}_port_of_another_machine_that_is_no_node_port"),
                IN.carry(&other.within(peer, own).tag(tag)),
            )
            .with(node_ports)
            .drops(DropReason::InnerNotOurs),
        ]);
    }
    cases
}

/// A flow of this machine's kernel that left by a NodePort gets its answers.
fn local_flows() -> Vec<Case> {
    let mut cases = Vec::new();
    let to = (EDGE_V4, PORT);
    let from = client(to);
    let mine = |tables: &mut TableSet| {
        node_ports(tables);
        tables.local_flows.insert(tuple(from, to, TCP), alive());
    };
    for (name, flags, passes) in [
        ("syn_ack", SYN | ACK, true),
        ("ack", ACK, true),
        ("fin", FIN | ACK, true),
        ("rst", RST, true),
        ("nothing", 0, true),
        ("syn", SYN, false),
    ] {
        let packet = Packet::segment(from, to, flags, b"");
        let draft = case(format!("{name}_to_a_flow_of_the_kernel"), IN.carry(&packet)).with(mine);
        cases.push(if passes {
            draft.passes(PassReason::LocalFlow)
        } else {
            let output = Packet::segment(from, (POD_V4, TARGET), flags, b"");
            draft.delivers(way(23, HERE_V4), packet.length(), IN.carry(&output))
        });
    }
    let ack = |from: End| Packet::segment(from, to, ACK, b"");
    let stranger = (from.0, from.1 + 1);
    let vip = pods::PODS_V4_TCP;
    let to_vip = Packet::segment(client(vip.1), vip.1, ACK, b"");
    cases.extend([
        case(
            "ack_beside_a_flow_of_the_kernel_is_the_services",
            IN.carry(&ack(stranger)),
        )
        .with(mine)
        .delivers(way(23, HERE_V4), ack(stranger).length(), {
            IN.carry(&Packet::segment(stranger, (POD_V4, TARGET), ACK, b""))
        }),
        // A router's error about what the kernel has sent.
        case(
            "error_about_a_flow_of_the_kernel",
            IN.carry(&Packet::icmp(
                v4(198, 51, 100, 254),
                to.0,
                (3, 4),
                [0, 0, 5, 0x78],
                &Packet::segment(to, from, ACK, b"").bytes()[..28],
            )),
        )
        .with(mine)
        .passes(PassReason::LocalFlow),
        case("vip_has_no_flows_of_the_kernel", IN.carry(&to_vip))
            .with(|tables| {
                pods::node(tables);
                let key = tuple(client(vip.1), vip.1, TCP);
                tables.local_flows.insert(key, alive());
            })
            .delivers(vip.0, to_vip.length(), {
                IN.carry(&Packet::segment(client(vip.1), (POD_V4, TARGET), ACK, b""))
            }),
    ]);
    cases
}

/// A flow of the kernel that is dead hides no client.
fn lifetimes() -> Vec<Case> {
    let mut cases = Vec::new();
    for (service, make, kind, protocol, address) in [
        (27, segment as Make, "v4_tcp", TCP, EDGE_V4),
        (28, Packet::udp, "v4_udp", UDP, EDGE_V4),
        (29, segment, "v6_tcp", TCP, EDGE_V6),
        (30, Packet::udp, "v6_udp", UDP, EDGE_V6),
    ] {
        let to = (address, PORT);
        let from = client(to);
        let (id, pod, _) = pod_like(address);
        let packet = make(from, to, b"");
        let known = |flow: LocalFlow| {
            move |tables: &mut TableSet| {
                node_ports(tables);
                tables.service(service, to, protocol, MODE_IPIP, &[id]);
                tables.service[service as usize].flags = SERVICE_PODS | SERVICE_NODE_PORT;
                tables.local_flows.insert(tuple(from, to, protocol), flow);
            }
        };
        for (what, is_closed) in [("open", false), ("closed", true)] {
            cases.push(
                case(format!("{kind}_of_an_{what}_flow_of_the_kernel"), {
                    IN.carry(&packet)
                })
                .with(known(LocalFlow::new(u64::MAX, is_closed)))
                .passes(PassReason::LocalFlow),
            );
            cases.push(
                case(
                    format!("{kind}_of_an_{what}_flow_of_the_kernel_that_is_dead"),
                    IN.carry(&packet),
                )
                .with(known(LocalFlow::new(
                    coarse_ns().saturating_sub(SECOND_NS),
                    is_closed,
                )))
                .delivers(way(service, id), packet.length(), {
                    IN.carry(&make(from, (pod, TARGET), b""))
                }),
            );
        }
    }
    cases
}

fn segment(from: End, to: End, payload: &[u8]) -> Packet {
    Packet::segment(from, to, ACK, payload)
}

const SECOND_NS: u64 = 1_000_000_000;

/// A flow of the kernel that outlives every case.
fn alive() -> LocalFlow {
    LocalFlow::new(u64::MAX, false)
}

fn tuple(from: End, to: End, protocol: u8) -> Tuple {
    Tuple::new(
        address_key(from.0),
        address_key(to.0),
        from.1.to_be_bytes(),
        to.1.to_be_bytes(),
        protocol,
    )
}
