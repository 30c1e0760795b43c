//! Segments with tries, at the node: which connections are known here, and what is returned to the edge.

mod about;
mod datagrams;
mod sockets;

use std::net::IpAddr;

use etherparse::TcpHeader;
use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{FLOW_ACCEPTED, FLOW_ASKED, FLOW_FIN_CLIENT, FLOW_FIN_POD, FLOW_RESET, PodFlow, Tuple},
    reason::{DropReason, ReplyReason},
};

use super::{
    super::{
        packet::{ACK, End, FIN, Link, Packet, RST, SYN, VLAN},
        tables::{TableSet, address_key},
    },
    BACK, Case, Draft, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, TCP, Way, client,
    pods::{
        KINDS, PODS_AGAIN_TCP, PODS_AGAIN_V6_TCP, PODS_V4_TCP, PODS_V6_TCP, TARGET, case_here,
        pods_like,
    },
};

/// Nobody's pod.
const NOBODY: u16 = 0x3ff;
const SECOND: u64 = 1_000_000_000;
/// The pod's number in its SYN+ACK.
const NUMBER: u32 = 0x7700_0000;

/// The pod's service and its second one, and the outer addresses.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    service: (Way, End),
    other: End,
    edge: IpAddr,
    own: IpAddr,
}

const OF_PODS: [Kind; 4] = [
    kind("v4_in_v4", PODS_V4_TCP, PODS_AGAIN_TCP.1, PEER_V4, EDGE_V4),
    kind("v4_in_v6", PODS_V4_TCP, PODS_AGAIN_TCP.1, PEER_V6, EDGE_V6),
    kind(
        "v6_in_v4",
        PODS_V6_TCP,
        PODS_AGAIN_V6_TCP.1,
        PEER_V4,
        EDGE_V4,
    ),
    kind(
        "v6_in_v6",
        PODS_V6_TCP,
        PODS_AGAIN_V6_TCP.1,
        PEER_V6,
        EDGE_V6,
    ),
];

