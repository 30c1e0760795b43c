//! What becomes of a segment that a node returns to the edge, and of what only seems to be one.

use xdp_prog::{
    abi::{BACKEND_DOWN, BACKEND_POD, Backend, Pin, SERVICE_SOURCE_RANGES},
    process::Action,
    reason::{DropReason, PassReason, ReplyReason, ToNodeReason},
};

use super::{
    super::{
        super::{
            hash,
            packet::{ACK, Link, Packet, RST, SYN, VLAN},
            tables::{TableSet, padded},
        },
        BACK, CLIENT_V4, Case, Draft, EDGE_V4, HASH_SEED, IN, PEER_V4, TCP, VIP_V4, client,
        counted, time_exceeded, too_big, v4, v6, way,
    },
    CURRENT, KINDS, Kind, LIST, PAST, PORT, SERVICE, keep, keep_young, mark, none, to_node,
    without_current,
};

pub(in super::super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.extend(walk(kind));
        cases.extend(reset(kind));
        cases.extend(to_the_pin(kind));
        cases.extend(not_returned(kind));
    }
    cases.extend(owners_that_are_not_tried(KINDS[0]));
    cases.extend(frames(KINDS[0]));
    cases.extend(what_seems_returned(KINDS[0]));
    cases.extend(rules(KINDS[0]));
    cases
}

/// A RST goes from owner to owner like other segments. What was noted of it would come behind the SYN of the client's next
/// connection.
fn reset(kind: Kind) -> [Case; 2] {
    let case = |name: &str| kind.case(name, IN.carry(&kind.return_with(RST, CURRENT, 3)));
    let walks = case("returned_rst_is_tried_and_not_pinned");
    let pin = kind.pin(PAST[1]).marked(CURRENT);
    let is_pinned = case("returned_rst_goes_to_the_pin_and_leaves_its_mark").with(keep(kind, pin));
    [
        kind.retries_with(walks, RST, PAST[0], 2).pins(none()),
        kind.retries_with(is_pinned, RST, PAST[1], 3)
            .pins([[(kind.flow(), pin)].into(), [].into()]),
    ]
}

/// A returned segment goes from owner to owner, and to the current one at last.
fn walk(kind: Kind) -> Vec<Case> {
    let flow = kind.flow();
    let young = |id| [[].into(), [(flow, kind.pin(id))].into()];
    let none = || [[].into(), [].into()];
    let case = |name: &str, id, tries| kind.case(name, kind.returned_by(id, tries));
    vec![
        kind.retries(
            case(
                "return_of_the_current_owner_goes_to_the_newest_past_one",
                CURRENT,
                3,
            ),
            PAST[0],
            2,
        )
        .pins(young(PAST[0])),
        kind.retries(
            case(
                "return_of_a_past_owner_goes_to_the_one_before_it",
                PAST[0],
                2,
            )
            .with(keep_young(kind, kind.pin(PAST[0]))),
            PAST[1],
            1,
        )
        .pins(young(PAST[1])),
        kind.retries(
            case(
                "return_of_the_oldest_owner_goes_to_the_current_one",
                PAST[1],
                1,
            )
            .with(keep_young(kind, kind.pin(PAST[1]))),
            CURRENT,
            0,
        )
        .pins(none()),
        kind.retries(
            case("return_of_the_pin_goes_to_the_current_owner", PAST[1], 3)
                .with(keep(kind, kind.pin(PAST[1]))),
            CURRENT,
            3,
        )
        .pins(none()),
        kind.retries(
            case(
                "return_of_a_young_pin_goes_to_the_current_owner",
                PAST[0],
                3,
            )
            .with(keep_young(kind, kind.pin(PAST[0]))),
            CURRENT,
            3,
        )
        .pins(none()),
        // The segment that comes next goes straight to where the last one was sent.
        kind.sends(
            kind.begin(
                "segment_after_a_return_goes_to_the_owner_that_was_tried",
                ACK,
            )
            .after(kind.returned_by(CURRENT, 3)),
            ACK,
            PAST[0],
            3,
        )
        .pins(young(PAST[0])),
        // The first of these took the pin away.
        kind.retries(
            case(
                "return_of_a_pin_that_has_just_ended_goes_to_the_current_owner",
                PAST[1],
                3,
            )
            .with(keep_young(kind, kind.pin(PAST[0]))),
            CURRENT,
            3,
        ),
        kind.retries(
            case(
                "return_of_a_pin_that_has_just_gone_goes_to_the_current_owner",
                PAST[1],
                3,
            ),
            CURRENT,
            3,
        ),
    ]
}

