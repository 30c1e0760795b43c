//! Policies where the backends are pods: at VIPs and NodePorts, of this machine and of others.

use std::net::IpAddr;

use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_NODE_PORT, EdgeMac, LocalFlow, MODE_IPIP, MODE_L2DSR,
        SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT, SERVICE_NODE_PORT, SERVICE_PODS,
        SERVICE_SOURCE_RANGES, Tuple,
    },
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{
        packet::{ACK, End, FIN, Packet, RST, SYN},
        tables::{TableSet, address_key},
    },
    BACK, Case, Draft, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, TCP, UDP, V4_IN_V6, V4_L2, V4_UDP,
    V6_IN_V4, V6_L2, V6_UDP, VIP_V4, VIP_V6, Way, case, client,
    pods::{self, HERE_V4, HERE_V6, OTHER_HERE_V4, OTHER_POD_V4, POD_V4, POD_V6, SCTP, TARGET},
    policies::client_slot,
    port_unreachable, reset_of_syn, v4, v6, way,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(traffic_policy());
    cases.extend(source_ranges());
    cases.extend(source_ranges_at_edges());
    cases.extend(affinity());
    cases
}

const NODE_PORT: u16 = 30_080;
const SERVICE: u32 = 24;

type Make = fn(End, End, &[u8]) -> Packet;

/// A service of the pods here: where clients find it, and what they send.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    to: End,
    protocol: u8,
    make: Make,
}

/// A VIP and a NodePort for each protocol and family; SCTP's port is the pod's.
const KINDS: [Kind; 12] = [
    kind("v4_tcp_vip", (VIP_V4, 7100), TCP, Packet::tcp),
    kind("v4_udp_vip", (VIP_V4, 7100), UDP, Packet::udp),
    kind("v4_sctp_vip", (VIP_V4, TARGET), SCTP, Packet::sctp),
    kind("v6_tcp_vip", (VIP_V6, 7100), TCP, Packet::tcp),
    kind("v6_udp_vip", (VIP_V6, 7100), UDP, Packet::udp),
    kind("v6_sctp_vip", (VIP_V6, TARGET), SCTP, Packet::sctp),
    kind("v4_tcp_node_port", (EDGE_V4, NODE_PORT), TCP, Packet::tcp),
    kind("v4_udp_node_port", (EDGE_V4, NODE_PORT), UDP, Packet::udp),
    kind("v4_sctp_node_port", (EDGE_V4, TARGET), SCTP, Packet::sctp),
    kind("v6_tcp_node_port", (EDGE_V6, NODE_PORT), TCP, Packet::tcp),
    kind("v6_udp_node_port", (EDGE_V6, NODE_PORT), UDP, Packet::udp),
    kind("v6_sctp_node_port", (EDGE_V6, TARGET), SCTP, Packet::sctp),
];

const fn kind(name: &'static str, to: End, protocol: u8, make: Make) -> Kind {
    Kind {
        name,
        to,
        protocol,
        make,
    }
}

impl Kind {
    /// Backend id and address of the pod.
    fn pod(&self) -> (u32, IpAddr) {
        match self.to.0 {
            IpAddr::V4(_) => (HERE_V4, POD_V4),
            IpAddr::V6(_) => (HERE_V6, POD_V6),
        }
    }

    fn is_node_port(&self) -> bool {
        self.name.ends_with("node_port")
    }

    fn packet(&self) -> Packet {
        (self.make)(client(self.to), self.to, b"hello")
    }

    /// A case with the service on this machine, whose slots belong to `owner`, by these rules.
    fn draft(&self, what: &str, owner: u32, rules: u32, input: Vec<u8>) -> Draft {
        case(format!("{}_{what}", self.name), input).with(|tables| {
            pods::node(tables);
            for own in [EDGE_V4, EDGE_V6] {
                tables.address(own, ADDRESS_LOCAL | ADDRESS_NODE_PORT);
            }
            tables.service(SERVICE, self.to, self.protocol, MODE_IPIP, &[owner]);
            let node_port = if self.is_node_port() {
                SERVICE_NODE_PORT
            } else {
                0
            };
            tables.service[SERVICE as usize].flags = SERVICE_PODS | node_port | rules;
            tables.local_table(SERVICE, &[owner]);
        })
    }

    /// The packet goes to the pod.
    fn delivered(&self, draft: Draft) -> Case {
        let (id, pod) = self.pod();
        let output = (self.make)(client(self.to), (pod, TARGET), b"hello");
        let length = self.packet().length();
        draft.delivers(way(SERVICE, id), length, IN.carry(&output))
    }

