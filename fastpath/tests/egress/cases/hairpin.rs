//! Replies to clients on this machine that the pod does not see.

use std::net::IpAddr;

use xdp_prog::abi::{Datagram, FLOW_HAIRPIN, PodFlow, Tuple};

use super::{BOTH, Case, Ends, OUT, SCTP, TCP, UDP, case, tuple};
use crate::{
    packets::{Flags::Ack, icmp, sctp, tcp},
    support::{
        packet::{End, Link, Packet},
        tables::address_key,
    },
};

/// Identification of datagrams in pieces.
const ID: u32 = 0xbeef;
/// How a frame comes back: addressed to the device that was about to send it.
const BACK: Link<'static> = Link {
    destination: OUT.source,
    ..OUT
};

pub(crate) fn cases() -> Vec<Case> {
    BOTH.into_iter().flat_map(turned).collect()
}

/// The pod talks to the VIP with the client's port; both ends are translated.
fn turned(ends: Ends) -> Vec<Case> {
    let seen: End = (ends.vip.0, ends.client.1);
    let family = ends.family;
    let same = ends.same_port();
    let mut cases = Vec::new();
    let make_tcp = |from, to| tcp(from, to, Ack, &[], b"answer");
    let make_udp = |from, to| Packet::udp(from, to, b"answer");
    let make_sctp = |from, to| sctp(from, to);
    for (who, client) in [("itself", ends.pod.0), ("its machine", ends.node)] {
        let client: End = (client, ends.client.1);
        for (what, protocol, ends, input, output) in [
            (
                "TCP",
                TCP,
                ends,
                make_tcp(ends.pod, seen),
                make_tcp(ends.vip, client),
            ),
            (
                "UDP",
                UDP,
                ends,
                make_udp(ends.pod, seen),
                make_udp(ends.vip, client),
            ),
            (
                "SCTP",
                SCTP,
                same,
                make_sctp(same.pod, seen),
                make_sctp(same.vip, client),
            ),
        ] {
            cases.push(
                known(
                    format!("{family}: {what} reply of a pod to {who}"),
                    ends,
                    (seen, client.0),
                    protocol,
                    &input,
                )
                .turned(BACK.carry(&output)),
            );
        }
        // Pieces of the translated datagram are the translated pieces.
        let pieces = |from, to| Packet::udp(from, to, &[0x55; 300]).pieces(256, ID);
        let key = fragments(ends.pod.0, seen.0);
        let ports = (ends.pod.1.to_be_bytes(), seen.1.to_be_bytes());
        cases.push(
            known(
                format!("{family}: later fragment of a reply of a pod to {who}"),
                ends,
                (seen, client.0),
                UDP,
                &pieces(ends.pod, seen)[1],
            )
            .datagram(key, Datagram::new(ports.0, ports.1, 0))
            .turned(BACK.carry(&pieces(ends.vip, client)[1])),
        );
    }
    cases.extend(errors(ends));
    cases
}

/// What the pod cannot take: whoever says so, the client hears it from where it sent its packet to.
fn errors(ends: Ends) -> Vec<Case> {
    let seen: End = (ends.vip.0, ends.client.1);
    let unreachable = if ends.vip.0.is_ipv4() { 3 } else { 1 };
    let error = |from, to, quote: Packet| icmp(from, to, unreachable, &quote.bytes());
    let make_tcp: fn(End, End) -> Packet = |from, to| tcp(from, to, Ack, &[], b"a question");
    let make_udp: fn(End, End) -> Packet = |from, to| Packet::udp(from, to, b"a question");
    let mut cases = Vec::new();
    for (who, client) in [("itself", ends.pod.0), ("its machine", ends.node)] {
        for (from, source) in [("a pod", ends.pod.0), ("this machine", ends.node)] {
            for (what, protocol, make) in [("TCP", TCP, make_tcp), ("UDP", UDP, make_udp)] {
                let input = error(source, seen.0, make(seen, ends.pod));
                let output = error(ends.vip.0, client, make((client, seen.1), ends.vip));
                let name = format!(
                    "{}: error of {from} to {who} about {what}, by a VIP",
                    ends.family
                );
                cases.push(
                    known(name, ends, (seen, client), protocol, &input).turned(BACK.carry(&output)),
                );
            }
        }
    }
    cases
}

/// A packet of a flow of which the pod sees `seen`, and behind that is `client`.
fn known(
    name: String,
    ends: Ends,
    (seen, client): (End, IpAddr),
    protocol: u8,
    packet: &Packet,
) -> super::Draft {
    let key = tuple(seen, ends.pod, protocol);
    let port = ends.vip.1.to_be_bytes();
    let flow = PodFlow::new(&key, address_key(client), port, 20, FLOW_HAIRPIN, 0);
    case(name, OUT.carry(packet)).answered(key, flow)
}

fn fragments(source: IpAddr, destination: IpAddr) -> Tuple {
    Tuple::fragments(
        address_key(source),
        address_key(destination),
        ID.to_be_bytes(),
        UDP,
    )
}
