//! IP-in-IP to this machine: trust, malformed insides, congestion marks.

use std::net::IpAddr;

use xdp_prog::{
    abi::{ADDRESS_LOCAL, ADDRESS_VIP},
    reason::{DropReason, PassReason},
};

use super::{
    super::packet::{IPV4, Link, Packet, SERVICE_VLAN, VLAN, forged_v4, patched},
    CLIENT_V4, Case, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, STRANGER_V4, STRANGER_V6, V4_L2,
    V4_TCP, V4_UDP, V6_TCP, VIP_V4, VIP_V6, case,
    forward::with_checksum,
    tcp, udp, v4, v6,
};

/// A pair of families.
struct Pair {
    name: &'static str,
    inner: fn() -> Packet,
    peer: IpAddr,
    own: IpAddr,
    stranger: IpAddr,
}

const PAIRS: [Pair; 4] = [
    Pair {
        name: "v4_in_v4",
        inner: || tcp(V4_TCP.1),
        peer: PEER_V4,
        own: EDGE_V4,
        stranger: STRANGER_V4,
    },
    Pair {
        name: "v6_in_v4",
        inner: || tcp(V6_TCP.1),
        peer: PEER_V4,
        own: EDGE_V4,
        stranger: STRANGER_V4,
    },
    Pair {
        name: "v4_in_v6",
        inner: || tcp(V4_TCP.1),
        peer: PEER_V6,
        own: EDGE_V6,
        stranger: STRANGER_V6,
    },
    Pair {
        name: "v6_in_v6",
        inner: || tcp(V6_TCP.1),
        peer: PEER_V6,
        own: EDGE_V6,
        stranger: STRANGER_V6,
    },
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for pair in &PAIRS {
        cases.extend(sources_and_destinations(pair));
        cases.extend(congestion_marks(pair));
        cases.extend(malformed(pair));
    }
    cases.extend(prefixes());
    cases.extend(outer_headers());
    cases.extend(inner_packets());
    cases
}

fn sources_and_destinations(pair: &Pair) -> Vec<Case> {
    let name = pair.name;
    let inner = (pair.inner)();
    let vip = if pair.own.is_ipv4() { VIP_V4 } else { VIP_V6 };
    let elsewhere = if pair.own.is_ipv4() {
        v4(192, 0, 2, 200)
    } else {
        v6(0xe, 200)
    };
    let from_to = |from, to| IN.carry(&inner.within(from, to));
    vec![
        case(
            format!("{name}_from_trusted_edge_is_decapsulated"),
            from_to(pair.peer, pair.own),
        )
        .decapsulates(IN.carry(&inner)),
        case(
            format!("{name}_from_stranger_passes"),
            from_to(pair.stranger, pair.own),
        )
        .passes(PassReason::EncapUntrusted),
        case(
            format!("{name}_from_trusted_edge_to_vip_drops"),
            from_to(pair.peer, vip),
        )
        .drops(DropReason::VipEncap),
        case(
            format!("{name}_from_stranger_to_vip_drops"),
            from_to(pair.stranger, vip),
        )
        .drops(DropReason::VipEncap),
        case(
            format!("{name}_to_another_machine_passes"),
            from_to(pair.peer, elsewhere),
        )
        .passes(PassReason::EncapNotOurs),
        case(
            format!("{name}_to_address_that_is_vip_and_local"),
            from_to(pair.peer, vip),
        )
        .with(|tables| tables.address(vip, ADDRESS_LOCAL | ADDRESS_VIP))
        .decapsulates(IN.carry(&inner)),
        case(
            format!("{name}_where_nobody_is_trusted_passes"),
            from_to(pair.peer, pair.own),
        )
        .with(|tables| tables.trusted.clear())
        .passes(PassReason::EncapUntrusted),
    ]
}

const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// RFC 6040 section 4.2, figure 4: inner, outer, and what goes on; `None` where it drops.
const FIGURE_4: [(u8, u8, Option<u8>); 16] = [
    (NOT_ECT, NOT_ECT, Some(NOT_ECT)),
    (NOT_ECT, ECT_0, Some(NOT_ECT)),
    (NOT_ECT, ECT_1, Some(NOT_ECT)),
    (NOT_ECT, CE, None),
    (ECT_0, NOT_ECT, Some(ECT_0)),
    (ECT_0, ECT_0, Some(ECT_0)),
    (ECT_0, ECT_1, Some(ECT_1)),
    (ECT_0, CE, Some(CE)),
    (ECT_1, NOT_ECT, Some(ECT_1)),
    (ECT_1, ECT_0, Some(ECT_1)),
    (ECT_1, ECT_1, Some(ECT_1)),
    (ECT_1, CE, Some(CE)),
    (CE, NOT_ECT, Some(CE)),
    (CE, ECT_0, Some(CE)),
    (CE, ECT_1, Some(CE)),
    (CE, CE, Some(CE)),
];

