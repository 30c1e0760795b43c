//! Addresses with services that somebody else may have too: what services have is balanced, all else passes.

use xdp_prog::{
    abi::{ADDRESS_LOCAL, ADDRESS_SHARED},
    reason::PassReason,
};

use super::{
    super::packet::{End, Packet},
    CLIENT_V4, CLIENT_V6, Case, Draft, IN, V4_TCP, V4_UDP, V6_TCP, V6_UDP, VIP_V4, VIP_V6, Way,
    case, client, sent_in_v4, sent_in_v6, tcp, udp,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, flags) in [
        ("shared", ADDRESS_SHARED),
        ("shared_decapsulating", ADDRESS_SHARED | ADDRESS_LOCAL),
    ] {
        cases.extend(at(name, flags, [V4_TCP, V4_UDP], sent_in_v4));
        cases.extend(at(name, flags, [V6_TCP, V6_UDP], sent_in_v6));
    }
    cases
}

fn at(
    name: &str,
    flags: u32,
    [(tcp_way, tcp_service), (udp_way, udp_service)]: [(Way, End); 2],
    sent: fn(&Packet) -> Vec<u8>,
) -> Vec<Case> {
    let vip = tcp_service.0;
    let (family, source) = if vip == VIP_V4 {
        ("v4", CLIENT_V4)
    } else {
        ("v6", CLIENT_V6)
    };
    let draft = |what: &str, packet: &Packet| -> Draft {
        let name = format!("{family}_{what}_at_a_{name}_address");
        case(name, IN.carry(packet)).with(|tables| {
            tables.address(VIP_V4, flags);
            tables.address(VIP_V6, flags);
        })
    };
    let other = (vip, 9);
    let segment = tcp(tcp_service);
    let (first, later) = (
        fragment(udp(udp_service), 0, true),
        fragment(udp(udp_service), 2, false),
    );
    let (other_first, other_later) = (
        fragment(udp(other), 0, true),
        fragment(udp(other), 2, false),
    );
    let unreachable = |quote: &[u8]| {
        let kind = if vip == VIP_V4 { (3, 0) } else { (1, 0) };
        Packet::icmp(source, vip, kind, [0; 4], quote)
    };
    let error_about = |from: End| {
        let answer = Packet::tcp(from, client(from), b"answer");
        unreachable(&answer.bytes())
    };
    let error = error_about(tcp_service);
    vec![
        draft("served_port_is_balanced", &segment).transmits(tcp_way, &segment, sent(&segment)),
        draft("unknown_tcp_port_passes", &tcp(other)).passes(PassReason::NoService),
        draft("unknown_udp_port_passes", &udp(other)).passes(PassReason::NoService),
        draft("echo_passes", &Packet::echo(source, vip)).passes(PassReason::Icmp),
        draft("first_fragment_is_balanced", &first).transmits(udp_way, &first, sent(&first)),
        draft("later_fragment_follows", &later)
            .after(IN.carry(&first))
            .transmits(udp_way, &later, sent(&later)),
        draft("later_fragment_alone_passes", &later).passes(PassReason::FragmentNotOurs),
        draft("first_fragment_for_an_unknown_port_passes", &other_first)
            .passes(PassReason::NoService),
        draft("later_fragment_for_an_unknown_port_passes", &other_later)
            .after(IN.carry(&other_first))
            .passes(PassReason::FragmentNotOurs),
        draft(
            "fragment_of_ping_passes",
            &fragment(Packet::echo(source, vip), 0, true),
        )
        .passes(PassReason::FragmentNotOurs),
        draft("error_about_a_flow_follows_it", &error).transmits(tcp_way, &error, sent(&error)),
        draft("error_about_an_unknown_port_passes", &error_about(other)).passes(PassReason::Icmp),
        draft("error_that_quotes_nothing_passes", &unreachable(&[])).passes(PassReason::Icmp),
    ]
}

/// Makes a packet one piece of a datagram; the offset counts eight bytes.
fn fragment(packet: Packet, offset: u16, more: bool) -> Packet {
    if packet.ends().0.is_ipv4() {
        return packet.fragment(offset, more);
    }
    let field = (offset << 3 | u16::from(more)).to_be_bytes();
    packet.extensions(&[(44, &[0, field[0], field[1], 0xde, 0xad, 0xbe, 0xef])])
}
