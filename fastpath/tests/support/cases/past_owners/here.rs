//! Edge and node in one machine: owners of a slot that are pods of this machine.

use std::collections::HashMap;

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{BACKEND_LOCAL, Backend, FLOW_ACCEPTED, MAX_PAST_OWNERS, Pin, PodFlow, Tuple},
    reason::DropReason,
};

use super::{
    super::{
        super::{
            packet::{ACK, End, FIN, Packet, RST, SYN, TCP_SEQUENCE},
            tables::{TableSet, address_key},
        },
        Case, Draft, IN, client,
        pods::TARGET,
        way,
    },
    CURRENT, KINDS, Kind, LIST, PAST, PORT, SERVICE, keep, keep_young, without_current,
};

/// The pod's number in its SYN+ACK.
const NUMBER: u32 = 0x7700_0000;

pub(in super::super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.extend(current_here(kind));
        cases.extend(past_here(kind));
        cases.extend(all_here(kind));
        cases.extend(pinned_here(kind));
        cases.extend(marked_here(kind));
    }
    cases.extend(what_is_known(KINDS[0]));
    cases.extend(without_owner(KINDS[0]));
    cases
}

impl Kind {
    /// Makes backends pods of this machine.
    pub(super) fn here(self, ids: &[u32]) -> impl Fn(&mut TableSet) {
        move |tables| {
            for id in ids {
                tables.backends[*id as usize] = Backend {
                    next_hop: 0,
                    ..self.backend(*id)
                };
                tables.backends[*id as usize].flags |= BACKEND_LOCAL;
                tables.pod(SERVICE, *id);
            }
        }
    }

    pub(super) fn pod(self, id: u32) -> End {
        (self.pod_of(id), TARGET)
    }

    /// The client's flow as a pod here has it.
    pub(super) fn flow_at(self, id: u32) -> (Tuple, PodFlow) {
        let from = client(self.to());
        let pod = address_key(self.pod(id).0);
        let port = from.1.to_be_bytes();
        let key = Tuple::new(
            address_key(from.0),
            pod,
            port,
            TARGET.to_be_bytes(),
            self.protocol,
        );
        let vip = address_key(self.vip);
        let flow = PodFlow::new(&key, vip, PORT.to_be_bytes(), 0, 0, coarse_ns());
        (key, flow.with_client_port(&key, port))
    }

    /// A pod here has the connection.
    pub(super) fn known_at(self, id: u32) -> impl Fn(&mut TableSet) {
        move |tables| tables.flows.extend([self.flow_at(id)])
    }

    /// The client's segment goes to a pod here.
    pub(super) fn delivers(self, draft: Draft, flags: u8, id: u32) -> Case {
        let packet = self.segment(flags);
        let output = self.segment_to(self.pod(id), flags);
        draft.delivers(way(SERVICE, id), packet.length(), IN.carry(&output))
    }

    /// The returned segment goes to a pod here.
    pub(super) fn delivers_again(self, draft: Draft, id: u32) -> Case {
        let length = self.segment(ACK).length();
        let output = self.segment_to(self.pod(id), ACK);
        draft.delivers(way(SERVICE, id), length, IN.carry(&output.next_hop()))
    }

    pub(super) fn young(self, id: u32) -> [HashMap<Tuple, Pin>; 2] {
        [[].into(), [(self.flow(), self.pin(id))].into()]
    }
}

const BOTH: [u32; 2] = [CURRENT, PAST[0]];
const ALL: [u32; 3] = [CURRENT, PAST[0], PAST[1]];

