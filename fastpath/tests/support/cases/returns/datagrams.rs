//! Datagrams with tries, at the node: which flows are known here.

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{PodFlow, Tuple},
    reason::{DropReason, ReplyReason},
};

use super::{
    super::{
        super::{
            packet::{End, Packet},
            tables::{TableSet, address_key},
        },
        BACK, Case, Draft, EDGE_V4, IN, PEER_V4, UDP, Way, client,
        pods::{KINDS, Make, PODS_AGAIN_UDP, PODS_V4_UDP, SCTP, TARGET, case_here, pods_like},
    },
    NOBODY, SECOND,
};

/// A transport protocol and family with the service of its pods here.
#[derive(Clone, Copy)]
struct Datagrams {
    name: &'static str,
    service: (Way, End),
    make: Make,
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, service, make) in KINDS {
        if !name.ends_with("tcp") {
            let kind = Datagrams {
                name,
                service,
                make,
            };
            cases.extend(unknown(kind));
            cases.extend(known(kind));
            cases.extend(without_a_pod(kind));
        }
    }
    cases.push(by_another_vip());
    cases.extend(fragments());
    cases
}

impl Datagrams {
    fn to(self) -> End {
        self.service.1
    }

    fn protocol(self) -> u8 {
        if self.name.ends_with("udp") {
            UDP
        } else {
            SCTP
        }
    }

    fn tag(self) -> u16 {
        let [(_, tag, _), _] = pods_like(self.to().0);
        tag
    }

    fn pod(self) -> End {
        let [(pod, ..), _] = pods_like(self.to().0);
        (pod, TARGET)
    }

    fn packet(self) -> Packet {
        (self.make)(client(self.to()), self.to(), b"data")
    }

    fn frame(self, tag: u16, tries: u16) -> Vec<u8> {
        let outer = self.packet().within(PEER_V4, EDGE_V4);
        IN.carry(&outer.tag(tag | tries << 11))
    }

    fn case(self, name: &str, tries: u16) -> Draft {
        case_here(
            format!("{}_{name}", self.name),
            self.frame(self.tag(), tries),
        )
    }

    /// The datagram goes back to the edge.
    fn returns(self, draft: Draft, tag: u16, tries: u16) -> Case {
        let outer = self.packet().within(EDGE_V4, PEER_V4);
        let output = BACK.carry(&outer.tag(0x8000 | tag | tries << 11));
        draft.replies(ReplyReason::Returned, output)
    }

    fn delivers(self, draft: Draft) -> Case {
        let output = IN.carry(&(self.make)(client(self.to()), self.pod(), b"data"));
        draft.delivers(self.service.0, self.packet().length(), output)
    }

    /// The client's flow to an address at the pod, which was seen so long ago.
    fn flow(self, to: End, seconds: u64) -> (Tuple, PodFlow) {
        let from = client(self.to());
        let (source, pod) = (address_key(from.0), address_key(self.pod().0));
        let port = from.1.to_be_bytes();
        let key = Tuple::new(source, pod, port, TARGET.to_be_bytes(), self.protocol());
        let seen = coarse_ns().wrapping_sub(seconds * SECOND);
        let (address, to) = (address_key(to.0), to.1.to_be_bytes());
        let flow = PodFlow::new(&key, address, to, 20, 0, seen);
        (key, flow.with_client_port(&key, port))
    }

    fn answered(self, seconds: u64) -> impl Fn(&mut TableSet) {
        move |tables| tables.flows.extend([self.flow(self.to(), seconds)])
    }

    fn unanswered(self, seconds: u64) -> impl Fn(&mut TableSet) {
        move |tables| tables.embryonic.extend([self.flow(self.to(), seconds)])
    }
}

/// A flow that nothing here tells of is returned, and leaves nothing behind.
fn unknown(kind: Datagrams) -> Vec<Case> {
    let tag = kind.tag();
    vec![
        kind.returns(kind.case("datagram_of_an_unknown_flow", 3), tag, 3),
        kind.returns(
            kind.case("second_datagram_of_an_unknown_flow", 3)
                .after(kind.frame(tag, 3)),
            tag,
            3,
        ),
        kind.delivers(kind.case("datagram_of_an_unknown_flow_without_tries", 0)),
        kind.delivers(
            kind.case("datagram_beyond_the_allowance_is_delivered", 3)
                .with(TableSet::use_up_returns),
        ),
    ]
}

