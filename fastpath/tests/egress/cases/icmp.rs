//! ICMP errors about packets to a pod.

use std::net::IpAddr;

use super::{BOTH, Case, Draft, Ends, OUT, SCTP, TCP, UDP, case};
use crate::{
    packets::{Flags::Ack, icmp, sctp, tcp},
    support::packet::{End, Packet, patched},
};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        cases.extend(quotes(ends));
        cases.extend(senders(ends));
        cases.extend(kinds(ends));
        cases.extend(strangers(ends));
        cases.extend(headers(ends));
    }
    cases
}

/// Destination unreachable.
fn unreachable(ends: Ends) -> u8 {
    if ends.client.0.is_ipv4() { 3 } else { 1 }
}

const fn header(ends: Ends) -> usize {
    if ends.client.0.is_ipv4() { 20 } else { 40 }
}

/// The client's packet, as it came to `to`.
fn query(protocol: u8, to: End, ends: Ends) -> Packet {
    match protocol {
        TCP => tcp(ends.client, to, Ack, &[], b"GET / HTTP/1.0\r\n\r\n"),
        UDP => Packet::udp(ends.client, to, b"a query"),
        _ => sctp(ends.client, to),
    }
}

/// The error from the pod about its `quote`, and as the client must see it.
fn about(ends: Ends, from_pod: &[u8], from_vip: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let error = |source, quote| OUT.carry(&icmp(source, ends.client.0, unreachable(ends), quote));
    (error(ends.pod.0, from_pod), error(ends.vip.0, from_vip))
}

/// What is quoted becomes what the client sent, however much it is.
fn quotes(ends: Ends) -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, protocol) in [("TCP", TCP), ("UDP", UDP), ("SCTP", SCTP)] {
        let ends = if protocol == SCTP {
            ends.same_port()
        } else {
            ends
        };
        let (quote, sent) = (
            query(protocol, ends.pod, ends).bytes(),
            query(protocol, ends.vip, ends).bytes(),
        );
        let least = header(ends) + 8;
        for length in [least, least + 8, least + 10, quote.len()] {
            let length = length.min(quote.len());
            let (input, output) = about(ends, &quote[..length], &sent[..length]);
            let name = format!("{}: error quotes {length} bytes of {what}", ends.family);
            if cases.iter().any(|case: &Case| case.name == name) {
                continue;
            }
            let draft =
                case(name, input).answered(ends.key(protocol), ends.flow_of(protocol, 0, 0));
            cases.push(draft.translated(output));
        }
        let (input, _) = about(ends, &quote[..least - 1], &sent[..least - 1]);
        let name = format!("{}: error quotes too little of {what}", ends.family);
        let draft = case(name, input).answered(ends.key(protocol), ends.flow_of(protocol, 0, 0));
        cases.push(draft.untouched());
    }
    cases
}

/// The source becomes the VIP only where it is the pod.
fn senders(ends: Ends) -> Vec<Case> {
    let (quote, sent) = (
        query(UDP, ends.pod, ends).bytes(),
        query(UDP, ends.vip, ends).bytes(),
    );
    let error = |source: IpAddr, quote: &[u8]| {
        OUT.carry(&icmp(source, ends.client.0, unreachable(ends), quote))
    };
    let name = |what: &str| format!("{}: error from {what}", ends.family);
    let known = |draft: Draft| draft.answered(ends.key(UDP), ends.flow_of(UDP, 0, 0));
    vec![
        known(case(name("this machine"), error(ends.node, &quote)))
            .translated(error(ends.node, &sent)),
        case(
            name("a pod that has answered nothing"),
            error(ends.pod.0, &quote),
        )
        .embryonic(ends.key(UDP), ends.flow_of(UDP, 0, 0))
        .translated(error(ends.vip.0, &sent)),
    ]
}