fn congestion_marks(pair: &Pair) -> Vec<Case> {
    // The inner DSCP (EF) stays, the outer one (AF21) is for the way here only.
    const INNER_DSCP: u8 = 46 << 2;
    const OUTER_DSCP: u8 = 18 << 2;
    FIGURE_4
        .into_iter()
        .map(|(inner, outer, merged)| {
            let packet = (pair.inner)().class(INNER_DSCP | inner);
            let encapsulated = packet.within(pair.peer, pair.own).class(OUTER_DSCP | outer);
            let draft = case(
                format!("{}_ecn_{inner}_in_{outer}", pair.name),
                IN.carry(&encapsulated),
            );
            match merged {
                Some(ecn) => draft.decapsulates(IN.carry(&packet.class(INNER_DSCP | ecn))),
                None => draft.drops(DropReason::EcnDropped),
            }
        })
        .collect()
}

fn malformed(pair: &Pair) -> Vec<Case> {
    let inner = (pair.inner)().bytes();
    let is_v4 = inner[0] >> 4 == 4;
    let protocol = if is_v4 { 4 } else { 41 };
    let (header, length_at) = if is_v4 { (20, 2) } else { (40, 4) };
    let in_outer = |bytes: &[u8]| IN.carry(&Packet::ip(pair.peer, pair.own, protocol, bytes));
    let length = u16::try_from(inner.len() - if is_v4 { 0 } else { 40 }).unwrap();
    let stated = |length: u16| in_outer(&patched(inner.clone(), length_at, &length.to_be_bytes()));
    let name = |what: &str| format!("{}_{what}", pair.name);
    let mut cases = Vec::new();
    for version in [0, 4, 5, 6, 7, 15] {
        if version != protocol_version(protocol) {
            let bytes = patched(inner.clone(), 0, &[version << 4 | 5]);
            cases.push((format!("with_inner_version_{version}"), in_outer(&bytes)));
        }
    }
    for cut in [0, 1, header - 1, header, inner.len() - 1] {
        cases.push((
            format!("outer_ends_{cut}_bytes_into_inner"),
            in_outer(&inner[..cut]),
        ));
        // Padding behind the outer packet does not complete the inner one.
        let mut padded = in_outer(&inner[..cut]);
        padded.extend(&inner[cut..]);
        cases.push((format!("inner_goes_on_in_padding_from_{cut}"), padded));
    }
    cases.push((
        "inner_length_one_beyond_outer".to_owned(),
        stated(length + 1),
    ));
    cases.push(("inner_length_largest".to_owned(), stated(0xffff)));
    if is_v4 {
        for ihl in 0..5 {
            let bytes = patched(inner.clone(), 0, &[0x40 | ihl]);
            cases.push((format!("inner_header_length_{ihl}"), in_outer(&bytes)));
        }
        for length in [0, 1, 19] {
            cases.push((format!("inner_total_length_{length}"), stated(length)));
        }
        let bytes = patched(inner[..40].to_vec(), 0, &[0x4f]);
        let bytes = patched(bytes, 2, &40_u16.to_be_bytes());
        cases.push((
            "inner_header_beyond_its_total_length".to_owned(),
            in_outer(&bytes),
        ));
    }
    cases
        .into_iter()
        .map(|(what, input)| case(name(&what), input).drops(DropReason::MalformedInner))
        .collect()
}

fn protocol_version(protocol: u8) -> u8 {
    if protocol == 4 { 4 } else { 6 }
}

