//! Frames that end early and headers that lie about their length.

use xdp_prog::reason::{DropReason, PassReason, ReplyReason};

use super::{
    super::packet::{IPV4, IPV6, Link, Packet, SERVICE_VLAN, VLAN, forged_v4, patched},
    BACK, CLIENT_V4, CLIENT_V6, Case, Draft, IN, PEER_V4, TCP, TO_NODE_V4, TO_NODE_V6, UDP, V4_L2,
    V4_TCP, V4_UDP, V6_L2, V6_TCP, V6_UDP, VIP_V4, VIP_V6, case, sent_in_v4, sent_in_v6, tcp,
    time_exceeded, udp,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(runts());
    cases.extend(cut_frames());
    cases.extend(forged_v4_lengths());
    cases.extend(forged_v6_lengths());
    cases.extend(cut_transport());
    cases.extend(forged_transport());
    cases.extend(padding());
    cases
}

fn runts() -> Vec<Case> {
    let frame = IN.carry(&tcp(V4_TCP.1));
    let double = Link {
        tags: &[(SERVICE_VLAN, 5), (VLAN, 6)],
        ..IN
    }
    .carry(&tcp(V4_TCP.1));
    let mut cases: Vec<_> = (0..14)
        .map(|length| {
            case(
                format!("runt_of_{length}_bytes_passes"),
                frame[..length].to_vec(),
            )
            .passes(PassReason::RuntFrame)
        })
        .collect();
    for length in [14, 15, 16, 17, 18, 21] {
        cases.push(
            case(
                format!("frame_of_{length}_bytes_ends_inside_its_tags"),
                double[..length].to_vec(),
            )
            .passes(PassReason::RuntFrame),
        );
    }
    cases.push(
        case("frame_that_ends_behind_its_tags", double[..22].to_vec())
            .passes(PassReason::TruncatedIp),
    );
    cases
}

/// Every header boundary, one byte before and at it.
fn cut_frames() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, packet, header) in [("v4", tcp(V4_TCP.1), 20), ("v6", tcp(V6_TCP.1), 40)] {
        let frame = IN.carry(&packet);
        for length in [
            14,
            15,
            14 + header - 1,
            14 + header,
            14 + header + 3,
            14 + header + 4,
            14 + header + 19,
            14 + header + 20,
            frame.len() - 1,
        ] {
            cases.push(
                case(
                    format!("{family}_frame_cut_to_{length}_bytes"),
                    frame[..length].to_vec(),
                )
                .cut_short(length >= 14 + header),
            );
        }
    }
    cases
}

impl Draft {
    /// The frame ends before its packet does; whether its IP header is there, and a VIP in it.
    fn cut_short(self, has_header: bool) -> Case {
        if has_header {
            self.drops(DropReason::VipHeaders)
        } else {
            self.passes(PassReason::TruncatedIp)
        }
    }
}

fn forged_v4_lengths() -> Vec<Case> {
    let packet = tcp(V4_TCP.1);
    let bytes = packet.bytes();
    let length = u16::try_from(bytes.len()).unwrap();
    let mut cases = Vec::new();
    for ihl in 0..5 {
        cases.push(
            case(
                format!("v4_header_length_{ihl}_is_malformed"),
                IN.frame(IPV4, &forged_v4(bytes.clone(), 0, &[0x40 | ihl])),
            )
            .drops(DropReason::VipHeaders),
        );
    }
    for version in [0, 5, 6, 15] {
        cases.push(
            case(
                format!("v4_header_of_version_{version}_is_malformed"),
                IN.frame(IPV4, &patched(bytes.clone(), 0, &[version << 4 | 5])),
            )
            .passes(PassReason::MalformedIp),
        );
    }
    let total = |length: u16| forged_v4(bytes.clone(), 2, &length.to_be_bytes());
    for (forged, reason) in [
        (0, DropReason::VipHeaders),
        (1, DropReason::VipHeaders),
        (19, DropReason::VipHeaders),
        (20, DropReason::VipTransport),
        (24, DropReason::VipTransport),
        (39, DropReason::VipTransport),
        (length + 1, DropReason::VipHeaders),
        (1500, DropReason::VipHeaders),
        (0xffff, DropReason::VipHeaders),
    ] {
        cases.push(
            case(
                format!("v4_total_length_forged_to_{forged}_drops"),
                IN.frame(IPV4, &total(forged)),
            )
            .drops(reason),
        );
    }
    // The whole packet is shorter than its header says the header is.
    let short = patched(bytes[..40].to_vec(), 0, &[0x4f]);
    cases.push(
        case(
            "v4_header_length_beyond_total_length_is_malformed",
            IN.frame(IPV4, &patched(short, 2, &40_u16.to_be_bytes())),
        )
        .drops(DropReason::VipHeaders),
    );
    // Header length 15 puts the ports into the payload.
    cases.push(
        case(
            "v4_header_length_that_swallows_the_ports_drops",
            IN.frame(IPV4, &forged_v4(bytes[..58].to_vec(), 0, &[0x4e])),
        )
        .drops(DropReason::VipTransport),
    );
    cases
}

