//! Slots that have had other owners, of services whose nodes return nothing: a SYN is pinned to the current owner, and what
//! has no pin stays at the newest past owner.

use std::collections::HashMap;

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{
        AddressKey, BACKEND_DOWN, BACKEND_POD, Backend, Client, ClientBackend, MODE_L2DSR, Pin,
        Tuple,
    },
    reason::{PassReason, ReplyReason},
};

use super::{
    super::{
        super::{
            hash,
            packet::{ACK, FIN, Packet, RST, SYN},
            tables::{TableSet, address_key, padded, second_ago},
        },
        BACK, Case, Draft, HASH_SEED, IN, TCP, UDP, VIP_V4, VIP_V6, client,
        pods::SCTP,
        port_unreachable, reset_of_syn, v4, way,
    },
    CURRENT, Kind, LIST, PAST, SECOND, SERVICE, keep, keep_young, kind, mark, none, to_node,
    without_current,
};

const TCP_KINDS: [Kind; 2] = [
    kind("tcp_v4", TCP, VIP_V4, true),
    kind("tcp_v6", TCP, VIP_V6, false),
];
const DATAGRAM_KINDS: [Kind; 3] = [
    kind("udp_v4", UDP, VIP_V4, true),
    kind("udp_v6", UDP, VIP_V6, false),
    kind("sctp_v4", SCTP, VIP_V4, true),
];

/// How long after a change a connection without a pin stays at a past owner, in seconds, and a flow of datagrams.
const CONNECTION_WINDOW: u32 = 600;
const WINDOW: u32 = 30;
const SEED: u64 = 0x5eed;

/// Why nodes return nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The nodes take IP-in-IP, and have the VIP themselves.
    Plain,
    /// Without an outer header.
    L2dsr,
}

/// Flows of a service whose nodes return nothing.
#[derive(Clone, Copy)]
struct Silent {
    way: Way,
    kind: Kind,
}

pub(in super::super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for way in [Way::Plain, Way::L2dsr] {
        for kind in TCP_KINDS {
            let silent = Silent { way, kind };
            cases.extend(begins(silent));
            cases.extend(goes_on(silent));
            cases.extend(without_owner(silent));
            cases.extend(affinity(silent));
        }
        for kind in DATAGRAM_KINDS {
            cases.extend(datagrams(Silent { way, kind }));
        }
    }
    cases.extend(spread_sources());
    cases.push(returned_segment());
    // Later, the change is no longer a recent one.
    let until = coarse_ns() + u64::from(WINDOW - 10) * SECOND;
    for case in &mut cases {
        case.holds_until = case.holds_until.min(until);
    }
    cases
}

/// The slot changed hands so many seconds ago.
fn changed(seconds: u32) -> impl Fn(&mut TableSet) {
    move |tables| tables.set_past_of(SERVICE, LIST, &PAST, second_ago(seconds))
}

fn long_ago(tables: &mut TableSet) {
    changed(CONNECTION_WINDOW + 1)(tables);
}

fn takes_no_new(id: u32) -> impl Fn(&mut TableSet) {
    move |tables| tables.backends[id as usize].takes_new = 0
}

fn down(id: u32) -> impl Fn(&mut TableSet) {
    move |tables| tables.backends[id as usize].flags |= BACKEND_DOWN
}

impl Silent {
    fn backend(self, id: u32) -> Backend {
        let pod = self.kind.backend(id);
        match self.way {
            Way::L2dsr => pod,
            Way::Plain => Backend {
                flags: pod.flags & !BACKEND_POD,
                pod: AddressKey::default(),
                port: [0; 2],
                tag: 0,
                ..pod
            },
        }
    }

    fn pin(self, id: u32) -> Pin {
        let made = coarse_ns().wrapping_sub(2 * SECOND);
        Pin::new(&self.kind.flow(), id, &self.backend(id), made)
    }

    /// A pin of this moment.
    fn fresh(self, id: u32) -> Pin {
        Pin::new(&self.kind.flow(), id, &self.backend(id), coarse_ns())
    }

