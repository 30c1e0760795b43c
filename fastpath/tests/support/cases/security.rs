//! What somebody may send who means harm, or who is mistaken: tags of other services' pods, IP-in-IP from
//! strangers, frames that would go round in circles.

use std::net::IpAddr;

use xdp_prog::{
    abi::{CONFIG_NODE, EdgeMac, MODE_IPIP, MODE_L2DSR, SERVICE_PODS},
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    super::{
        packet::{ACK, End, FIN, Packet, RST},
        tables::TableSet,
    },
    BACK, Case, Draft, EDGE_V4, EDGE_V6, IN, NODE_V4, NODE_V6, PEER_V4, PEER_V6, STRANGER_V4,
    STRANGER_V6, TCP, UDP, V4_L2, V4_UDP, V6_L2, V6_UDP, case, client, hop,
    pods::{
        self, OTHER_HERE_V4, OTHER_HERE_V6, OTHER_POD_V4, OTHER_POD_V6, SCTP, TAG_V4, TAG_V6,
        TARGET,
    },
    time_exceeded, v4, v6, way,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        for outer in OUTERS {
            cases.extend(spoofed_tags(kind, outer));
        }
    }
    for outer in OUTERS {
        cases.extend(strangers(outer));
        cases.extend(nested(outer));
    }
    cases.extend(circles());
    cases
}

type Make = fn(End, End, &[u8]) -> Packet;

/// A service of the second pod of the family alone; the first pod is another service's.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    to: End,
    protocol: u8,
    make: Make,
}

const ALONE_V4: IpAddr = v4(203, 0, 113, 20);
const ALONE_V6: IpAddr = v6(0xf, 20);
const KINDS: [Kind; 6] = [
    kind("v4_tcp", ALONE_V4, TCP, Packet::tcp),
    kind("v4_udp", ALONE_V4, UDP, Packet::udp),
    kind("v4_sctp", ALONE_V4, SCTP, Packet::sctp),
    kind("v6_tcp", ALONE_V6, TCP, Packet::tcp),
    kind("v6_udp", ALONE_V6, UDP, Packet::udp),
    kind("v6_sctp", ALONE_V6, SCTP, Packet::sctp),
];
const SERVICE: u32 = 25;

const fn kind(name: &'static str, address: IpAddr, protocol: u8, make: Make) -> Kind {
    Kind {
        name,
        to: (address, TARGET),
        protocol,
        make,
    }
}

impl Kind {
    /// The pod, its backend id, and the tag of the other service's pod.
    fn pod(&self) -> (IpAddr, u32, u16) {
        match self.to.0 {
            IpAddr::V4(_) => (OTHER_POD_V4, OTHER_HERE_V4, TAG_V4),
            IpAddr::V6(_) => (OTHER_POD_V6, OTHER_HERE_V6, TAG_V6),
        }
    }

    fn serve(&self, tables: &mut TableSet) {
        pods::node(tables);
        let (_, id, _) = self.pod();
        tables.service(SERVICE, self.to, self.protocol, MODE_IPIP, &[id]);
        tables.service[SERVICE as usize].flags = SERVICE_PODS;
        tables.local_table(SERVICE, &[id]);
        tables.pod(SERVICE, id);
    }
}

/// An outer family: who is trusted, this machine, and who is not.
#[derive(Clone, Copy)]
struct OuterEnds {
    name: &'static str,
    peer: IpAddr,
    own: IpAddr,
    stranger: IpAddr,
}

const OUTERS: [OuterEnds; 2] = [
    OuterEnds {
        name: "v4",
        peer: PEER_V4,
        own: EDGE_V4,
        stranger: STRANGER_V4,
    },
    OuterEnds {
        name: "v6",
        peer: PEER_V6,
        own: EDGE_V6,
        stranger: STRANGER_V6,
    },
];

