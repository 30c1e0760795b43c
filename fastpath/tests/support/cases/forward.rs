//! What leaves for a backend: modes, families, hop limit, class, size.

use xdp_prog::{
    process::Action,
    reason::{DropReason, ReplyReason},
};

use super::{
    super::packet::{End, IPV4, Packet, VLAN, patched},
    BACK, CLIENT_V4, Case, EDGE_V4, IN, Link, NODE_V4, TO_NODE_V4, TO_NODE_V6, V4_IN_V6, V4_L2,
    V4_TCP, V4_UDP, V6_IN_V4, V6_L2, V6_TCP, V6_UDP, VIP_V4, Way, case, client, counted,
    sent_in_v4, sent_in_v6, tcp, time_exceeded, too_big, udp,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(modes_and_families());
    cases.extend(hop_limits());
    cases.extend(header_checksums());
    cases.extend(transport_is_untouched());
    cases.extend(classes());
    cases.extend(mtus());
    cases.extend(large_frames());
    cases.extend(headrooms());
    cases
}

/// A way that a packet can be forwarded.
struct Path {
    name: &'static str,
    service: (Way, End),
    /// Length of the outer header.
    outer: usize,
    /// Makes the frame that leaves.
    sent: fn(&Packet) -> Vec<u8>,
}

const PATHS: [Path; 6] = [
    Path {
        name: "v4_in_v4",
        service: V4_TCP,
        outer: 20,
        sent: sent_in_v4,
    },
    Path {
        name: "v6_in_v6",
        service: V6_TCP,
        outer: 40,
        sent: sent_in_v6,
    },
    Path {
        name: "v4_in_v6",
        service: V4_IN_V6,
        outer: 40,
        sent: sent_in_v6,
    },
    Path {
        name: "v6_in_v4",
        service: V6_IN_V4,
        outer: 20,
        sent: sent_in_v4,
    },
    Path {
        name: "v4_l2dsr",
        service: V4_L2,
        outer: 0,
        sent: |packet| TO_NODE_V4.carry(&packet.next_hop()),
    },
    Path {
        name: "v6_l2dsr",
        service: V6_L2,
        outer: 0,
        sent: |packet| TO_NODE_V6.carry(&packet.next_hop()),
    },
];

fn modes_and_families() -> Vec<Case> {
    let mut cases: Vec<_> = PATHS
        .iter()
        .map(|path| {
            let packet = tcp(path.service.1);
            case(format!("tcp_{}", path.name), IN.carry(&packet)).transmits(
                path.service.0,
                &packet,
                (path.sent)(&packet),
            )
        })
        .collect();
    let (v4, v6) = (udp(V4_UDP.1), udp(V6_UDP.1));
    let empty = Packet::tcp((CLIENT_V4, 40_000), V4_TCP.1, b"");
    let odd = Packet::udp((CLIENT_V4, 40_000), V4_UDP.1, b"abc");
    cases.extend([
        case("udp_v4_in_v4", IN.carry(&v4)).transmits(V4_UDP.0, &v4, sent_in_v4(&v4)),
        case("udp_v6_in_v6", IN.carry(&v6)).transmits(V6_UDP.0, &v6, sent_in_v6(&v6)),
        case("tcp_without_payload", IN.carry(&empty)).transmits(
            V4_TCP.0,
            &empty,
            sent_in_v4(&empty),
        ),
        case("udp_with_an_odd_length", IN.carry(&odd)).transmits(V4_UDP.0, &odd, sent_in_v4(&odd)),
        // A frame that some switch flooded here is balanced all the same.
        case("foreign_unicast_mac_is_balanced", {
            let link = Link {
                destination: [0xfe, 9, 9, 9, 9, 9],
                ..IN
            };
            link.carry(&v4)
        })
        .transmits(V4_UDP.0, &v4, sent_in_v4(&v4)),
    ]);
    cases
}

fn hop_limits() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in &PATHS {
        for hop_limit in [0, 1, 2, 3, 128, 255] {
            let packet = tcp(path.service.1).hop_limit(hop_limit);
            let draft = case(
                format!("{}_with_hop_limit_{hop_limit}", path.name),
                IN.carry(&packet),
            );
            cases.push(if hop_limit <= 1 {
                let answer = BACK.carry(&time_exceeded(&packet));
                draft.replies(ReplyReason::TimeExceeded, answer)
            } else {
                draft.transmits(path.service.0, &packet, (path.sent)(&packet))
            });
        }
    }
    cases
}

