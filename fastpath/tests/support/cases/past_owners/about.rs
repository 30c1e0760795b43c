//! What is about a flow of a slot that has had other owners: ICMP errors that quote it, and its fragments.

use std::net::IpAddr;

use xdp_prog::{
    abi::BACKEND_DOWN,
    process::Action,
    reason::{DropReason, PassReason, ToNodeReason},
};

use super::{
    super::{
        super::{
            packet::{ACK, End, Packet, SYN},
            tables::TableSet,
        },
        Case, Draft, IN, client, counted, v4, v6, way,
    },
    CURRENT, KINDS, Kind, PAST, SERVICE, keep, without_current,
};

/// Bytes in each fragment, and the number of the datagram.
const SIZE: usize = 256;
const ID: u32 = 0x00c0_ffee;

pub(in super::super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.extend(errors(kind));
        cases.extend(errors_here(kind));
        cases.extend(fragments(kind));
        cases.extend(fragments_here(kind));
    }
    cases.extend(without_owner(KINDS[0]));
    cases
}

/// The segment that a server sent, of which a router tells that it is too big.
pub(in super::super) fn error(from: End, to: IpAddr, end: End) -> Packet {
    let router = if end.0.is_ipv4() {
        v4(198, 51, 100, 254)
    } else {
        v6(0xc, 254)
    };
    let kind = if to.is_ipv4() { (3, 4) } else { (2, 0) };
    let quote = Packet::segment(from, end, ACK, b"an answer").hop_limit(50);
    Packet::icmp(router, to, kind, [0, 0, 5, 0x78], &quote.bytes())
}

/// A segment of 600 bytes in three pieces.
pub(in super::super) fn pieces(from: End, to: End, flags: u8) -> Vec<Packet> {
    let payload: Vec<u8> = (0..=255).cycle().take(600).collect();
    Packet::segment(from, to, flags, &payload).pieces(SIZE, ID)
}

impl Kind {
    pub(super) fn error(self) -> Packet {
        error(self.to(), self.vip, client(self.to()))
    }

    /// The error as a pod here gets it.
    pub(super) fn error_at(self, id: u32) -> Packet {
        error(self.pod(id), self.pod(id).0, client(self.to()))
    }

    pub(super) fn pieces(self, flags: u8) -> Vec<Packet> {
        pieces(client(self.to()), self.to(), flags)
    }

    pub(super) fn pieces_at(self, id: u32) -> Vec<Packet> {
        pieces(client(self.to()), self.pod(id), ACK)
    }

    /// The frame in which a node returns a packet that was sent to a backend there.
    fn return_by(self, id: u32, tries: u32, inner: &Packet) -> Vec<u8> {
        let outer = inner.next_hop().within(self.node(id), self.edge());
        IN.carry(&outer.tag(0x8000 | self.tag(id, tries)))
    }

    /// The packet goes to a backend for the first time.
    fn sends_it(self, draft: Draft, packet: &Packet, id: u32, tries: u32) -> Case {
        let output = self.sent_to(id, tries, packet);
        draft.transmits(way(SERVICE, id), packet, output)
    }

    /// The returned packet goes to a backend.
    fn retries_it(self, draft: Draft, packet: &Packet, id: u32, tries: u32) -> Case {
        let output = self.sent_to(id, tries, packet);
        let counts = counted(ToNodeReason::Retried.index());
        draft.ends(Action::Transmit, output, counts)
    }

    fn young_at(self, case: Case, id: u32) -> Case {
        case.pins([[].into(), [(self.flow(), self.pin(id))].into()])
    }
}

