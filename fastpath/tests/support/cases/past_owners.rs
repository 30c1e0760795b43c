//! Slots that have had other owners, at the edge: which owner gets a packet.

pub(super) mod about;
pub(super) mod affinity;
pub(super) mod datagrams;
pub(super) mod here;
pub(super) mod keep;
pub(super) mod own_pods;
pub(super) mod returned;

use std::{collections::HashMap, net::IpAddr};

use fastpath::clock::coarse_ns;
use xdp_prog::{
    abi::{BACKEND_DOWN, Backend, MAX_PAST_OWNERS, MODE_IPIP, Past, Pin, SERVICE_PODS, Tuple},
    process::Action,
    reason::{DropReason, ReplyReason, ToNodeReason},
};

use super::{
    super::{
        packet::{ACK, End, FIN, Link, Packet, RST, SYN},
        tables::{TableSet, address_key},
    },
    BACK, Case, Draft, EDGE_V4, EDGE_V6, IN, TCP, TO_NODE_V4, UDP, VIP_V4, VIP_V6, case, client,
    counted, hop,
    pods::pod,
    reset_of_syn, v4, v6, way,
};

const SERVICE: u32 = 29;
const PORT: u16 = 7200;
const SECOND: u64 = 1_000_000_000;
/// The owner of the only slot, and those before it, the newest first.
const CURRENT: u32 = 20;
const PAST: [u32; 2] = [21, 22];
const BACKENDS: std::ops::RangeInclusive<u32> = CURRENT..=23;
/// Place of the list in the history.
const LIST: u32 = 4;

/// Inner and outer family, and the transport protocol.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    protocol: u8,
    vip: IpAddr,
    is_outer_v4: bool,
}

const KINDS: [Kind; 4] = [
    kind("v4_in_v4", TCP, VIP_V4, true),
    kind("v4_in_v6", TCP, VIP_V4, false),
    kind("v6_in_v4", TCP, VIP_V6, true),
    kind("v6_in_v6", TCP, VIP_V6, false),
];

const fn kind(name: &'static str, protocol: u8, vip: IpAddr, is_outer_v4: bool) -> Kind {
    Kind {
        name,
        protocol,
        vip,
        is_outer_v4,
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.extend(first_tries(kind));
        cases.extend(pinned(kind));
        cases.extend(marked(kind));
    }
    cases.extend(lists(KINDS[0]));
    cases.extend(without_owner(KINDS[0]));
    cases
}

/// Few, so that they are run at once.
pub(super) fn of_this_moment() -> Vec<Case> {
    KINDS.map(young_pin).to_vec()
}

impl Kind {
    fn to(self) -> End {
        (self.vip, PORT)
    }

    fn node(self, id: u32) -> IpAddr {
        let host = 100 + u8::try_from(id).unwrap();
        if self.is_outer_v4 {
            v4(192, 0, 2, host)
        } else {
            v6(0xe, host.into())
        }
    }

    fn edge(self) -> IpAddr {
        if self.is_outer_v4 { EDGE_V4 } else { EDGE_V6 }
    }

    /// The address of a backend's pod.
    fn pod_of(self, id: u32) -> IpAddr {
        let host = u8::try_from(id).unwrap();
        match self.vip {
            IpAddr::V4(_) => v4(10, 244, 3, host),
            IpAddr::V6(_) => v6(0xb, host.into()),
        }
    }

    fn backend(self, id: u32) -> Backend {
        Backend {
            next_hop: id,
            ..pod(self.pod_of(id), self.node(id), 0)
        }
    }

    fn tag(self, id: u32, tries: u32) -> u16 {
        self.backend(id).tag | u16::try_from(tries << 11).unwrap()
    }

    /// A segment of the client; of other protocols than TCP, a datagram.
    fn segment(self, flags: u8) -> Packet {
        self.segment_to(self.to(), flags)
    }

