//! Pods behind nodes: tags at the edge, delivery and what is remembered of it at the node.

use std::net::IpAddr;

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{
        ADDRESS_INNER, ADDRESS_NODE_PORT, ADDRESS_SHARED, BACKEND_LOCAL, BACKEND_POD, BACKEND_V4,
        BACKEND_V6, Backend, CONFIG_NODE, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, MODE_IPIP,
        PodFlow, SERVICE_PODS, Tag, Tuple,
    },
    decide::node::pod_flow::{PORT_TRIES, Ports},
    reason::{DropReason, PassReason},
};

use super::{
    super::{
        packet::{ACK, End, FIN, IPV4, Link, Packet, RST, SERVICE_VLAN, SYN, VLAN, patched},
        tables::{TableSet, address_key, padded},
    },
    CLIENT_V4, Case, EDGE_V4, EDGE_V6, IN, NODE_V4, NODE_V6, PEER_V4, PEER_V6, STRANGER_V4,
    STRANGER_V6, TCP, TO_NODE_V4, TO_NODE_V6, UDP, VIP_V4, VIP_V6, Way, case, client, v4, v6, way,
};

pub(super) const SCTP: u8 = 132;
/// The port that all pods listen on.
pub(super) const TARGET: u16 = 8080;
/// Two pods of this machine for each family.
pub(super) const POD_V4: IpAddr = v4(10, 244, 1, 20);
pub(super) const POD_V6: IpAddr = v6(0xa, 20);
pub(super) const OTHER_POD_V4: IpAddr = v4(10, 244, 1, 21);
pub(super) const OTHER_POD_V6: IpAddr = v6(0xa, 21);
/// The low eleven bits of their addresses: 1 * 256 + 20, and so on.
pub(super) const TAG_V4: u16 = 276;
const OTHER_TAG_V4: u16 = 277;
pub(super) const TAG_V6: u16 = 20;
const OTHER_TAG_V6: u16 = 21;

/// Backend ids of the pods here.
pub(super) const HERE_V4: u32 = 12;
pub(super) const OTHER_HERE_V4: u32 = 13;
pub(super) const HERE_V6: u32 = 14;
pub(super) const OTHER_HERE_V6: u32 = 15;

// Services of the pods here: both pods of the family can be named, new flows go to the first.
pub(super) const PODS_V4_TCP: (Way, End) = (way(14, HERE_V4), (VIP_V4, 7100));
pub(super) const PODS_V4_UDP: (Way, End) = (way(15, HERE_V4), (VIP_V4, 7100));
pub(super) const PODS_V4_SCTP: (Way, End) = (way(16, HERE_V4), (VIP_V4, TARGET));
pub(super) const PODS_V6_TCP: (Way, End) = (way(17, HERE_V6), (VIP_V6, 7100));
pub(super) const PODS_V6_UDP: (Way, End) = (way(18, HERE_V6), (VIP_V6, 7100));
pub(super) const PODS_V6_SCTP: (Way, End) = (way(19, HERE_V6), (VIP_V6, TARGET));
/// The second VIP of the same pods.
pub(super) const PODS_AGAIN_TCP: (Way, End) = (way(20, HERE_V4), (VIP_V4, 7101));
pub(super) const PODS_AGAIN_UDP: (Way, End) = (way(21, HERE_V4), (VIP_V4, 7101));
pub(super) const PODS_AGAIN_V6_TCP: (Way, End) = (way(27, HERE_V6), (VIP_V6, 7101));
pub(super) const PODS_AGAIN_V6_UDP: (Way, End) = (way(28, HERE_V6), (VIP_V6, 7101));
/// A service of the second pod alone.
const OTHER_ALONE: (Way, End) = (way(22, OTHER_HERE_V4), (VIP_V4, 7102));

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(tags_at_the_edge());
    cases.extend(delivery());
    cases.extend(checksums());
    cases.extend(links_and_options());
    cases.extend(malformed());
    cases.extend(unknown_tags());
    cases.extend(trust());
    cases.extend(local_delivery());
    cases.extend(flows_that_meet());
    cases.extend(ends_of_flows());
    cases.extend(other_ports());
    cases.extend(hairpins());
    cases
}

/// Makes this machine a node with pods.
pub(super) fn node(tables: &mut TableSet) {
    tables.config.flags = CONFIG_NODE;
    for (id, address, node) in [
        (HERE_V4, POD_V4, EDGE_V4),
        (OTHER_HERE_V4, OTHER_POD_V4, EDGE_V4),
        (HERE_V6, POD_V6, EDGE_V6),
        (OTHER_HERE_V6, OTHER_POD_V6, EDGE_V6),
    ] {
        tables.backends[id as usize] = pod(address, node, BACKEND_LOCAL);
    }
    let v4 = [HERE_V4, OTHER_HERE_V4];
    let v6 = [HERE_V6, OTHER_HERE_V6];
    for ((way, to), protocol, pods) in [
        (PODS_V4_TCP, TCP, &v4[..]),
        (PODS_V4_UDP, UDP, &v4),
        (PODS_V4_SCTP, SCTP, &v4),
        (PODS_V6_TCP, TCP, &v6),
        (PODS_V6_UDP, UDP, &v6),
        (PODS_V6_SCTP, SCTP, &v6),
        (PODS_AGAIN_TCP, TCP, &v4),
        (PODS_AGAIN_UDP, UDP, &v4),
        (PODS_AGAIN_V6_TCP, TCP, &v6),
        (PODS_AGAIN_V6_UDP, UDP, &v6),
        (OTHER_ALONE, TCP, &v4[1..]),
    ] {
        tables.service(way.service, to, protocol, MODE_IPIP, &[way.backend]);
        tables.service[way.service as usize].flags = SERVICE_PODS;
        tables.local_table(way.service, &[way.backend]);
        for pod in pods {
            tables.pod(way.service, *pod);
        }
    }
}

/// A pod on the node with this address.
pub(super) fn pod(address: IpAddr, node: IpAddr, flags: u32) -> Backend {
    let key = address_key(address);
    let family = if node.is_ipv4() {
        BACKEND_V4
    } else {
        BACKEND_V6
    };
    Backend {
        address: padded(node),
        flags: flags | BACKEND_POD | family,
        pod: key,
        port: TARGET.to_be_bytes(),
        tag: Tag::pod(key).0,
        ..Backend::default()
    }
}

/// Where a client's packet goes once it is translated.
fn at(pod: IpAddr) -> End {
    (pod, TARGET)
}

