//! What is about a TCP flow, at the node: ICMP errors that quote it, and its fragments.

use xdp_prog::reason::{DropReason, ReplyReason};

use super::{
    super::{
        super::packet::{ACK, Packet, SYN},
        BACK, Case, Draft, EDGE_V4, IN, PEER_V4, client,
        past_owners::about::{error, pieces},
        pods::{POD_V4, PODS_V4_UDP, TAG_V4, TARGET, case_here},
    },
    Kind, NOBODY, OF_PODS,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in OF_PODS {
        cases.extend(errors(kind));
        cases.extend(fragments(kind));
    }
    cases.extend(errors_about_datagrams());
    cases
}

impl Kind {
    fn error(self) -> Packet {
        error(self.to(), self.to().0, client(self.to()))
    }

    fn gets(self, draft: Draft, packet: &Packet, seen: &Packet) -> Case {
        draft.delivers(self.service.0, packet.length(), IN.carry(seen))
    }
}

fn errors(kind: Kind) -> Vec<Case> {
    let seen = error(kind.pod(), kind.pod().0, client(kind.to()));
    let packet = kind.error();
    let absent = IN.carry(&kind.outer(&packet, NOBODY, 2));
    let name = |name: &str| format!("{}_{name}", kind.name);
    vec![
        kind.returns(
            kind.case("error_about_an_unknown_connection", &packet, 3),
            &packet,
            kind.tag(),
            3,
        ),
        kind.gets(
            kind.case("error_about_a_known_connection", &packet, 3)
                .with(kind.has(0, 0)),
            &packet,
            &seen,
        ),
        kind.gets(
            kind.case(
                "error_about_an_unknown_connection_without_tries",
                &packet,
                0,
            ),
            &packet,
            &seen,
        ),
        kind.returns(
            case_here(name("error_for_a_pod_that_is_not_here_is_returned"), absent),
            &packet,
            NOBODY,
            2,
        ),
        case_here(name("error_for_a_pod_that_is_not_here_without_tries"), {
            IN.carry(&kind.outer(&packet, NOBODY, 0))
        })
        .drops(DropReason::UnknownPod),
    ]
}

fn errors_about_datagrams() -> Vec<Case> {
    let quoted = |from| Packet::udp(from, client(PODS_V4_UDP.1), b"an answer");
    let error = |to, from| {
        let router = super::super::v4(198, 51, 100, 254);
        Packet::icmp(router, to, (3, 3), [0; 4], &quoted(from).bytes())
    };
    let (way, to) = PODS_V4_UDP;
    let packet = error(to.0, to);
    let within = |tag| IN.carry(&packet.within(PEER_V4, EDGE_V4).tag(tag));
    let returns = |draft: Draft, tag: u16| {
        let outer = packet.within(EDGE_V4, PEER_V4).tag(0x8000 | tag);
        draft.replies(ReplyReason::Returned, BACK.carry(&outer))
    };
    let output = IN.carry(&error(POD_V4, (POD_V4, TARGET)));
    let delivers = |draft: Draft| draft.delivers(way, packet.length(), output.clone());
    let earlier = Packet::udp(client(to), to, b"data").within(PEER_V4, EDGE_V4);
    let earlier = IN.carry(&earlier.tag(TAG_V4));
    vec![
        returns(
            case_here("error_about_an_unknown_datagram", within(TAG_V4 | 3 << 11)),
            TAG_V4 | 3 << 11,
        ),
        returns(
            case_here(
                "error_about_a_datagram_of_no_pod_here",
                within(NOBODY | 3 << 11),
            ),
            NOBODY | 3 << 11,
        ),
        delivers(
            case_here("error_about_a_known_datagram", within(TAG_V4 | 3 << 11)).after(earlier),
        ),
        delivers(case_here(
            "error_about_an_unknown_datagram_without_tries",
            within(TAG_V4),
        )),
    ]
}

fn fragments(kind: Kind) -> Vec<Case> {
    let (from, to) = (client(kind.to()), kind.to());
    let sent = pieces(from, to, ACK);
    let seen = pieces(from, kind.pod(), ACK);
    let syn = pieces(from, to, SYN);
    let syn_seen = pieces(from, kind.pod(), SYN);
    let within = |piece: &Packet, tries| IN.carry(&kind.outer(piece, kind.tag(), tries));
    let absent = |piece: &Packet| IN.carry(&kind.outer(piece, NOBODY, 2));
    let name = |name: &str| format!("{}_{name}", kind.name);
    vec![
        kind.returns(
            kind.case("first_fragment_of_an_unknown_connection", &sent[0], 3),
            &sent[0],
            kind.tag(),
            3,
        ),
        kind.returns(
            kind.case("later_fragment_of_an_unknown_connection", &sent[1], 3)
                .after(within(&sent[0], 3)),
            &sent[1],
            kind.tag(),
            3,
        ),
        kind.gets(
            kind.case("first_fragment_of_a_known_connection", &sent[0], 3)
                .with(kind.has(0, 0)),
            &sent[0],
            &seen[0],
        ),
        kind.gets(
            kind.case("later_fragment_of_a_known_connection", &sent[1], 3)
                .with(kind.has(0, 0))
                .after(within(&sent[0], 3)),
            &sent[1],
            &seen[1],
        ),
        kind.gets(
            kind.case("first_fragment_of_a_syn_with_tries", &syn[0], 3),
            &syn[0],
            &syn_seen[0],
        ),
        kind.gets(
            kind.case(
                "later_fragment_of_an_unknown_connection_without_tries",
                &sent[1],
                0,
            )
            .after(within(&sent[0], 0)),
            &sent[1],
            &seen[1],
        ),
        kind.returns(
            case_here(
                name("later_fragment_for_a_pod_that_is_not_here_is_returned"),
                absent(&sent[1]),
            )
            .after(absent(&sent[0])),
            &sent[1],
            NOBODY,
            2,
        ),
    ]
}
