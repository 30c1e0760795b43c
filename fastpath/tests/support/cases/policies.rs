//! Who may use a service, and which backend a policy allows.

use std::net::IpAddr;

use xdp_prog::{
    abi::{CONFIG_NODE, EdgeMac, MODE_IPIP, MODE_L2DSR, SERVICE_SOURCE_RANGES},
    reason::{DropReason, PassReason},
};

use super::{
    super::{
        packet::{End, Packet},
        tables::TableSet,
    },
    CLIENT_V4, CLIENT_V6, Case, EDGE_V4, IN, OTHER_BACKENDS, TCP, UDP, V4_L2, V4_TCP, V6_L2,
    V6_TCP, VIP_V4, VIP_V6, case, other_node,
    pods::{
        self, OTHER_HERE_V4, OTHER_POD_V4, POD_V4, POD_V6, PODS_AGAIN_TCP, PODS_V4_TCP,
        PODS_V4_UDP, PODS_V6_TCP, TARGET,
    },
    sent_in_v4, sent_in_v6, to_other_node, v4, v6, way,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(source_ranges());
    cases.extend(source_ranges_of_empty_services());
    cases.extend(source_ranges_at_the_node());
    cases.extend(affinity());
    cases.extend(l2dsr());
    cases
}

const ANY_V4: IpAddr = v4(0, 0, 0, 0);
const ANY_V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED);
/// 198.51.100.7, which the tables spell the same as the client with that IPv4 address.
const MAPPED: IpAddr = IpAddr::V6(std::net::Ipv4Addr::new(198, 51, 100, 7).to_ipv6_mapped());

/// The longest prefix counts, of the service's own ranges alone.
fn source_ranges() -> Vec<Case> {
    type Ranges = [(u32, IpAddr, u32)];
    const NETWORK_V4: &Ranges = &[(1, v4(198, 51, 100, 0), 24)];
    const HOST_V4: &Ranges = &[(1, CLIENT_V4, 32)];
    const THREE_V4: &Ranges = &[
        (1, v4(10, 0, 0, 0), 8),
        (1, v4(198, 51, 100, 0), 29),
        (1, v4(192, 0, 2, 0), 24),
    ];
    const ALL_V4: &Ranges = &[(1, ANY_V4, 0)];
    const OTHERS_V4: &Ranges = &[(0, ANY_V4, 0), (2, v4(198, 51, 100, 0), 24)];
    const NETWORK_V6: &Ranges = &[(3, v6(0xc, 0), 64)];
    const HOST_V6: &Ranges = &[(3, CLIENT_V6, 128)];
    const ALL_V6: &Ranges = &[(3, ANY_V6, 0)];
    const OTHERS_V6: &Ranges = &[(0, ANY_V6, 0), (4, v6(0xc, 0), 64)];
    let checks: [(&str, IpAddr, &Ranges, bool); 21] = [
        ("v4_without_any", CLIENT_V4, &[], false),
        ("v4_in_its_own", CLIENT_V4, HOST_V4, true),
        ("v4_beside_its_own", v4(198, 51, 100, 6), HOST_V4, false),
        ("v4_in_a_network", CLIENT_V4, NETWORK_V4, true),
        (
            "v4_first_of_a_network",
            v4(198, 51, 100, 0),
            NETWORK_V4,
            true,
        ),
        (
            "v4_last_of_a_network",
            v4(198, 51, 100, 255),
            NETWORK_V4,
            true,
        ),
        (
            "v4_behind_a_network",
            v4(198, 51, 101, 0),
            NETWORK_V4,
            false,
        ),
        (
            "v4_before_a_network",
            v4(198, 51, 99, 255),
            NETWORK_V4,
            false,
        ),
        ("v4_in_one_of_three", CLIENT_V4, THREE_V4, true),
        ("v4_in_none_of_three", v4(198, 51, 100, 8), THREE_V4, false),
        ("v4_in_all_of_v4", CLIENT_V4, ALL_V4, true),
        ("v4_in_other_services", CLIENT_V4, OTHERS_V4, false),
        ("v6_without_any", CLIENT_V6, &[], false),
        ("v6_in_its_own", CLIENT_V6, HOST_V6, true),
        ("v6_beside_its_own", v6(0xc, 6), HOST_V6, false),
        ("v6_in_a_network", CLIENT_V6, NETWORK_V6, true),
        ("v6_behind_a_network", v6(0xd, 0), NETWORK_V6, false),
        ("v6_in_all_of_v6", CLIENT_V6, ALL_V6, true),
        ("v6_in_other_services", CLIENT_V6, OTHERS_V6, false),
        // On the wire this is an IPv6 address; the tables spell it like the client's IPv4 one.
        ("v6_in_guise_of_v4", MAPPED, NETWORK_V4, false),
        ("v6_in_guise_of_v4_in_all_of_v6", MAPPED, ALL_V6, true),
    ];
    checks
        .into_iter()
        .map(|(name, from, ranges, admitted)| {
            let ((way, to), sent) = match from {
                IpAddr::V4(_) => (V4_TCP, sent_in_v4 as fn(&Packet) -> Vec<u8>),
                IpAddr::V6(_) => (V6_TCP, sent_in_v6 as fn(&Packet) -> Vec<u8>),
            };
            let packet = Packet::tcp((from, 40_000), to, b"");
            let draft = case(format!("source_range_{name}"), IN.carry(&packet)).with(|tables| {
                for id in [V4_TCP.0.service, V6_TCP.0.service] {
                    tables.service[id as usize].flags |= SERVICE_SOURCE_RANGES;
                }
                for (service, address, bits) in ranges {
                    tables.admit(*service, *address, *bits);
                }
            });
            if admitted {
                draft.transmits(way, &packet, sent(&packet))
            } else {
                draft.drops(DropReason::SourceRange)
            }
        })
        .collect()
}