/// The frame of a packet that the peer sends here.
pub(super) fn from_edge(inner: &Packet, tag: u16) -> Vec<u8> {
    IN.carry(&inner.within(PEER_V4, EDGE_V4).tag(tag))
}

pub(super) fn case_here(name: impl Into<String>, input: Vec<u8>) -> super::Draft {
    case(name, input).with(node)
}

/// The edge writes the low bits of the pod's address where the outer header has room for them.
fn tags_at_the_edge() -> Vec<Case> {
    const SERVICE: u32 = 10;
    const POD: u32 = 10;
    let mut cases = Vec::new();
    let pods = [
        (v4(10, 244, 2, 5), 0x205),
        (v4(10, 244, 255, 255), 0x7ff),
        (v4(10, 244, 8, 0), 0x000),
        (v6(0xa2, 5), 0x005),
        (v6(0xa2, 0xffff), 0x7ff),
    ];
    for (address, tag) in pods {
        let (vip, family) = match address {
            IpAddr::V4(_) => (VIP_V4, "v4"),
            IpAddr::V6(_) => (VIP_V6, "v6"),
        };
        for (node, own, hop, link, outer) in [
            (NODE_V4, EDGE_V4, 1, TO_NODE_V4, "v4"),
            (NODE_V6, EDGE_V6, 2, TO_NODE_V6, "v6"),
        ] {
            let to = (vip, 7000);
            let packet = Packet::tcp(client(to), to, b"hello");
            let sent = packet.next_hop().within(own, node).tag(tag);
            cases.push(
                case(
                    format!("edge_tags_{family}_pod_{tag:03x}_in_{outer}"),
                    IN.carry(&packet),
                )
                .with(|tables| {
                    tables.backends[POD as usize] = Backend {
                        next_hop: hop,
                        ..pod(address, node, 0)
                    };
                    tables.service(SERVICE, to, TCP, MODE_IPIP, &[POD]);
                    tables.service[SERVICE as usize].flags = SERVICE_PODS;
                })
                .transmits(way(SERVICE, POD), &packet, link.carry(&sent)),
            );
        }
    }
    cases
}

/// Makes a packet of a client to this end.
pub(super) type Make = fn(End, End, &[u8]) -> Packet;

pub(super) const KINDS: [(&str, (Way, End), Make); 6] = [
    ("v4_tcp", PODS_V4_TCP, Packet::tcp),
    ("v4_udp", PODS_V4_UDP, Packet::udp),
    ("v4_sctp", PODS_V4_SCTP, Packet::sctp),
    ("v6_tcp", PODS_V6_TCP, Packet::tcp),
    ("v6_udp", PODS_V6_UDP, Packet::udp),
    ("v6_sctp", PODS_V6_SCTP, Packet::sctp),
];

/// Two ways to one pod, by two of its VIPs.
type TwoVips = (&'static str, (Way, End), (Way, End), u8, Make);

const BY_TWO_VIPS: [TwoVips; 4] = [
    ("v4_tcp", PODS_V4_TCP, PODS_AGAIN_TCP, TCP, Packet::tcp),
    ("v4_udp", PODS_V4_UDP, PODS_AGAIN_UDP, UDP, Packet::udp),
    ("v6_tcp", PODS_V6_TCP, PODS_AGAIN_V6_TCP, TCP, Packet::tcp),
    ("v6_udp", PODS_V6_UDP, PODS_AGAIN_V6_UDP, UDP, Packet::udp),
];

/// Tag and backend of both pods of a family.
pub(super) fn pods_like(vip: IpAddr) -> [(IpAddr, u16, u32); 2] {
    match vip {
        IpAddr::V4(_) => [
            (POD_V4, TAG_V4, HERE_V4),
            (OTHER_POD_V4, OTHER_TAG_V4, OTHER_HERE_V4),
        ],
        IpAddr::V6(_) => [
            (POD_V6, TAG_V6, HERE_V6),
            (OTHER_POD_V6, OTHER_TAG_V6, OTHER_HERE_V6),
        ],
    }
}

/// The tag names the pod, whatever the flow hashes to; the upper bits are none of the pod's.
fn delivery() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, (service, to), make) in KINDS {
        let packet = make(client(to), to, b"hello pod");
        for (address, tag, backend) in pods_like(to.0) {
            let output = IN.carry(&make(client(to), at(address), b"hello pod"));
            for (own, peer, outer) in [(EDGE_V4, PEER_V4, "v4"), (EDGE_V6, PEER_V6, "v6")] {
                cases.push(
                    case_here(
                        format!("{kind}_in_{outer}_goes_to_pod_{tag}"),
                        IN.carry(&packet.within(peer, own).tag(tag)),
                    )
                    .delivers(
                        way(service.service, backend),
                        packet.length(),
                        output.clone(),
                    ),
                );
            }
            cases.push(
                case_here(
                    format!("{kind}_with_upper_bits_in_the_tag_goes_to_pod_{tag}"),
                    from_edge(&packet, 0xf800 | tag),
                )
                .delivers(way(service.service, backend), packet.length(), output),
            );
        }
    }
    let (service, to) = PODS_V4_TCP;
    for (name, flags) in [
        ("ack", ACK),
        ("fin", FIN | ACK),
        ("rst", RST),
        ("syn_ack", SYN | ACK),
    ] {
        let packet = Packet::segment(client(to), to, flags, b"");
        let output = Packet::segment(client(to), at(OTHER_POD_V4), flags, b"");
        cases.push(
            case_here(
                format!("tcp_{name}_of_no_known_flow_goes_to_the_pod_of_its_tag"),
                from_edge(&packet, OTHER_TAG_V4),
            )
            .delivers(
                way(service.service, OTHER_HERE_V4),
                packet.length(),
                IN.carry(&output),
            ),
        );
    }
    cases
}