/// What the current owner returns goes straight to the flow's pin, unless a SYN went to another owner since.
fn to_the_pin(kind: Kind) -> Vec<Case> {
    let (pin, flow) = (kind.pin(PAST[1]), kind.flow());
    let marked = pin.marked(CURRENT);
    let returned = |name: &str| kind.case(name, kind.returned_by(CURRENT, 3));
    let to_the_pin = |draft: Draft| kind.retries(draft, PAST[1], 3);
    let walks = |draft: Draft| {
        let case = kind.retries(draft, PAST[0], 2);
        case.pins([[].into(), [(flow, kind.pin(PAST[0]))].into()])
    };
    let (none, kept) = (|| [[].into(), [].into()], [[(flow, pin)].into(), [].into()]);
    let of_another = Pin::new(&flow, PAST[1], &kind.backend(PAST[0]), 0).marked(CURRENT);
    let down = |tables: &mut TableSet| {
        tables.backends[PAST[1] as usize].flags |= BACKEND_DOWN;
    };
    let moved = |tables: &mut TableSet| {
        tables.set_owner(SERVICE, 23);
        tables.set_past(SERVICE, LIST, &[CURRENT, PAST[0], PAST[1]]);
    };
    let like_current = Backend {
        port: [0, 99],
        ..kind.backend(CURRENT)
    };
    let alike = move |tables: &mut TableSet| {
        tables.backends[PAST[1] as usize] = like_current;
    };
    let by_the_next_owner = kind.returned_by(23, 4);
    vec![
        to_the_pin(returned("return_after_a_syn_goes_to_the_pin").with(keep(kind, marked)))
            .pins(kept.clone()),
        to_the_pin(
            returned("return_after_a_syn_goes_to_the_young_pin").with(keep_young(kind, marked)),
        )
        .pins([[].into(), [(flow, pin)].into()]),
        to_the_pin(
            returned("return_after_a_syn_needs_no_allowance")
                .with(keep(kind, marked))
                .with(TableSet::use_up_returns),
        )
        .pins(kept.clone()),
        kind.retries(
            kind.case("return_of_a_marked_pin_goes_to_the_current_owner", {
                kind.returned_by(PAST[1], 3)
            })
            .with(keep(kind, marked)),
            CURRENT,
            3,
        )
        .pins(none()),
        // Of the segments under way, the first one has taken the mark off.
        to_the_pin(
            returned("second_return_after_a_syn_goes_to_the_pin")
                .with(keep(kind, marked))
                .after(kind.returned_by(CURRENT, 3))
                .with(TableSet::use_up_returns),
        )
        .pins(kept.clone()),
        to_the_pin(
            returned("return_by_the_current_owner_of_what_was_pinned_meanwhile")
                .with(keep(kind, pin))
                .with(TableSet::use_up_returns),
        )
        .pins(kept.clone()),
        to_the_pin(
            returned("return_by_the_current_owner_of_what_was_pinned_young_meanwhile")
                .with(keep_young(kind, pin))
                .with(TableSet::use_up_returns),
        )
        .pins([[].into(), [(flow, pin)].into()]),
        to_the_pin(
            kind.case(
                "return_without_a_current_owner_of_what_was_pinned_meanwhile",
                kind.returned_by(PAST[0], 2),
            )
            .with(without_current)
            .with(keep(kind, pin))
            .with(TableSet::use_up_returns),
        )
        .pins(kept.clone()),
        // Its node cannot tell the two.
        walks(
            returned("return_by_the_current_owner_is_that_of_a_pinned_one_with_its_tag")
                .with(alike)
                .with(keep(kind, Pin::new(&flow, PAST[1], &like_current, 0))),
        ),
        walks(
            returned("return_after_a_syn_passes_over_a_pin_to_another_backend_of_that_id")
                .with(keep(kind, of_another)),
        ),
        walks(
            returned("return_after_a_syn_passes_over_a_pin_to_a_node_that_is_unreachable")
                .with(keep(kind, marked))
                .with(down),
        ),
        // The SYN went to the owner before, which may have the connection.
        kind.retries(
            kind.case(
                "return_after_a_syn_to_the_owner_before_goes_to_that_one",
                by_the_next_owner.clone(),
            )
            .with(moved)
            .with(keep(kind, marked)),
            CURRENT,
            3,
        )
        .pins([[].into(), [(flow, kind.pin(CURRENT))].into()]),
        kind.case(
            "return_after_a_syn_to_the_owner_before_needs_allowance",
            by_the_next_owner,
        )
        .with(moved)
        .with(keep(kind, marked))
        .with(TableSet::use_up_returns)
        .drops(DropReason::ReturnLimited),
    ]
}