/// An error takes the way of the flow that it quotes.
fn errors(kind: Kind) -> Vec<Case> {
    let error = kind.error();
    let returned = |id, tries| kind.return_by(id, tries, &error);
    let echo = Packet::echo(client(kind.to()).0, kind.vip);
    vec![
        kind.sends_it(
            kind.case("error_goes_to_the_current_owner_with_all_tries", {
                IN.carry(&error)
            }),
            &error,
            CURRENT,
            3,
        ),
        kind.sends_it(
            kind.case("error_about_a_pinned_flow_goes_to_its_owner", {
                IN.carry(&error)
            })
            .with(keep(kind, kind.pin(PAST[1]))),
            &error,
            PAST[1],
            3,
        ),
        kind.retries_it(
            kind.case("error_that_is_returned_after_a_syn_goes_to_the_pin", {
                returned(CURRENT, 3)
            })
            .with(keep(kind, kind.pin(PAST[1]).marked(CURRENT))),
            &error,
            PAST[1],
            3,
        )
        .pins([[(kind.flow(), kind.pin(PAST[1]))].into(), [].into()]),
        {
            let draft = kind.case("error_that_is_returned_goes_on", returned(CURRENT, 3));
            let case = kind.retries_it(draft, &error, PAST[0], 2);
            kind.young_at(case, PAST[0])
        },
        kind.retries_it(
            kind.case("error_that_nobody_knows_ends_at_the_current_owner", {
                returned(PAST[1], 1)
            }),
            &error,
            CURRENT,
            0,
        ),
        kind.case("error_that_is_returned_by_another_node_is_refused", {
            let outer = error.next_hop().within(kind.node(PAST[0]), kind.edge());
            IN.carry(&outer.tag(0x8000 | kind.tag(CURRENT, 3)))
        })
        .drops(DropReason::ReturnRefused),
        kind.case("ping_that_seems_returned_is_ipip_of_a_stranger", {
            kind.return_by(CURRENT, 3, &echo)
        })
        .passes(PassReason::EncapUntrusted),
    ]
}

/// Edge and node in one machine: an error goes to the pod that knows the flow that it quotes.
fn errors_here(kind: Kind) -> Vec<Case> {
    let error = kind.error();
    let case = |name: &str| kind.case(name, IN.carry(&error));
    let current = kind.here(&[CURRENT]);
    let past = kind.here(&[PAST[0]]);
    let delivered = |draft: Draft, id| {
        let output = IN.carry(&kind.error_at(id));
        draft.delivers(way(SERVICE, id), error.length(), output)
    };
    vec![
        delivered(
            case("error_about_a_flow_at_the_current_pod_here")
                .with(&current)
                .with(kind.known_at(CURRENT)),
            CURRENT,
        ),
        {
            let draft = case("error_about_a_flow_that_is_not_here_goes_on").with(&current);
            let case = kind.sends_it(draft, &error, PAST[0], 2);
            kind.young_at(case, PAST[0])
        },
        {
            let draft = kind.case("error_about_a_flow_at_a_past_pod_here", {
                kind.return_by(CURRENT, 3, &error)
            });
            let draft = draft.with(&past).with(kind.known_at(PAST[0]));
            let output = IN.carry(&kind.error_at(PAST[0]).next_hop());
            let case = draft.delivers(way(SERVICE, PAST[0]), error.length(), output);
            kind.young_at(case, PAST[0])
        },
        delivered(
            case("error_about_a_flow_at_no_pod_here_goes_to_the_current_one")
                .with(kind.here(&[CURRENT, PAST[0], PAST[1]])),
            CURRENT,
        ),
    ]
}

