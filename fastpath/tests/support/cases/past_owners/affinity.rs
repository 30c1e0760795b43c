//! Services with affinity: a client keeps its backend when its slot gets another one.

use fastpath::clock::coarse_ns;
use xdp_prog::abi::{BACKEND_DOWN, Client, ClientBackend, Past, Slot};

use super::{
    super::{
        super::{
            packet::{ACK, SYN},
            tables::{TableSet, address_key, second_ago},
        },
        Case, Draft, TCP, UDP, VIP_V4, VIP_V6, client,
    },
    CURRENT, Kind, LIST, PAST, SECOND, SERVICE, keep, kind,
};

pub(super) const SEED: u64 = 0x5eed;
/// How long a client keeps its backend, in seconds.
const SECONDS: u32 = 600;
/// A backend that has never owned the slot.
const STRANGER: u32 = 23;

const KINDS: [Kind; 2] = [
    kind("affinity_tcp_v4", TCP, VIP_V4, true),
    kind("affinity_tcp_v6", TCP, VIP_V6, false),
];

pub(in super::super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.extend(new_connections(kind));
        cases.extend(marks(kind));
        cases.extend(later_segments(kind));
        cases.extend(without_a_past(kind));
    }
    cases.extend(datagrams(kind("affinity_udp_v4", UDP, VIP_V4, true)));
    cases
}

/// Few, so that they are run at once.
pub(in super::super) fn of_this_moment() -> Vec<Case> {
    KINDS.map(noted_client).to_vec()
}

/// All backends take new connections, and clients keep them for [`SECONDS`].
pub(super) fn with_affinity(tables: &mut TableSet) {
    tables.service[SERVICE as usize].affinity = SEED;
    tables.service[SERVICE as usize].affinity_seconds = SECONDS;
    for backend in &mut tables.backends {
        backend.takes_new = 1;
    }
}

impl Kind {
    fn client(self) -> Client {
        self.client_by(SEED)
    }

    fn client_by(self, affinity: u64) -> Client {
        Client {
            address: address_key(client(self.to()).0),
            affinity,
        }
    }

    /// The client's last connection went to a backend so many seconds ago.
    pub(super) fn had(self, id: u32, seconds: u64) -> impl Fn(&mut TableSet) {
        self.had_by(SEED, id, seconds)
    }

    /// As [`Self::had`], of a client that is known by another seed.
    pub(super) fn had_by(self, affinity: u64, id: u32, seconds: u64) -> impl Fn(&mut TableSet) {
        let (client, seen) = (self.client_by(affinity), coarse_ns());
        let seen = seen.wrapping_sub(seconds * SECOND);
        let entry = ClientBackend::new(&client, id, &self.backend(id), seen);
        move |tables| {
            tables.clients.insert(client, entry);
        }
    }

    fn asks_with(self, name: &str, flags: u8) -> Draft {
        self.begin(name, flags).with(with_affinity)
    }

    /// A new connection, or a datagram, goes to a backend without tries, which is noted.
    fn begins_at(self, draft: Draft, id: u32) -> Case {
        self.sends(draft, SYN, id, 0)
            .notes_client(client(self.to()).0, SEED, id)
    }

    /// A segment of another connection goes to a backend, and nothing is noted.
    fn goes_on_at(self, draft: Draft, id: u32) -> Case {
        self.sends(draft, ACK, id, 3)
    }
}

fn takes_no_new(id: u32) -> impl Fn(&mut TableSet) {
    move |tables| tables.backends[id as usize].takes_new = 0
}

fn new_connections(kind: Kind) -> Vec<Case> {
    let syn = |name: &str| kind.asks_with(name, SYN);
    let kept = |name: &str| syn(name).with(kind.had(PAST[0], 60));
    let of_another = ClientBackend::new(&kind.client(), PAST[0], &kind.backend(PAST[1]), 0);
    vec![
        kind.begins_at(syn("new_client_goes_to_the_current_owner"), CURRENT),
        kind.begins_at(kept("client_keeps_a_past_owner"), PAST[0]),
        kind.begins_at(
            syn("client_keeps_the_oldest_past_owner").with(kind.had(PAST[1], 60)),
            PAST[1],
        ),
        kind.begins_at(
            syn("client_keeps_its_owner_to_the_last_second")
                .with(kind.had(PAST[0], u64::from(SECONDS) - 60)),
            PAST[0],
        )
        .until(coarse_ns() + 50 * SECOND),
        kind.begins_at(
            syn("client_whose_time_is_over").with(kind.had(PAST[0], u64::from(SECONDS))),
            CURRENT,
        ),
        kind.begins_at(
            kept("client_whose_owner_takes_no_new_connections").with(takes_no_new(PAST[0])),
            CURRENT,
        ),
        kind.begins_at(
            kept("client_whose_owner_is_unreachable")
                .with(|tables| tables.backends[PAST[0] as usize].flags |= BACKEND_DOWN),
            CURRENT,
        ),
        kind.begins_at(
            syn("client_of_a_backend_that_is_not_listed").with(kind.had(STRANGER, 60)),
            CURRENT,
        ),
        kind.begins_at(
            syn("client_of_a_backend_whose_id_is_anothers").with(move |tables| {
                tables.clients.insert(kind.client(), of_another);
            }),
            CURRENT,
        ),
    ]
}