/// What is there is updated, be it right or wrong; what is not there stays away.
fn checksums() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, (service, to), tag, address) in [
        ("v4", PODS_V4_UDP, TAG_V4, POD_V4),
        ("v6", PODS_V6_UDP, TAG_V6, POD_V6),
    ] {
        let from = client(to);
        let without = |packet: Packet| {
            let datagram = patched(packet.payload().to_vec(), 6, &[0, 0]);
            packet.with_payload(datagram)
        };
        let packet = without(Packet::udp(from, to, b"query"));
        let output = without(Packet::udp(from, at(address), b"query"));
        cases.push(
            case_here(
                format!("{family}_udp_checksum_zero_stays_zero_at_the_pod"),
                from_edge(&packet, tag),
            )
            .delivers(service, packet.length(), IN.carry(&output)),
        );
        // A payload that makes the translated datagram sum up to zero, which is sent as all ones.
        let (filling, output) = (0..=u16::MAX)
            .map(|word| word.to_be_bytes())
            .map(|filling| (filling, Packet::udp(from, at(address), &filling)))
            .find(|(_, packet)| packet.payload()[6..8] == [0xff, 0xff])
            .expect("one of all words does it");
        let packet = Packet::udp(from, to, &filling);
        cases.push(
            case_here(
                format!("{family}_udp_checksum_that_becomes_zero_is_all_ones"),
                from_edge(&packet, tag),
            )
            .delivers(service, packet.length(), IN.carry(&output)),
        );
    }
    // A broken checksum stays broken by the same difference.
    let (service, to) = PODS_V4_TCP;
    let broken = |packet: Packet| {
        let check = u16::from_be_bytes([packet.payload()[16], packet.payload()[17]]);
        let segment = patched(
            packet.payload().to_vec(),
            16,
            &check.wrapping_add(1).to_be_bytes(),
        );
        packet.with_payload(segment)
    };
    let packet = broken(Packet::tcp(client(to), to, b"x"));
    let output = broken(Packet::tcp(client(to), at(POD_V4), b"x"));
    cases.push(
        case_here(
            "wrong_tcp_checksum_stays_wrong_at_the_pod",
            from_edge(&packet, TAG_V4),
        )
        .delivers(service, packet.length(), IN.carry(&output)),
    );
    cases
}

fn links_and_options() -> Vec<Case> {
    let mut cases = Vec::new();
    let one = Link {
        tags: &[(VLAN, 7)],
        ..IN
    };
    let two = Link {
        tags: &[(SERVICE_VLAN, 5), (VLAN, 6)],
        ..IN
    };
    let hop_by_hop: (u8, &[u8]) = (0, &[0, 1, 4, 0, 0, 0, 0]);
    for (kind, (service, to), make) in KINDS {
        let packet = make(client(to), to, b"hello");
        let [(address, tag, _), _] = pods_like(to.0);
        let output = make(client(to), at(address), b"hello");
        for (tags, link) in [("one_tag", one), ("two_tags", two)] {
            cases.push(
                case_here(
                    format!("{kind}_behind_{tags}_keeps_them"),
                    link.carry(&packet.within(PEER_V6, EDGE_V6).tag(tag)),
                )
                .delivers(service, packet.length(), link.carry(&output)),
            );
        }
        let (packet, output) = match to.0 {
            IpAddr::V4(_) => (packet.options(&[1; 12]), output.options(&[1; 12])),
            IpAddr::V6(_) => (
                packet.extensions(&[hop_by_hop]),
                output.extensions(&[hop_by_hop]),
            ),
        };
        cases.push(
            case_here(
                format!("{kind}_with_options_inside_is_delivered"),
                from_edge(&packet, tag),
            )
            .delivers(service, packet.length(), IN.carry(&output)),
        );
    }
    let (service, to) = PODS_V4_TCP;
    let packet = Packet::tcp(client(to), to, b"hello");
    let outer = packet.within(PEER_V4, EDGE_V4).tag(TAG_V4);
    let marked = packet.clone().class(2);
    cases.extend([
        // No edge of ours writes such headers: whoever it is, the tag is not one.
        case_here(
            "outer_options_make_it_plain_ipip",
            IN.carry(&outer.clone().options(&[1; 4])),
        )
        .decapsulates(IN.carry(&packet)),
        case_here("outer_extension_header_makes_it_plain_ipip", {
            let outer = packet.within(PEER_V6, EDGE_V6).tag(TAG_V4);
            IN.carry(&outer.extensions(&[(60, &[0, 4, 1, 4, 1, 1, 0])]))
        })
        .decapsulates(IN.carry(&packet)),
        case_here("congestion_mark_reaches_the_pod", {
            IN.carry(&marked.within(PEER_V4, EDGE_V4).tag(TAG_V4).class(3))
        })
        .delivers(service, packet.length(), {
            IN.carry(&Packet::tcp(client(to), at(POD_V4), b"hello").class(3))
        }),
        case_here("congestion_mark_on_what_takes_none_drops", {
            IN.carry(&outer.clone().class(3))
        })
        .drops(DropReason::EcnDropped),
        case_here("ttl_is_left_to_the_stack_at_the_pods_node", {
            from_edge(&packet.clone().hop_limit(1), TAG_V4)
        })
        .delivers(service, packet.length(), {
            IN.carry(&Packet::tcp(client(to), at(POD_V4), b"hello").hop_limit(1))
        }),
    ]);
    for length in [3600, 9000] {
        let payload = vec![0x55; length];
        let packet = Packet::tcp(client(to), to, &payload);
        let output = Packet::tcp(client(to), at(POD_V4), &payload);
        cases.push(
            case_here(
                format!("jumbo_frame_of_more_than_{length}_bytes_is_delivered"),
                from_edge(&packet, TAG_V4),
            )
            .delivers(service, packet.length(), IN.carry(&output)),
        );
    }
    cases
}

/// What the pod could not read either is judged as without pods.
fn malformed() -> Vec<Case> {
    let to = PODS_V4_TCP.1;
    let inner = Packet::tcp(client(to), to, b"hello").bytes();
    let outer = |bytes: &[u8]| IN.carry(&Packet::ip(PEER_V4, EDGE_V4, 4, bytes).tag(TAG_V4));
    let short = patched(inner[..39].to_vec(), 2, &39_u16.to_be_bytes());
    let echo = Packet::echo(CLIENT_V4, VIP_V4);
    vec![
        case_here("inner_beyond_the_outer_drops_at_the_node", {
            outer(&inner[..inner.len() - 1])
        })
        .drops(DropReason::MalformedInner),
        case_here("inner_of_wrong_version_drops_at_the_node", {
            outer(&patched(inner.clone(), 0, &[0x65]))
        })
        .drops(DropReason::MalformedInner),
        case_here(
            "inner_that_ends_in_its_tcp_header_goes_to_the_stack",
            outer(&short),
        )
        .decapsulates(IN.frame(IPV4, &short)),
        case_here("inner_for_an_address_of_no_service_drops", {
            from_edge(
                &Packet::tcp((CLIENT_V4, 1), (v4(10, 9, 9, 9), 9), b""),
                TAG_V4,
            )
        })
        .drops(DropReason::InnerNotOurs),
        case_here("inner_ping_goes_to_the_stack", from_edge(&echo, TAG_V4))
            .decapsulates(IN.carry(&echo)),
        case_here("inner_of_a_service_without_pods_goes_to_the_stack", {
            from_edge(&super::tcp(super::V4_TCP.1), TAG_V4)
        })
        .decapsulates(IN.carry(&super::tcp(super::V4_TCP.1))),
    ]
}