fn prefixes() -> Vec<Case> {
    let inner = tcp(V4_TCP.1);
    let to_v4 = |from| IN.carry(&inner.within(from, EDGE_V4));
    let to_v6 = |from| IN.carry(&inner.within(from, EDGE_V6));
    let only = |address: IpAddr, bits| {
        move |tables: &mut super::TableSet| {
            tables.trusted.clear();
            tables.trust(address, bits);
        }
    };
    let own = IN.carry(&inner);
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        IpAddr::V6(_) => address,
    };
    vec![
        // The tables hold IPv4 addresses as mapped ones; on the wire these are anybody's.
        case("mapped_v4_source_in_v6_is_not_trusted", {
            to_v6(mapped(PEER_V4))
        })
        .passes(PassReason::EncapUntrusted),
        case("mapped_v4_source_and_destination_in_v6_are_not_trusted", {
            IN.carry(&inner.within(mapped(PEER_V4), mapped(EDGE_V4)))
        })
        .passes(PassReason::EncapUntrusted),
        case("every_v6_source_trusted_is_no_v4_source", {
            to_v4(v4(192, 0, 2, 0))
        })
        .with(only(IpAddr::V6([0; 16].into()), 0))
        .passes(PassReason::EncapUntrusted),
        case(
            "first_address_of_v4_prefix_is_trusted",
            to_v4(v4(192, 0, 2, 0)),
        )
        .decapsulates(own.clone()),
        case(
            "last_address_of_v4_prefix_is_trusted",
            to_v4(v4(192, 0, 2, 7)),
        )
        .decapsulates(own.clone()),
        case("address_before_v4_prefix_is_not", to_v4(v4(192, 0, 1, 255)))
            .passes(PassReason::EncapUntrusted),
        case("first_address_of_v6_prefix_is_trusted", to_v6(v6(0xe, 0))).decapsulates(own.clone()),
        case("last_address_of_v6_prefix_is_trusted", to_v6(v6(0xe, 7))).decapsulates(own.clone()),
        case("single_v4_address_is_trusted", to_v4(STRANGER_V4))
            .with(only(STRANGER_V4, 32))
            .decapsulates(own.clone()),
        case(
            "neighbour_of_single_v4_address_is_not",
            to_v4(v4(192, 0, 2, 9)),
        )
        .with(only(STRANGER_V4, 32))
        .passes(PassReason::EncapUntrusted),
        case("single_v6_address_is_trusted", to_v6(STRANGER_V6))
            .with(only(STRANGER_V6, 128))
            .decapsulates(own.clone()),
        case("neighbour_of_single_v6_address_is_not", to_v6(v6(0xe, 9)))
            .with(only(STRANGER_V6, 128))
            .passes(PassReason::EncapUntrusted),
        case("all_of_v4_can_be_trusted", to_v4(CLIENT_V4))
            .with(only(v4(0, 0, 0, 0), 0))
            .decapsulates(own),
        case("all_of_v4_does_not_hold_v6", to_v6(PEER_V6))
            .with(only(v4(0, 0, 0, 0), 0))
            .passes(PassReason::EncapUntrusted),
    ]
}

fn outer_headers() -> Vec<Case> {
    let inner = tcp(V4_TCP.1);
    let own = IN.carry(&inner);
    let outer_v4 = inner.within(PEER_V4, EDGE_V4);
    let outer_v6 = inner.within(PEER_V6, EDGE_V6);
    let limit = [0, 4, 1, 4, 1, 1, 0];
    let double = Link {
        tags: &[(SERVICE_VLAN, 5), (VLAN, 6)],
        ..IN
    };
    vec![
        case(
            "outer_options_come_off",
            IN.carry(&outer_v4.clone().options(&[1; 40])),
        )
        .decapsulates(own.clone()),
        case("outer_options_behind_two_tags_come_off", {
            double.carry(&outer_v4.clone().options(&[1; 4]))
        })
        .decapsulates(double.carry(&inner)),
        // RFC 2473 section 5.1: the tunnel encapsulation limit is a destination option.
        case("outer_encapsulation_limit_comes_off", {
            IN.carry(&outer_v6.clone().extensions(&[(60, &limit)]))
        })
        .decapsulates(own.clone()),
        case("outer_chain_of_four_extension_headers_comes_off", {
            double.carry(&outer_v6.clone().extensions(&[
                (0, &limit),
                (60, &limit),
                (43, &[0; 7]),
                (60, &limit),
            ]))
        })
        .decapsulates(double.carry(&inner)),
        case("outer_routing_header_with_segments_left_passes", {
            IN.carry(&outer_v6.clone().extensions(&[(43, &[0, 4, 1, 0, 0, 0, 0])]))
        })
        .passes(PassReason::RoutingHeader),
        case(
            "outer_ttl_of_one_is_enough",
            IN.carry(&outer_v4.clone().hop_limit(1)),
        )
        .decapsulates(own.clone()),
        case("outer_hop_limit_of_zero_is_not_ours_to_judge", {
            IN.carry(&outer_v6.clone().hop_limit(0))
        })
        .decapsulates(own.clone()),
        case(
            "outer_without_df_is_decapsulated",
            IN.carry(&outer_v4.clone().fragmentable()),
        )
        .decapsulates(own.clone()),
        case("outer_with_identification_is_decapsulated", {
            IN.carry(&outer_v4.clone().identification(0xbeef))
        })
        .decapsulates(own.clone()),
        case("outer_cut_by_one_byte_passes", {
            let mut frame = IN.carry(&outer_v4);
            frame.pop();
            frame
        })
        .passes(PassReason::TruncatedIp),
        case("ipip_to_group_mac_passes", {
            Link {
                destination: [0xff; 6],
                ..IN
            }
            .carry(&outer_v4)
        })
        .passes(PassReason::GroupAddress),
    ]
}