/// An edge that lies about the pod reaches none outside of the service.
fn spoofed_tags(kind: Kind, outer: OuterEnds) -> Vec<Case> {
    let (pod, id, foreign) = kind.pod();
    let from = client(kind.to);
    let tagged = |packet: &Packet, tag| IN.carry(&packet.within(outer.peer, outer.own).tag(tag));
    let named = |what: &str, input| {
        let name = format!("{}_in_{}_{what}", kind.name, outer.name);
        case(name, input).with(|tables| kind.serve(tables))
    };
    let first = (kind.make)(from, kind.to, b"hello");
    let delivered = IN.carry(&(kind.make)(from, (pod, TARGET), b"hello"));
    let mut cases = Vec::new();
    for (what, tag) in [
        ("with_the_tag_of_another_services_pod", foreign),
        ("with_that_tag_and_its_highest_bit", 0x8000 | foreign),
        ("with_that_tag_and_all_tries", 0x7800 | foreign),
    ] {
        let draft = named(what, tagged(&first, tag));
        cases.push(if kind.protocol == TCP {
            draft.drops(DropReason::UnknownPodSyn)
        } else if tag & 0xf800 == 0x7800 {
            let returned = first.within(outer.own, outer.peer).tag(0x8000 | tag);
            draft.replies(ReplyReason::Returned, BACK.carry(&returned))
        } else {
            draft.delivers(way(SERVICE, id), first.length(), delivered.clone())
        });
    }
    let unknown = if kind.protocol == TCP {
        DropReason::UnknownPodSyn
    } else {
        DropReason::UnknownPod
    };
    cases.push(
        named(
            "with_the_tag_of_another_services_pod_where_it_has_none",
            tagged(&first, foreign),
        )
        .with(|tables| {
            tables.service[SERVICE as usize].local.0 = 0;
            tables.pods.retain(|key, _| key.parts().0 != SERVICE);
            // The table of all names a node that could be sent to.
            tables.set_owner(SERVICE, 1);
        })
        .drops(unknown),
    );
    if kind.protocol == TCP {
        for (what, flags) in [("ack", ACK), ("fin", FIN | ACK), ("rst", RST)] {
            let segment = Packet::segment(from, kind.to, flags, b"");
            cases.push(
                named(
                    &format!(
                        "{what}_with_the_tag_of_another_services_pod_and_no_way_to_the_client"
                    ),
                    tagged(&segment, foreign),
                )
                .drops(DropReason::UnknownPod),
            );
        }
    }
    cases
}

/// Whatever a stranger wraps is left to the stack, not a byte of it changed.
fn strangers(outer: OuterEnds) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        let from = client(kind.to);
        let packet = (kind.make)(from, kind.to, &[0x55; 64]);
        let pieces = packet.pieces(32, 0xc0de);
        let (unreachable, too_big) = ((3, 3), (2, 0));
        let message = match kind.to.0 {
            IpAddr::V4(_) => unreachable,
            IpAddr::V6(_) => too_big,
        };
        // Of a router to the VIP, about what the pod has answered.
        let reply = (kind.make)(kind.to, from, b"answer").bytes();
        let error = Packet::icmp(from.0, kind.to.0, message, [0; 4], &reply);
        for (what, inner) in [
            ("first_fragment", &pieces[0]),
            ("later_fragment", &pieces[1]),
            ("echo", &Packet::echo(from.0, kind.to.0)),
            ("icmp_error", &error),
            (
                "other_protocol",
                &Packet::ip(from.0, kind.to.0, 47, &[0; 8]),
            ),
        ] {
            let input = inner.within(outer.stranger, outer.own).tag(kind.pod().2);
            cases.push(
                case(
                    format!("{}_{what}_in_{}_from_a_stranger", kind.name, outer.name),
                    IN.carry(&input),
                )
                .with(|tables| kind.serve(tables))
                .passes(PassReason::EncapUntrusted),
            );
        }
    }
    cases
}

/// One outer header comes off, and what is below is for this machine, not for a VIP: a packet within a packet within a
/// packet reaches neither a pod nor the stack.
fn nested(outer: OuterEnds) -> Vec<Case> {
    let nest = |kind: &Kind, below: OuterEnds| {
        let packet = (kind.make)(client(kind.to), kind.to, b"hello");
        let wrapped = packet.within(below.peer, below.own).tag(kind.pod().2);
        let input = IN.carry(&wrapped.within(outer.peer, outer.own).tag(kind.pod().2));
        let name = format!("{}_in_{}_in_{}", kind.name, below.name, outer.name);
        case(name, input)
            .with(|tables| kind.serve(tables))
            .drops(DropReason::InnerNotOurs)
    };
    let each = |kind: &Kind| OUTERS.map(|below| nest(kind, below));
    KINDS.iter().flat_map(each).collect()
}