/// A datagram takes another pod of the service, a connection none; nothing reaches a pod outside of the service.
fn unknown_tags() -> Vec<Case> {
    const NOBODY: u16 = 0x3ff;
    let mut cases = Vec::new();
    for (kind, (service, to), make) in KINDS {
        let packet = make(client(to), to, b"hello");
        let case = |name: &str| case_here(format!("{kind}_{name}"), from_edge(&packet, NOBODY));
        let without_others = case("for_an_unknown_pod_without_others_drops")
            .with(|tables| tables.service[service.service as usize].local.0 = 0);
        // The TCP segment of this kind is a SYN.
        if kind.ends_with("tcp") {
            let reason = DropReason::UnknownPodSyn;
            cases.push(case("for_an_unknown_pod_drops").drops(reason));
            cases.push(without_others.drops(reason));
            continue;
        }
        let [(address, ..), _] = pods_like(to.0);
        let output = IN.carry(&make(client(to), at(address), b"hello"));
        cases.push(case("for_an_unknown_pod_goes_to_another").delivers(
            service,
            packet.length(),
            output,
        ));
        cases.push(without_others.drops(DropReason::UnknownPod));
    }
    let to = PODS_V4_TCP.1;
    for (name, flags) in [
        ("ack", ACK),
        ("fin", FIN | ACK),
        ("rst", RST),
        ("syn_ack", SYN | ACK),
        ("nothing", 0),
    ] {
        let packet = Packet::segment(client(to), to, flags, b"");
        cases.push(
            case_here(
                format!("tcp_with_{name}_for_an_unknown_pod_and_no_way_to_the_client_drops"),
                from_edge(&packet, NOBODY),
            )
            .drops(DropReason::UnknownPod),
        );
    }
    let (_, to) = OTHER_ALONE;
    let syn = Packet::tcp(client(to), to, b"");
    let ack = Packet::segment(client(to), to, ACK, b"");
    let recycled = |tables: &mut TableSet| {
        // The element of this key holds the value of another, as a recycled one does for a moment.
        let mut values: Vec<_> = tables.pods.values().copied().collect();
        values.rotate_left(1);
        for (value, other) in tables.pods.values_mut().zip(values) {
            *value = other;
        }
    };
    cases.extend([
        case_here(
            "syn_with_the_tag_of_another_services_pod_drops",
            from_edge(&syn, TAG_V4),
        )
        .drops(DropReason::UnknownPodSyn),
        case_here("syn_whose_pod_has_left_this_machine_drops", {
            from_edge(&syn, OTHER_TAG_V4)
        })
        .with(|tables| tables.backends[OTHER_HERE_V4 as usize].flags &= !BACKEND_LOCAL)
        .drops(DropReason::UnknownPodSyn),
        case_here(
            "ack_with_the_tag_of_another_services_pod_and_no_way_to_the_client_drops",
            from_edge(&ack, TAG_V4),
        )
        .drops(DropReason::UnknownPod),
        case_here(
            "ack_whose_pod_has_left_this_machine_and_no_way_to_the_client_drops",
            from_edge(&ack, OTHER_TAG_V4),
        )
        .with(|tables| tables.backends[OTHER_HERE_V4 as usize].flags &= !BACKEND_LOCAL)
        .drops(DropReason::UnknownPod),
        case_here(
            "ack_whose_pod_is_none_any_more_and_no_way_to_the_client_drops",
            from_edge(&ack, OTHER_TAG_V4),
        )
        .with(|tables| tables.backends[OTHER_HERE_V4 as usize] = Backend::default())
        .drops(DropReason::UnknownPod),
        case_here("recycled_element_names_no_pod", {
            from_edge(&ack, OTHER_TAG_V4)
        })
        .with(recycled)
        .drops(DropReason::UnknownPod),
    ]);
    cases
}

fn trust() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, (_, to), make) in KINDS {
        let packet = make(client(to), to, b"hello");
        let [(_, tag, _), _] = pods_like(to.0);
        for (own, stranger, outer) in [(EDGE_V4, STRANGER_V4, "v4"), (EDGE_V6, STRANGER_V6, "v6")] {
            cases.push(
                case_here(
                    format!("{kind}_in_{outer}_from_a_stranger_is_left_alone"),
                    IN.carry(&packet.within(stranger, own).tag(tag)),
                )
                .passes(PassReason::EncapUntrusted),
            );
        }
    }
    cases
}

/// The edge chooses a pod of its own machine: no outer header, no hop less.
fn local_delivery() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, (service, to), make) in KINDS {
        let packet = make(client(to), to, b"hello");
        let [(address, ..), _] = pods_like(to.0);
        let output = make(client(to), at(address), b"hello");
        cases.push(
            case_here(format!("{kind}_stays_on_this_machine"), IN.carry(&packet)).delivers(
                service,
                packet.length(),
                IN.carry(&output),
            ),
        );
        let tagged = Link {
            tags: &[(VLAN, 7)],
            ..IN
        };
        cases.push(
            case_here(
                format!("{kind}_behind_a_tag_stays_on_this_machine"),
                tagged.carry(&packet),
            )
            .delivers(service, packet.length(), tagged.carry(&output)),
        );
        cases.push(
            case_here(
                format!("{kind}_with_hop_limit_one_stays_on_this_machine"),
                IN.carry(&packet.clone().hop_limit(1)),
            )
            .delivers(
                service,
                packet.length(),
                IN.carry(&output.clone().hop_limit(1)),
            ),
        );
    }
    cases
}

/// A flow of the client's port to the pod, as it is remembered.
fn flow(to: End, state: u8, age_ns: u64) -> (Tuple, PodFlow) {
    let (from, protocol) = (client(to), TCP);
    flow_of(from, to, protocol, state, age_ns)
}