    /// The same as another end gets it.
    fn segment_to(self, to: End, flags: u8) -> Packet {
        let from = client(self.to());
        match self.protocol {
            TCP => Packet::segment(from, to, flags, b"data"),
            UDP => Packet::udp(from, to, b"data"),
            _ => Packet::sctp(from, to, b"data"),
        }
    }

    fn flow(self) -> Tuple {
        let from = client(self.to());
        let (source, destination) = (address_key(from.0), address_key(self.vip));
        let (from, to) = (from.1.to_be_bytes(), PORT.to_be_bytes());
        Tuple::new(source, destination, from, to, self.protocol)
    }

    fn pin(self, id: u32) -> Pin {
        let made = coarse_ns().wrapping_sub(2_000_000_000);
        Pin::new(&self.flow(), id, &self.backend(id), made)
    }

    /// Begins a case in a world where the slot has had two other owners.
    fn case(self, name: &str, input: Vec<u8>) -> Draft {
        let install = move |tables: &mut TableSet| {
            for id in BACKENDS {
                tables.backends[id as usize] = self.backend(id);
                tables.next_hops[id as usize] = hop(&to_node(id), self.edge());
            }
            tables.service(SERVICE, self.to(), self.protocol, MODE_IPIP, &[CURRENT]);
            tables.service[SERVICE as usize].flags = SERVICE_PODS;
            tables.set_past(SERVICE, LIST, &PAST);
        };
        case(format!("{}_{name}", self.name), input).with(install)
    }

    /// Begins a case with a segment of the client.
    fn begin(self, name: &str, flags: u8) -> Draft {
        self.case(name, IN.carry(&self.segment(flags)))
    }

    /// The frame in which a node returns a segment that was sent to a backend there.
    fn returned_by(self, id: u32, tries: u32) -> Vec<u8> {
        IN.carry(&self.return_of(id, tries))
    }

    fn return_of(self, id: u32, tries: u32) -> Packet {
        self.return_with(ACK, id, tries)
    }

    /// What a node returns, by the flags of the segment.
    fn return_with(self, flags: u8, id: u32, tries: u32) -> Packet {
        let outer = self.segment(flags).next_hop();
        let outer = outer.within(self.node(id), self.edge());
        outer.tag(0x8000 | self.tag(id, tries))
    }

    /// The frame that goes to a backend.
    fn sent_to(self, id: u32, tries: u32, packet: &Packet) -> Vec<u8> {
        let outer = packet.next_hop().within(self.edge(), self.node(id));
        to_node(id).carry(&outer.tag(self.tag(id, tries)))
    }

    /// The client's segment goes to a backend for the first time.
    fn sends(self, draft: Draft, flags: u8, id: u32, tries: u32) -> Case {
        let packet = self.segment(flags);
        let output = self.sent_to(id, tries, &packet);
        draft.transmits(way(SERVICE, id), &packet, output)
    }

    /// The returned segment goes to a backend.
    fn retries(self, draft: Draft, id: u32, tries: u32) -> Case {
        self.retries_with(draft, ACK, id, tries)
    }

    /// The same, by the flags of the segment.
    fn retries_with(self, draft: Draft, flags: u8, id: u32, tries: u32) -> Case {
        let output = self.sent_to(id, tries, &self.segment(flags));
        let counts = counted(ToNodeReason::Retried.index());
        draft.ends(Action::Transmit, output, counts)
    }
}

fn to_node(id: u32) -> Link<'static> {
    Link {
        destination: [0x02, 0, 0, 0, 0x0e, u8::try_from(id).unwrap()],
        ..TO_NODE_V4
    }
}

/// No pins.
fn none() -> [HashMap<Tuple, Pin>; 2] {
    [[].into(), [].into()]
}

/// Marks the slot as one whose flows may have pins.
fn mark(tables: &mut TableSet) {
    let slot = tables.only_slot(SERVICE) as usize;
    tables.pasts[slot] = tables.pasts[slot].pinned();
}

fn keep(kind: Kind, pin: Pin) -> impl Fn(&mut TableSet) {
    move |tables| {
        mark(tables);
        tables.pins[0].insert(kind.flow(), pin);
    }
}