    /// The packet is refused, as its protocol does.
    fn refused(&self, draft: Draft) -> Case {
        let packet = self.packet();
        if self.protocol == TCP {
            let answer = reset_of_syn(self.to, 5);
            draft.replies(ReplyReason::Reset, BACK.carry(&answer))
        } else {
            let answer = port_unreachable(&packet);
            draft.replies(ReplyReason::PortUnreachable, BACK.carry(&answer))
        }
    }
}

/// Local: the pods here alone; nothing where others have some, a refusal where nobody has.
fn traffic_policy() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        let (id, _) = kind.pod();
        let frame = IN.carry(&kind.packet());
        let local = SERVICE_DROP_WHEN_EMPTY;
        let draft = |what, owner, rules| kind.draft(what, owner, rules, frame.clone());
        cases.extend([
            kind.delivered(draft("of_policy_local_goes_to_the_pod_here", id, local)),
            draft("of_policy_local_without_a_pod_here_drops", 0, local)
                .drops(DropReason::NoLocalBackend),
            kind.refused(draft("of_policy_local_without_any_pod_is_refused", 0, 0)),
        ]);
        if kind.protocol == UDP {
            let first = kind.packet().pieces(8, 0xc0de)[0].clone();
            let what = "of_policy_local_without_a_pod_here_drops_fragments";
            cases.push(
                kind.draft(what, 0, local, IN.carry(&first))
                    .drops(DropReason::NoLocalBackend),
            );
        }
    }
    // Whatever segment it is: where there are pods, the connection may be theirs.
    for (name, flags) in [("ack", ACK), ("fin", FIN | ACK), ("rst", RST), ("syn", SYN)] {
        for kind in KINDS.into_iter().filter(|kind| kind.protocol == TCP) {
            let segment = Packet::segment(client(kind.to), kind.to, flags, b"");
            let what = format!("of_policy_local_without_a_pod_here_drops_{name}");
            cases.push(
                kind.draft(&what, 0, SERVICE_DROP_WHEN_EMPTY, IN.carry(&segment))
                    .drops(DropReason::NoLocalBackend),
            );
        }
    }
    cases
}

/// A network with the client of the family, and one without.
fn networks(to: End) -> [(IpAddr, u32); 2] {
    match to.0 {
        IpAddr::V4(_) => [(v4(198, 51, 100, 0), 24), (v4(10, 0, 0, 0), 8)],
        IpAddr::V6(_) => [(v6(0xc, 0), 64), (v6(0xd, 0), 64)],
    }
}

/// Pods here are for the clients of the service's ranges, at its VIPs as at its NodePorts; the kernel's own
/// flows are for everyone.
fn source_ranges() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        let (id, _) = kind.pod();
        let [network, elsewhere] = networks(kind.to);
        let frame = IN.carry(&kind.packet());
        let draft = |what, (address, bits)| {
            kind.draft(what, id, SERVICE_SOURCE_RANGES, frame.clone())
                .with(|tables| tables.admit(SERVICE, address, bits))
        };
        cases.extend([
            kind.delivered(draft("with_a_range_of_the_client", network)),
            draft("with_a_range_of_others", elsewhere).drops(DropReason::SourceRange),
        ]);
        if !kind.is_node_port() {
            continue;
        }
        let make = if kind.protocol == TCP {
            |from, to, payload: &[u8]| Packet::segment(from, to, ACK, payload)
        } else {
            kind.make
        };
        let answer = make(client(kind.to), kind.to, b"");
        let own = |tables: &mut TableSet| {
            let key = tuple(client(kind.to), kind.to, kind.protocol);
            let alive = LocalFlow::new(u64::MAX, false);
            tables.local_flows.insert(key, alive);
            tables.admit(SERVICE, elsewhere.0, elsewhere.1);
        };
        cases.push(
            kind.draft(
                "with_a_range_of_others_passes_the_kernels_flows",
                id,
                SERVICE_SOURCE_RANGES,
                IN.carry(&answer),
            )
            .with(own)
            .passes(PassReason::LocalFlow),
        );
        if kind.protocol == TCP {
            cases.push(
                draft("with_a_range_of_others_drops_syns", elsewhere)
                    .with(own)
                    .drops(DropReason::SourceRange),
            );
        }
    }
    cases
}

