//! Datagrams of slots that have had other owners: after a change they go to the newest past owner first.

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{BACKEND_DOWN, BACKEND_POD, Pin},
    process::Action,
    reason::{DropReason, ReplyReason, ToNodeReason},
};

use super::{
    super::{
        super::{
            packet::{ACK, End, Packet},
            tables::{TableSet, second_ago},
        },
        BACK, Case, Draft, IN, UDP, VIP_V4, VIP_V6, client, counted,
        pods::SCTP,
        port_unreachable, v4, way,
    },
    CURRENT, Kind, LIST, PAST, SECOND, SERVICE, keep, keep_young, kind, none, without_current,
};

const KINDS: [Kind; 5] = [
    kind("udp_v4_in_v4", UDP, VIP_V4, true),
    kind("udp_v4_in_v6", UDP, VIP_V4, false),
    kind("udp_v6_in_v4", UDP, VIP_V6, true),
    kind("udp_v6_in_v6", UDP, VIP_V6, false),
    kind("sctp_v4_in_v4", SCTP, VIP_V4, true),
];

/// How long after a change a datagram goes to a past owner first, in seconds.
const WINDOW: u32 = 300;

pub(in super::super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.extend(first_tries(kind));
        cases.extend(pinned(kind));
        cases.extend(returned(kind));
        cases.extend(without_owner(kind));
    }
    for kind in [KINDS[0], KINDS[3]] {
        cases.extend(here(kind));
    }
    cases.extend(errors(KINDS[0]));
    cases.extend(fragments(KINDS[0]));
    // Later, the change is no longer a recent one.
    let until = coarse_ns() + u64::from(WINDOW - 20) * SECOND;
    for case in &mut cases {
        case.holds_until = case.holds_until.min(until);
    }
    cases
}

/// The slot changed hands so many seconds ago.
fn changed(seconds: u32) -> impl Fn(&mut TableSet) {
    move |tables| tables.set_past_of(SERVICE, LIST, &PAST, second_ago(seconds))
}

fn down(id: u32) -> impl Fn(&mut TableSet) {
    move |tables| tables.backends[id as usize].flags |= BACKEND_DOWN
}

/// Packets to a backend have outer sources of their flows' own.
fn spread(id: u32) -> impl Fn(&mut TableSet) {
    move |tables| tables.next_hops[id as usize].spread = 0xff
}

impl Kind {
    /// Begins a case with a datagram of the client.
    fn asks(self, name: &str) -> Draft {
        self.begin(name, ACK)
    }

    /// The datagram goes to a backend for the first time.
    fn goes(self, draft: Draft, id: u32, tries: u32) -> Case {
        self.sends(draft, ACK, id, tries)
    }

    /// A pin of this moment.
    fn fresh(self, id: u32) -> Pin {
        Pin::new(&self.flow(), id, &self.backend(id), coarse_ns())
    }
}

fn first_tries(kind: Kind) -> Vec<Case> {
    let ask = |name: &str| kind.asks(name);
    let current = |draft: Draft| kind.goes(draft, CURRENT, 0).pins(none());
    let all_down = |tables: &mut TableSet| {
        down(PAST[0])(tables);
        down(PAST[1])(tables);
    };
    vec![
        kind.goes(
            ask("datagram_goes_to_the_newest_past_owner_and_is_pinned"),
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0])),
        kind.goes(
            ask("datagram_some_minutes_after_the_change_goes_to_the_newest_past_owner")
                .with(changed(WINDOW - 20)),
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0]))
        .until(coarse_ns() + 10 * SECOND),
        current(
            ask("datagram_five_minutes_after_the_change_goes_to_the_current_owner")
                .with(changed(WINDOW + 1)),
        ),
        current(
            ask("datagram_beyond_the_allowance_goes_to_the_current_owner")
                .with(TableSet::use_up_returns),
        ),
        kind.goes(
            ask("datagram_passes_over_a_node_that_is_down").with(down(PAST[0])),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        current(ask("datagram_goes_to_the_current_owner_where_all_others_are_down").with(all_down)),
        current(ask("datagram_is_not_tried_at_a_node_that_cannot_return_it").with(spread(PAST[0]))),
        kind.goes(
            ask("datagram_is_not_tried_at_what_is_no_pod").with(|tables| {
                tables.backends[PAST[0] as usize].flags &= !BACKEND_POD;
            }),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
    ]
}

