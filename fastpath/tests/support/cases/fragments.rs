//! Fragments name no ports but in the first piece, and so are never balanced.

use xdp_prog::{
    abi::{ADDRESS_LOCAL, ADDRESS_VIP},
    reason::{DropReason, PassReason},
};

use super::{
    super::packet::{IPV4, Packet, forged_v4},
    Case, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6, V4_TCP, V4_UDP, V6_TCP, V6_UDP, VIP_V4, VIP_V6,
    case, sent_in_v4, sent_in_v6, tcp, udp, v4, v6,
};

/// (name, offset in units of eight bytes, more fragments)
const PIECES: [(&str, u16, bool); 4] = [
    ("first", 0, true),
    ("middle", 1, true),
    ("last", 185, false),
    ("farthest", 0x1fff, false),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(pieces());
    cases.extend(whole_datagrams());
    cases.extend(encapsulated());
    cases
}

/// An IPv6 fragment header: reserved byte, offset, flags, identification.
fn fragment_header(offset: u16, flags: u16) -> Vec<u8> {
    let field = offset << 3 | flags;
    [&[0], &field.to_be_bytes()[..], &[0xde, 0xad, 0xbe, 0xef]].concat()
}

fn pieces() -> Vec<Case> {
    let mut cases = Vec::new();
    let elsewhere_v4 = (v4(203, 0, 113, 99), 80);
    let elsewhere_v6 = (v6(0xf, 99), 80);
    for (name, offset, more) in PIECES {
        for (to, packet) in [
            ("tcp_to_v4_vip", tcp(V4_TCP.1)),
            ("udp_to_v4_vip", udp(V4_UDP.1)),
            ("tcp_to_other_port_of_v4_vip", tcp((VIP_V4, 81))),
            ("tcp_to_v4_elsewhere", tcp(elsewhere_v4)),
        ] {
            let draft = case(
                format!("{name}_fragment_of_{to}"),
                IN.carry(&packet.fragment(offset, more)),
            );
            cases.push(if to.contains("vip") {
                draft.drops(DropReason::FragmentOutOfOrder)
            } else {
                draft.passes(PassReason::FragmentNotOurs)
            });
        }
        for (to, packet) in [
            ("tcp_to_v6_vip", tcp(V6_TCP.1)),
            ("udp_to_v6_vip", udp(V6_UDP.1)),
            ("tcp_to_v6_elsewhere", tcp(elsewhere_v6)),
        ] {
            let header = fragment_header(offset, u16::from(more));
            let draft = case(
                format!("{name}_fragment_of_{to}"),
                IN.carry(&packet.extensions(&[(44, &header)])),
            );
            cases.push(if to.contains("vip") {
                draft.drops(DropReason::FragmentOutOfOrder)
            } else {
                draft.passes(PassReason::FragmentNotOurs)
            });
        }
    }
    let first = IN.carry(&tcp(V4_TCP.1).fragment(0, true));
    cases.extend([
        case("fragment_of_icmp_to_vip_drops", {
            let ping = Packet::echo(super::CLIENT_V4, VIP_V4);
            IN.carry(&ping.fragment(3, false))
        })
        .drops(DropReason::FragmentOutOfOrder),
        case(
            "fragment_to_address_that_is_vip_and_local_drops",
            first.clone(),
        )
        .with(|tables| tables.address(VIP_V4, ADDRESS_VIP | ADDRESS_LOCAL))
        .drops(DropReason::FragmentOutOfOrder),
        case(
            "fragment_to_service_address_that_is_no_vip_passes",
            first.clone(),
        )
        .with(|tables| tables.vips.clear())
        .passes(PassReason::FragmentNotOurs),
        case("fragment_with_expired_ttl_drops_as_fragment", {
            IN.carry(&tcp(V4_TCP.1).hop_limit(0).fragment(0, true))
        })
        .drops(DropReason::FragmentOutOfOrder),
        case("fragment_flag_beside_reserved_and_df_bits_drops", {
            IN.frame(IPV4, &forged_v4(tcp(V4_TCP.1).bytes(), 6, &[0xe0, 0]))
        })
        .drops(DropReason::FragmentOutOfOrder),
        case("v6_fragment_behind_other_extensions_drops", {
            let header = fragment_header(2, 0);
            let chain: [(u8, &[u8]); 3] = [
                (0, &[0, 1, 4, 0, 0, 0, 0]),
                (60, &[0, 1, 4, 0, 0, 0, 0]),
                (44, &header),
            ];
            IN.carry(&tcp(V6_TCP.1).extensions(&chain))
        })
        .drops(DropReason::FragmentOutOfOrder),
        case("v6_fragment_without_payload_drops", {
            let header = [&[6], &fragment_header(0, 1)[..]].concat();
            IN.carry(&Packet::ip(super::CLIENT_V6, VIP_V6, 44, &header))
        })
        .drops(DropReason::FragmentOutOfOrder),
        case("v6_fragment_header_cut_short_is_malformed", {
            let packet = Packet::ip(super::CLIENT_V6, VIP_V6, 44, &[6, 0, 0, 1]);
            [IN.carry(&packet), vec![0; 8]].concat()
        })
        .passes(PassReason::MalformedIp),
    ]);
    cases
}

