//! Slots that have had other owners among the pods of this machine, to which another edge sends by L2 DSR.

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{Backend, CONFIG_NODE, EdgeMac, MAX_PAST_OWNERS, MODE_L2DSR, ServiceWord},
    reason::DropReason,
};

use super::{
    super::{
        super::{
            packet::{ACK, FIN, RST, SYN},
            tables::{TableSet, second_ago},
        },
        Case, Draft, IN, TCP, UDP, VIP_V4, VIP_V6, client, way,
    },
    CURRENT, Kind, LIST, PAST, SECOND, SERVICE,
    affinity::{SEED, with_affinity},
    keep, kind, none, to_node, without_current,
};

/// The only owner in the table of all backends, on another machine.
const ELSEWHERE: u32 = 23;
const ALL: [u32; 3] = [CURRENT, PAST[0], PAST[1]];
/// How long after a change a datagram is looked for at past owners, in seconds.
const WINDOW: u32 = 300;
/// What a node knows clients by.
const AT_NODE: u64 = SEED ^ Backend::OWN_POD as u64;

const TCP_KINDS: [Kind; 2] = [
    kind("own_pods_tcp_v4", TCP, VIP_V4, true),
    kind("own_pods_tcp_v6", TCP, VIP_V6, false),
];
const DATAGRAM_KINDS: [Kind; 2] = [
    kind("own_pods_udp_v4", UDP, VIP_V4, true),
    kind("own_pods_udp_v6", UDP, VIP_V6, false),
];

pub(in super::super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in TCP_KINDS {
        cases.extend(connections(kind));
        cases.extend(pins(kind));
        cases.extend(errors_and_fragments(kind));
        cases.extend(affinity(kind));
    }
    for kind in DATAGRAM_KINDS {
        cases.extend(datagrams(kind));
    }
    cases
}

/// An edge sends to this machine, whose own pods have the slot with the past.
fn sent_by_edge(tables: &mut TableSet) {
    tables.local_table(SERVICE, &[ELSEWHERE]);
    let service = &mut tables.service[SERVICE as usize];
    let (all, own) = (service.local, service.word);
    service.word = ServiceWord::new(all.base(), all.log2_length(), own.check());
    service.local = own;
    service.mode = MODE_L2DSR;
    tables.config.flags |= CONFIG_NODE;
    tables.edge_macs.insert(EdgeMac::new(IN.source), 1);
}

impl Kind {
    /// Begins a case with a packet of the client, where these backends are pods of this machine.
    fn at_own_pods(self, name: &str, flags: u8, ids: &[u32]) -> Draft {
        self.begin(name, flags).with(self.here(ids))
    }

    fn delivered(self, draft: Draft, flags: u8, id: u32) -> Case {
        self.delivers(draft.with(sent_by_edge), flags, id)
    }
}

