//! Transport checksums at the edges of the arithmetic, before a change or after it: sums of 0x0000, which only zeros
//! have, of 0xffff, and their neighbours.

use std::net::IpAddr;

use xdp_prog::reason::ReplyReason;

use super::{
    super::packet::{ACK, Packet},
    BACK, CLIENT_V4, CLIENT_V6, Case, IN, VIP_V4, VIP_V6, case, client,
    pods::{
        POD_V4, POD_V6, PODS_V4_TCP, PODS_V4_UDP, PODS_V6_TCP, PODS_V6_UDP, TAG_V4, TAG_V6, TARGET,
        case_here, from_edge,
    },
};

/// Checksums of data whose sum is all ones, one less, and one.
pub(super) const EDGES: [u16; 3] = [0x0000, 0x0001, 0xfffe];
/// What UDP sends for them.
pub(super) const UDP_EDGES: [u16; 3] = [0xffff, 0x0001, 0xfffe];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(echoes());
    cases.extend(delivery());
    cases
}

/// Finds the word that, in a packet, makes the checksum at this offset of its payload what is asked for.
pub(super) fn word_for(make: impl Fn([u8; 2]) -> Packet, at: usize, checksum: u16) -> [u8; 2] {
    let gives = |word: u16| {
        let packet = make(word.to_be_bytes());
        packet.payload()[at..at + 2] == checksum.to_be_bytes()
    };
    let [high, low] = [0, 1].map(|byte| make([0; 2]).payload()[at + byte]);
    let now = u32::from(u16::from_be_bytes([high, low]));
    // The sum grows by what the checksum is to lose.
    let word = u16::try_from((now + 0xffff - u32::from(checksum)) % 0xffff).unwrap();
    let word = [word, 0xffff, 0].into_iter().find(|word| gives(*word));
    word.expect("one word does it").to_be_bytes()
}

fn echo(from: IpAddr, to: IpAddr, kind: u8, id: [u8; 2], rest: &[u8]) -> Packet {
    Packet::icmp(from, to, (kind, 0), [id[0], id[1], 0, 0], rest)
}

fn echoes() -> Vec<Case> {
    let mut cases = Vec::new();
    for (family, client, vip, request, reply) in [
        ("v4", CLIENT_V4, VIP_V4, 8, 0),
        ("v6", CLIENT_V6, VIP_V6, 128, 129),
    ] {
        let answered = |name: String, id: [u8; 2], rest: &[u8]| {
            let request = echo(client, vip, request, id, rest);
            let reply = echo(vip, client, reply, id, rest);
            case(name, IN.carry(&request)).replies(ReplyReason::EchoReply, BACK.carry(&reply))
        };
        for length in [0, 1, 2, 56, 1271, 1272, 1273, 1400, 8000] {
            let name = format!("{family}_echo_of_{length}_zeros_alone");
            cases.push(answered(name, [0; 2], &vec![0; length]));
        }
        // The sum is all ones: by the first word, by the last, by two that make up for one another.
        let last = [&[0; 54][..], &[0xff, 0xff]].concat();
        cases.extend([
            answered(format!("{family}_echo_with_id_of_all_ones"), [0xff; 2], &[]),
            answered(
                format!("{family}_echo_that_ends_in_all_ones"),
                [0; 2],
                &last,
            ),
            answered(
                format!("{family}_echo_with_a_word_and_its_complement"),
                [0x12, 0x34],
                &[0xed, 0xcb],
            ),
        ]);
        for checksum in EDGES {
            let before = word_for(|id| echo(client, vip, request, id, b"!"), 2, checksum);
            let after = word_for(|id| echo(vip, client, reply, id, b"!"), 2, checksum);
            cases.extend([
                answered(
                    format!("{family}_echo_request_with_checksum_{checksum:04x}"),
                    before,
                    b"!",
                ),
                answered(
                    format!("{family}_echo_reply_with_checksum_{checksum:04x}"),
                    after,
                    b"!",
                ),
            ]);
        }
    }
    cases.push(wrong());
    cases
}

/// A request whose checksum is wrong gets a reply whose checksum is, though it is zero.
fn wrong() -> Case {
    let carry = |kind: u8, check: [u8; 2], from, to| {
        let message = [&[kind, 0], &check[..], &[0, 0, 0, 0, 0xab, 0xcd]].concat();
        Packet::ip(from, to, 1, &message)
    };
    let request = carry(8, [0xf7, 0xff], CLIENT_V4, VIP_V4);
    let reply = carry(0, [0, 0], VIP_V4, CLIENT_V4);
    case(
        "wrong_echo_checksum_stays_wrong_at_zero",
        IN.carry(&request),
    )
    .replies(ReplyReason::EchoReply, BACK.carry(&reply))
}

fn delivery() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, (way, to), pod, tag, offset, edges) in [
        ("v4_tcp", PODS_V4_TCP, POD_V4, TAG_V4, 16, EDGES),
        ("v4_udp", PODS_V4_UDP, POD_V4, TAG_V4, 6, UDP_EDGES),
        ("v6_tcp", PODS_V6_TCP, POD_V6, TAG_V6, 16, EDGES),
        ("v6_udp", PODS_V6_UDP, POD_V6, TAG_V6, 6, UDP_EDGES),
    ] {
        let packet = |end, word: [u8; 2]| {
            if offset == 16 {
                Packet::segment(client(to), end, ACK, &word)
            } else {
                Packet::udp(client(to), end, &word)
            }
        };
        for checksum in edges {
            for (when, tuned) in [("before", to), ("after", (pod, TARGET))] {
                let word = word_for(|word| packet(tuned, word), offset, checksum);
                let (input, output) = (packet(to, word), packet((pod, TARGET), word));
                cases.push(
                    case_here(
                        format!("{name}_checksum_{checksum:04x}_{when}_delivery"),
                        from_edge(&input, tag),
                    )
                    .delivers(way, input.length(), IN.carry(&output)),
                );
            }
        }
    }
    cases
}