fn flow_of(from: End, to: End, protocol: u8, state: u8, age_ns: u64) -> (Tuple, PodFlow) {
    let key = Tuple::new(
        address_key(from.0),
        address_key(POD_V4),
        from.1.to_be_bytes(),
        TARGET.to_be_bytes(),
        protocol,
    );
    let seen = coarse_ns().wrapping_sub(age_ns);
    let flow = PodFlow::new(&key, address_key(to.0), to.1.to_be_bytes(), 20, state, seen);
    (key, flow)
}

/// The client's ports that its flow to this end may have at the pod, where it cannot have its own.
fn ports_at_the_pod(from: End, to: End, protocol: u8) -> impl Iterator<Item = u16> {
    let key = Tuple::new(
        address_key(from.0),
        address_key(to.0),
        from.1.to_be_bytes(),
        to.1.to_be_bytes(),
        protocol,
    );
    let mut ports = Ports::of(&key, super::world().config.hash_seed);
    (1..PORT_TRIES).map(move |_| ports.following())
}

/// The client as the pod sees it then.
pub(super) fn moved(from: End, to: End, protocol: u8) -> End {
    let port = ports_at_the_pod(from, to, protocol).next().unwrap();
    (from.0, port)
}

/// A client port that talks to one pod by two VIPs is two ports to the pod.
fn flows_that_meet() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, first, second, protocol, make) in BY_TWO_VIPS {
        let from = client(first.1);
        let [(pod, tag, _), (other, other_tag, other_id)] = pods_like(first.1.0);
        let packet = |to: End| make(from, to, b"");
        let edge = |to: End| from_edge(&packet(to), tag);
        let delivered = IN.carry(&make(from, at(pod), b""));
        let seen = moved(from, second.1, protocol);
        let apart = IN.carry(&make(seen, at(pod), b""));
        let length = packet(first.1).length();
        cases.extend([
            case_here(
                format!("{kind}_port_that_meets_itself_at_the_pod_is_another"),
                edge(second.1),
            )
            .after(edge(first.1))
            .delivers(second.0, length, apart.clone()),
            case_here(
                format!("{kind}_port_that_meets_itself_at_a_local_pod_is_another"),
                IN.carry(&packet(second.1)),
            )
            .after(IN.carry(&packet(first.1)))
            .delivers(second.0, length, apart.clone()),
            case_here(
                format!("{kind}_port_that_met_itself_stays_the_other"),
                edge(second.1),
            )
            .after(edge(first.1))
            .after(edge(second.1))
            .delivers(second.0, length, apart),
            case_here(format!("{kind}_same_flow_goes_on"), edge(first.1))
                .after(edge(first.1))
                .delivers(first.0, length, delivered.clone()),
            case_here(
                format!("{kind}_same_flow_goes_on_after_a_conflict"),
                edge(first.1),
            )
            .after(edge(first.1))
            .after(edge(second.1))
            .delivers(first.0, length, delivered),
            case_here(
                format!("{kind}_port_may_talk_to_two_pods"),
                from_edge(&packet(second.1), other_tag),
            )
            .after(edge(first.1))
            .delivers(way(second.0.service, other_id), length, {
                IN.carry(&make(from, at(other), b""))
            }),
            case_here(
                format!("{kind}_second_port_of_the_client_is_another_flow"),
                from_edge(&make((from.0, 40_001), second.1, b""), tag),
            )
            .after(edge(first.1))
            .delivers(second.0, length, {
                IN.carry(&make((from.0, 40_001), at(pod), b""))
            }),
        ]);
    }
    cases
}