    fn kept(self, id: u32) -> [HashMap<Tuple, Pin>; 2] {
        [[(self.kind.flow(), self.pin(id))].into(), [].into()]
    }

    fn young(self, id: u32) -> [HashMap<Tuple, Pin>; 2] {
        [[].into(), [(self.kind.flow(), self.pin(id))].into()]
    }

    /// Begins a case with a packet of the client; all backends take new connections.
    fn begin(self, name: &str, flags: u8) -> Draft {
        let way = match self.way {
            Way::Plain => "plain",
            Way::L2dsr => "l2dsr",
        };
        let draft = self.kind.begin(&format!("{way}_{name}"), flags);
        draft.with(move |tables| {
            let service = &mut tables.service[SERVICE as usize];
            match self.way {
                Way::Plain => service.flags = 0,
                Way::L2dsr => service.mode = MODE_L2DSR,
            }
            for (id, backend) in (0..).zip(&mut tables.backends) {
                if super::BACKENDS.contains(&id) {
                    *backend = self.backend(id);
                }
                backend.takes_new = 1;
            }
        })
    }

    /// The frame that goes to a backend.
    fn sent_to(self, id: u32, packet: &Packet) -> Vec<u8> {
        let packet = packet.next_hop();
        to_node(id).carry(&match self.way {
            Way::Plain => packet.within(self.kind.edge(), self.kind.node(id)),
            Way::L2dsr => packet,
        })
    }

    fn sends(self, draft: Draft, flags: u8, id: u32) -> Case {
        let packet = self.kind.segment(flags);
        let output = self.sent_to(id, &packet);
        draft.transmits(way(SERVICE, id), &packet, output)
    }
}

/// A new connection goes to the current owner, and is pinned there.
fn begins(silent: Silent) -> Vec<Case> {
    let syn = |name: &str| silent.begin(name, SYN);
    let to = |draft: Draft, id| silent.sends(draft, SYN, id);
    let kind = silent.kind;
    let both = |tables: &mut TableSet| {
        keep(kind, silent.pin(PAST[0]))(tables);
        keep_young(kind, silent.pin(PAST[1]))(tables);
    };
    vec![
        to(syn("syn_is_pinned_to_the_current_owner"), CURRENT).pins(silent.young(CURRENT)),
        to(
            syn("syn_beyond_the_allowance_is_pinned_all_the_same").with(TableSet::use_up_returns),
            CURRENT,
        )
        .pins(silent.young(CURRENT)),
        to(
            syn("syn_of_a_pinned_flow_goes_to_its_owner").with(keep(kind, silent.pin(PAST[1]))),
            PAST[1],
        )
        .pins(silent.kept(PAST[1])),
        to(
            syn("syn_of_a_flow_with_a_young_pin_goes_to_its_owner")
                .with(keep_young(kind, silent.fresh(PAST[1]))),
            PAST[1],
        )
        .pins(silent.young(PAST[1])),
        to(
            syn("syn_whose_pinned_owner_takes_no_new_connections")
                .with(both)
                .with(takes_no_new(PAST[0])),
            CURRENT,
        )
        .pins(silent.young(CURRENT)),
        to(
            syn("syn_whose_pinned_owner_is_unreachable")
                .with(keep(kind, silent.pin(PAST[0])))
                .with(down(PAST[0])),
            CURRENT,
        )
        .pins(silent.young(CURRENT)),
        to(
            syn("syn_does_not_heed_a_marked_pin")
                .with(keep(kind, silent.pin(PAST[0]).marked(CURRENT))),
            CURRENT,
        )
        .pins(silent.young(CURRENT)),
        to(
            syn("syn_ten_minutes_after_the_change_needs_no_pin").with(long_ago),
            CURRENT,
        )
        .pins(none()),
        to(
            syn("syn_ten_minutes_after_the_change_takes_a_stale_pin_away")
                .with(long_ago)
                .with(both)
                .with(takes_no_new(PAST[0])),
            CURRENT,
        )
        .pins(none()),
        to(
            syn("syn_of_a_quiet_slot_is_not_pinned")
                .with(|tables| tables.set_owner(SERVICE, CURRENT)),
            CURRENT,
        )
        .pins(none()),
    ]
}

