//! Transport checksums of NAT mode at the edges of the arithmetic, and those of errors that quote its packets.

use super::{
    super::{
        Case, IN,
        checksums::{EDGES, UDP_EDGES, word_for},
        counted, v4, v6,
    },
    BACK, FROM_MACHINE, SYN, Service, TCP, TCP_V4, TCP_V6, UDP_V4, UDP_V6, nat,
};
use crate::support::packet::{ACK, End, Packet};
use xdp_prog::{process::Action, reason::ToClientReason};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for service in [TCP_V4, UDP_V4, TCP_V6, UDP_V6] {
        let (offset, edges) = if service.protocol == TCP {
            (16, EDGES)
        } else {
            (6, UDP_EDGES)
        };
        for checksum in edges {
            cases.extend(requests(&service, offset, checksum));
            cases.extend(replies(&service, offset, checksum));
        }
        for checksum in EDGES {
            cases.extend(errors(&service, checksum));
        }
    }
    cases
}

fn packet(service: &Service, from: End, to: End, word: [u8; 2]) -> Packet {
    match service.protocol {
        TCP => Packet::segment(from, to, SYN, &word),
        _ => Packet::udp(from, to, &word),
    }
}

fn requests(service: &Service, offset: usize, checksum: u16) -> Vec<Case> {
    let came = |word| packet(service, service.client, service.vip, word);
    let leaves = |word| packet(service, service.edge, service.machine, word);
    let made = |when: &str, word: [u8; 2]| {
        let name = format!(
            "{}_checksum_{checksum:04x}_{when}_the_request",
            service.name()
        );
        let (input, output) = (came(word), leaves(word).next_hop());
        nat(name, IN.carry(&input)).forwards(
            Action::Transmit,
            service.way,
            input.length(),
            service.link.carry(&output),
        )
    };
    vec![
        made("before", word_for(came, offset, checksum)),
        made("after", word_for(leaves, offset, checksum)),
    ]
}

fn replies(service: &Service, offset: usize, checksum: u16) -> Vec<Case> {
    let came = |word| packet(service, service.machine, service.edge, word);
    let leaves = |word| packet(service, service.vip, service.client, word);
    let made = |when: &str, word: [u8; 2]| {
        let name = format!(
            "{}_checksum_{checksum:04x}_{when}_the_reply",
            service.name()
        );
        nat(name, FROM_MACHINE.carry(&came(word)))
            .after(IN.carry(&service.request(SYN)))
            .returns(BACK.carry(&leaves(word).next_hop()))
    };
    vec![
        made("before", word_for(came, offset, checksum)),
        made("after", word_for(leaves, offset, checksum)),
    ]
}

/// An error about a request: what it quotes is tuned, and with that its own checksum.
fn errors(service: &Service, checksum: u16) -> Vec<Case> {
    let (router, kind) = if service.vip.0.is_ipv4() {
        (v4(198, 51, 100, 254), (3, 1))
    } else {
        (v6(0xc, 254), (1, 0))
    };
    let error = |word: [u8; 2], from, about: (End, End)| {
        let quoted = service.packet(about.0, about.1, ACK).hop_limit(3);
        let (from, to) = (from, about.0.0);
        Packet::icmp(from, to, kind, [0, 0, word[0], word[1]], &quoted.bytes())
    };
    let came = |word| error(word, router, (service.edge, service.machine));
    let leaves = |word| error(word, service.vip.0, (service.client, service.vip));
    let made = |when: &str, word: [u8; 2]| {
        let name = format!(
            "{}_checksum_{checksum:04x}_{when}_the_error",
            service.name()
        );
        let counts = counted(ToClientReason::NatError.index());
        nat(name, IN.carry(&came(word)))
            .after(IN.carry(&service.request(SYN)))
            .ends(
                Action::Transmit,
                BACK.carry(&leaves(word).next_hop()),
                counts,
            )
    };
    vec![
        made("before", word_for(came, 2, checksum)),
        made("after", word_for(leaves, 2, checksum)),
    ]
}