fn connections(kind: Kind) -> Vec<Case> {
    let ack = |name: &str| kind.at_own_pods(name, ACK, &ALL);
    let known = |name: &str, id: u32| ack(name).with(kind.known_at(id));
    let mut cases = vec![
        kind.delivered(
            kind.at_own_pods("syn_begins_at_the_current_one", SYN, &ALL),
            SYN,
            CURRENT,
        ),
        kind.delivered(known("ack_known_at_the_current_one", CURRENT), ACK, CURRENT)
            .pins(none()),
        kind.delivered(
            known("ack_known_at_the_oldest_past_one", PAST[1]),
            ACK,
            PAST[1],
        )
        .pins(kind.young(PAST[1])),
        kind.delivered(
            ack("ack_known_at_none_goes_to_the_current_one"),
            ACK,
            CURRENT,
        ),
        kind.delivered(
            ack("ack_known_at_none_of_fifteen").with(|tables| {
                let owners = PAST.repeat(MAX_PAST_OWNERS as usize / 2);
                tables.set_past(SERVICE, LIST, &owners);
            }),
            ACK,
            CURRENT,
        ),
        ack("ack_unknown_is_limited")
            .with(TableSet::use_up_returns)
            .with(sent_by_edge)
            .drops(DropReason::ReturnLimited),
        kind.delivered(
            kind.at_own_pods(
                "ack_passes_over_a_past_one_that_has_left",
                ACK,
                &[CURRENT, PAST[1]],
            )
            .with(kind.known_at(PAST[1])),
            ACK,
            PAST[1],
        )
        .pins(kind.young(PAST[1])),
        kind.delivered(
            kind.at_own_pods("ack_of_none_that_is_left", ACK, &[CURRENT]),
            ACK,
            CURRENT,
        ),
        kind.at_own_pods(
            "ack_of_a_current_one_that_has_left_is_never_sent_on",
            ACK,
            &PAST,
        )
        .with(sent_by_edge)
        .drops(DropReason::UnknownPod),
        kind.at_own_pods(
            "syn_of_a_current_one_that_has_left_is_never_sent_on",
            SYN,
            &PAST,
        )
        .with(sent_by_edge)
        .drops(DropReason::UnknownPod),
        kind.delivered(
            ack("ack_where_none_is_current")
                .with(without_current)
                .with(kind.known_at(PAST[1])),
            ACK,
            PAST[1],
        )
        .pins(kind.young(PAST[1])),
        {
            let packet = kind.segment(ACK);
            let output = to_node(ELSEWHERE).carry(&packet.next_hop());
            known("ack_of_a_client_is_balanced", PAST[0])
                .with(sent_by_edge)
                .with(|tables| tables.edge_macs.clear())
                .transmits(way(SERVICE, ELSEWHERE), &packet, output)
        },
    ];
    for (name, flags) in [
        ("ack", ACK),
        ("fin", FIN | ACK),
        ("rst", RST),
        ("syn_ack", SYN | ACK),
    ] {
        let name = format!("{name}_known_at_the_newest_past_one");
        let draft = kind.at_own_pods(&name, flags, &ALL);
        let case = kind.delivered(draft.with(kind.known_at(PAST[0])), flags, PAST[0]);
        cases.push(case.pins(kind.young(PAST[0])));
    }
    cases
}

/// This machine may have been the edge of the flow, and have it pinned to another one.
fn pins(kind: Kind) -> Vec<Case> {
    let (flow, pin) = (kind.flow(), kind.pin(PAST[1]));
    let kept = || [[(flow, pin)].into(), [].into()];
    vec![
        kind.delivered(
            kind.at_own_pods("pin_comes_first", ACK, &ALL)
                .with(keep(kind, pin))
                .with(kind.known_at(PAST[1]))
                .with(TableSet::use_up_returns),
            ACK,
            PAST[1],
        )
        .pins(kept()),
        kind.delivered(
            kind.at_own_pods(
                "pin_to_another_machine_counts_for_none",
                ACK,
                &[CURRENT, PAST[0]],
            )
            .with(keep(kind, pin))
            .with(kind.known_at(CURRENT)),
            ACK,
            CURRENT,
        )
        .pins(kept()),
        kind.delivered(
            kind.at_own_pods(
                "ack_known_at_none_leaves_a_pin_to_another_machine",
                ACK,
                &[CURRENT, PAST[0]],
            )
            .with(keep(kind, pin)),
            ACK,
            CURRENT,
        )
        .pins(kept()),
        kind.delivered(
            kind.at_own_pods(
                "syn_leaves_a_pin_to_another_machine",
                SYN,
                &[CURRENT, PAST[0]],
            )
            .with(keep(kind, pin)),
            SYN,
            CURRENT,
        )
        .pins(kept()),
        kind.delivered(
            kind.at_own_pods("syn_marks_a_pin", SYN, &ALL)
                .with(keep(kind, pin)),
            SYN,
            CURRENT,
        )
        .pins([[(flow, pin.marked(CURRENT))].into(), [].into()]),
        kind.delivered(
            kind.at_own_pods("marked_pin_comes_second", ACK, &ALL)
                .with(keep(kind, pin.marked(CURRENT)))
                .with(kind.known_at(PAST[1]))
                .with(TableSet::use_up_returns),
            ACK,
            PAST[1],
        )
        .pins(kept()),
    ]
}