fn pinned(kind: Kind) -> Vec<Case> {
    let (pin, flow) = (kind.pin(PAST[1]), kind.flow());
    let fresh = kind.fresh(PAST[0]);
    let ask = |name: &str| kind.asks(name);
    let kept = || [[(flow, pin)].into(), [].into()];
    let until = coarse_ns() + SECOND;
    vec![
        kind.goes(
            ask("datagram_of_a_pinned_flow_goes_to_its_owner").with(keep(kind, pin)),
            PAST[1],
            3,
        )
        .pins(kept()),
        kind.goes(
            ask("datagram_of_a_pinned_flow_goes_to_its_owner_after_hours")
                .with(changed(10_000))
                .with(keep(kind, pin)),
            PAST[1],
            3,
        )
        .pins(kept()),
        kind.goes(
            ask("datagram_of_a_pinned_flow_needs_no_allowance")
                .with(TableSet::use_up_returns)
                .with(keep(kind, pin)),
            PAST[1],
            3,
        )
        .pins(kept()),
        kind.goes(
            ask("datagram_finds_a_young_pin_that_has_stood_and_keeps_it")
                .with(keep_young(kind, pin)),
            PAST[1],
            3,
        )
        .pins(kept()),
        kind.goes(
            ask("datagram_leaves_a_young_pin_to_the_current_owner_young")
                .with(keep_young(kind, kind.pin(CURRENT))),
            CURRENT,
            3,
        )
        .pins(kind.young(CURRENT)),
        // The first one may be on its way still.
        kind.goes(
            ask("second_datagram_has_the_tries_that_are_left_at_the_young_pin")
                .after(IN.carry(&kind.segment(ACK))),
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0]))
        .until(until),
        kind.goes(
            ask("datagram_after_a_return_goes_to_the_owner_that_was_tried")
                .with(keep_young(kind, fresh))
                .after(kind.returned_by(PAST[0], 2)),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1]))
        .until(until),
        kind.goes(
            ask("datagram_after_all_tries_goes_to_the_current_owner_with_tries")
                .after(kind.returned_by(PAST[1], 1)),
            CURRENT,
            3,
        )
        .pins(kind.young(CURRENT))
        .until(until),
        kind.goes(
            ask("datagram_whose_pinned_node_is_down_is_looked_for")
                .with(keep(kind, pin))
                .with(down(PAST[1])),
            PAST[0],
            2,
        )
        .pins([[(flow, pin)].into(), [(flow, kind.pin(PAST[0]))].into()]),
    ]
}

