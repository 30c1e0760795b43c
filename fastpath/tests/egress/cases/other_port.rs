//! Flows of which the pod sees another client port than the client's own.

use xdp_prog::abi::{Datagram, FLOW_FIN_POD, FLOW_HAIRPIN, PodFlow, Tuple};

use super::{BOTH, Case, Ends, OTHER_PORT, OUT, TCP, UDP, accepted, case, older, tuple};
use crate::{
    packets::{
        Flags::{Ack, FinAck, PshAck},
        SEQUENCE, icmp, tcp,
    },
    support::{
        packet::{End, Link, Packet, patched},
        tables::address_key,
    },
};

/// Makes a packet from one end to the other.
type Make = fn(End, End) -> Packet;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ends in BOTH {
        cases.extend(replies(ends));
        cases.extend(beginnings(ends));
        cases.extend(fragments(ends));
        cases.extend(errors(ends));
        cases.extend(hairpin(ends));
        cases.extend(second_entries(ends));
    }
    cases
}

/// The client as the pod sees it.
const fn seen(ends: Ends) -> End {
    (ends.client.0, OTHER_PORT)
}

fn replies(ends: Ends) -> Vec<Case> {
    let mut cases = Vec::new();
    for (what, protocol, make) in [
        (
            "TCP",
            TCP,
            (|from, to| tcp(from, to, Ack, &[], b"odd")) as Make,
        ),
        ("UDP", UDP, |from, to| Packet::udp(from, to, b"an answer")),
    ] {
        for ends in [ends, ends.same_port()] {
            let name = format!(
                "{}: {what} reply from {} to another port",
                ends.family, ends.pod.1
            );
            let (input, output) = (make(ends.pod, seen(ends)), make(ends.vip, ends.client));
            cases.push(
                case(name, OUT.carry(&input))
                    .answered(ends.other_key(protocol), ends.other_flow(protocol, 0))
                    .translated(OUT.carry(&output)),
            );
        }
    }
    if ends.client.0.is_ipv4() {
        let absent = |from, to| {
            let frame = OUT.carry(&Packet::udp(from, to, b"an answer"));
            patched(frame, 14 + 20 + 6, &[0, 0])
        };
        cases.push(
            case(
                "v4: UDP reply without checksum to another port",
                absent(ends.pod, seen(ends)),
            )
            .answered(ends.other_key(UDP), ends.other_flow(UDP, 0))
            .translated(absent(ends.vip, ends.client)),
        );
    }
    cases
}

/// Both entries go to the flows whose clients are where they say.
fn beginnings(ends: Ends) -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = ends.other_flow(TCP, 0);
    let accepted = accepted(plain, SEQUENCE);
    for (what, flags, before, state) in [
        ("ACK", Ack, older(plain, SEQUENCE), 0),
        ("data", PshAck, accepted, 0),
        ("FIN", FinAck, accepted, FLOW_FIN_POD),
    ] {
        let (key, (forward, entry)) = (ends.other_key(TCP), ends.forward(TCP));
        let name = format!("{}: {what} establishes a flow of another port", ends.family);
        cases.push(
            case(
                name,
                OUT.carry(&tcp(ends.pod, seen(ends), flags, &[], b"data")),
            )
            .embryonic(key, before)
            .embryonic(forward, entry)
            .establishes(key, ends.other_flow(TCP, state))
            .establishes(forward, entry)
            .translated(OUT.carry(&tcp(ends.vip, ends.client, flags, &[], b"data"))),
        );
    }
    cases
}