/// Within a second, nothing is written.
fn noted_client(kind: Kind) -> Case {
    let until = coarse_ns() + SECOND;
    let draft = kind.asks_with("client_that_was_noted_a_moment_ago", SYN);
    kind.sends(draft.with(kind.had(PAST[0], 0)), SYN, PAST[0], 0)
        .until(until)
}

/// A SYN marks a pin for the owner that it goes to.
fn marks(kind: Kind) -> Vec<Case> {
    let pin = kind.pin(PAST[1]);
    let syn = |name: &str| {
        let draft = kind.asks_with(name, SYN);
        draft.with(keep(kind, pin))
    };
    let kept = |pin| [[(kind.flow(), pin)].into(), [].into()];
    vec![
        kind.begins_at(
            syn("syn_to_the_kept_owner_marks_another_pin").with(kind.had(PAST[0], 60)),
            PAST[0],
        )
        .pins(kept(pin.marked(PAST[0]))),
        kind.begins_at(
            syn("syn_to_the_kept_owner_leaves_its_pin").with(kind.had(PAST[1], 60)),
            PAST[1],
        )
        .pins(kept(pin)),
    ]
}

fn later_segments(kind: Kind) -> Vec<Case> {
    let ack = |name: &str| kind.asks_with(name, ACK);
    let kept = |name: &str| ack(name).with(kind.had(PAST[0], 60));
    let returned = kind
        .case("return_by_the_kept_owner", kind.returned_by(PAST[0], 3))
        .with(with_affinity)
        .with(kind.had(PAST[0], 60));
    vec![
        kind.goes_on_at(kept("segment_goes_to_the_kept_owner"), PAST[0]),
        kind.goes_on_at(ack("segment_of_a_new_client"), CURRENT),
        kind.goes_on_at(
            kept("segment_of_a_pinned_flow").with(keep(kind, kind.pin(PAST[1]))),
            PAST[1],
        ),
        kind.goes_on_at(
            kept("segment_to_an_owner_that_takes_no_new_connections").with(takes_no_new(PAST[0])),
            CURRENT,
        ),
        kind.retries(returned, CURRENT, 3),
    ]
}

/// Past owners of a slot whose bit says that it has none are not looked at.
fn stale_word(tables: &mut TableSet) {
    let slot = tables.only_slot(SERVICE) as usize;
    tables.lut[slot] = Slot::new(CURRENT, false);
}

/// A quiet slot's owner is that of all its clients.
fn without_a_past(kind: Kind) -> Vec<Case> {
    let quiet = |name: &str, flags| {
        let draft = kind.asks_with(name, flags).with(kind.had(PAST[0], 60));
        draft.with(|tables| {
            let slot = tables.only_slot(SERVICE) as usize;
            tables.lut[slot] = Slot::new(CURRENT, false);
            tables.pasts[slot] = Past::default();
        })
    };
    let segment = quiet("segment_of_a_quiet_slot", ACK);
    let stale = kind
        .asks_with("new_connection_of_a_quiet_slot_with_a_stale_list", SYN)
        .with(kind.had(PAST[0], 60))
        .with(stale_word);
    vec![
        kind.begins_at(stale, CURRENT),
        kind.begins_at(quiet("new_connection_of_a_quiet_slot", SYN), CURRENT),
        kind.sends(segment, ACK, CURRENT, 0),
    ]
}

fn datagrams(kind: Kind) -> Vec<Case> {
    let ask = |name: &str| kind.asks_with(name, SYN);
    let long_ago = |tables: &mut TableSet| {
        tables.set_past_of(SERVICE, LIST, &PAST, second_ago(400));
    };
    vec![
        kind.begins_at(
            ask("datagram_goes_to_the_kept_owner").with(kind.had(PAST[0], 60)),
            PAST[0],
        )
        .pins(kind.young(PAST[0])),
        kind.sends(
            ask("datagram_of_a_pin_notes_its_owner").with(keep(kind, kind.pin(PAST[1]))),
            SYN,
            PAST[1],
            3,
        )
        .notes_client(client(kind.to()).0, SEED, PAST[1]),
        kind.sends(
            ask("datagram_of_a_pin_to_an_owner_that_takes_no_new_connections")
                .with(keep(kind, kind.pin(PAST[1])))
                .with(takes_no_new(PAST[1])),
            SYN,
            PAST[1],
            3,
        ),
        kind.begins_at(ask("datagram_of_a_new_client").with(long_ago), CURRENT),
    ]
}