fn forged_v6_lengths() -> Vec<Case> {
    let bytes = tcp(V6_TCP.1).bytes();
    let length = u16::try_from(bytes.len() - 40).unwrap();
    let mut cases = Vec::new();
    for version in [0, 4, 5, 7, 15] {
        cases.push(
            case(
                format!("v6_header_of_version_{version}_is_malformed"),
                IN.frame(IPV6, &patched(bytes.clone(), 0, &[version << 4])),
            )
            .passes(PassReason::MalformedIp),
        );
    }
    for (forged, reason) in [
        (0, DropReason::VipTransport),
        (1, DropReason::VipTransport),
        (4, DropReason::VipTransport),
        (19, DropReason::VipTransport),
        (length + 1, DropReason::VipHeaders),
        (0xffff, DropReason::VipHeaders),
    ] {
        cases.push(
            case(
                format!("v6_payload_length_forged_to_{forged}_drops"),
                IN.frame(IPV6, &patched(bytes.clone(), 4, &forged.to_be_bytes())),
            )
            .drops(reason),
        );
    }
    cases
}

/// IP packets that are whole but end inside the transport header.
fn cut_transport() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, protocol, cuts) in [
        ("tcp", TCP, &[0, 1, 3, 4, 8, 19][..]),
        ("udp", UDP, &[0, 1, 3, 4, 7]),
    ] {
        for (family, client, vip) in [("v4", CLIENT_V4, VIP_V4), ("v6", CLIENT_V6, VIP_V6)] {
            let to = (vip, if protocol == TCP { 80 } else { 53 });
            let whole = if protocol == TCP { tcp(to) } else { udp(to) };
            let header = if family == "v4" { 20 } else { 40 };
            for cut in cuts {
                let payload = &whole.bytes()[header..header + cut];
                cases.push(
                    case(
                        format!("{cut}_bytes_of_{name}_in_{family}_drop"),
                        IN.carry(&Packet::ip(client, vip, protocol, payload)),
                    )
                    .drops(DropReason::VipTransport),
                );
            }
        }
    }
    cases
}

/// Lengths that only the receiver needs: the packet goes on as it is.
fn forged_transport() -> Vec<Case> {
    let forged = |packet: &Packet, header: usize, offset: usize, with: &[u8]| {
        let bytes = packet.bytes();
        let payload = patched(bytes[header..].to_vec(), offset, with);
        match header {
            20 => Packet::ip(CLIENT_V4, VIP_V4, bytes[9], &payload),
            _ => Packet::ip(CLIENT_V6, VIP_V6, bytes[6], &payload),
        }
    };
    let mut cases = Vec::new();
    for length in [0, 1, 7, 12, 0xffff_u16] {
        let packet = forged(&udp(V4_UDP.1), 20, 4, &length.to_be_bytes());
        cases.push(
            case(
                format!("v4_udp_length_{length}_is_left_to_the_receiver"),
                IN.carry(&packet),
            )
            .transmits(V4_UDP.0, &packet, sent_in_v4(&packet)),
        );
        let packet = forged(&udp(V6_UDP.1), 40, 4, &length.to_be_bytes());
        cases.push(
            case(
                format!("v6_udp_length_{length}_is_left_to_the_receiver"),
                IN.carry(&packet),
            )
            .transmits(V6_UDP.0, &packet, sent_in_v6(&packet)),
        );
    }
    for offset in [0, 4, 15] {
        let packet = forged(&tcp(V4_TCP.1), 20, 12, &[offset << 4]);
        cases.push(
            case(
                format!("v4_tcp_data_offset_{offset}_is_left_to_the_receiver"),
                IN.carry(&packet),
            )
            .transmits(V4_TCP.0, &packet, sent_in_v4(&packet)),
        );
    }
    cases
}