const fn kind(
    name: &'static str,
    service: (Way, End),
    other: End,
    edge: IpAddr,
    own: IpAddr,
) -> Kind {
    Kind {
        name,
        service,
        other,
        edge,
        own,
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in OF_PODS {
        cases.extend(unknown(kind));
        cases.extend(known(kind));
        cases.extend(unproved(kind));
        cases.extend(pods_that_are_not_here(kind));
    }
    cases.extend(what_is_never_returned());
    cases.extend(headers(OF_PODS[0]));
    cases.extend(about::cases());
    cases.extend(datagrams::cases());
    cases.extend(sockets::cases());
    cases
}

impl Kind {
    fn to(self) -> End {
        self.service.1
    }

    fn tag(self) -> u16 {
        let [(_, tag, _), _] = pods_like(self.to().0);
        tag
    }

    fn pod(self) -> End {
        let [(pod, ..), _] = pods_like(self.to().0);
        (pod, TARGET)
    }

    fn segment(self, flags: u8) -> Packet {
        Packet::segment(client(self.to()), self.to(), flags, b"data")
    }

    fn outer(self, inner: &Packet, tag: u16, tries: u16) -> Packet {
        inner.within(self.edge, self.own).tag(tag | tries << 11)
    }

    fn case(self, name: &str, inner: &Packet, tries: u16) -> Draft {
        let input = IN.carry(&self.outer(inner, self.tag(), tries));
        case_here(format!("{}_{name}", self.name), input)
    }

    /// The segment goes back to the edge.
    fn returns(self, draft: Draft, inner: &Packet, tag: u16, tries: u16) -> Case {
        let outer = inner.within(self.own, self.edge);
        let output = BACK.carry(&outer.tag(0x8000 | tag | tries << 11));
        draft.replies(ReplyReason::Returned, output)
    }

    /// The segment goes to the pod, which sees this port of the client.
    fn delivers(self, draft: Draft, flags: u8, port: u16) -> Case {
        let from = (client(self.to()).0, port);
        let output = IN.carry(&Packet::segment(from, self.pod(), flags, b"data"));
        draft.delivers(self.service.0, self.segment(flags).length(), output)
    }

    /// An entry of the client's flow to an address, by a port at the pod.
    fn flow(self, to: End, port: u16, state: u8, age_ns: u64) -> (Tuple, PodFlow) {
        let from = client(to);
        let key = Tuple::new(
            address_key(from.0),
            address_key(self.pod().0),
            port.to_be_bytes(),
            TARGET.to_be_bytes(),
            TCP,
        );
        let seen = coarse_ns().wrapping_sub(age_ns);
        let outer = if self.own.is_ipv4() { 20 } else { 40 };
        let flow = PodFlow::new(
            &key,
            address_key(to.0),
            to.1.to_be_bytes(),
            outer,
            state,
            seen,
        );
        (key, flow.with_client_port(&key, from.1.to_be_bytes()))
    }

    fn own_port(self) -> u16 {
        client(self.to()).1
    }

    /// Puts a flow among those that are proved.
    fn has(self, state: u8, age_ns: u64) -> impl Fn(&mut TableSet) {
        move |tables| {
            let flow = self.flow(self.to(), self.own_port(), state, age_ns);
            tables.flows.extend([flow]);
        }
    }
}

const FLAGS: [(&str, u8); 5] = [
    ("ack", ACK),
    ("fin", FIN | ACK),
    ("rst", RST),
    ("syn_ack", SYN | ACK),
    ("nothing", 0),
];

/// A connection that nothing here tells of is returned, and leaves nothing behind.
fn unknown(kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, flags) in FLAGS {
        let packet = kind.segment(flags);
        let draft = kind.case(&format!("{name}_of_an_unknown_connection"), &packet, 3);
        cases.push(kind.returns(draft, &packet, kind.tag(), 3));
    }
    for tries in [1, 15] {
        let packet = kind.segment(ACK);
        let draft = kind.case(&format!("ack_with_{tries}_tries_left"), &packet, tries);
        cases.push(kind.returns(draft, &packet, kind.tag(), tries));
    }
    let ack = kind.segment(ACK);
    let draft = kind.case("ack_beyond_the_allowance", &ack, 3);
    let draft = draft.with(TableSet::use_up_returns);
    cases.push(draft.drops(DropReason::ReturnLimited));
    let earlier = IN.carry(&kind.outer(&ack, kind.tag(), 3));
    // The other service's flow gets the client's own port, as if no segment had come before.
    let syn = Packet::segment(client(kind.other), kind.other, SYN, b"data");
    let input = IN.carry(&kind.outer(&syn, kind.tag(), 0));
    let draft = case_here(
        format!("{}_what_was_returned_is_forgotten", kind.name),
        input,
    );
    let output = IN.carry(&Packet::segment(
        client(kind.other),
        kind.pod(),
        SYN,
        b"data",
    ));
    let other = if kind.to().0.is_ipv4() {
        PODS_AGAIN_TCP.0
    } else {
        PODS_AGAIN_V6_TCP.0
    };
    cases.push(draft.after(earlier).delivers(other, syn.length(), output));
    // Somebody must have it at last.
    cases.push(kind.delivers(
        kind.case("ack_of_an_unknown_connection_without_tries", &ack, 0),
        ACK,
        kind.own_port(),
    ));
    cases
}