/// A flow is known while it lives, also where the pod does not answer.
fn known(kind: Datagrams) -> Vec<Case> {
    let case = |name: &str| kind.case(name, 3);
    vec![
        kind.delivers(case("datagram_of_a_known_flow").with(kind.answered(0))),
        kind.delivers(
            case("second_datagram_of_a_known_flow")
                .with(kind.answered(0))
                .after(kind.frame(kind.tag(), 3)),
        ),
        kind.delivers(
            case("datagram_of_a_known_flow_needs_no_allowance")
                .with(kind.answered(0))
                .with(TableSet::use_up_returns),
        ),
        kind.delivers(case("datagram_of_a_flow_idle_for_four_minutes").with(kind.answered(240))),
        kind.returns(
            case("datagram_of_a_flow_idle_for_five_minutes").with(kind.answered(301)),
            kind.tag(),
            3,
        ),
        kind.delivers(case("datagram_of_a_flow_without_an_answer").with(kind.unanswered(30))),
        kind.returns(
            case("datagram_of_an_idle_flow_without_an_answer").with(kind.unanswered(241)),
            kind.tag(),
            3,
        ),
        kind.delivers(case("datagram_after_one_without_tries").after(kind.frame(kind.tag(), 0))),
    ]
}

/// With tries left, no other pod of the service gets what was sent to a pod that is not here.
fn without_a_pod(kind: Datagrams) -> Vec<Case> {
    let case =
        |name: &str, tries| case_here(format!("{}_{name}", kind.name), kind.frame(NOBODY, tries));
    vec![
        kind.returns(
            case("datagram_for_a_pod_that_is_not_here_is_returned", 2),
            NOBODY,
            2,
        ),
        case(
            "datagram_for_a_pod_that_is_not_here_beyond_the_allowance",
            2,
        )
        .with(TableSet::use_up_returns)
        .drops(DropReason::ReturnLimited),
    ]
}

/// The client talks to the pod by another of its addresses.
fn by_another_vip() -> Case {
    let kind = Datagrams {
        name: "v4_udp",
        service: PODS_V4_UDP,
        make: Packet::udp,
    };
    let draft = kind.case("datagram_of_a_flow_by_another_vip", 3);
    let other = kind.flow(PODS_AGAIN_UDP.1, 0);
    let draft = draft.with(move |tables| tables.flows.extend([other]));
    kind.returns(draft, kind.tag(), 3)
}

/// Fragments are asked about as their datagram's first one.
fn fragments() -> Vec<Case> {
    let (way, to) = PODS_V4_UDP;
    let kind = Datagrams {
        name: "v4_udp",
        service: PODS_V4_UDP,
        make: Packet::udp,
    };
    let payload: Vec<u8> = (0..=255).cycle().take(600).collect();
    let sent = Packet::udp(client(to), to, &payload).pieces(256, 0x00c0_ffee);
    let seen = Packet::udp(client(to), kind.pod(), &payload).pieces(256, 0x00c0_ffee);
    let within =
        |piece: &Packet, tag: u16| IN.carry(&piece.within(PEER_V4, EDGE_V4).tag(tag | 2 << 11));
    let returned = |draft: Draft, piece: &Packet, tag: u16| {
        let outer = piece.within(EDGE_V4, PEER_V4).tag(0x8000 | tag | 2 << 11);
        draft.replies(ReplyReason::Returned, BACK.carry(&outer))
    };
    let tag = kind.tag();
    vec![
        returned(
            case_here("first_fragment_of_an_unknown_flow", within(&sent[0], tag)),
            &sent[0],
            tag,
        ),
        returned(
            case_here("later_fragment_of_an_unknown_flow", within(&sent[1], tag))
                .after(within(&sent[0], tag)),
            &sent[1],
            tag,
        ),
        returned(
            case_here(
                "first_fragment_of_a_datagram_for_a_pod_that_is_not_here",
                within(&sent[0], NOBODY),
            ),
            &sent[0],
            NOBODY,
        ),
        case_here("later_fragment_of_a_known_flow", within(&sent[1], tag))
            .with(kind.answered(0))
            .after(within(&sent[0], tag))
            .delivers(way, sent[1].length(), IN.carry(&seen[1])),
    ]
}
