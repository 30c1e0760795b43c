//! Transport checksums at the edges of the arithmetic, before the translation or after it: sums of 0xffff and their
//! neighbours. A sum of 0x0000 no reply of a pod has: its addresses are covered.

use super::{BOTH, Case, Ends, OUT, TCP, UDP, case};
use crate::{
    packets::{Flags::Ack, icmp, tcp},
    support::packet::{End, Packet},
};

/// What TCP, ICMP and ICMPv6 send for sums of all ones, one less, and one.
const EDGES: [u16; 3] = [0x0000, 0x0001, 0xfffe];
/// What UDP sends for them.
const UDP_EDGES: [u16; 3] = [0xffff, 0x0001, 0xfffe];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        // With the pod's port the service's, the address alone changes.
        for (ports, ends) in [("two ports", ends), ("one port", ends.same_port())] {
            for checksum in EDGES {
                let reply = |from, word: [u8; 2]| tcp(from, ends.client, Ack, &[], &word);
                cases.extend(replies("TCP", TCP, ports, ends, 16, checksum, reply));
            }
            for checksum in UDP_EDGES {
                let reply = |from, word: [u8; 2]| Packet::udp(from, ends.client, &word);
                cases.extend(replies("UDP", UDP, ports, ends, 6, checksum, reply));
            }
        }
        for checksum in EDGES {
            cases.extend(errors(ends, checksum));
        }
    }
    cases
}

/// Finds the word that, in a packet, makes the checksum at this offset of its payload what is asked for.
fn word_for(make: impl Fn([u8; 2]) -> Packet, at: usize, checksum: u16) -> [u8; 2] {
    let words = (0..=u16::MAX).map(u16::to_be_bytes);
    let mut words =
        words.filter(|word| make(*word).payload()[at..at + 2] == checksum.to_be_bytes());
    words.next().expect("one word does it")
}

fn replies(
    what: &str,
    protocol: u8,
    ports: &str,
    ends: Ends,
    offset: usize,
    checksum: u16,
    reply: impl Fn(End, [u8; 2]) -> Packet,
) -> Vec<Case> {
    let made = |when: &str, tuned: End| {
        let word = word_for(|word| reply(tuned, word), offset, checksum);
        let name = format!(
            "{}: {what} checksum {checksum:04x} {when}, {ports}",
            ends.family
        );
        case(name, OUT.carry(&reply(ends.pod, word)))
            .answered(ends.key(protocol), ends.flow_of(protocol, 0, 0))
            .translated(OUT.carry(&reply(ends.vip, word)))
    };
    vec![made("before", ends.pod), made("after", ends.vip)]
}

/// What an error quotes is tuned, and with that its own checksum.
fn errors(ends: Ends, checksum: u16) -> Vec<Case> {
    let kind = if ends.client.0.is_ipv4() { 3 } else { 1 };
    let error = |from: End, word: [u8; 2]| {
        // Not as far as the quoted checksum, which would make up for the word.
        let least = if ends.client.0.is_ipv4() { 28 } else { 48 };
        let quote = tcp(ends.client, from, Ack, &[], b"").bytes();
        icmp(
            from.0,
            ends.client.0,
            kind,
            &[&quote[..least], &word].concat(),
        )
    };
    let made = |when: &str, tuned: End| {
        let word = word_for(|word| error(tuned, word), 2, checksum);
        let name = format!("{}: error with checksum {checksum:04x} {when}", ends.family);
        case(name, OUT.carry(&error(ends.pod, word)))
            .answered(ends.key(TCP), ends.flow())
            .translated(OUT.carry(&error(ends.vip, word)))
    };
    vec![made("before", ends.pod), made("after", ends.vip)]
}
