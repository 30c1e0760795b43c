//! Replies in fragments.

use xdp_prog::abi::{Datagram, Tuple};

use super::{BOTH, Case, Ends, OUT, UDP, case};
use crate::{
    packets::fragments,
    support::{
        packet::{End, Packet},
        tables::address_key,
    },
};

/// Bytes of payload per fragment.
const SIZE: usize = 1480;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        cases.extend(family(ends));
    }
    cases
}

/// A DNS answer of 4 KB in its fragments.
fn answer(from: End, ends: Ends) -> Vec<Vec<u8>> {
    let payload: Vec<u8> = (0..4096_u16).map(|n| n.to_be_bytes()[1]).collect();
    let packet = Packet::udp(from, ends.client, &payload);
    fragments(&packet, from.0, ends.client.0, SIZE)
        .iter()
        .map(|fragment| OUT.carry(fragment))
        .collect()
}

fn family(ends: Ends) -> Vec<Case> {
    let name = |what: &str| format!("{}: {what}", ends.family);
    let flow = (ends.key(UDP), ends.flow_of(UDP, 0, 0));
    let key = key(ends);
    let ports = (ends.pod.1.to_be_bytes(), ends.client.1.to_be_bytes());
    let (sent, seen) = (answer(ends.pod, ends), answer(ends.vip, ends));
    assert_eq!(sent.len(), 3);

    let publishes = move |known: &mut super::Remembered| {
        known.datagrams.insert(key, ports);
    };
    let mut cases = vec![
        case(name("first fragment"), sent[0].clone())
            .answered(flow.0, flow.1)
            .remembers(publishes)
            .translated(seen[0].clone()),
        case(name("first fragment of a first answer"), sent[0].clone())
            .embryonic(flow.0, flow.1)
            .establishes(flow.0, flow.1)
            .remembers(publishes)
            .translated(seen[0].clone()),
        case(name("first fragment of no flow"), sent[0].clone()).untouched(),
    ];
    for (what, number) in [("middle", 1), ("last", 2)] {
        cases.push(
            case(name(&format!("{what} fragment")), sent[number].clone())
                .answered(flow.0, flow.1)
                .after(sent[0].clone())
                .remembers(publishes)
                .translated(seen[number].clone()),
        );
        let alone = case(
            name(&format!("{what} fragment without the first")),
            sent[number].clone(),
        );
        cases.push(alone.answered(flow.0, flow.1).untouched());
    }
    let noted = |age| Datagram::new(ports.0, ports.1, age);
    let second = 1_000_000_000;
    let later = |what: &str| case(name(what), sent[1].clone());
    cases.extend([
        later("later fragment after 29 s")
            .answered(flow.0, flow.1)
            .datagram(key, noted(29 * second))
            .translated(seen[1].clone()),
        later("later fragment after 31 s")
            .answered(flow.0, flow.1)
            .datagram(key, noted(31 * second))
            .untouched(),
        // It has no port to tell it by.
        later("later fragment from a port that no pod has")
            .answered(flow.0, flow.1)
            .leaves_no_more_from(ends.pod.1)
            .datagram(key, noted(0))
            .translated(seen[1].clone()),
        case(
            name("first fragment from a port that no pod has"),
            sent[0].clone(),
        )
        .answered(flow.0, flow.1)
        .leaves_no_more_from(ends.pod.1)
        .untouched(),
        later("later fragment whose flow is gone")
            .datagram(key, noted(0))
            .untouched(),
    ]);
    cases
}

/// Key of the datagram: the identification that [`fragments`] gives.
fn key(ends: Ends) -> Tuple {
    let identification = if ends.client.0.is_ipv4() {
        [0, 0, 0x43, 0x21]
    } else {
        [0xfe, 0xed, 0x43, 0x21]
    };
    Tuple::fragments(
        address_key(ends.pod.0),
        address_key(ends.client.0),
        identification,
        UDP,
    )
}