/// A segment of another connection stays at the newest past owner.
fn goes_on(silent: Silent) -> Vec<Case> {
    let kind = silent.kind;
    let ack = |name: &str| silent.begin(name, ACK);
    let to = |draft: Draft, id| silent.sends(draft, ACK, id);
    let all_down = |tables: &mut TableSet| {
        down(PAST[0])(tables);
        down(PAST[1])(tables);
    };
    let syn = || IN.carry(&kind.segment(SYN));
    let moved = |tables: &mut TableSet| {
        tables.set_owner(SERVICE, PAST[1]);
        tables.set_past(SERVICE, LIST, &[CURRENT, PAST[0]]);
        mark(tables);
    };
    let unmarked = |tables: &mut TableSet| {
        tables.pins[0].insert(kind.flow(), silent.pin(PAST[1]));
    };
    let mut cases = vec![
        to(ack("segment_stays_at_the_newest_past_owner"), PAST[0]).pins(silent.young(PAST[0])),
        to(
            ack("segment_nearly_ten_minutes_after_the_change_stays")
                .with(changed(CONNECTION_WINDOW - 20)),
            PAST[0],
        )
        .pins(silent.young(PAST[0]))
        .until(coarse_ns() + 10 * SECOND),
        to(
            ack("segment_ten_minutes_after_the_change_goes_to_the_current_owner").with(long_ago),
            CURRENT,
        )
        .pins(none()),
        to(
            ack("segment_beyond_the_allowance_stays_without_a_pin").with(TableSet::use_up_returns),
            PAST[0],
        )
        .pins(none()),
        to(
            ack("segment_stays_at_an_owner_that_takes_no_new_connections")
                .with(takes_no_new(PAST[0])),
            PAST[0],
        )
        .pins(silent.young(PAST[0])),
        to(
            ack("segment_passes_over_an_owner_that_is_unreachable").with(down(PAST[0])),
            PAST[1],
        )
        .pins(silent.young(PAST[1])),
        to(
            ack("segment_passes_over_an_owner_without_a_next_hop")
                .with(|tables| tables.backends[PAST[0] as usize].next_hop = 0),
            PAST[1],
        )
        .pins(silent.young(PAST[1])),
        to(
            ack("segment_goes_to_the_current_owner_where_all_others_are_down").with(all_down),
            CURRENT,
        )
        .pins(none()),
        to(
            ack("segment_with_a_pin_goes_to_its_owner").with(keep(kind, silent.pin(PAST[1]))),
            PAST[1],
        )
        .pins(silent.kept(PAST[1])),
        to(
            ack("segment_of_a_pinned_owner_that_takes_no_new_connections_goes_there")
                .with(keep(kind, silent.pin(PAST[1])))
                .with(takes_no_new(PAST[1])),
            PAST[1],
        )
        .pins(silent.kept(PAST[1])),
        to(
            ack("segment_looks_for_no_pins_where_there_are_none").with(unmarked),
            PAST[0],
        )
        .pins([
            silent.kept(PAST[1])[0].clone(),
            silent.young(PAST[0])[1].clone(),
        ]),
        to(
            ack("segment_behind_its_syn_goes_to_the_current_owner").after(syn()),
            CURRENT,
        )
        .pins(silent.young(CURRENT))
        .until(coarse_ns() + SECOND),
        to(
            ack("segment_a_second_after_its_syn_keeps_the_pin")
                .with(keep_young(kind, silent.pin(CURRENT))),
            CURRENT,
        )
        .pins(silent.kept(CURRENT)),
        to(
            ack("segment_goes_where_its_pin_was_made_after_further_changes")
                .with(moved)
                .with(keep(kind, silent.pin(CURRENT))),
            CURRENT,
        )
        .pins(silent.kept(CURRENT)),
        to(
            ack("second_segment_of_an_older_connection_leaves_its_pin_young")
                .after(IN.carry(&kind.segment(ACK))),
            PAST[0],
        )
        .pins(silent.young(PAST[0])),
        to(
            ack("segment_ten_minutes_after_the_change_keeps_its_young_pin")
                .with(long_ago)
                .with(keep_young(kind, silent.pin(PAST[0]))),
            PAST[0],
        )
        .pins(silent.kept(PAST[0])),
    ];
    for (name, flags) in [("fin", FIN | ACK), ("rst", RST), ("syn_ack", SYN | ACK)] {
        let draft = silent.begin(&format!("{name}_begins_nothing"), flags);
        let case = silent.sends(draft, flags, PAST[0]);
        cases.push(case.pins(silent.young(PAST[0])));
    }
    cases
}