/// An edge asks before it forwards, however it does.
fn source_ranges_at_edges() -> Vec<Case> {
    let mut cases = Vec::new();
    let services: [(&str, (Way, End), Make); 7] = [
        ("v4_udp", V4_UDP, Packet::udp),
        ("v6_udp", V6_UDP, Packet::udp),
        ("v4_in_v6", V4_IN_V6, Packet::tcp),
        ("v6_in_v4", V6_IN_V4, Packet::tcp),
        ("v4_l2dsr", V4_L2, Packet::tcp),
        ("v6_l2dsr", V6_L2, Packet::tcp),
        ("v4_nat", V4_UDP, Packet::udp),
    ];
    for (name, (way, to), make) in services {
        let [_, (address, bits)] = networks(to);
        let nat = if name.ends_with("nat") {
            SERVICE_NAT
        } else {
            0
        };
        cases.push(
            case(
                format!("{name}_is_not_forwarded_for_others"),
                IN.carry(&make(client(to), to, b"")),
            )
            .with(|tables| {
                tables.service[way.service as usize].flags |= SERVICE_SOURCE_RANGES | nat;
                tables.admit(way.service, address, bits);
            })
            .drops(DropReason::SourceRange),
        );
    }
    cases
}

/// What chooses anew for a client chooses as everything does, be it a fragment or at the node.
fn affinity() -> Vec<Case> {
    const SEED: u64 = 0x5eed_0f0f_5eed;
    const PODS: [(u32, IpAddr); 2] = [(HERE_V4, POD_V4), (OTHER_HERE_V4, OTHER_POD_V4)];
    let owners: Vec<u32> = (0..128).map(|slot| PODS[slot % 2].0).collect();
    let mut cases = Vec::new();
    let mut chosen = [false; 2];
    for host in [7, 8, 9, 10] {
        let from: End = (v4(198, 51, 100, host), 40_000);
        let index = client_slot(SEED, from.0, 7) % 2;
        chosen[index] = true;
        let (id, pod) = PODS[index];
        for (what, to, node_port) in [
            ("vip", (VIP_V4, 7100), 0),
            ("node_port", (EDGE_V4, NODE_PORT), SERVICE_NODE_PORT),
        ] {
            let with_affinity = |tables: &mut TableSet| {
                pods::node(tables);
                tables.address(EDGE_V4, ADDRESS_LOCAL | ADDRESS_NODE_PORT);
                tables.service(SERVICE, to, UDP, MODE_IPIP, &owners);
                tables.local_table(SERVICE, &owners);
                let service = &mut tables.service[SERVICE as usize];
                service.flags = SERVICE_PODS | node_port;
                service.affinity = SEED;
            };
            let name = |who: &str| format!("affinity_of_{who}_of_client_{host}_to_a_{what}");
            let payload = [0x5a; 300];
            let packet = Packet::udp(from, to, &payload);
            let output = Packet::udp(from, (pod, TARGET), &payload);
            let whole = IN.carry(&packet);
            cases.push(
                case(name("a_datagram"), whole.clone())
                    .with(with_affinity)
                    .delivers(way(SERVICE, id), packet.length(), IN.carry(&output)),
            );
            let pieces = packet.pieces(256, 0xc0de);
            let sent = output.pieces(256, 0xc0de);
            cases.push(
                case(name("a_first_fragment"), IN.carry(&pieces[0]))
                    .with(with_affinity)
                    .delivers(way(SERVICE, id), pieces[0].length(), IN.carry(&sent[0])),
            );
            cases.push(
                case(name("a_later_fragment"), IN.carry(&pieces[1]))
                    .with(with_affinity)
                    .after(IN.carry(&pieces[0]))
                    .delivers(way(SERVICE, id), pieces[1].length(), IN.carry(&sent[1])),
            );
            cases.push(
                case(name("an_unknown_tag"), {
                    IN.carry(&packet.within(PEER_V4, EDGE_V4).tag(0x3ff))
                })
                .with(with_affinity)
                .delivers(way(SERVICE, id), packet.length(), IN.carry(&output)),
            );
            cases.push(
                case(name("an_unknown_tag_in_v6"), {
                    IN.carry(&packet.within(PEER_V6, EDGE_V6).tag(0x3ff))
                })
                .with(with_affinity)
                .delivers(way(SERVICE, id), packet.length(), IN.carry(&output)),
            );
            cases.push(
                case(name("an_l2dsr_frame"), whole)
                    .with(with_affinity)
                    .with(|tables| {
                        tables.service[SERVICE as usize].mode = MODE_L2DSR;
                        tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
                    })
                    .delivers(way(SERVICE, id), packet.length(), IN.carry(&output)),
            );
        }
    }
    assert_eq!(chosen, [true; 2], "the clients have one pod all");
    cases
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