/// Errors only, not what else ICMP says.
fn kinds(ends: Ends) -> Vec<Case> {
    let errors: &[u8] = if ends.client.0.is_ipv4() {
        &[3, 4, 11, 12]
    } else {
        &[1, 2, 3, 4]
    };
    let (quote, sent) = (
        query(UDP, ends.pod, ends).bytes(),
        query(UDP, ends.vip, ends).bytes(),
    );
    let mut cases = Vec::new();
    for kind in [0, 1, 2, 3, 4, 5, 8, 11, 12, 13, 128, 129, 135, 137] {
        let message = |source, quote: &[u8]| OUT.carry(&icmp(source, ends.client.0, kind, quote));
        let draft = case(
            format!("{}: ICMP type {kind}", ends.family),
            message(ends.pod.0, &quote),
        )
        .answered(ends.key(UDP), ends.flow_of(UDP, 0, 0));
        cases.push(if errors.contains(&kind) {
            draft.translated(message(ends.vip.0, &sent))
        } else {
            draft.untouched()
        });
    }
    cases
}

fn strangers(ends: Ends) -> Vec<Case> {
    let quote = query(UDP, ends.pod, ends).bytes();
    let (error, _) = about(ends, &quote, &quote);
    let name = |what: &str| format!("{}: error {what}", ends.family);
    let known = |draft: Draft| draft.answered(ends.key(UDP), ends.flow_of(UDP, 0, 0));
    let elsewhere = OUT.carry(&icmp(ends.pod.0, ends.node, unreachable(ends), &quote));
    let other = query(UDP, (ends.pod.0, ends.pod.1 + 1), ends).bytes();
    let reversed = Packet::udp(ends.pod, ends.client, b"an answer").bytes();
    let other_version = patched(quote.clone(), 0, &[0x10]);
    vec![
        case(name("about no flow"), error).untouched(),
        known(case(name("to another machine than the client"), elsewhere)).untouched(),
        known(case(
            name("about another port"),
            about(ends, &other, &other).0,
        ))
        .untouched(),
        known(case(
            name("about an answer"),
            about(ends, &reversed, &reversed).0,
        ))
        .untouched(),
        known(case(
            name("that quotes no IP"),
            about(ends, &other_version, &other_version).0,
        ))
        .untouched(),
    ]
}

/// Quoted options, fragments and extension headers.
fn headers(ends: Ends) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |what: &str, make: &dyn Fn(End) -> Packet, follows: bool| {
        let (quote, sent) = (make(ends.pod).bytes(), make(ends.vip).bytes());
        let (input, output) = about(ends, &quote, &sent);
        let draft = case(format!("{}: error quotes {what}", ends.family), input)
            .answered(ends.key(UDP), ends.flow_of(UDP, 0, 0));
        cases.push(if follows {
            draft.translated(output)
        } else {
            draft.untouched()
        });
    };
    if ends.client.0.is_ipv4() {
        add("options", &|to| query(UDP, to, ends).options(&[1; 8]), true);
        add(
            "a first fragment",
            &|to| query(UDP, to, ends).fragment(0, true),
            true,
        );
        add(
            "a later fragment",
            &|to| query(UDP, to, ends).fragment(185, true),
            false,
        );
        // No checksum stays none.
        let absent = |to| patched(query(UDP, to, ends).bytes(), 26, &[0, 0]);
        let (input, output) = about(ends, &absent(ends.pod), &absent(ends.vip));
        let draft = case("v4: error quotes UDP without checksum", input);
        cases.push(
            draft
                .answered(ends.key(UDP), ends.flow_of(UDP, 0, 0))
                .translated(output),
        );
    } else {
        let first: (u8, &[u8]) = (44, &[0, 0, 1, 1, 2, 3, 4]);
        let later: (u8, &[u8]) = (44, &[0, 5, 0xc9, 1, 2, 3, 4]);
        let options: (u8, &[u8]) = (60, &[0, 1, 4, 0, 0, 0, 0]);
        add(
            "a first fragment",
            &|to| query(UDP, to, ends).extensions(&[first]),
            true,
        );
        add(
            "a later fragment",
            &|to| query(UDP, to, ends).extensions(&[later]),
            false,
        );
        add(
            "other extension headers",
            &|to| query(UDP, to, ends).extensions(&[options]),
            false,
        );
    }
    cases
}