/// A service that has lost all of its backends refuses new connections, and those that live go on.
fn without_owner(silent: Silent) -> Vec<Case> {
    let refused = silent.begin("syn_without_a_current_owner_is_refused", SYN);
    let reset = BACK.carry(&reset_of_syn(silent.kind.to(), 4));
    let goes_on = silent.begin("segment_without_a_current_owner_stays", ACK);
    vec![
        refused
            .with(without_current)
            .replies(ReplyReason::Reset, reset)
            .pins(none()),
        silent
            .sends(goes_on.with(without_current), ACK, PAST[0])
            .pins(silent.young(PAST[0])),
    ]
}

/// Clients with affinity keep their backends, and their connections are pinned there.
fn affinity(silent: Silent) -> Vec<Case> {
    let client_key = Client {
        address: address_key(client(silent.kind.to()).0),
        affinity: SEED,
    };
    let with_affinity = move |tables: &mut TableSet| {
        tables.service[SERVICE as usize].affinity = SEED;
        tables.service[SERVICE as usize].affinity_seconds = 600;
        let seen = coarse_ns().wrapping_sub(60 * SECOND);
        let entry = ClientBackend::new(&client_key, PAST[1], &silent.backend(PAST[1]), seen);
        tables.clients.insert(client_key, entry);
    };
    let begin = |name: &str, flags| silent.begin(name, flags).with(with_affinity);
    let noted = |case: Case, id| case.notes_client(client(silent.kind.to()).0, SEED, id);
    vec![
        noted(
            silent.sends(begin("syn_of_a_client_with_affinity", SYN), SYN, PAST[1]),
            PAST[1],
        )
        .pins(silent.young(PAST[1])),
        silent
            .sends(
                begin("segment_of_a_client_with_affinity", ACK),
                ACK,
                PAST[1],
            )
            .pins(silent.young(PAST[1])),
        noted(
            silent.sends(
                begin(
                    "syn_of_a_client_with_affinity_ten_minutes_after_the_change",
                    SYN,
                )
                .with(long_ago),
                SYN,
                PAST[1],
            ),
            PAST[1],
        )
        .pins(silent.young(PAST[1])),
        noted(
            silent.sends(
                begin("syn_of_a_client_whose_owner_takes_no_new_connections", SYN)
                    .with(takes_no_new(PAST[1])),
                SYN,
                CURRENT,
            ),
            CURRENT,
        )
        .pins(silent.young(CURRENT)),
        noted(
            silent.sends(
                begin("syn_of_a_client_with_affinity_in_a_quiet_slot", SYN)
                    .with(|tables| tables.set_owner(SERVICE, CURRENT)),
                SYN,
                CURRENT,
            ),
            CURRENT,
        )
        .pins(none()),
    ]
}