/// What no node can have returned is not sent on.
fn not_returned(kind: Kind) -> Vec<Case> {
    let refused = DropReason::ReturnRefused;
    let unexpected = DropReason::ReturnUnexpected;
    let outer = |from, to, tag| {
        let inner = kind.segment(ACK).next_hop();
        IN.carry(&inner.within(from, to).tag(0x8000 | tag))
    };
    let (node, edge) = (kind.node(CURRENT), kind.edge());
    let tag = |tries| kind.tag(CURRENT, tries);
    let elsewhere = if kind.is_outer_v4 {
        v4(192, 0, 2, 77)
    } else {
        v6(0xe, 77)
    };
    vec![
        kind.case(
            "return_by_another_node_is_refused",
            outer(elsewhere, edge, tag(3)),
        )
        .drops(refused),
        kind.case("return_by_the_node_of_another_owner_is_refused", {
            outer(kind.node(PAST[0]), edge, tag(3))
        })
        .drops(refused),
        kind.case(
            "return_out_of_turn_is_refused",
            kind.returned_by(PAST[1], 2),
        )
        .drops(refused),
        kind.case("return_with_the_tag_of_another_pod_is_refused", {
            outer(node, edge, tag(3) ^ 1)
        })
        .drops(refused),
        kind.case(
            "return_to_another_address_is_not_ours",
            outer(node, elsewhere, tag(3)),
        )
        .passes(PassReason::EncapNotOurs),
        kind.case("return_of_a_syn_is_unexpected", {
            let syn = kind.segment(SYN).next_hop();
            IN.carry(&syn.within(node, edge).tag(0x8000 | tag(3)))
        })
        .drops(unexpected),
        kind.case("return_by_what_never_owned_the_slot_is_refused", {
            kind.returned_by(23, 3)
        })
        .with(mark)
        .drops(refused),
        kind.case(
            "return_without_tries_is_unexpected",
            kind.returned_by(CURRENT, 0),
        )
        .drops(unexpected),
        kind.case("return_with_more_tries_than_owners_is_unexpected", {
            kind.returned_by(CURRENT, 4)
        })
        .drops(unexpected),
        kind.case("return_to_a_slot_without_past_is_ipip_of_a_stranger", {
            kind.returned_by(CURRENT, 3)
        })
        .with(|tables| tables.set_owner(SERVICE, CURRENT))
        .passes(PassReason::EncapUntrusted),
        kind.case(
            "return_beyond_the_allowance_is_dropped",
            kind.returned_by(CURRENT, 3),
        )
        .with(TableSet::use_up_returns)
        .drops(DropReason::ReturnLimited),
        kind.retries(
            kind.case(
                "allowance_is_for_the_first_return_alone",
                kind.returned_by(PAST[0], 2),
            )
            .with(TableSet::use_up_returns),
            PAST[1],
            1,
        )
        .pins([[].into(), [(kind.flow(), kind.pin(PAST[1]))].into()]),
        kind.case(
            "allowance_is_for_the_first_return_without_a_current_owner_too",
            kind.returned_by(PAST[0], 2),
        )
        .with(TableSet::use_up_returns)
        .with(without_current)
        .drops(DropReason::ReturnLimited),
        kind.retries(
            kind.case(
                "return_of_the_current_owner_takes_a_pin_to_it_away",
                kind.returned_by(CURRENT, 3),
            )
            .with(keep(kind, kind.pin(CURRENT))),
            PAST[0],
            2,
        )
        .pins([[].into(), [(kind.flow(), kind.pin(PAST[0]))].into()]),
    ]
}