/// Whether a flow by another VIP takes the key of a known one. Some of these keys are young for 3 s only: a subject of
/// its own, those first, so that a slow machine makes and runs them in that time.
pub(super) fn keys_of_known_flows() -> Vec<Case> {
    const SECOND: u64 = 1_000_000_000;
    // Tables, state and idle time of the known flow; whether the key is taken.
    type Known = (&'static str, u8, bool, u8, u64, bool);
    let known: [Known; 16] = [
        ("embryonic_udp", UDP, false, 0, 0, false),
        ("answered_tcp", TCP, true, 0, 0, false),
        ("tcp_idle_for_two_hours", TCP, true, 0, 7_300, false),
        ("tcp_idle_for_longer", TCP, true, 0, 7_500, true),
        ("unproved_tcp", TCP, false, 0, 0, false),
        // Its pod may wait for the end of the handshake.
        (
            "unproved_tcp_idle_for_four_seconds",
            TCP,
            false,
            0,
            4,
            false,
        ),
        ("unproved_tcp_idle_for_longer", TCP, false, 0, 245, true),
        ("answered_udp", UDP, true, 0, 240, false),
        ("udp_idle_for_five_minutes", UDP, true, 0, 310, true),
        (
            "embryonic_udp_idle_for_four_seconds",
            UDP,
            false,
            0,
            4,
            true,
        ),
        (
            "tcp_half_closed_by_the_client",
            TCP,
            true,
            FLOW_FIN_CLIENT,
            9,
            false,
        ),
        (
            "tcp_half_closed_by_the_pod",
            TCP,
            true,
            FLOW_FIN_POD,
            9,
            false,
        ),
        (
            "tcp_closed_a_short_while_ago",
            TCP,
            true,
            FLOW_FIN_CLIENT | FLOW_FIN_POD,
            30,
            false,
        ),
        (
            "tcp_closed_a_minute_ago",
            TCP,
            true,
            FLOW_FIN_CLIENT | FLOW_FIN_POD,
            62,
            true,
        ),
        (
            "tcp_reset_by_the_pod_a_short_while_ago",
            TCP,
            true,
            FLOW_RESET,
            30,
            false,
        ),
        (
            "tcp_reset_by_the_pod_a_minute_ago",
            TCP,
            true,
            FLOW_RESET,
            62,
            true,
        ),
    ];
    let mut cases = Vec::new();
    for (name, protocol, is_answered, state, seconds, gives_way) in known {
        let (first, second, make) = match protocol {
            TCP => (PODS_V4_TCP, PODS_AGAIN_TCP, Packet::tcp as Make),
            _ => (PODS_V4_UDP, PODS_AGAIN_UDP, Packet::udp as Make),
        };
        let packet = make(client(second.1), second.1, b"");
        let verb = if gives_way { "gives_way" } else { "stays" };
        let (key, flow) = flow_of(client(first.1), first.1, protocol, state, seconds * SECOND);
        let draft =
            case_here(format!("{name}_{verb}"), from_edge(&packet, TAG_V4)).with(|tables| {
                if is_answered {
                    tables.flows.insert(key, flow);
                } else {
                    tables.embryonic.insert(key, flow);
                }
            });
        let from = client(second.1);
        let seen = if gives_way {
            from
        } else {
            moved(from, second.1, protocol)
        };
        let output = IN.carry(&make(seen, at(POD_V4), b""));
        cases.push(draft.delivers(second.0, packet.length(), output));
    }
    cases
}

/// What the client's packets tell of its flow: seen by whether another VIP takes its key.
fn ends_of_flows() -> Vec<Case> {
    let (first, second) = (PODS_V4_TCP, PODS_AGAIN_TCP);
    let from = client(first.1);
    let segment = |flags| from_edge(&Packet::segment(from, first.1, flags, b""), TAG_V4);
    let syn = Packet::tcp(from, second.1, b"");
    let other = from_edge(&syn, TAG_V4);
    let known =
        |state, age| move |tables: &mut TableSet| tables.flows.extend([flow(first.1, state, age)]);
    let stays = |draft: super::Draft| {
        let seen = moved(from, second.1, TCP);
        let output = IN.carry(&Packet::tcp(seen, at(POD_V4), b""));
        draft.delivers(second.0, syn.length(), output)
    };
    let closed = FLOW_FIN_CLIENT | FLOW_FIN_POD;
    let ack = Packet::segment(from, first.1, ACK, b"");
    let goes_on = |name, draft: fn(super::Draft) -> super::Draft| {
        let draft = draft(case_here(name, segment(ACK)).with(known(0, 0)));
        let output = IN.carry(&Packet::segment(from, at(POD_V4), ACK, b""));
        draft.delivers(first.0, ack.length(), output)
    };
    vec![
        // The second packet finds the note of the first, and the third goes to the tables.
        stays(
            case_here("flow_in_use_keeps_its_port", other.clone())
                .with(known(0, 0))
                .after(segment(ACK))
                .after(segment(ACK))
                .after(segment(FIN | ACK)),
        ),
        stays(
            case_here("reset_by_the_client_ends_nothing", other.clone())
                .with(known(0, 0))
                .after(segment(RST)),
        ),
        stays(
            case_here("reset_by_the_client_ends_nothing_after_an_hour", {
                other.clone()
            })
            .with(known(0, 3_600_000_000_000))
            .after(segment(RST | ACK)),
        ),
        goes_on(
            "forged_reset_and_segments_to_another_vip_leave_a_flow",
            |draft| {
                let from = client(PODS_V4_TCP.1);
                let forged = |flags, to| from_edge(&Packet::segment(from, to, flags, b""), TAG_V4);
                draft
                    .after(forged(RST, PODS_V4_TCP.1))
                    .after(forged(ACK, PODS_AGAIN_TCP.1))
                    .after(forged(RST, PODS_AGAIN_TCP.1))
                    .after(forged(SYN, PODS_AGAIN_TCP.1))
                    .after(forged(ACK, PODS_AGAIN_TCP.1))
                    .after(forged(RST, PODS_AGAIN_TCP.1))
            },
        ),
        stays(
            case_here("fin_by_the_client_alone_ends_nothing", other.clone())
                .with(known(0, 120_000_000_000))
                .after(segment(FIN | ACK)),
        ),
        stays(
            case_here("end_of_a_flow_counts_from_its_last_packet", other.clone())
                .with(known(FLOW_FIN_POD, 120_000_000_000))
                .after(segment(FIN | ACK)),
        ),
        stays(
            case_here("every_packet_keeps_a_flow_alive", other.clone())
                .with(known(0, 8_000_000_000_000))
                .after(segment(ACK)),
        ),
        stays(
            case_here("port_that_begins_again_after_a_reset_lives", other.clone())
                .with(known(FLOW_RESET, 120_000_000_000))
                .after(segment(SYN)),
        ),
        stays(
            case_here(
                "port_that_begins_again_after_both_fins_lives",
                other.clone(),
            )
            .with(known(closed, 120_000_000_000))
            .after(segment(SYN)),
        ),
    ]
}

/// Flows that cannot have the client's own port at the pod.
fn other_ports() -> Vec<Case> {
    const LATER: u64 = 4_000_000_000;
    let (first, second) = (PODS_V4_TCP, PODS_AGAIN_TCP);
    let from = client(first.1);
    let seen = moved(from, second.1, TCP);
    let known = |tables: &mut TableSet| tables.flows.extend([flow(first.1, 0, 0)]);
    let edge = |packet: &Packet| from_edge(packet, TAG_V4);
    let segment = |flags, payload: &[u8]| Packet::segment(from, second.1, flags, payload);
    let syn = segment(SYN, b"");
    let mut cases = Vec::new();
    for (name, flags) in [("ack", ACK), ("fin", FIN | ACK), ("rst", RST)] {
        let packet = segment(flags, b"data");
        cases.extend([
            case_here(
                format!("tcp_{name}_by_another_vip_begins_nothing"),
                edge(&packet),
            )
            .with(known)
            .drops(DropReason::UnknownFlow),
            case_here(
                format!("tcp_{name}_by_another_vip_takes_no_key_that_is_idle"),
                edge(&packet),
            )
            .with(|tables| tables.flows.extend([flow(first.1, 0, 7_500_000_000_000)]))
            .drops(DropReason::UnknownFlow),
            case_here(format!("tcp_{name}_goes_on_by_its_port"), edge(&packet))
                .with(known)
                .after(edge(&syn))
                .delivers(second.0, packet.length(), {
                    IN.carry(&Packet::segment(seen, at(POD_V4), flags, b"data"))
                }),
        ]);
    }
    // The first flow is over, and its port is free: whoever had another one before keeps it, with the pod's memory of
    // it.
    let again = syn.length();
    cases.push(
        case_here("port_at_the_pod_is_the_same_the_next_time", edge(&syn))
            .with(|tables| {
                let own = client(second.1);
                let forward = Tuple::new(
                    address_key(own.0),
                    address_key(second.1.0),
                    own.1.to_be_bytes(),
                    second.1.1.to_be_bytes(),
                    TCP,
                );
                let port = 50_505_u16.to_be_bytes();
                let long_ago = coarse_ns().wrapping_sub(LATER);
                let entry = PodFlow::forward(&forward, address_key(POD_V4), port, long_ago);
                tables.flows.insert(forward, entry);
            })
            .delivers(second.0, again, {
                IN.carry(&Packet::tcp((from.0, 50_505), at(POD_V4), b""))
            }),
    );
    let taken = |number| {
        move |tables: &mut TableSet| {
            let own = client(second.1);
            tables.flows.extend([flow(first.1, 0, 0)]);
            for port in ports_at_the_pod(own, second.1, TCP).take(number) {
                let held = flow_of((own.0, port), first.1, TCP, 0, 0);
                tables.flows.extend([held]);
            }
        }
    };
    let last = ports_at_the_pod(from, second.1, TCP).last().unwrap();
    let most = ports_at_the_pod(from, second.1, TCP).count();
    cases.extend([
        case_here("last_port_that_is_tried_is_free", edge(&syn))
            .with(taken(most - 1))
            .delivers(second.0, syn.length(), {
                IN.carry(&Packet::tcp((from.0, last), at(POD_V4), b""))
            }),
        case_here("no_port_that_is_tried_is_free", edge(&syn))
            .with(taken(most))
            .drops(DropReason::FlowConflict),
        case_here("unproved_key_goes_where_no_port_is_free", edge(&syn))
            .with(taken(most))
            .with(|tables| {
                let (key, unproved) = flow(first.1, 0, LATER);
                tables.flows.remove(&key);
                tables.embryonic.insert(key, unproved);
            })
            .delivers(second.0, syn.length(), {
                IN.carry(&Packet::tcp(from, at(POD_V4), b""))
            }),
    ]);

    let privileged = (from.0, 800);
    let syn = |to| Packet::tcp(privileged, to, b"");
    let seen = moved(privileged, second.1, TCP);
    assert!((512..1024).contains(&seen.1), "{seen:?}");
    cases.push(
        case_here(
            "privileged_port_gets_a_privileged_one",
            edge(&syn(second.1)),
        )
        .after(edge(&syn(first.1)))
        .delivers(second.0, syn(second.1).length(), {
            IN.carry(&Packet::tcp(seen, at(POD_V4), b""))
        }),
    );
    let sctp = |to| Packet::sctp(from, to, b"");
    cases.push(
        case_here(
            "sctp_port_that_meets_itself_drops",
            edge(&sctp(PODS_V4_SCTP.1)),
        )
        .with(|tables| {
            let other = (VIP_V4, TARGET + 1);
            let held = flow_of(client(other), other, SCTP, 0, 0);
            tables.flows.extend([held]);
        })
        .drops(DropReason::FlowConflict),
    );
    // The element of this key holds the value of another, as a recycled one does for a moment.
    let (service, to) = first;
    let packet = Packet::tcp(from, to, b"");
    cases.push(
        case_here("recycled_element_is_no_flow", edge(&packet))
            .with(|tables| {
                let (key, _) = flow(second.1, 0, 0);
                let (_, others) = flow_of((CLIENT_V4, 1), second.1, TCP, 0, 0);
                tables.flows.insert(key, others);
            })
            .delivers(service, packet.length(), {
                IN.carry(&Packet::tcp(from, at(POD_V4), b""))
            }),
    );
    cases.extend(other_ports_of_datagrams());
    cases.extend(other_ports_in_errors());
    cases
}

fn other_ports_of_datagrams() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, first, second) in [
        ("v4", PODS_V4_UDP, PODS_AGAIN_UDP),
        ("v6", PODS_V6_UDP, PODS_AGAIN_V6_UDP),
    ] {
        let from = client(first.1);
        let [(pod, tag, _), _] = pods_like(first.1.0);
        let seen = moved(from, second.1, UDP);
        let edge = |packet: &Packet| from_edge(packet, tag);
        let begun = edge(&Packet::udp(from, first.1, b"query"));
        let without = |packet: Packet| {
            let datagram = patched(packet.payload().to_vec(), 6, &[0, 0]);
            packet.with_payload(datagram)
        };
        let packet = without(Packet::udp(from, second.1, b"query"));
        let output = without(Packet::udp(seen, at(pod), b"query"));
        cases.push(
            case_here(
                format!("{family}_udp_checksum_zero_stays_zero_by_another_port"),
                edge(&packet),
            )
            .after(begun.clone())
            .delivers(second.0, packet.length(), IN.carry(&output)),
        );
        let pieces = |from, to| Packet::udp(from, to, &[0x55; 300]).pieces(256, 0xbeef);
        let (sent, received) = (pieces(from, second.1), pieces(seen, at(pod)));
        cases.extend([
            case_here(
                format!("{family}_first_fragment_by_another_port"),
                edge(&sent[0]),
            )
            .after(begun.clone())
            .delivers(second.0, sent[0].length(), IN.carry(&received[0])),
            case_here(
                format!("{family}_later_fragment_by_another_port"),
                edge(&sent[1]),
            )
            .after(begun)
            .after(edge(&sent[0]))
            .delivers(second.0, sent[1].length(), IN.carry(&received[1])),
        ]);
    }
    cases
}