/// Fragments take the way of their flow, by the ports that the first one shows.
fn fragments(kind: Kind) -> Vec<Case> {
    let pieces = kind.pieces(ACK);
    let syn = kind.pieces(SYN);
    let (first, later) = (IN.carry(&pieces[0]), IN.carry(&pieces[1]));
    let pinned = keep(kind, kind.pin(PAST[1]));
    let returned = |piece: &Packet| kind.return_by(CURRENT, 3, piece);
    let goes_on = |draft, piece| {
        let case = kind.retries_it(draft, piece, PAST[0], 2);
        kind.young_at(case, PAST[0])
    };
    vec![
        kind.sends_it(
            kind.case(
                "first_fragment_goes_to_the_current_owner_with_all_tries",
                first.clone(),
            ),
            &pieces[0],
            CURRENT,
            3,
        ),
        kind.sends_it(
            kind.case(
                "later_fragment_goes_to_the_current_owner_with_all_tries",
                later.clone(),
            )
            .after(first.clone()),
            &pieces[1],
            CURRENT,
            3,
        ),
        kind.sends_it(
            kind.case("first_fragment_of_a_syn_has_no_tries", IN.carry(&syn[0])),
            &syn[0],
            CURRENT,
            0,
        ),
        kind.sends_it(
            kind.case("first_fragment_of_a_syn_marks_a_pin", IN.carry(&syn[0]))
                .with(&pinned),
            &syn[0],
            CURRENT,
            0,
        )
        .pins([
            [(kind.flow(), kind.pin(PAST[1]).marked(CURRENT))].into(),
            [].into(),
        ]),
        kind.sends_it(
            kind.case(
                "first_fragment_of_a_marked_flow_goes_to_the_current_owner",
                first.clone(),
            )
            .with(keep(kind, kind.pin(PAST[1]).marked(CURRENT))),
            &pieces[0],
            CURRENT,
            3,
        ),
        kind.sends_it(
            kind.case(
                "first_fragment_of_a_pinned_flow_goes_to_its_owner",
                first.clone(),
            )
            .with(&pinned),
            &pieces[0],
            PAST[1],
            3,
        ),
        kind.sends_it(
            kind.case("later_fragment_of_a_pinned_flow_goes_to_its_owner", later)
                .with(&pinned)
                .after(first.clone()),
            &pieces[1],
            PAST[1],
            3,
        ),
        goes_on(
            kind.case(
                "first_fragment_that_is_returned_goes_on",
                returned(&pieces[0]),
            ),
            &pieces[0],
        ),
        goes_on(
            kind.case(
                "later_fragment_that_is_returned_goes_on",
                returned(&pieces[1]),
            )
            .after(first),
            &pieces[1],
        ),
        kind.case(
            "later_fragment_that_is_returned_out_of_nowhere_is_ipip_of_a_stranger",
            returned(&pieces[1]),
        )
        .passes(PassReason::EncapUntrusted),
    ]
}

/// Edge and node in one machine: fragments go to the pod that knows their flow.
fn fragments_here(kind: Kind) -> Vec<Case> {
    let pieces = kind.pieces(ACK);
    let (first, later) = (IN.carry(&pieces[0]), IN.carry(&pieces[1]));
    let current = kind.here(&[CURRENT]);
    let delivered = |draft: Draft, piece: usize, id: u32| {
        let output = IN.carry(&kind.pieces_at(id)[piece]);
        draft.delivers(way(SERVICE, id), pieces[piece].length(), output)
    };
    vec![
        delivered(
            kind.case("first_fragment_known_here", first.clone())
                .with(&current)
                .with(kind.known_at(CURRENT)),
            0,
            CURRENT,
        ),
        delivered(
            kind.case("later_fragment_known_here", later.clone())
                .with(&current)
                .with(kind.known_at(CURRENT))
                .after(first.clone()),
            1,
            CURRENT,
        ),
        {
            let draft = kind.case("later_fragment_unknown_here_goes_on", later.clone());
            let draft = draft.with(&current).after(first.clone());
            let case = kind.sends_it(draft, &pieces[1], PAST[0], 3);
            // The first one has pinned the flow.
            kind.young_at(case, PAST[0])
        },
        {
            let draft = kind.case("later_fragment_known_at_a_past_pod_here", later);
            let draft = draft.with(kind.here(&[CURRENT, PAST[0]])).after(first);
            let draft = draft.with(kind.known_at(PAST[0]));
            let case = delivered(draft, 1, PAST[0]);
            kind.young_at(case, PAST[0])
        },
    ]
}

/// The service has lost all of its backends.
fn without_owner(kind: Kind) -> Vec<Case> {
    let down = |tables: &mut TableSet| {
        for id in PAST {
            tables.backends[id as usize].flags |= BACKEND_DOWN;
        }
    };
    let error = kind.error();
    let case = |name: &str| kind.case(name, IN.carry(&error)).with(without_current);
    vec![
        kind.sends_it(
            case("error_without_a_current_owner_goes_to_the_newest_past_one"),
            &error,
            PAST[0],
            2,
        ),
        case("error_without_any_owner_drops")
            .with(down)
            .drops(DropReason::NoBackend),
    ]
}