/// What `FLOWS` has goes on, until the pod has forgotten it.
fn known(kind: Kind) -> Vec<Case> {
    let both = FLOW_FIN_CLIENT | FLOW_FIN_POD;
    let mut cases = Vec::new();
    for (name, flags) in FLAGS {
        let packet = kind.segment(flags);
        let draft = kind.case(&format!("{name}_of_a_known_connection"), &packet, 3);
        cases.push(kind.delivers(draft.with(kind.has(0, 0)), flags, kind.own_port()));
    }
    for (name, state, seconds, is_known) in [
        ("idle_for_a_day", 0, 86_400, true),
        ("that_the_client_has_closed", FLOW_FIN_CLIENT, 3_600, true),
        ("that_the_pod_has_closed", FLOW_FIN_POD, 3_600, true),
        ("closed_half_a_minute_ago", both, 30, true),
        ("closed_two_minutes_ago", both, 120, false),
        ("reset_half_a_minute_ago", FLOW_RESET, 30, true),
        ("reset_two_minutes_ago", FLOW_RESET, 120, false),
    ] {
        let packet = kind.segment(ACK);
        let draft = kind
            .case(&format!("ack_of_a_connection_{name}"), &packet, 2)
            .with(kind.has(state, seconds * SECOND));
        cases.push(if is_known {
            kind.delivers(draft, ACK, kind.own_port())
        } else {
            kind.returns(draft, &packet, kind.tag(), 2)
        });
    }
    let ack = kind.segment(ACK);
    let other = kind.other;
    let by_another = kind
        .case("ack_of_a_connection_by_another_vip", &ack, 2)
        .with(move |tables| {
            tables
                .flows
                .extend([kind.flow(other, client(other).1, 0, 0)])
        });
    cases.push(kind.returns(by_another, &ack, kind.tag(), 2));
    let with_port = move |tables: &mut TableSet| {
        const PORT: u16 = 50_505;
        let (from, to) = (client(kind.to()), kind.to());
        let forward = Tuple::new(
            address_key(from.0),
            address_key(to.0),
            from.1.to_be_bytes(),
            to.1.to_be_bytes(),
            TCP,
        );
        let pod = address_key(kind.pod().0);
        let entry = PodFlow::forward(&forward, pod, PORT.to_be_bytes(), coarse_ns());
        tables.flows.insert(forward, entry);
        tables.flows.extend([kind.flow(to, PORT, 0, 0)]);
    };
    let draft = kind.case("ack_of_a_connection_with_another_port_at_the_pod", &ack, 2);
    cases.push(kind.delivers(draft.with(with_port), ACK, 50_505));
    // The first segment finds it in the table, the second one by its note.
    let earlier = IN.carry(&kind.outer(&ack, kind.tag(), 2));
    let draft = kind.case("second_ack_of_a_known_connection", &ack, 2);
    let draft = draft.with(kind.has(0, 0)).after(earlier);
    cases.push(kind.delivers(draft, ACK, kind.own_port()));
    cases
}

/// A segment of the client that acknowledges a number of the pod's.
fn acknowledging(kind: Kind, number: u32) -> Packet {
    let (from, to) = (client(kind.to()), kind.to());
    let mut header = TcpHeader::new(from.1, to.1, super::super::packet::TCP_SEQUENCE, 64_240);
    header.ack = true;
    header.acknowledgment_number = number;
    Packet::tcp_with(from, to, header, b"data")
}

/// A flow that is not proved is known by what proves it.
fn unproved(kind: Kind) -> Vec<Case> {
    let has = |number, flag| {
        move |tables: &mut TableSet| {
            let (key, mut flow) = kind.flow(kind.to(), kind.own_port(), 0, 0);
            flow.set_number(number, flag);
            tables.embryonic.insert(key, flow);
        }
    };
    let acknowledges = |number| acknowledging(kind, number);
    let proof = acknowledges(NUMBER + 1);
    let translated = {
        let (from, to) = (client(kind.to()), kind.pod());
        let mut header = TcpHeader::new(from.1, to.1, super::super::packet::TCP_SEQUENCE, 64_240);
        header.ack = true;
        header.acknowledgment_number = NUMBER + 1;
        IN.carry(&Packet::tcp_with(from, to, header, b"data"))
    };
    let returned = |name: &str, packet: &Packet, number, flag| {
        let draft = kind.case(name, packet, 2).with(has(number, flag));
        kind.returns(draft, packet, kind.tag(), 2)
    };
    vec![
        kind.case("ack_of_the_pods_syn_ack", &proof, 2)
            .with(has(NUMBER, FLOW_ACCEPTED))
            .delivers(kind.service.0, proof.length(), translated),
        returned(
            "ack_of_another_number",
            &acknowledges(NUMBER + 2),
            NUMBER,
            FLOW_ACCEPTED,
        ),
        returned(
            "rst_for_the_pods_syn_ack",
            &kind.segment(RST),
            NUMBER,
            FLOW_ACCEPTED,
        ),
        returned(
            "ack_where_somebody_has_sent_a_syn",
            &proof,
            NUMBER,
            FLOW_ASKED,
        ),
        returned("ack_where_somebody_has_sent_an_ack", &proof, NUMBER, 0),
    ]
}