fn keep_young(kind: Kind, pin: Pin) -> impl Fn(&mut TableSet) {
    move |tables| {
        mark(tables);
        tables.pins[1].insert(kind.flow(), pin);
    }
}

/// A new connection goes to the current owner, everything else too, with a try for each owner.
fn first_tries(kind: Kind) -> Vec<Case> {
    let syn = kind.begin("syn_goes_to_the_current_owner_without_tries", SYN);
    let mut cases = vec![kind.sends(syn, SYN, CURRENT, 0)];
    for (name, flags) in [
        ("ack", ACK),
        ("fin", FIN | ACK),
        ("rst", RST),
        ("syn_ack", SYN | ACK),
    ] {
        let name = format!("{name}_goes_to_the_current_owner_with_all_tries");
        let draft = kind.begin(&name, flags);
        cases.push(kind.sends(draft, flags, CURRENT, 3));
    }
    cases
}

/// A pin sends the flow's segments to the owner that has the connection.
fn pinned(kind: Kind) -> Vec<Case> {
    let (pin, flow) = (kind.pin(PAST[1]), kind.flow());
    let ack = |name: &str| kind.begin(name, ACK);
    let other = Pin::new(&flow, PAST[1], &kind.backend(PAST[0]), coarse_ns());
    let down = move |tables: &mut TableSet| {
        tables.backends[PAST[1] as usize].flags |= BACKEND_DOWN;
    };
    let unresolved = |tables: &mut TableSet| {
        tables.backends[PAST[1] as usize].next_hop = 0;
    };
    let current = |draft: Draft| kind.sends(draft, ACK, CURRENT, 3);
    let unmarked = move |tables: &mut TableSet| {
        tables.pins[0].insert(flow, pin);
    };
    vec![
        kind.sends(
            ack("pin_comes_before_the_current_owner").with(keep(kind, pin)),
            ACK,
            PAST[1],
            3,
        ),
        kind.sends(
            ack("young_pin_that_has_stood_for_a_second_is_kept").with(keep_young(kind, pin)),
            ACK,
            PAST[1],
            3,
        )
        .pins([[(flow, pin)].into(), [].into()]),
        current(ack("pins_are_not_looked_for_where_there_are_none").with(unmarked)),
        current(ack("pin_to_a_backend_whose_id_is_anothers_is_none").with(keep(kind, other))),
        current(
            ack("pin_to_a_node_that_is_unreachable_is_none")
                .with(keep(kind, pin))
                .with(down),
        ),
        ack("pin_to_a_backend_that_has_no_next_hop_for_a_moment_stays")
            .with(keep(kind, pin))
            .with(unresolved)
            .drops(DropReason::NextHopUnresolved),
        current(
            ack("pin_to_an_id_beyond_the_table_is_none").with(keep(kind, Pin(pin.0 | 0xffff_0000))),
        ),
    ]
}

fn young_pin(kind: Kind) -> Case {
    let (flow, now) = (kind.flow(), coarse_ns());
    let pin = Pin::new(&flow, PAST[1], &kind.backend(PAST[1]), now);
    let draft = kind.begin("young_pin_of_this_moment_may_yet_be_returned", ACK);
    kind.sends(draft.with(keep_young(kind, pin)), ACK, PAST[1], 3)
        .pins([[].into(), [(flow, pin)].into()])
        .until(now + SECOND)
}