/// The pod finds its own packet in errors that clients and routers send about it.
fn other_ports_in_errors() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, first, second, protocol, make) in BY_TWO_VIPS {
        let from = client(first.1);
        let [(pod, tag, _), _] = pods_like(first.1.0);
        let seen = moved(from, second.1, protocol);
        let (unreachable, header) = if pod.is_ipv4() {
            ((3, 3), 20)
        } else {
            ((1, 4), 40)
        };
        for shown in [8, usize::MAX] {
            let error = |to: IpAddr, about: &Packet| {
                let mut quote = about.bytes();
                quote.truncate(header + shown.min(quote.len()));
                Packet::icmp(from.0, to, unreachable, [0; 4], &quote)
            };
            let sent = error(second.1.0, &make(second.1, from, b"answer"));
            let received = error(pod, &make(at(pod), seen, b"answer"));
            cases.push(
                case_here(
                    format!("error_about_{kind}_by_another_port_shows_{shown}"),
                    from_edge(&sent, tag),
                )
                .after(from_edge(&make(from, first.1, b""), tag))
                .after(from_edge(&make(from, second.1, b""), tag))
                .delivers(second.0, sent.length(), IN.carry(&received)),
            );
        }
    }
    cases
}

/// A client that is the pod itself, or this machine, is shown to the pod as the address it talks to.
fn hairpins() -> Vec<Case> {
    const INTERNAL: IpAddr = v4(10, 0, 0, 7);
    let mut cases = Vec::new();
    for (kind, (service, to), make) in KINDS {
        let [(address, tag, _), (other, other_tag, other_id)] = pods_like(to.0);
        let (own, peer) = if to.0.is_ipv4() {
            (EDGE_V4, PEER_V4)
        } else {
            (EDGE_V6, PEER_V6)
        };
        let from = |client: IpAddr| make((client, 40_000), to, b"hello");
        let seen = |client: IpAddr| make((client, 40_000), at(address), b"hello");
        let sent = |client: IpAddr| IN.carry(&from(client).within(peer, own).tag(tag));
        let length = from(address).length();
        cases.extend([
            case_here(format!("{kind}_pod_that_talks_to_itself"), sent(address)).delivers(
                service,
                length,
                IN.carry(&seen(to.0)),
            ),
            case_here(
                format!("{kind}_pod_that_talks_to_itself_goes_on"),
                sent(address),
            )
            .after(sent(address))
            .delivers(service, length, IN.carry(&seen(to.0))),
            case_here(
                format!("{kind}_pod_that_talks_to_itself_without_an_edge"),
                IN.carry(&from(address)),
            )
            .delivers(service, length, IN.carry(&seen(to.0))),
            case_here(format!("{kind}_pod_that_talks_to_its_neighbour"), {
                IN.carry(&from(address).within(peer, own).tag(other_tag))
            })
            .delivers(way(service.service, other_id), length, {
                IN.carry(&make((address, 40_000), at(other), b"hello"))
            }),
            case_here(format!("{kind}_machine_that_talks_to_its_pod"), sent(own)).delivers(
                service,
                length,
                IN.carry(&seen(to.0)),
            ),
        ]);
        let both = case_here(
            format!("{kind}_machine_and_pod_from_one_port_to_the_pod"),
            sent(own),
        )
        .after(sent(address));
        let protocol = from(own).protocol();
        cases.push(if protocol == SCTP {
            both.drops(DropReason::FlowConflict)
        } else {
            let (_, port) = moved((own, 40_000), to, protocol);
            let shown = make((to.0, port), at(address), b"hello");
            both.delivers(service, length, IN.carry(&shown))
        });
    }
    cases.extend(clients_at_vips());
    let (service, to) = PODS_V4_TCP;
    let again = PODS_AGAIN_TCP.1;
    let from_node = Packet::tcp((INTERNAL, 40_000), to, b"");
    let shown = IN.carry(&Packet::tcp((VIP_V4, 40_000), at(POD_V4), b""));
    let itself = |to| from_edge(&Packet::tcp((POD_V4, 40_000), to, b""), TAG_V4);
    cases.extend([
        case_here("node_port_address_is_this_machines_too", {
            from_edge(&from_node, TAG_V4)
        })
        .with(|tables| tables.address(INTERNAL, ADDRESS_NODE_PORT))
        .delivers(service, from_node.length(), shown.clone()),
        case_here("unknown_address_is_a_client_like_others", {
            from_edge(&from_node, TAG_V4)
        })
        .delivers(service, from_node.length(), {
            IN.carry(&Packet::tcp((INTERNAL, 40_000), at(POD_V4), b""))
        }),
        case_here("two_vips_of_a_hairpin_meet", itself(again))
            .after(itself(to))
            .delivers(PODS_AGAIN_TCP.0, from_node.length(), {
                let (_, port) = moved((POD_V4, 40_000), again, TCP);
                IN.carry(&Packet::tcp((VIP_V4, port), at(POD_V4), b""))
            }),
        case_here("two_vips_of_a_hairpin_stay_apart", itself(again))
            .after(itself(to))
            .after(itself(again))
            .delivers(PODS_AGAIN_TCP.0, from_node.length(), {
                let (_, port) = moved((POD_V4, 40_000), again, TCP);
                IN.carry(&Packet::tcp((VIP_V4, port), at(POD_V4), b""))
            }),
    ]);
    cases
}