/// The current owner is a pod here, those before it are elsewhere.
fn current_here(kind: Kind) -> Vec<Case> {
    let here = kind.here(&[CURRENT]);
    let begin = |name: &str, flags| kind.begin(name, flags).with(&here);
    let mut cases = vec![
        kind.delivers(
            begin("syn_begins_at_the_current_pod_here", SYN),
            SYN,
            CURRENT,
        ),
        kind.sends(
            begin("ack_unknown_here_goes_to_the_past_owner_elsewhere", ACK),
            ACK,
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0])),
        begin("ack_unknown_here_is_limited", ACK)
            .with(TableSet::use_up_returns)
            .drops(DropReason::ReturnLimited),
        kind.delivers(
            begin("ack_known_here_needs_no_allowance", ACK)
                .with(kind.known_at(CURRENT))
                .with(TableSet::use_up_returns),
            ACK,
            CURRENT,
        ),
        kind.delivers_again(
            kind.case(
                "return_of_the_oldest_owner_ends_at_the_current_pod_here",
                kind.returned_by(PAST[1], 1),
            )
            .with(&here),
            CURRENT,
        ),
        kind.retries(
            kind.case(
                "return_of_a_pin_asks_the_current_pod_here_and_goes_on",
                kind.returned_by(PAST[1], 3),
            )
            .with(&here)
            .with(keep(kind, kind.pin(PAST[1]))),
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0])),
    ];
    for (name, flags) in [
        ("ack", ACK),
        ("fin", FIN | ACK),
        ("rst", RST),
        ("syn_ack", SYN | ACK),
    ] {
        let draft = begin(&format!("{name}_known_at_the_current_pod_here"), flags);
        cases.push(kind.delivers(draft.with(kind.known_at(CURRENT)), flags, CURRENT));
    }
    cases
}