fn inner_packets() -> Vec<Case> {
    let whole = |inner: &Packet| IN.carry(&inner.within(PEER_V4, EDGE_V4));
    let unchanged =
        |name: &str, inner: Packet| case(name, whole(&inner)).decapsulates(IN.carry(&inner));
    let nested = tcp(V4_TCP.1).within(CLIENT_V4, VIP_V4);
    let mine = tcp(V4_TCP.1).within(PEER_V4, EDGE_V4);
    let marked = |checksum: u16| with_checksum(&tcp(V4_TCP.1).class(2), checksum);
    let surplus = [&tcp(V4_TCP.1).bytes()[..], b"surplus"].concat();
    let mut cases = vec![
        unchanged("service_packet_is_not_balanced_again", tcp(V4_TCP.1)),
        unchanged("l2dsr_service_packet_is_not_balanced_again", tcp(V4_L2.1)),
        unchanged(
            "packet_to_a_port_of_no_service_is_decapsulated_at_a_vip",
            tcp((VIP_V4, 1)),
        ),
        unchanged("udp_is_decapsulated", udp(V4_UDP.1)),
        unchanged("ping_is_decapsulated", Packet::echo(CLIENT_V4, VIP_V4)),
        unchanged(
            "packet_with_options_is_decapsulated",
            tcp(V4_TCP.1).options(&[1; 12]),
        ),
        unchanged(
            "inner_ttl_of_zero_is_left_to_the_stack",
            tcp(V4_TCP.1).hop_limit(0),
        ),
        unchanged(
            "inner_ttl_of_one_is_left_to_the_stack",
            tcp(V4_TCP.1).hop_limit(1),
        ),
        unchanged("only_one_layer_comes_off", nested),
        case("second_layer_to_this_machine_drops", whole(&mine)).drops(DropReason::InnerNotOurs),
        unchanged(
            "inner_without_payload_is_decapsulated",
            Packet::ip(CLIENT_V4, VIP_V4, 6, &[]),
        ),
        case("bytes_behind_the_inner_packet_stay", {
            IN.carry(&Packet::ip(PEER_V4, EDGE_V4, 4, &surplus))
        })
        .decapsulates(IN.frame(IPV4, &surplus)),
        case("inner_reserved_bit_stays", {
            let inner = forged_v4(tcp(V4_TCP.1).bytes(), 6, &[0x80, 0]);
            IN.carry(&Packet::ip(PEER_V4, EDGE_V4, 4, &inner))
        })
        .decapsulates(IN.frame(IPV4, &forged_v4(tcp(V4_TCP.1).bytes(), 6, &[0x80, 0]))),
        case("inner_announced_as_the_other_family_drops", {
            IN.carry(&Packet::ip(PEER_V4, EDGE_V4, 41, &tcp(V4_TCP.1).bytes()))
        })
        .drops(DropReason::InnerNotOurs),
    ];
    for length in [3600, 9000, 65_000] {
        let inner = Packet::tcp((CLIENT_V4, 40_000), V4_TCP.1, &vec![0x55; length]);
        cases.push(unchanged(
            &format!("frame_of_more_than_{length}_bytes_is_decapsulated"),
            inner,
        ));
    }
    // ECT(0) becomes CE: one more in the type of service, one less in the checksum.
    for checksum in [0x0000, 0x0001, 0x0002, 0x00ff, 0x0100, 0xff00, 0xfffe] {
        let inner = marked(checksum);
        let encapsulated = inner.within(PEER_V4, EDGE_V4).class(3);
        cases.push(
            case(
                format!("congestion_mark_on_header_checksum_{checksum:04x}"),
                IN.carry(&encapsulated),
            )
            .decapsulates(IN.carry(&inner.class(3))),
        );
    }
    cases
}