/// One less TTL is 0x0100 more checksum: the carries of RFC 1624.
fn header_checksums() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in PATHS.iter().filter(|path| path.name.starts_with("v4")) {
        for checksum in [
            0x0000, 0x0001, 0x00ff, 0x0100, 0x7fff, 0x8000, 0xfdff, 0xfe00, 0xfefe, 0xfeff, 0xff00,
            0xff01, 0xfffe,
        ] {
            let packet = with_checksum(&tcp(path.service.1), checksum);
            cases.push(
                case(
                    format!("{}_with_header_checksum_{checksum:04x}", path.name),
                    IN.carry(&packet),
                )
                .transmits(path.service.0, &packet, (path.sent)(&packet)),
            );
        }
    }
    // All ones is the other spelling of zero, which nobody should send.
    let packet = with_checksum(&tcp(V4_TCP.1), 0);
    let input = IN.frame(IPV4, &patched(packet.bytes(), 10, &[0xff, 0xff]));
    cases.push(
        case("v4_header_checksum_of_all_ones_is_taken_for_zero", input).transmits(
            V4_TCP.0,
            &packet,
            sent_in_v4(&packet),
        ),
    );
    // A broken header stays broken: the receiver is to throw it away.
    let packet = with_checksum(&tcp(V4_TCP.1), 0x1000);
    let broken = |bytes: Vec<u8>| {
        let [high, low] = [bytes[10], bytes[11]];
        patched(bytes, 10, &[high, low ^ 1])
    };
    let outer = packet.next_hop().within(EDGE_V4, NODE_V4).bytes();
    let sent = [&outer[..20], &broken(packet.next_hop().bytes())].concat();
    cases.push(
        case(
            "v4_wrong_header_checksum_stays_wrong",
            IN.frame(IPV4, &broken(packet.bytes())),
        )
        .transmits(V4_TCP.0, &packet, TO_NODE_V4.frame(IPV4, &sent)),
    );
    cases
}

/// Chooses the identification that gives this header checksum, which must not be all ones: it is a term of the one's
/// complement sum (RFC 1071).
pub(super) fn with_checksum(packet: &Packet, checksum: u16) -> Packet {
    let header_checksum = |packet: &Packet| {
        let bytes = packet.bytes();
        u16::from_be_bytes([bytes[10], bytes[11]])
    };
    let sum_of_rest = !header_checksum(&packet.clone().identification(0));
    let identification = (0xffff + u32::from(!checksum) - u32::from(sum_of_rest)) % 0xffff;
    let packet = packet
        .clone()
        .identification(identification.try_into().unwrap());
    assert_eq!(header_checksum(&packet), checksum);
    packet
}

fn transport_is_untouched() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, checksum) in [
        ("zero", [0, 0]),
        ("all_ones", [0xff, 0xff]),
        ("wrong", [0xba, 0xad]),
    ] {
        let segment = patched(udp(V4_UDP.1).bytes()[20..].to_vec(), 6, &checksum);
        let packet = Packet::ip(CLIENT_V4, VIP_V4, 17, &segment);
        cases.push(
            case(format!("v4_udp_checksum_{name}_stays"), IN.carry(&packet)).transmits(
                V4_UDP.0,
                &packet,
                sent_in_v4(&packet),
            ),
        );
        let segment = patched(udp(V6_UDP.1).bytes()[40..].to_vec(), 6, &checksum);
        let packet = Packet::ip(client(V6_UDP.1).0, V6_UDP.1.0, 17, &segment);
        cases.push(
            case(format!("v6_udp_checksum_{name}_stays"), IN.carry(&packet)).transmits(
                V6_UDP.0,
                &packet,
                sent_in_v6(&packet),
            ),
        );
    }
    for (name, flags) in [
        ("none", 0),
        ("fin", 0x01),
        ("syn", 0x02),
        ("rst", 0x04),
        ("ack", 0x10),
        ("all", 0xff),
    ] {
        let segment = patched(tcp(V4_TCP.1).bytes()[20..].to_vec(), 13, &[flags]);
        let packet = Packet::ip(CLIENT_V4, VIP_V4, 6, &segment);
        cases.push(
            case(
                format!("tcp_flags_{name}_are_balanced_alike"),
                IN.carry(&packet),
            )
            .transmits(V4_TCP.0, &packet, sent_in_v4(&packet)),
        );
    }
    cases
}

/// DSCP and ECN go to the outer header too (RFC 6040 section 4.1, normal mode).
fn classes() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in &PATHS {
        for class in [0x01, 0x02, 0x03, 0xb8, 0xfc, 0xff] {
            let packet = tcp(path.service.1).class(class);
            cases.push(
                case(
                    format!("{}_with_class_{class:02x}", path.name),
                    IN.carry(&packet),
                )
                .transmits(path.service.0, &packet, (path.sent)(&packet)),
            );
        }
    }
    cases
}