/// Owners that could not return the segment, or not get it, are passed over.
fn owners_that_are_not_tried(kind: Kind) -> Vec<Case> {
    let returned = |name: &str| kind.case(name, kind.returned_by(CURRENT, 3));
    let change = |change: fn(&mut Backend)| {
        move |tables: &mut TableSet| change(&mut tables.backends[PAST[0] as usize])
    };
    let oldest = |draft: Draft| {
        kind.retries(draft, PAST[1], 1)
            .pins([[].into(), [(kind.flow(), kind.pin(PAST[1]))].into()])
    };
    let both_down = |tables: &mut TableSet| {
        for id in PAST {
            tables.backends[id as usize].flags |= BACKEND_DOWN;
        }
    };
    vec![
        oldest(
            returned("past_owner_on_an_unreachable_node_is_passed_over")
                .with(change(|backend| backend.flags |= BACKEND_DOWN)),
        ),
        oldest(
            returned("past_owner_without_next_hop_is_passed_over")
                .with(change(|backend| backend.next_hop = 0)),
        ),
        oldest(
            returned("past_owner_that_is_no_pod_is_passed_over")
                .with(change(|backend| backend.flags &= !BACKEND_POD)),
        ),
        kind.retries(
            returned("where_no_past_owner_can_be_tried_the_current_one_gets_it").with(both_down),
            CURRENT,
            0,
        ),
        kind.sends(
            kind.begin("segment_stays_where_the_current_owner_returns_nothing", ACK)
                .with(|tables| {
                    let backend = &mut tables.backends[CURRENT as usize];
                    backend.flags &= !BACKEND_POD;
                }),
            ACK,
            PAST[0],
            0,
        )
        .pins(kind.young(PAST[0])),
        {
            let spread = |tables: &mut TableSet| {
                let hop = &mut tables.next_hops[CURRENT as usize];
                hop.source = padded(v4(10, 50, 0, 0));
                hop.spread = 1;
            };
            let packet = kind.segment(ACK);
            let bits = hash::flow(HASH_SEED, client(kind.to()), kind.to(), TCP) & 1;
            let from = v4(10, 50, 0, u8::try_from(bits).unwrap());
            let outer = packet.next_hop().within(from, kind.node(CURRENT));
            let output = to_node(CURRENT).carry(&outer.tag(kind.tag(CURRENT, 0)));
            kind.begin("outer_source_of_the_flows_own_gets_nothing_back", ACK)
                .with(keep(kind, kind.pin(CURRENT)))
                .with(spread)
                .transmits(way(SERVICE, CURRENT), &packet, output)
        },
    ]
}