fn fragments(ends: Ends) -> Vec<Case> {
    const ID: u32 = 0xbeef;
    let pieces = |from, to| Packet::udp(from, to, &[0x55; 300]).pieces(256, ID);
    let key = Tuple::fragments(
        address_key(ends.pod.0),
        address_key(ends.client.0),
        ID.to_be_bytes(),
        UDP,
    );
    let ports = (ends.pod.1.to_be_bytes(), OTHER_PORT.to_be_bytes());
    let (sent, got) = (pieces(ends.pod, seen(ends)), pieces(ends.vip, ends.client));
    let known = |what: &str, piece: usize| {
        let name = format!("{}: {what} fragment to another port", ends.family);
        case(name, OUT.carry(&sent[piece])).answered(ends.other_key(UDP), ends.other_flow(UDP, 0))
    };
    vec![
        known("first", 0)
            .remembers(move |known| {
                known.datagrams.insert(key, ports);
            })
            .translated(OUT.carry(&got[0])),
        known("later", 1)
            .datagram(key, Datagram::new(ports.0, ports.1, 0))
            .translated(OUT.carry(&got[1])),
    ]
}

/// The client's own port comes back in what is quoted.
fn errors(ends: Ends) -> Vec<Case> {
    let (kind, header) = if ends.client.0.is_ipv4() {
        (3, 20)
    } else {
        (1, 40)
    };
    let mut cases = Vec::new();
    for (what, protocol, make) in [
        (
            "TCP",
            TCP,
            (|from, to| tcp(from, to, Ack, &[], b"a question")) as Make,
        ),
        ("UDP", UDP, |from, to| Packet::udp(from, to, b"a question")),
    ] {
        for length in [8, 20] {
            let error = |source, quote: Packet| {
                let mut quote = quote.bytes();
                quote.truncate(header + length);
                OUT.carry(&icmp(source, ends.client.0, kind, &quote))
            };
            let name = format!(
                "{}: error quotes {length} bytes of {what} by another port",
                ends.family
            );
            cases.push(
                case(name, error(ends.pod.0, make(seen(ends), ends.pod)))
                    .answered(ends.other_key(protocol), ends.other_flow(protocol, 0))
                    .translated(error(ends.vip.0, make(ends.client, ends.vip))),
            );
        }
    }
    cases
}

fn hairpin(ends: Ends) -> Vec<Case> {
    const BACK: Link<'static> = Link {
        destination: OUT.source,
        ..OUT
    };
    let client: End = (ends.node, ends.client.1);
    let shown: End = (ends.vip.0, OTHER_PORT);
    let key = tuple(shown, ends.pod, TCP);
    let port = ends.vip.1.to_be_bytes();
    let flow = PodFlow::new(&key, address_key(client.0), port, 0, FLOW_HAIRPIN, 0)
        .with_client_port(&key, client.1.to_be_bytes());
    let forward = tuple(client, ends.vip, TCP);
    let entry = PodFlow::forward(
        &forward,
        address_key(ends.pod.0),
        OTHER_PORT.to_be_bytes(),
        0,
    );
    vec![
        case(
            format!("{}: hairpin by another port", ends.family),
            OUT.carry(&tcp(ends.pod, shown, PshAck, &[], b"data")),
        )
        .embryonic(key, accepted(flow, SEQUENCE))
        .embryonic(forward, entry)
        .establishes(key, flow)
        .establishes(forward, entry)
        .turned(BACK.carry(&tcp(ends.vip, client, PshAck, &[], b"data"))),
    ]
}

/// A second entry has the key of what leaves in the name of the VIP, as translated replies do by a second device.
fn second_entries(ends: Ends) -> Vec<Case> {
    let (key, entry) = ends.forward(TCP);
    let reply = OUT.carry(&tcp(ends.vip, ends.client, PshAck, &[], b"data"));
    let input = OUT.carry(&tcp(ends.pod, ends.client, Ack, &[], b"data"));
    let other = PodFlow::new(
        &ends.other_key(TCP),
        address_key(ends.vip.0),
        ends.vip.1.to_be_bytes(),
        0,
        0,
        0,
    );
    vec![
        case(
            format!("{}: second entry translates nothing", ends.family),
            reply.clone(),
        )
        .answered(key, entry)
        .untouched(),
        case(
            format!("{}: embryonic second entry translates nothing", ends.family),
            reply,
        )
        .embryonic(key, entry)
        .untouched(),
        // As an element that the table has given to another flow.
        case(
            format!("{}: entry with another key's check is none", ends.family),
            input,
        )
        .answered(ends.key(TCP), other)
        .untouched(),
    ]
}