/// Who may not come in is not told that nobody serves.
fn source_ranges_of_empty_services() -> Vec<Case> {
    let services = [("v4", V4_TCP), ("v6", V6_TCP)];
    let of_service = |(family, (way, to)): (&str, (super::Way, End))| {
        let from = if to.0.is_ipv4() { CLIENT_V4 } else { CLIENT_V6 };
        let syn = Packet::tcp((from, 40_000), to, b"");
        case(format!("source_range_of_an_empty_{family}_service"), {
            IN.carry(&syn)
        })
        .with(|tables| {
            tables.service[way.service as usize].flags |= SERVICE_SOURCE_RANGES;
            tables.set_owner(way.service, 0);
        })
        .drops(DropReason::SourceRange)
    };
    services.map(of_service).into()
}

/// Delivery on this machine, and what an edge sends by L2 DSR, asks for them too; an edge that encapsulates has asked.
fn source_ranges_at_the_node() -> Vec<Case> {
    let (way, to) = PODS_V4_TCP;
    let syn = Packet::tcp((CLIENT_V4, 40_000), to, b"");
    let delivered = IN.carry(&Packet::tcp((CLIENT_V4, 40_000), (POD_V4, TARGET), b""));
    let closed = |tables: &mut TableSet| {
        pods::node(tables);
        tables.service[way.service as usize].flags |= SERVICE_SOURCE_RANGES;
        tables.admit(way.service, v4(10, 0, 0, 0), 8);
    };
    let by_l2dsr = |tables: &mut TableSet| {
        tables.service[way.service as usize].mode = MODE_L2DSR;
        tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
    };
    vec![
        case("source_range_of_a_pod_here", IN.carry(&syn))
            .with(closed)
            .drops(DropReason::SourceRange),
        case("source_range_of_a_pod_here_by_l2dsr", IN.carry(&syn))
            .with(closed)
            .with(by_l2dsr)
            .drops(DropReason::SourceRange),
        case(
            "source_range_of_a_pod_here_holds_the_client",
            IN.carry(&syn),
        )
        .with(closed)
        .with(|tables| tables.admit(way.service, CLIENT_V4, 32))
        .delivers(way, syn.length(), delivered.clone()),
        case("source_range_is_the_edges_to_ask", {
            IN.carry(&syn.within(super::PEER_V4, EDGE_V4).tag(pods::TAG_V4))
        })
        .with(closed)
        .delivers(way, syn.length(), delivered),
    ]
}

/// The client's address alone decides, the same for all addresses of a ServicePort.
fn affinity() -> Vec<Case> {
    const SEED: u64 = 0x5eed_0f0f_5eed;
    const SERVICE: u32 = 9;
    let mut cases = Vec::new();
    let owners: Vec<u32> = (0..256)
        .map(|slot| OTHER_BACKENDS.start + slot % 5)
        .collect();
    let clients = |host: u8| [v4(198, 51, 100, host), v6(0xc, host.into())];
    for host in [7, 8, 9, 10] {
        for client in clients(host) {
            // Two addresses, two protocols, and two ports of the client: one backend.
            let vip = if client.is_ipv4() { VIP_V4 } else { VIP_V6 };
            let other = if client.is_ipv4() {
                v4(203, 0, 113, 11)
            } else {
                v6(0xf, 11)
            };
            let owner = owners[client_slot(SEED, client, 8)];
            for (index, (to, protocol, port)) in [
                ((vip, 9000), TCP, 40_000),
                ((vip, 9000), TCP, 40_001),
                ((vip, 9000), UDP, 40_000),
                ((other, 9000), TCP, 1),
                ((other, 30_000), UDP, 65_535),
            ]
            .into_iter()
            .enumerate()
            {
                let from: End = (client, port);
                let packet = match protocol {
                    TCP => Packet::tcp(from, to, b""),
                    _ => Packet::udp(from, to, b""),
                };
                let sent = packet.next_hop().within(EDGE_V4, other_node(owner));
                cases.push(
                    case(
                        format!("affinity_of_client_{host}_{index}_to_{vip}"),
                        IN.carry(&packet),
                    )
                    .with(|tables| {
                        tables.service(SERVICE, to, protocol, MODE_IPIP, &owners);
                        tables.service[SERVICE as usize].affinity = SEED;
                    })
                    .transmits(
                        way(SERVICE, owner),
                        &packet,
                        to_other_node(owner).carry(&sent),
                    ),
                );
            }
        }
    }
    cases
}