/// By L2 DSR nothing tells a packet that has been forwarded but who sends it, and its TTL.
fn circles() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, (service, to), udp_to, node, own) in [
        ("v4", V4_L2, V4_UDP, NODE_V4, EDGE_V4),
        ("v6", V6_L2, V6_UDP, NODE_V6, EDGE_V6),
    ] {
        // The chosen backend is behind the MAC that the frame came from.
        let back_to_sender = |tables: &mut TableSet| {
            let id = tables.backends[service.backend as usize].next_hop;
            tables.next_hops[id as usize] = hop(&BACK, own);
        };
        let from_an_edge = |tables: &mut TableSet| {
            tables.config.flags |= CONFIG_NODE;
            tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
        };
        let of_pods = |draft: Draft, id: u32| {
            draft.with(|tables| {
                back_to_sender(tables);
                from_an_edge(tables);
                let service = &mut tables.service[id as usize];
                service.mode = MODE_L2DSR;
                service.flags |= SERVICE_PODS;
            })
        };
        let syn = super::tcp(to);
        let ack = Packet::segment(client(to), to, ACK, b"");
        let datagram = Packet::udp(client(udp_to.1), udp_to.1, &[0x55; 64]);
        let pieces = datagram.pieces(32, 0xc0de);
        for (what, id, packet) in [
            ("syn", service.service, &syn),
            ("ack", service.service, &ack),
            ("datagram", udp_to.0.service, &datagram),
            ("first_fragment", udp_to.0.service, &pieces[0]),
        ] {
            let draft = case(
                format!("l2dsr_{name}_{what}_of_an_edge_is_not_sent_back"),
                IN.carry(packet),
            );
            cases.push(of_pods(draft, id).drops(DropReason::UnknownPod));
            // The same where a TTL would let it go on for ever.
            let draft = case(
                format!("l2dsr_{name}_{what}_of_an_edge_on_its_last_hop_is_not_sent_back"),
                IN.carry(&packet.clone().hop_limit(1)),
            );
            cases.push(of_pods(draft, id).drops(DropReason::UnknownPod));
        }
        let quoted = Packet::segment(to, client(to), ACK, b"answer").bytes();
        let router = if to.0.is_ipv4() {
            v4(198, 51, 100, 1)
        } else {
            v6(0xc, 1)
        };
        let message = if to.0.is_ipv4() { (3, 4) } else { (2, 0) };
        let error = Packet::icmp(router, to.0, message, 1400_u32.to_be_bytes(), &quoted);
        let draft = case(
            format!("l2dsr_{name}_icmp_error_of_an_edge_is_not_sent_back"),
            IN.carry(&error),
        );
        cases.push(of_pods(draft, service.service).drops(DropReason::UnknownPod));

        // From anyone else it is forwarded, to the sender too: its pods may be clients. Each time it is a hop less.
        let mut packet = syn.clone().hop_limit(3);
        for left in [3, 2] {
            let sent = packet.next_hop();
            cases.push(
                case(
                    format!("l2dsr_{name}_goes_back_to_a_client_with_{left}_hops_left"),
                    IN.carry(&packet),
                )
                .with(back_to_sender)
                .transmits(service, &packet, BACK.carry(&sent)),
            );
            packet = sent;
        }
        cases.push(
            case(
                format!("l2dsr_{name}_goes_back_to_a_client_until_it_expires"),
                IN.carry(&packet),
            )
            .with(back_to_sender)
            .replies(
                ReplyReason::TimeExceeded,
                BACK.carry(&time_exceeded(&packet)),
            ),
        );

        // By IP-in-IP the outer header tells: none of what an edge sent is sent on.
        let encapsulated = syn.within(PEER_V4, EDGE_V4).tag(7);
        cases.push(
            case(
                format!("{name}_of_an_edge_whose_pods_are_elsewhere_is_not_sent_on"),
                IN.carry(&encapsulated),
            )
            .with(|tables| {
                tables.config.flags |= CONFIG_NODE;
                tables.service[service.service as usize].flags |= SERVICE_PODS;
            })
            .drops(DropReason::UnknownPodSyn),
        );
        let is_node = |tables: &mut TableSet| tables.config.flags |= CONFIG_NODE;
        cases.push(
            case(
                format!("{name}_of_an_edge_to_a_node_with_the_vip_is_the_stacks"),
                IN.carry(&super::tcp(to).within(node_peer(node), own)),
            )
            .with(is_node)
            .decapsulates(IN.carry(&syn)),
        );
    }
    cases
}

/// The trusted peer of a family.
fn node_peer(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { PEER_V4 } else { PEER_V6 }
}