/// Bytes behind the IP packet stay behind it and are not counted.
fn padding() -> Vec<Case> {
    let pad = |mut frame: Vec<u8>, bytes: usize| {
        frame.resize(frame.len() + bytes, 0xa5);
        frame
    };
    let empty = Packet::udp((CLIENT_V4, 40_000), V4_UDP.1, b"");
    let empty_v6 = Packet::udp((CLIENT_V6, 40_000), V6_UDP.1, b"");
    let (l2, l2_v6) = (tcp(V4_L2.1), tcp(V6_L2.1));
    let segment = tcp(V4_TCP.1);
    let within = IN.carry(&segment.within(PEER_V4, super::EDGE_V4));
    let cut_short = forged_v4(segment.bytes(), 2, &45_u16.to_be_bytes());
    vec![
        case(
            "v4_padded_to_the_shortest_ethernet_frame",
            pad(IN.carry(&empty), 18),
        )
        .transmits(V4_UDP.0, &empty, pad(sent_in_v4(&empty), 18)),
        case("v6_with_one_byte_behind_it", pad(IN.carry(&empty_v6), 1)).transmits(
            V6_UDP.0,
            &empty_v6,
            pad(sent_in_v6(&empty_v6), 1),
        ),
        case("v4_l2dsr_keeps_padding", pad(IN.carry(&l2), 7)).transmits(
            V4_L2.0,
            &l2,
            pad(TO_NODE_V4.carry(&l2.next_hop()), 7),
        ),
        case("v6_l2dsr_keeps_padding", pad(IN.carry(&l2_v6), 7)).transmits(
            V6_L2.0,
            &l2_v6,
            pad(TO_NODE_V6.carry(&l2_v6.next_hop()), 7),
        ),
        case("decap_keeps_padding", pad(within, 9)).decapsulates(pad(IN.carry(&segment), 9)),
        case(
            "v4_transport_header_is_not_read_from_padding",
            pad(
                IN.carry(&Packet::ip(
                    CLIENT_V4,
                    VIP_V4,
                    TCP,
                    &segment.bytes()[20..30],
                )),
                30,
            ),
        )
        .drops(DropReason::VipTransport),
        case(
            "v4_total_length_decides_the_mtu_and_not_the_frame",
            pad(IN.carry(&segment), 1500),
        )
        .transmits(V4_TCP.0, &segment, pad(sent_in_v4(&segment), 1500)),
        case(
            "v4_total_length_below_the_frame_counts",
            IN.frame(IPV4, &cut_short),
        )
        .forwards(xdp_prog::process::Action::Transmit, V4_TCP.0, 45, {
            let payload = &segment.bytes()[20..45];
            let shorter = Packet::ip(CLIENT_V4, VIP_V4, TCP, payload);
            let mut frame = sent_in_v4(&shorter);
            frame.extend(&segment.bytes()[45..]);
            frame
        }),
        case(
            "v4_padding_does_not_make_a_ttl",
            pad(IN.carry(&segment.clone().hop_limit(1)), 20),
        )
        .replies(ReplyReason::TimeExceeded, {
            BACK.carry(&time_exceeded(&segment.hop_limit(1)))
        }),
    ]
}