/// A returned datagram goes on to the owner before, and to the current one at last, where it is pinned too.
fn returned(kind: Kind) -> Vec<Case> {
    let (pin, flow) = (kind.pin(PAST[1]), kind.flow());
    let case = |name: &str, id, tries| kind.case(name, kind.returned_by(id, tries));
    let current = |draft: Draft| kind.retries(draft, CURRENT, 0).pins(kind.young(CURRENT));
    let four = |tables: &mut TableSet| {
        tables.set_past(SERVICE, LIST, &[PAST[0], PAST[1], 23, PAST[1]]);
    };
    let next_is_spread = |tables: &mut TableSet| spread(PAST[1])(tables);
    vec![
        kind.retries(
            case("return_of_a_datagram_goes_to_the_owner_before", PAST[0], 2)
                .with(keep_young(kind, kind.fresh(PAST[0]))),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        kind.retries(
            case("return_of_a_datagram_needs_no_allowance", PAST[0], 2)
                .with(TableSet::use_up_returns),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        current(case(
            "return_of_a_datagram_by_the_oldest_owner_goes_to_the_current_one",
            PAST[1],
            1,
        )),
        current(
            case(
                "return_of_a_datagram_is_not_tried_at_a_node_that_cannot_return_it",
                PAST[0],
                2,
            )
            .with(next_is_spread),
        ),
        kind.retries(
            case(
                "return_of_a_datagram_by_the_second_of_four_goes_on",
                PAST[1],
                3,
            )
            .with(four),
            23,
            2,
        )
        .pins(kind.young(23)),
        current(
            case(
                "return_of_a_datagram_by_the_third_of_four_goes_to_the_current_owner",
                23,
                2,
            )
            .with(four),
        ),
        current(
            case(
                "return_of_a_datagram_by_its_pin_goes_to_the_current_owner",
                PAST[1],
                3,
            )
            .with(keep(kind, pin)),
        ),
        current(case(
            "return_of_a_datagram_by_a_pin_that_has_just_gone_goes_to_the_current_owner",
            PAST[1],
            3,
        )),
        kind.retries(
            case(
                "return_of_a_datagram_by_the_current_owner_ends_there",
                CURRENT,
                3,
            )
            .with(keep(kind, kind.pin(CURRENT))),
            CURRENT,
            0,
        )
        .pins([
            [(flow, kind.pin(CURRENT))].into(),
            [(flow, kind.pin(CURRENT))].into(),
        ]),
        case(
            "return_of_a_datagram_by_another_owner_than_that_of_its_turn",
            PAST[1],
            2,
        )
        .drops(DropReason::ReturnRefused),
    ]
}

/// The service has lost all of its backends.
fn without_owner(kind: Kind) -> Vec<Case> {
    let ask = |name: &str| kind.asks(name).with(without_current);
    let refused = |draft: Draft| {
        let answer = BACK.carry(&port_unreachable(&kind.segment(ACK)));
        draft.replies(ReplyReason::PortUnreachable, answer)
    };
    vec![
        refused(ask("datagram_without_a_current_owner_is_refused")).pins(none()),
        kind.goes(
            ask("datagram_without_a_current_owner_goes_to_its_pin")
                .with(keep(kind, kind.pin(PAST[1]))),
            PAST[1],
            3,
        ),
        {
            let draft = kind.case(
                "return_of_a_datagram_by_a_pin_without_a_current_owner",
                kind.returned_by(PAST[1], 3),
            );
            let draft = draft
                .with(without_current)
                .with(keep(kind, kind.pin(PAST[1])));
            kind.retries(draft, PAST[0], 2).pins(kind.young(PAST[0]))
        },
        kind.case(
            "return_of_a_datagram_by_the_last_past_owner_without_a_current_one",
            kind.returned_by(PAST[1], 1),
        )
        .with(without_current)
        .with(keep_young(kind, kind.fresh(PAST[1])))
        .drops(DropReason::NoBackend)
        .pins(none()),
    ]
}

/// Edge and node in one machine: a datagram goes to the pod here that knows its flow.
fn here(kind: Kind) -> Vec<Case> {
    let ask = |name: &str, ids: &[u32]| kind.asks(name).with(kind.here(ids));
    let all = [CURRENT, PAST[0], PAST[1]];
    let delivers = |draft: Draft, id| kind.delivers(draft, ACK, id);
    let until = coarse_ns() + SECOND;
    vec![
        delivers(
            ask("datagram_known_at_the_newest_past_pod_here", &[PAST[0]])
                .with(kind.known_at(PAST[0])),
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
        delivers(
            ask("datagram_not_answered_yet_by_a_past_pod_here", &[PAST[0]]).with(|tables| {
                tables.embryonic.extend([kind.flow_at(PAST[0])]);
            }),
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
        kind.goes(
            ask(
                "datagram_unknown_at_the_newest_past_pod_here_goes_on",
                &[PAST[0]],
            ),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        delivers(
            ask("datagram_known_at_the_oldest_past_pod_here", &all).with(kind.known_at(PAST[1])),
            PAST[1],
        )
        .pins(kind.young(PAST[1])),
        delivers(ask("datagram_unknown_at_all_pods_here", &all), CURRENT).pins(kind.young(CURRENT)),
        delivers(
            ask(
                "datagram_beyond_the_allowance_goes_to_the_current_pod_here",
                &all,
            )
            .with(TableSet::use_up_returns),
            CURRENT,
        )
        .pins(none()),
        delivers(
            ask("second_datagram_unknown_at_all_pods_here", &all)
                .after(IN.carry(&kind.segment(ACK))),
            CURRENT,
        )
        .pins(kind.young(CURRENT))
        .until(until),
        {
            let past = [PAST[0], PAST[1]];
            let draft = ask(
                "datagram_of_a_pin_unknown_at_past_pods_here_is_refused",
                &past,
            );
            let answer = BACK.carry(&port_unreachable(&kind.segment(ACK)));
            let draft = draft
                .with(without_current)
                .with(keep(kind, kind.pin(PAST[0])));
            let case = draft.replies(ReplyReason::PortUnreachable, answer);
            case.pins(kind.young(PAST[1]))
        },
        // A pin that was made anew would never stand.
        {
            let pin = kind.pin(PAST[0]);
            let draft = ask("datagram_keeps_a_young_pin_to_a_pod_here", &[PAST[0]])
                .with(kind.known_at(PAST[0]))
                .with(keep_young(kind, pin));
            delivers(draft, PAST[0]).pins([[(kind.flow(), pin)].into(), [].into()])
        },
        {
            let draft = kind.case(
                "return_of_a_datagram_known_at_a_past_pod_here",
                kind.returned_by(PAST[0], 2),
            );
            let draft = draft
                .with(kind.here(&[PAST[1]]))
                .with(kind.known_at(PAST[1]));
            kind.delivers_again(draft, PAST[1])
                .pins(kind.young(PAST[1]))
        },
    ]
}

/// The datagram that a server sent, of which a router tells that it is too big.
fn error(from: End, to: std::net::IpAddr, end: End) -> Packet {
    let quote = Packet::udp(from, end, b"an answer").hop_limit(50);
    let router = v4(198, 51, 100, 254);
    Packet::icmp(router, to, (3, 4), [0, 0, 5, 0x78], &quote.bytes())
}

/// An error goes the way of the flow that it quotes.
fn errors(kind: Kind) -> Vec<Case> {
    let packet = error(kind.to(), kind.to().0, client(kind.to()));
    let case = |name: &str| kind.case(name, IN.carry(&packet));
    let goes = |draft: Draft, id, tries| {
        let output = kind.sent_to(id, tries, &packet);
        draft.transmits(way(SERVICE, id), &packet, output)
    };
    let again = |draft: Draft, id, tries| {
        let output = kind.sent_to(id, tries, &packet);
        let counts = counted(ToNodeReason::Retried.index());
        draft.ends(Action::Transmit, output, counts)
    };
    let returned = |id, tries| {
        let outer = packet.next_hop().within(kind.node(id), kind.edge());
        IN.carry(&outer.tag(0x8000 | kind.tag(id, tries)))
    };
    vec![
        goes(case("error_goes_to_the_newest_past_owner"), PAST[0], 2).pins(kind.young(PAST[0])),
        goes(
            case("error_about_a_pinned_flow_goes_to_its_owner").with(keep(kind, kind.pin(PAST[1]))),
            PAST[1],
            3,
        ),
        goes(
            case("error_five_minutes_after_the_change_goes_to_the_current_owner")
                .with(changed(WINDOW + 1)),
            CURRENT,
            0,
        ),
        again(
            kind.case("error_that_is_returned_goes_on", returned(PAST[0], 2)),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        again(
            kind.case("error_that_no_past_owner_knows_goes_to_the_current_one", {
                returned(PAST[1], 1)
            }),
            CURRENT,
            0,
        )
        .pins(kind.young(CURRENT)),
    ]
}

/// Fragments take the way of their flow, each by itself.
fn fragments(kind: Kind) -> Vec<Case> {
    let payload: Vec<u8> = (0..=255).cycle().take(600).collect();
    let pieces = Packet::udp(client(kind.to()), kind.to(), &payload).pieces(256, 0x00c0_ffee);
    let (first, later) = (IN.carry(&pieces[0]), IN.carry(&pieces[1]));
    let goes = |draft: Draft, piece: &Packet, id, tries| {
        let output = kind.sent_to(id, tries, piece);
        draft.transmits(way(SERVICE, id), piece, output)
    };
    let until = coarse_ns() + SECOND;
    let back = {
        let outer = pieces[1].next_hop();
        let outer = outer.within(kind.node(PAST[0]), kind.edge());
        IN.carry(&outer.tag(0x8000 | kind.tag(PAST[0], 2)))
    };
    vec![
        goes(
            kind.case(
                "first_fragment_goes_to_the_newest_past_owner",
                first.clone(),
            ),
            &pieces[0],
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0])),
        goes(
            kind.case("later_fragment_follows_with_the_same_tries", later)
                .after(first.clone()),
            &pieces[1],
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0]))
        .until(until),
        {
            let draft = kind.case("later_fragment_that_is_returned_goes_on", back);
            let output = kind.sent_to(PAST[1], 1, &pieces[1]);
            let counts = counted(ToNodeReason::Retried.index());
            let case = draft.after(first).ends(Action::Transmit, output, counts);
            case.pins(kind.young(PAST[1]))
        },
    ]
}