fn mtus() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in &PATHS {
        for (name, beyond) in [("fits", 0), ("is_one_byte_too_large", 1)] {
            let header = tcp(path.service.1).length() - b"GET / HTTP/1.0\r\n\r\n".len();
            let payload = vec![0x55; 1500 - path.outer - header + beyond];
            let packet = Packet::tcp(client(path.service.1), path.service.1, &payload);
            let draft = case(
                format!("{}_of_1500_bytes_{name}", path.name),
                IN.carry(&packet),
            );
            cases.push(if beyond == 0 {
                draft.transmits(path.service.0, &packet, (path.sent)(&packet))
            } else {
                let mtu = 1500 - u32::try_from(path.outer).unwrap();
                let answer = BACK.carry(&too_big(&packet, mtu));
                draft.replies(ReplyReason::PacketTooBig, answer)
            });
        }
    }
    let packet = tcp(V4_TCP.1);
    let largest = u32::try_from(packet.length()).unwrap() + 20;
    cases.extend([
        case("mtu_of_zero_drops", IN.carry(&packet))
            .with(|tables| tables.next_hops[1].mtu = 0)
            .drops(DropReason::MtuExceeded),
        case("mtu_is_the_next_hops", IN.carry(&packet))
            .with(|tables| tables.next_hops[1].mtu = largest - 1)
            .drops(DropReason::MtuExceeded),
        case("mtu_does_not_count_link_headers", IN.carry(&packet))
            .with(|tables| {
                tables.next_hops[1].mtu = largest;
                tables.next_hops[1].vlan = [0, 9];
            })
            .transmits(V4_TCP.0, &packet, {
                let tags = &[(VLAN, 9)];
                Link { tags, ..TO_NODE_V4 }.carry(&packet.next_hop().within(EDGE_V4, NODE_V4))
            }),
        case("expired_ttl_is_seen_before_the_mtu", {
            IN.carry(&packet.clone().hop_limit(1))
        })
        .with(|tables| tables.next_hops[1].mtu = 0)
        .replies(ReplyReason::TimeExceeded, {
            BACK.carry(&time_exceeded(&packet.clone().hop_limit(1)))
        }),
    ]);
    cases
}

/// Frames that a driver delivers in several buffers, and the largest that IP can state.
fn large_frames() -> Vec<Case> {
    let mut cases = Vec::new();
    let sized = |path: &Path, length: usize| {
        let header = tcp(path.service.1).length() - b"GET / HTTP/1.0\r\n\r\n".len();
        Packet::tcp(
            client(path.service.1),
            path.service.1,
            &vec![0x55; length - header],
        )
    };
    for path in &PATHS {
        for length in [3400, 3600, 4096, 9000, 65_535 - path.outer] {
            let packet = sized(path, length);
            cases.push(
                case(
                    format!("{}_of_{length}_bytes", path.name),
                    IN.carry(&packet),
                )
                .with(|tables| {
                    for hop in &mut tables.next_hops {
                        hop.mtu = 65_536;
                    }
                })
                .transmits(path.service.0, &packet, (path.sent)(&packet)),
            );
        }
    }
    // The loopback device's MTU of 65536 is more than an outer header can state.
    for path in PATHS.iter().filter(|path| path.outer != 0) {
        for length in [65_535 - path.outer + 1, 65_535] {
            cases.push(
                case(
                    format!("{}_of_{length}_bytes_cannot_be_stated", path.name),
                    IN.carry(&sized(path, length)),
                )
                .with(|tables| {
                    for hop in &mut tables.next_hops {
                        hop.mtu = u32::MAX;
                    }
                })
                .replies(ReplyReason::PacketTooBig, {
                    let mtu = 65_535 - u32::try_from(path.outer).unwrap();
                    BACK.carry(&too_big(&sized(path, length), mtu))
                }),
            );
        }
    }
    cases.push(
        case("large_frame_cut_by_one_byte_drops", {
            let mut frame = IN.carry(&sized(&PATHS[0], 9000));
            frame.pop();
            frame
        })
        .drops(DropReason::VipHeaders),
    );
    cases
}

/// Drivers give at least 192 bytes; where there is less, the frame ends here.
fn headrooms() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in PATHS.iter().filter(|path| path.outer != 0) {
        let packet = tcp(path.service.1);
        let just = case(
            format!("{}_with_just_enough_headroom", path.name),
            IN.carry(&packet),
        );
        cases.push(just.headroom(path.outer).transmits(
            path.service.0,
            &packet,
            (path.sent)(&packet),
        ));
        let less = case(
            format!("{}_with_too_little_headroom", path.name),
            IN.carry(&packet),
        );
        let half_edited = IN.carry(&packet.next_hop());
        cases.push(less.headroom(path.outer - 1).ends(
            Action::Drop,
            half_edited,
            counted(DropReason::NoHeadroom.index()),
        ));
    }
    cases
}