/// Headers on the way, and what they say.
fn frames(kind: Kind) -> Vec<Case> {
    let tagged = Link {
        tags: &[(VLAN, 7)],
        ..IN
    };
    let young = || [[].into(), [(kind.flow(), kind.pin(PAST[0]))].into()];
    let dying = kind.segment(ACK).hop_limit(1);
    let large = Packet::segment(client(kind.to()), kind.to(), ACK, &[0; 1450]);
    let last = kind.segment(ACK).hop_limit(2);
    let returned = |inner: &Packet, class| {
        let outer = inner.next_hop().within(kind.node(CURRENT), kind.edge());
        IN.carry(&outer.class(class).tag(0x8000 | kind.tag(CURRENT, 3)))
    };
    let retried = counted(ToNodeReason::Retried.index());
    let again = |name: &str, input, packet: &Packet| {
        let output = kind.sent_to(PAST[0], 2, packet);
        kind.case(name, input)
            .ends(Action::Transmit, output, retried.clone())
            .pins(young())
    };
    let capable = kind.segment(ACK).class(2);
    vec![
        kind.retries(
            kind.case(
                "return_behind_a_vlan_tag_goes_on_without_it",
                tagged.carry(&kind.return_of(CURRENT, 3)),
            ),
            PAST[0],
            2,
        )
        .pins(young()),
        again("retry_is_no_hop_more", returned(&last, 0), &last),
        again(
            "congestion_on_the_way_back_stays_marked",
            returned(&capable, 3),
            &kind.segment(ACK).class(3),
        ),
        kind.case(
            "congestion_on_the_way_back_of_what_takes_no_mark_drops",
            returned(&kind.segment(ACK), 3),
        )
        .drops(DropReason::EcnDropped)
        .pins(young()),
        kind.case("segment_that_dies_here_is_answered", IN.carry(&dying))
            .replies(
                ReplyReason::TimeExceeded,
                BACK.carry(&time_exceeded(&dying)),
            ),
        kind.case("segment_that_is_too_large_is_answered", IN.carry(&large))
            .replies(
                ReplyReason::PacketTooBig,
                BACK.carry(&too_big(&large, 1480)),
            ),
    ]
}

/// What no node has returned is judged as IP-in-IP of anybody.
fn what_seems_returned(kind: Kind) -> Vec<Case> {
    let udp = Packet::udp(client(kind.to()), kind.to(), b"data");
    let outer = |inner: &Packet| {
        let outer = inner.within(kind.node(CURRENT), kind.edge());
        IN.carry(&outer.tag(0x8000 | kind.tag(CURRENT, 3)))
    };
    vec![
        kind.case(
            "datagram_that_seems_returned_is_ipip_of_a_stranger",
            outer(&udp),
        )
        .passes(PassReason::EncapUntrusted),
        kind.case(
            "ipip_without_a_segment_that_seems_returned_is_a_strangers",
            outer(&Packet::ip(CLIENT_V4, VIP_V4, 50, &[0; 8])),
        )
        .passes(PassReason::EncapUntrusted),
        kind.case(
            "return_to_a_service_that_is_not_here_is_ipip_of_a_stranger",
            {
                let other = (VIP_V4, PORT + 1);
                outer(&Packet::segment(client(other), other, ACK, b""))
            },
        )
        .passes(PassReason::EncapUntrusted),
        kind.case(
            "return_within_another_outer_header_is_ipip_of_a_stranger",
            outer(&kind.return_of(CURRENT, 3)),
        )
        .passes(PassReason::EncapUntrusted),
        kind.case("tag_of_an_edge_that_writes_none_is_no_return", {
            let inner = Packet::tcp(client((VIP_V4, 80)), (VIP_V4, 80), b"");
            IN.carry(&inner.within(PEER_V4, EDGE_V4).tag(0xffff))
        })
        .decapsulates(IN.carry(&Packet::tcp(client((VIP_V4, 80)), (VIP_V4, 80), b""))),
    ]
}

/// The rules of a service come before its owners.
fn rules(kind: Kind) -> Vec<Case> {
    let ranges = |tables: &mut TableSet| {
        tables.service[SERVICE as usize].flags |= SERVICE_SOURCE_RANGES;
    };
    vec![
        kind.begin("client_outside_the_source_ranges_has_no_tries", ACK)
            .with(ranges)
            .drops(DropReason::SourceRange),
        kind.sends(
            kind.begin("rules_of_the_service_come_first", ACK)
                .with(ranges)
                .with(|tables| tables.admit(SERVICE, CLIENT_V4, 32)),
            ACK,
            CURRENT,
            3,
        ),
        kind.sends(
            kind.begin("service_with_affinity_has_tries", ACK)
                .with(|tables| tables.service[SERVICE as usize].affinity = 5),
            ACK,
            CURRENT,
            3,
        ),
    ]
}