/// The slot of a client, written from the definition of the hash: see [`super::super::hash`].
pub(super) fn client_slot(seed: u64, client: IpAddr, log2_length: u32) -> usize {
    let mut input = match client {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    input.resize(input.len() * 2, 0);
    let mut state = seed;
    for word in input.chunks(8) {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        state = (state ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 32;
    }
    let hash = (state ^ state >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32;
    usize::try_from(hash >> (32 - log2_length)).unwrap()
}

/// What a known edge sends by L2 DSR chooses among the pods here, whatever the table of all says.
fn l2dsr() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, (service, to), pod, make) in [
        (
            "v4_tcp",
            PODS_V4_TCP,
            POD_V4,
            Packet::tcp as fn(End, End, &[u8]) -> Packet,
        ),
        ("v4_udp", PODS_V4_UDP, POD_V4, Packet::udp),
        ("v6_tcp", PODS_V6_TCP, POD_V6, Packet::tcp),
    ] {
        let packet = make(super::client(to), to, b"");
        let output = IN.carry(&make(super::client(to), (pod, TARGET), b""));
        let from_edge = |tables: &mut TableSet| {
            pods::node(tables);
            tables.service[service.service as usize].mode = MODE_L2DSR;
            // The table of all names a backend elsewhere.
            tables.set_owner(service.service, OTHER_BACKENDS.start);
            tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
        };
        let forwarded = way(service.service, OTHER_BACKENDS.start);
        let away = to_other_node(OTHER_BACKENDS.start).carry(&packet.next_hop());
        cases.extend([
            case(
                format!("l2dsr_{name}_from_an_edge_goes_to_a_pod_here"),
                IN.carry(&packet),
            )
            .with(from_edge)
            .delivers(service, packet.length(), output),
            case(
                format!("l2dsr_{name}_from_a_client_is_forwarded"),
                IN.carry(&packet),
            )
            .with(from_edge)
            .with(|tables| tables.edge_macs.clear())
            .transmits(forwarded, &packet, away.clone()),
            case(
                format!("l2dsr_{name}_where_there_are_no_pods_is_forwarded"),
                IN.carry(&packet),
            )
            .with(from_edge)
            .with(|tables| tables.config.flags &= !CONFIG_NODE)
            .transmits(forwarded, &packet, away),
            case(
                format!("l2dsr_{name}_without_a_pod_here_is_never_sent_on"),
                IN.carry(&packet),
            )
            .with(from_edge)
            .with(|tables| tables.service[service.service as usize].local.0 = 0)
            .drops(DropReason::UnknownPod),
            case(
                format!("l2dsr_{name}_whose_pod_has_left_is_never_sent_on"),
                IN.carry(&packet),
            )
            .with(from_edge)
            .with(|tables| {
                let local = tables.service[service.service as usize].local.base();
                tables.lut[local as usize].0 = OTHER_BACKENDS.start;
            })
            .drops(DropReason::UnknownPod),
        ]);
    }
    // A service whose nodes have the VIP themselves: the stack's.
    for (family, (_, to)) in [("v4", V4_L2), ("v6", V6_L2)] {
        cases.push(
            case(
                format!("l2dsr_{family}_from_an_edge_to_a_node_with_the_vip"),
                IN.carry(&super::tcp(to)),
            )
            .with(|tables| {
                tables.config.flags = CONFIG_NODE;
                tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
            })
            .passes(PassReason::LocalBackend),
        );
    }
    // By IP-in-IP the same frame of the same edge is balanced: it is no edge's packet, but its client's.
    let (service, to) = PODS_AGAIN_TCP;
    let packet = Packet::tcp((CLIENT_V4, 40_000), to, b"");
    cases.push(
        case(
            "ipip_service_from_an_edges_mac_is_balanced",
            IN.carry(&packet),
        )
        .with(|tables| {
            pods::node(tables);
            tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
            tables.set_owner(service.service, OTHER_HERE_V4);
        })
        .delivers(way(service.service, OTHER_HERE_V4), packet.length(), {
            IN.carry(&Packet::tcp(
                (CLIENT_V4, 40_000),
                (OTHER_POD_V4, TARGET),
                b"",
            ))
        }),
    );
    cases
}