/// A tag of no pod here: the pod has gone, and its connections with it.
fn pods_that_are_not_here(kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, flags) in [("ack", ACK), ("fin", FIN | ACK), ("rst", RST)] {
        let packet = kind.segment(flags);
        let input = IN.carry(&kind.outer(&packet, NOBODY, 2));
        let draft = case_here(
            format!(
                "{}_{name}_for_a_pod_that_is_not_here_is_returned",
                kind.name
            ),
            input,
        );
        cases.push(kind.returns(draft, &packet, NOBODY, 2));
    }
    for (name, tag, tries) in [
        ("syn", NOBODY, 0),
        ("syn_with_tries", NOBODY, 2),
        ("syn_that_seems_returned", 0x8000 | NOBODY, 0),
    ] {
        let syn = kind.segment(SYN);
        let input = IN.carry(&kind.outer(&syn, tag, tries));
        let name = format!("{}_{name}_for_a_pod_that_is_not_here_drops", kind.name);
        cases.push(case_here(name, input).drops(DropReason::UnknownPodSyn));
    }
    let packet = kind.segment(ACK);
    let input = IN.carry(&kind.outer(&packet, 0x8000 | NOBODY, 2));
    let draft = case_here(
        format!("{}_ack_that_was_returned_is_not_returned_again", kind.name),
        input,
    );
    cases.push(draft.drops(DropReason::UnknownPod));
    cases
}

/// A SYN begins a connection.
fn what_is_never_returned() -> Vec<Case> {
    let mut cases = Vec::new();
    let syns = KINDS.iter().filter(|(kind, ..)| kind.ends_with("tcp"));
    for &(kind, (service, to), make) in syns {
        let packet = make(client(to), to, b"hello");
        let [(address, tag, _), _] = pods_like(to.0);
        let input = IN.carry(&packet.within(PEER_V4, EDGE_V4).tag(tag | 3 << 11));
        let output = IN.carry(&make(client(to), (address, TARGET), b"hello"));
        cases.push(
            case_here(format!("{kind}_with_tries_that_begins_a_flow"), input).delivers(
                service,
                packet.length(),
                output,
            ),
        );
    }
    cases
}

fn headers(kind: Kind) -> Vec<Case> {
    let tags = &[(VLAN, 7)];
    let (tagged, back) = (Link { tags, ..IN }, Link { tags, ..BACK });
    let packet = kind.segment(ACK);
    let marked = packet.clone().class(2);
    let outer = kind.outer(&packet, kind.tag(), 2);
    let turned = packet
        .within(EDGE_V4, PEER_V4)
        .tag(0x8000 | kind.tag() | 2 << 11);
    let congested = marked.within(EDGE_V4, PEER_V4).class(3);
    let congested = congested.tag(0x8000 | kind.tag() | 2 << 11);
    vec![
        case_here("return_keeps_its_vlan_tag", tagged.carry(&outer))
            .replies(ReplyReason::Returned, back.carry(&turned)),
        case_here("return_begins_with_a_full_ttl", {
            IN.carry(&outer.clone().hop_limit(3))
        })
        .replies(ReplyReason::Returned, BACK.carry(&turned)),
        case_here("return_keeps_the_mark_of_congestion", {
            IN.carry(&kind.outer(&marked, kind.tag(), 2).class(3))
        })
        .replies(ReplyReason::Returned, BACK.carry(&congested)),
    ]
}