/// Not every fragment field makes a fragment.
fn whole_datagrams() -> Vec<Case> {
    let packet = tcp(V4_TCP.1);
    let fragmentable = packet.clone().fragmentable();
    // RFC 3514 calls it evil; RFC 791 has it zero.
    let reserved = |packet: &Packet| forged_v4(packet.bytes(), 6, &[0x80, 0]);
    let evil = {
        let inner = reserved(&packet.next_hop());
        let outer = packet.next_hop().within(EDGE_V4, super::NODE_V4).bytes();
        super::TO_NODE_V4.frame(IPV4, &[&outer[..20], &inner].concat())
    };
    let mut cases = vec![
        case("v4_without_df_is_balanced", IN.carry(&fragmentable)).transmits(
            V4_TCP.0,
            &fragmentable,
            sent_in_v4(&fragmentable),
        ),
        case(
            "v4_with_reserved_bit_is_balanced",
            IN.frame(IPV4, &reserved(&packet)),
        )
        .transmits(V4_TCP.0, &packet, evil),
    ];
    // RFC 6946: a fragment header that splits nothing; its reserved bits are ignored.
    for (name, flags) in [("atomic", 0), ("atomic_with_reserved_bits", 0b110)] {
        for (protocol, service, packet) in [
            ("tcp", V6_TCP, tcp(V6_TCP.1)),
            ("udp", V6_UDP, udp(V6_UDP.1)),
        ] {
            let packet = packet.extensions(&[(44, &fragment_header(0, flags))]);
            cases.push(
                case(
                    format!("v6_{name}_fragment_of_{protocol}_is_balanced"),
                    IN.carry(&packet),
                )
                .transmits(service.0, &packet, sent_in_v6(&packet)),
            );
        }
    }
    cases
}

/// IP-in-IP in pieces is put together by the stack.
fn encapsulated() -> Vec<Case> {
    let inner = tcp(V4_TCP.1);
    let mut cases: Vec<_> = PIECES
        .into_iter()
        .map(|(name, offset, more)| {
            let outer = inner.within(PEER_V4, EDGE_V4).fragment(offset, more);
            case(format!("{name}_fragment_of_ipip_passes"), IN.carry(&outer))
                .passes(PassReason::FragmentNotOurs)
        })
        .collect();
    let outer = inner.within(PEER_V6, EDGE_V6);
    let split = outer.clone().extensions(&[(44, &fragment_header(0, 1))]);
    let atomic = outer.extensions(&[(44, &fragment_header(0, 0))]);
    let inner_piece = inner.fragment(3, true);
    cases.extend([
        case("fragment_of_v6_ipip_passes", IN.carry(&split)).passes(PassReason::FragmentNotOurs),
        case(
            "atomic_fragment_of_v6_ipip_is_decapsulated",
            IN.carry(&atomic),
        )
        .decapsulates(IN.carry(&tcp(V4_TCP.1))),
        case(
            "fragment_inside_whole_ipip_is_decapsulated",
            IN.carry(&inner_piece.within(PEER_V4, EDGE_V4)),
        )
        .decapsulates(IN.carry(&inner_piece)),
    ]);
    cases
}