/// A SYN marks the flow's pins. After that, the current owner comes first.
fn marked(kind: Kind) -> Vec<Case> {
    let (pin, flow) = (kind.pin(PAST[1]), kind.flow());
    let marked = pin.marked(CURRENT);
    let syn = |name: &str| kind.begin(name, SYN);
    let goes = |draft: Draft| kind.sends(draft, SYN, CURRENT, 0);
    let ack = |name: &str| kind.begin(name, ACK);
    let current = |draft: Draft| kind.sends(draft, ACK, CURRENT, 3);
    let kept = |pin| [[(flow, pin)].into(), [].into()];
    let young = |pin| [[].into(), [(flow, pin)].into()];
    let both = |tables: &mut TableSet| {
        keep(kind, pin)(tables);
        keep_young(kind, kind.pin(PAST[0]))(tables);
    };
    let syn_frame = || IN.carry(&kind.segment(SYN));
    let to_current = kind.pin(CURRENT);
    let unmarked = |tables: &mut TableSet| {
        tables.pins[0].insert(flow, pin);
    };
    vec![
        goes(syn("syn_marks_a_pin").with(keep(kind, pin))).pins(kept(marked)),
        goes(syn("syn_marks_a_young_pin").with(keep_young(kind, pin))).pins(young(marked)),
        goes(syn("syn_marks_both_pins").with(both)).pins([
            [(flow, marked)].into(),
            [(flow, kind.pin(PAST[0]).marked(CURRENT))].into(),
        ]),
        goes(syn("syn_marks_a_pin_anew").with(keep(kind, pin.marked(23)))).pins(kept(marked)),
        goes(syn("syn_leaves_a_pin_to_the_current_owner").with(keep(kind, to_current))),
        goes(syn("syn_looks_for_no_pins_where_there_are_none").with(unmarked)),
        current(ack("current_owner_comes_before_a_marked_pin").with(keep(kind, marked))),
        current(
            ack("current_owner_comes_before_a_young_marked_pin").with(keep_young(kind, marked)),
        ),
        current(
            ack("another_owner_than_that_of_the_syn_comes_before_a_marked_pin")
                .with(keep(kind, pin.marked(23))),
        ),
        current(
            ack("segment_after_a_syn_goes_where_the_syn_went")
                .with(keep(kind, pin))
                .after(syn_frame()),
        )
        .pins(kept(marked)),
        // The SYN was forged: all that it costs is one return.
        kind.sends(
            ack("segment_after_the_return_of_a_marked_flow_goes_to_its_pin")
                .with(keep(kind, pin))
                .after(syn_frame())
                .after(kind.returned_by(CURRENT, 3)),
            ACK,
            PAST[1],
            3,
        )
        .pins(kept(pin)),
    ]
}

/// Lists of other lengths, and those that cannot be.
fn lists(kind: Kind) -> Vec<Case> {
    let ack = |name: &str| kind.begin(name, ACK);
    let longest = |tables: &mut TableSet| {
        let owners = PAST.repeat(MAX_PAST_OWNERS as usize / 2);
        tables.set_past(SERVICE, LIST, &owners);
    };
    let word = |word| {
        move |tables: &mut TableSet| {
            let slot = tables.only_slot(SERVICE) as usize;
            tables.pasts[slot] = Past(word);
        }
    };
    let moved = |owner| {
        move |tables: &mut TableSet| {
            tables.set_owner(SERVICE, owner);
            tables.set_past(SERVICE, LIST, &[CURRENT, PAST[0], PAST[1]]);
        }
    };
    vec![
        kind.sends(
            ack("longest_list_has_fifteen_tries").with(longest),
            ACK,
            CURRENT,
            15,
        ),
        kind.sends(
            ack("list_of_one_has_two_tries").with(|tables| tables.set_past(SERVICE, LIST, &[21])),
            ACK,
            CURRENT,
            2,
        ),
        kind.sends(
            ack("count_of_fifteen_is_no_list").with(word(0xf000_0000 | LIST)),
            ACK,
            CURRENT,
            0,
        ),
        kind.sends(
            ack("empty_list_has_no_tries").with(word(LIST)),
            ACK,
            CURRENT,
            0,
        ),
        kind.retries(
            kind.case(
                "list_beyond_the_history_has_no_owners",
                kind.returned_by(CURRENT, 3),
            )
            .with(word(2 << 28 | 0x03ff_fff0)),
            CURRENT,
            0,
        ),
        kind.retries(
            kind.case(
                "owner_beyond_the_table_is_passed_over",
                kind.returned_by(CURRENT, 3),
            )
            .with(|tables| tables.set_past(SERVICE, LIST, &[99_999, PAST[1]])),
            PAST[1],
            1,
        )
        .pins([[].into(), [(kind.flow(), kind.pin(PAST[1]))].into()]),
        // The tries are counted from the list's end.
        kind.retries(
            kind.case(
                "list_that_grows_on_the_way_shifts_nothing",
                kind.returned_by(PAST[0], 2),
            )
            .with(moved(23)),
            PAST[1],
            1,
        )
        .pins([[].into(), [(kind.flow(), kind.pin(PAST[1]))].into()]),
        kind.retries(
            kind.case("owner_that_becomes_a_past_one_on_the_way_is_known", {
                kind.returned_by(CURRENT, 3)
            })
            .with(moved(23)),
            PAST[0],
            2,
        )
        .pins([[].into(), [(kind.flow(), kind.pin(PAST[0]))].into()]),
    ]
}

