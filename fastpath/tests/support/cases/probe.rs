//! Answers to this machine's own checks get back the source that the check's socket expects.

use xdp_prog::{
    abi::{CONFIG_PROBES, Tuple},
    process::Action,
    reason::PassReason,
};

use super::{
    super::{
        packet::{End, Packet},
        tables::address_key,
    },
    Case, Draft, EDGE_V4, EDGE_V6, IN, TCP, VIP_V4, VIP_V6, case, counted, v4, v6,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, vip, edge, node) in [
        ("v4", VIP_V4, EDGE_V4, v4(192, 0, 2, 11)),
        ("v6", VIP_V6, EDGE_V6, v6(0xe, 11)),
    ] {
        let (from, to): (End, End) = ((vip, 80), (edge, 40_000));
        let answer = Packet::tcp(from, to, b"HTTP/1.1 200 OK");
        let name = |what: &str| format!("{family}_{what}");
        let begin = |what: &str| case(name(what), IN.carry(&answer));

        cases.push(
            expecting(
                begin("answer_to_a_check_comes_from_its_peer"),
                from,
                to,
                node,
            )
            .ends(
                Action::Pass,
                IN.carry(&Packet::tcp((node, 80), to, b"HTTP/1.1 200 OK")),
                counted(PassReason::ProbeAnswer.index()),
            ),
        );
        let other = begin("packet_that_answers_no_check_is_passed");
        cases.push(expecting(other, (vip, 81), to, node).passes(PassReason::NoService));
        let off = begin("answer_is_passed_where_no_checks_are_made");
        cases.push(
            expecting(off, from, to, node)
                .with(|set| set.config.flags &= !CONFIG_PROBES)
                .passes(PassReason::NoService),
        );
        let datagram = Packet::udp(from, to, b"HTTP/1.1 200 OK");
        let datagram = case(name("datagram_answers_no_check"), IN.carry(&datagram));
        cases.push(expecting(datagram, from, to, node).passes(PassReason::NoService));
    }
    cases
}

/// A check from `to` is under way, whose socket is connected to the node.
fn expecting(draft: Draft, from: End, to: End, node: std::net::IpAddr) -> Draft {
    draft.with(|set| {
        set.config.flags |= CONFIG_PROBES;
        let answer = Tuple::new(
            address_key(from.0),
            address_key(to.0),
            from.1.to_be_bytes(),
            to.1.to_be_bytes(),
            TCP,
        );
        set.probe_peers.insert(answer, address_key(node));
    })
}