fn errors_and_fragments(kind: Kind) -> Vec<Case> {
    let error = kind.error();
    let pieces = kind.pieces(ACK);
    let [first, later] = [0, 1].map(|index| IN.carry(&pieces[index]));
    let begin = |name: &str, input| {
        let draft = kind.case(name, input).with(kind.here(&ALL));
        draft.with(kind.known_at(PAST[0])).with(sent_by_edge)
    };
    let piece = |draft: Draft, index: usize| {
        let output = IN.carry(&kind.pieces_at(PAST[0])[index]);
        let case = draft.delivers(way(SERVICE, PAST[0]), pieces[index].length(), output);
        case.pins(kind.young(PAST[0]))
    };
    vec![
        {
            let output = IN.carry(&kind.error_at(PAST[0]));
            begin("error_about_a_flow_of_a_past_one", IN.carry(&error))
                .delivers(way(SERVICE, PAST[0]), error.length(), output)
                .pins(kind.young(PAST[0]))
        },
        piece(
            begin("first_fragment_known_at_a_past_one", first.clone()),
            0,
        ),
        piece(
            begin("later_fragment_known_at_a_past_one", later).after(first),
            1,
        ),
    ]
}

/// A client stays at its pod, though the slot has another owner.
fn affinity(kind: Kind) -> Vec<Case> {
    let syn = |name: &str| kind.at_own_pods(name, SYN, &ALL);
    let begins_at = |draft: Draft, id: u32| {
        let case = kind.delivered(draft.with(with_affinity), SYN, id);
        case.notes_client(client(kind.to()).0, AT_NODE, id)
    };
    let quiet = |tables: &mut TableSet| tables.set_owner(SERVICE, CURRENT);
    vec![
        begins_at(
            syn("syn_of_a_client_that_keeps_a_past_one").with(kind.had_by(AT_NODE, PAST[0], 60)),
            PAST[0],
        ),
        begins_at(
            syn("syn_of_a_client_that_has_come_by_this_edge").with(kind.had(PAST[0], 60)),
            CURRENT,
        ),
        begins_at(syn("syn_of_a_new_client"), CURRENT),
        begins_at(
            syn("syn_of_a_new_client_of_a_quiet_slot").with(quiet),
            CURRENT,
        ),
    ]
}

fn datagrams(kind: Kind) -> Vec<Case> {
    let until = coarse_ns() + u64::from(WINDOW - 20) * SECOND;
    let ask = |name: &str| kind.at_own_pods(name, ACK, &ALL);
    let cases = vec![
        kind.delivered(
            ask("datagram_known_at_the_newest_past_one").with(kind.known_at(PAST[0])),
            ACK,
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
        kind.delivered(
            ask("datagram_known_at_the_oldest_past_one").with(kind.known_at(PAST[1])),
            ACK,
            PAST[1],
        )
        .pins(kind.young(PAST[1])),
        kind.delivered(ask("datagram_known_at_none"), ACK, CURRENT)
            .pins(kind.young(CURRENT)),
        kind.delivered(
            ask("datagram_some_minutes_after_the_change_goes_to_the_current_one")
                .with(kind.known_at(PAST[0]))
                .with(|tables| tables.set_past_of(SERVICE, LIST, &PAST, second_ago(WINDOW + 1))),
            ACK,
            CURRENT,
        )
        .pins(none()),
        kind.delivered(
            ask("datagram_beyond_the_allowance").with(TableSet::use_up_returns),
            ACK,
            CURRENT,
        )
        .pins(none()),
        kind.delivered(
            kind.at_own_pods(
                "datagram_of_a_pin_elsewhere_stays_here",
                ACK,
                &[CURRENT, PAST[0]],
            )
            .with(keep(kind, kind.pin(PAST[1])))
            .with(kind.known_at(PAST[0])),
            ACK,
            PAST[0],
        )
        .pins([
            [(kind.flow(), kind.pin(PAST[1]))].into(),
            [(kind.flow(), kind.pin(PAST[0]))].into(),
        ]),
    ];
    cases.into_iter().map(|case| case.until(until)).collect()
}