/// For half a minute after a change, flows without a pin stay.
fn datagrams(silent: Silent) -> Vec<Case> {
    let kind = silent.kind;
    let ask = |name: &str| silent.begin(name, ACK);
    let to = |draft: Draft, id| silent.sends(draft, ACK, id);
    let empty = |tables: &mut TableSet| {
        without_current(tables);
        takes_no_new(PAST[0])(tables);
        takes_no_new(PAST[1])(tables);
    };
    let refusal = port_unreachable(&kind.segment(ACK));
    vec![
        to(ask("datagram_stays_at_the_newest_past_owner"), PAST[0]).pins(silent.young(PAST[0])),
        to(
            ask("datagram_half_a_minute_after_the_change_goes_to_the_current_owner")
                .with(changed(WINDOW + 1)),
            CURRENT,
        )
        .pins(none()),
        to(
            ask("datagram_passes_over_an_owner_that_takes_no_new_connections")
                .with(takes_no_new(PAST[0])),
            PAST[1],
        )
        .pins(silent.young(PAST[1])),
        to(
            ask("datagram_beyond_the_allowance_stays_without_a_pin").with(TableSet::use_up_returns),
            PAST[0],
        )
        .pins(none()),
        to(
            ask("datagram_with_a_pin_stays_after_hours")
                .with(changed(10_000))
                .with(keep(kind, silent.pin(PAST[1]))),
            PAST[1],
        )
        .pins(silent.kept(PAST[1])),
        to(
            ask("datagram_whose_pinned_owner_takes_no_new_connections_goes_on")
                .with(keep(kind, silent.pin(PAST[1])))
                .with(takes_no_new(PAST[1])),
            PAST[0],
        )
        .pins(silent.young(PAST[0])),
        to(
            ask("datagram_after_hours_whose_pinned_owner_takes_no_new_connections")
                .with(changed(10_000))
                .with(keep(kind, silent.pin(PAST[1])))
                .with(takes_no_new(PAST[1])),
            CURRENT,
        )
        .pins(none()),
        to(
            ask("datagram_keeps_a_pin_that_has_stood").with(keep_young(kind, silent.pin(PAST[1]))),
            PAST[1],
        )
        .pins(silent.kept(PAST[1])),
        to(
            ask("datagram_at_once_behind_the_first_finds_its_young_pin")
                .after(IN.carry(&kind.segment(ACK))),
            PAST[0],
        )
        .pins(silent.young(PAST[0]))
        .until(coarse_ns() + SECOND),
        ask("datagram_without_any_owner_is_refused")
            .with(empty)
            .replies(ReplyReason::PortUnreachable, BACK.carry(&refusal))
            .pins(none()),
    ]
}

/// Nothing returns to outer sources that are the flows' own.
fn spread_sources() -> Vec<Case> {
    let kind = kind("spread_tcp_v4", TCP, VIP_V4, true);
    let bits = hash::flow(HASH_SEED, client(kind.to()), kind.to(), TCP) & 1;
    let source = v4(10, 50, 0, u8::try_from(bits).unwrap());
    let spread = |tables: &mut TableSet| {
        for id in super::BACKENDS {
            let hop = &mut tables.next_hops[id as usize];
            hop.source = padded(v4(10, 50, 0, 0));
            hop.spread = 1;
        }
    };
    let goes = |name: &str, flags, id| {
        let packet = kind.segment(flags);
        let outer = packet.next_hop().within(source, kind.node(id));
        let output = to_node(id).carry(&outer.tag(kind.tag(id, 0)));
        let draft = kind.begin(name, flags).with(spread);
        let case = draft.transmits(way(SERVICE, id), &packet, output);
        case.pins(kind.young(id))
    };
    vec![
        goes("syn_is_pinned_to_the_current_owner", SYN, CURRENT),
        goes("segment_stays_at_the_newest_past_owner", ACK, PAST[0]),
    ]
}

/// Nothing is returned of what is sent by L2 DSR: the packet is another edge's.
fn returned_segment() -> Case {
    let kind = TCP_KINDS[0];
    kind.case(
        "return_to_an_edge_whose_nodes_return_nothing",
        kind.returned_by(CURRENT, 3),
    )
    .with(|tables| tables.service[SERVICE as usize].mode = MODE_L2DSR)
    .passes(PassReason::EncapUntrusted)
}