/// The current owner is elsewhere, the newest past one is a pod here.
fn past_here(kind: Kind) -> Vec<Case> {
    let here = kind.here(&[PAST[0]]);
    let returned = |name: &str| kind.case(name, kind.returned_by(CURRENT, 3)).with(&here);
    let both = kind.here(&PAST);
    vec![
        kind.sends(
            kind.begin("ack_goes_to_the_current_owner_elsewhere_first", ACK)
                .with(&here)
                .with(kind.known_at(PAST[0])),
            ACK,
            CURRENT,
            3,
        ),
        kind.delivers_again(
            returned("return_goes_to_the_past_pod_here_that_knows_it").with(kind.known_at(PAST[0])),
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
        kind.retries(
            returned("return_passes_over_the_past_pod_here_that_does_not_know_it"),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        kind.retries(
            kind.case(
                "return_that_no_past_pod_here_knows_goes_to_the_current_owner",
                kind.returned_by(CURRENT, 3),
            )
            .with(&both),
            CURRENT,
            0,
        ),
        kind.retries(
            returned("past_pod_here_that_has_gone_knows_nothing")
                .with(kind.known_at(PAST[0]))
                .with(|tables| tables.pods.clear()),
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        {
            let longest = |tables: &mut TableSet| {
                let owners = PAST.repeat(MAX_PAST_OWNERS as usize / 2);
                tables.set_past(SERVICE, LIST, &owners);
            };
            let draft = kind.case(
                "longest_list_of_pods_here_is_asked_in_one_run",
                kind.returned_by(CURRENT, 15),
            );
            let draft = draft.with(longest).with(&both);
            kind.retries(draft, CURRENT, 0)
        },
    ]
}

/// All owners are pods here.
fn all_here(kind: Kind) -> Vec<Case> {
    let here = kind.here(&ALL);
    let ack = |name: &str| kind.begin(name, ACK).with(&here);
    let longest = |tables: &mut TableSet| {
        let owners = PAST.repeat(MAX_PAST_OWNERS as usize / 2);
        tables.set_past(SERVICE, LIST, &owners);
    };
    vec![
        kind.delivers(
            ack("ack_known_at_the_newest_past_pod_here").with(kind.known_at(PAST[0])),
            ACK,
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
        kind.delivers(
            ack("ack_known_at_the_oldest_past_pod_here").with(kind.known_at(PAST[1])),
            ACK,
            PAST[1],
        )
        .pins(kind.young(PAST[1])),
        kind.delivers(
            ack("ack_known_at_no_pod_here_goes_to_the_current_one"),
            ACK,
            CURRENT,
        ),
        kind.delivers(
            ack("ack_known_at_none_of_fifteen_pods_here").with(longest),
            ACK,
            CURRENT,
        ),
        kind.sends(
            kind.begin(
                "ack_unknown_at_two_pods_here_goes_to_the_owner_elsewhere",
                ACK,
            )
            .with(kind.here(&BOTH)),
            ACK,
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
    ]
}

/// The flow is pinned to a pod here.
fn pinned_here(kind: Kind) -> Vec<Case> {
    let pin = kind.pin(PAST[1]);
    let here = kind.here(&[PAST[1]]);
    let ack = |name: &str| kind.begin(name, ACK).with(&here);
    let kept = || [[(kind.flow(), pin)].into(), [].into()];
    vec![
        kind.delivers(
            ack("pin_to_a_pod_here_that_knows_it")
                .with(kind.known_at(PAST[1]))
                .with(keep(kind, pin)),
            ACK,
            PAST[1],
        )
        .pins(kept()),
        kind.delivers(
            ack("young_pin_to_a_pod_here_is_kept_once_it_has_stood")
                .with(kind.known_at(PAST[1]))
                .with(keep_young(kind, pin)),
            ACK,
            PAST[1],
        )
        .pins(kept())
        .until(fastpath::clock::coarse_ns() + 60 * super::SECOND),
        kind.sends(
            ack("pin_to_a_pod_here_that_does_not_know_it_goes").with(keep(kind, pin)),
            ACK,
            CURRENT,
            3,
        )
        .pins([[].into(), [].into()]),
        kind.delivers(
            ack("pin_to_a_pod_here_that_does_not_know_it_is_followed_by_the_others_here")
                .with(kind.here(&ALL))
                .with(kind.known_at(PAST[0]))
                .with(keep(kind, pin)),
            ACK,
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
    ]
}

/// A SYN has come since the flow was pinned.
fn marked_here(kind: Kind) -> Vec<Case> {
    let (pin, flow) = (kind.pin(PAST[1]), kind.flow());
    let marked = keep(kind, pin.marked(CURRENT));
    let (current, pinned, all) = (
        kind.here(&[CURRENT]),
        kind.here(&[PAST[1]]),
        kind.here(&ALL),
    );
    let ack = |name: &str| kind.begin(name, ACK).with(&marked);
    let kept = || [[(flow, pin)].into(), [].into()];
    vec![
        kind.delivers(
            kind.begin("syn_at_the_current_pod_here_marks_a_pin", SYN)
                .with(&current)
                .with(keep(kind, pin)),
            SYN,
            CURRENT,
        )
        .pins([[(flow, pin.marked(CURRENT))].into(), [].into()]),
        kind.delivers(
            ack("ack_after_a_syn_known_at_the_current_pod_here")
                .with(&current)
                .with(kind.known_at(CURRENT)),
            ACK,
            CURRENT,
        ),
        kind.sends(
            ack("ack_after_a_syn_unknown_here_goes_to_the_pin_without_allowance")
                .with(&current)
                .with(TableSet::use_up_returns),
            ACK,
            PAST[1],
            3,
        )
        .pins(kept()),
        kind.delivers_again(
            kind.case(
                "return_after_a_syn_goes_to_the_pinned_pod_here",
                kind.returned_by(CURRENT, 3),
            )
            .with(&marked)
            .with(&pinned)
            .with(kind.known_at(PAST[1])),
            PAST[1],
        )
        .pins(kept()),
        kind.delivers(
            ack("ack_after_a_syn_known_at_the_pinned_pod_here")
                .with(&all)
                .with(kind.known_at(PAST[1]))
                .with(TableSet::use_up_returns),
            ACK,
            PAST[1],
        )
        .pins(kept()),
        kind.delivers(
            ack("ack_after_a_syn_unknown_at_the_pinned_pod_here")
                .with(&all)
                .with(kind.known_at(PAST[0])),
            ACK,
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
        kind.delivers(
            ack("ack_after_a_syn_known_at_none_of_fifteen_pods_here")
                .with(|tables| {
                    let owners = PAST.repeat(MAX_PAST_OWNERS as usize / 2);
                    tables.set_past(SERVICE, LIST, &owners);
                })
                .with(&marked)
                .with(&all),
            ACK,
            CURRENT,
        )
        .pins([[].into(), [].into()]),
    ]
}

/// What a pod here has sent a SYN+ACK for, or another VIP's flow, is no connection of this flow.
fn what_is_known(kind: Kind) -> Vec<Case> {
    let here = kind.here(&[CURRENT]);
    let acknowledges = |to: End, number: u32| {
        let from = client(to);
        let mut header = etherparse::TcpHeader::new(from.1, to.1, TCP_SEQUENCE, 64_240);
        header.ack = true;
        header.acknowledgment_number = number;
        Packet::tcp_with(from, to, header, b"data")
    };
    let accepted = |tables: &mut TableSet| {
        let (key, mut flow) = kind.flow_at(CURRENT);
        flow.set_number(NUMBER, FLOW_ACCEPTED);
        tables.embryonic.insert(key, flow);
    };
    let from = client(kind.to());
    let to_pod = |packet: &Packet| {
        let (source, _) = packet.ends();
        assert_eq!(source, from.0);
        let mut header = etherparse::TcpHeader::new(from.1, TARGET, TCP_SEQUENCE, 64_240);
        header.ack = true;
        header.acknowledgment_number = NUMBER + 1;
        Packet::tcp_with(from, kind.pod(CURRENT), header, b"data")
    };
    let proof = acknowledges(kind.to(), NUMBER + 1);
    let guess = acknowledges(kind.to(), NUMBER + 2);
    let by_another = |tables: &mut TableSet| {
        let (key, flow) = kind.flow_at(CURRENT);
        let other = PodFlow::new(
            &key,
            address_key(kind.vip),
            80_u16.to_be_bytes(),
            0,
            0,
            flow.seen,
        );
        let other = other.with_client_port(&key, from.1.to_be_bytes());
        tables.flows.insert(key, other);
    };
    vec![
        kind.case("ack_of_the_syn_ack_of_a_pod_here", IN.carry(&proof))
            .with(&here)
            .with(accepted)
            .delivers(
                way(SERVICE, CURRENT),
                proof.length(),
                IN.carry(&to_pod(&proof)),
            ),
        kind.case("ack_of_another_number_of_a_pod_here", IN.carry(&guess))
            .with(&here)
            .with(accepted)
            .transmits(
                way(SERVICE, PAST[0]),
                &guess,
                kind.sent_to(PAST[0], 2, &guess),
            )
            .pins(kind.young(PAST[0])),
        kind.sends(
            kind.begin("ack_of_a_connection_here_by_another_vip", ACK)
                .with(&here)
                .with(by_another),
            ACK,
            PAST[0],
            2,
        )
        .pins(kind.young(PAST[0])),
        // The second segment finds the flow's note.
        kind.delivers(
            kind.begin("second_ack_known_here", ACK)
                .with(&here)
                .with(kind.known_at(CURRENT))
                .after(IN.carry(&kind.segment(ACK))),
            ACK,
            CURRENT,
        ),
    ]
}

/// The service has lost all of its backends.
fn without_owner(kind: Kind) -> Vec<Case> {
    let ack = |name: &str, ids: &'static [u32]| {
        kind.begin(name, ACK)
            .with(kind.here(ids))
            .with(without_current)
    };
    vec![
        kind.delivers(
            ack("ack_without_a_current_owner_known_at_a_pod_here", &PAST)
                .with(kind.known_at(PAST[1])),
            ACK,
            PAST[1],
        )
        .pins(kind.young(PAST[1])),
        kind.sends(
            ack("ack_without_a_current_owner_unknown_here", &[PAST[0]]),
            ACK,
            PAST[1],
            1,
        )
        .pins(kind.young(PAST[1])),
        kind.delivers(
            ack(
                "ack_without_a_current_owner_is_refused_by_the_last_pod_here",
                &PAST,
            ),
            ACK,
            PAST[1],
        ),
        {
            let draft = kind.case(
                "return_without_a_current_owner_asks_the_pod_here",
                kind.returned_by(PAST[0], 2),
            );
            let draft = draft.with(kind.here(&[PAST[1]])).with(without_current);
            kind.delivers_again(draft, PAST[1])
        },
    ]
}