/// Nobody is a client from a VIP: two services would talk to each other for good, and a pod that talks to itself would
/// find its place taken.
fn clients_at_vips() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, (service, to), make) in KINDS {
        let [(address, tag, _), _] = pods_like(to.0);
        let from = |client: IpAddr| make((client, 40_000), to, b"hello");
        let seen = (to.0, 40_000);
        let forged = from_edge(&from(to.0), tag);
        let itself = from_edge(&from(address), tag);
        let shown = |port| IN.carry(&make((to.0, port), at(address), b"hello"));
        let length = from(address).length();
        let protocol = from(address).protocol();
        cases.extend([
            case_here(
                format!("{kind}_client_at_a_vip_begins_nothing"),
                forged.clone(),
            )
            .drops(DropReason::SourceIsVip),
            case_here(
                format!("{kind}_client_at_an_inner_vip_begins_nothing"),
                forged.clone(),
            )
            .with(|tables| tables.address(to.0, ADDRESS_INNER))
            .drops(DropReason::SourceIsVip),
            case_here(
                format!("{kind}_client_at_a_vip_without_an_edge"),
                IN.carry(&from(to.0)),
            )
            .drops(DropReason::SourceIsVip),
            case_here(
                format!("{kind}_client_at_a_vip_takes_no_place"),
                itself.clone(),
            )
            .after(forged.clone())
            .delivers(service, length, shown(40_000)),
            case_here(format!("{kind}_client_at_a_shared_address"), forged.clone())
                .with(|tables| tables.address(to.0, ADDRESS_SHARED | ADDRESS_INNER))
                .delivers(service, length, shown(40_000)),
        ]);
        // The flow of a client whose address has become a VIP since.
        let known = |name: &str, input| {
            let key = Tuple::new(
                address_key(seen.0),
                address_key(address),
                u16::to_be_bytes(seen.1),
                TARGET.to_be_bytes(),
                protocol,
            );
            let port = to.1.to_be_bytes();
            let flow = PodFlow::new(&key, address_key(to.0), port, 20, 0, coarse_ns());
            case_here(format!("{kind}_{name}"), input).with(|tables| {
                tables.flows.insert(key, flow);
            })
        };
        cases.push(
            known("client_whose_address_is_a_vip_by_now_goes_on", forged).delivers(
                service,
                length,
                shown(40_000),
            ),
        );
        let both = known("pod_that_talks_to_itself_shares_no_flow_of_its_vip", itself);
        cases.push(if protocol == SCTP {
            both.drops(DropReason::FlowConflict)
        } else {
            let (_, port) = moved((address, 40_000), to, protocol);
            both.delivers(service, length, shown(port))
        });
    }
    cases
}