/// The service has lost all of its backends.
fn without_current(tables: &mut TableSet) {
    tables.set_owner(SERVICE, 0);
    tables.set_past(SERVICE, LIST, &PAST);
}

/// A service that has lost all of its backends still has their connections.
fn without_owner(kind: Kind) -> Vec<Case> {
    let none = without_current;
    let down = |tables: &mut TableSet| {
        tables.backends[PAST[0] as usize].flags |= BACKEND_DOWN;
    };
    let all_down = move |tables: &mut TableSet| {
        down(tables);
        tables.backends[PAST[1] as usize].flags |= BACKEND_DOWN;
    };
    let syn = kind.segment(SYN);
    let refused = BACK.carry(&reset_of_syn(kind.to(), 4));
    let mut header = etherparse::TcpHeader::new(kind.to().1, client(kind.to()).1, 0, 0);
    header.rst = true;
    let reset = Packet::tcp_with(kind.to(), client(kind.to()), header, &[]).fresh();
    vec![
        kind.case("syn_without_a_current_owner_is_refused", IN.carry(&syn))
            .with(none)
            .replies(ReplyReason::Reset, refused.clone()),
        kind.case("syn_without_a_current_owner_marks_no_pin", IN.carry(&syn))
            .with(none)
            .with(keep(kind, kind.pin(PAST[1])))
            .replies(ReplyReason::Reset, refused),
        kind.sends(
            kind.begin(
                "ack_without_a_current_owner_goes_to_the_newest_past_one",
                ACK,
            )
            .with(none),
            ACK,
            PAST[0],
            2,
        ),
        // Without backends, the service's entry does not say that they were pods.
        kind.sends(
            kind.begin("ack_of_a_service_without_any_backend_has_tries", ACK)
                .with(none)
                .with(|tables| tables.service[SERVICE as usize].flags = 0),
            ACK,
            PAST[0],
            2,
        ),
        kind.sends(
            kind.begin(
                "ack_without_a_current_owner_passes_over_a_node_that_is_down",
                ACK,
            )
            .with(none)
            .with(down),
            ACK,
            PAST[1],
            1,
        ),
        kind.begin("ack_without_any_owner_is_refused", ACK)
            .with(none)
            .with(all_down)
            .replies(ReplyReason::Reset, BACK.carry(&reset)),
        kind.retries(
            kind.case(
                "return_without_a_current_owner_goes_on",
                kind.returned_by(PAST[0], 2),
            )
            .with(none),
            PAST[1],
            1,
        )
        .pins([[].into(), [(kind.flow(), kind.pin(PAST[1]))].into()]),
        kind.retries(
            kind.case(
                "return_of_a_pin_without_a_current_owner_begins_at_the_newest",
                kind.returned_by(PAST[1], 3),
            )
            .with(none)
            .with(keep(kind, kind.pin(PAST[1]))),
            PAST[0],
            2,
        )
        .pins([[].into(), [(kind.flow(), kind.pin(PAST[0]))].into()]),
    ]
}
