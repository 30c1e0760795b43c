//! ICMP errors from a client that its pod does not see, about the pod's replies.

use std::net::IpAddr;

use super::{
    super::packet::{End, Packet},
    Case, EDGE_V4, EDGE_V6, IN, PEER_V4, PEER_V6,
    pods::{KINDS, TARGET, case_here, pods_like},
};

/// The port that the client talks from.
const PORT: u16 = 40_000;

/// The pod hears them from the address that it talks to, and finds its own packet in them.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kind, (service, vip), make) in KINDS {
        let [(pod, tag, _), (other, ..)] = pods_like(vip.0);
        let (own, peer) = if vip.0.is_ipv4() {
            (EDGE_V4, PEER_V4)
        } else {
            (EDGE_V6, PEER_V6)
        };
        let within = |packet: &Packet| IN.carry(&packet.within(peer, own).tag(tag));
        let reply = |from: End, client: IpAddr| make(from, (client, PORT), b"answer").hop_limit(50);
        let question = |client: IpAddr| make((client, PORT), vip, b"question");
        for (who, client, source) in [
            ("the_pod_itself", pod, pod),
            ("the_pods_machine", own, own),
            ("another_address_than_the_clients", pod, own),
        ] {
            for (what, shown) in [("8_bytes", 8), ("all", usize::MAX)] {
                let sent = error(source, vip.0, &reply(vip, client), shown);
                let seen = error(vip.0, pod, &reply((pod, TARGET), vip.0), shown);
                let name = format!("error_of_{who}_about_{kind}_with_{what}");
                cases.extend([
                    case_here(name.clone(), within(&sent))
                        .after(within(&question(client)))
                        .delivers(service, sent.length(), IN.carry(&seen)),
                    case_here(format!("{name}_without_an_edge"), IN.carry(&sent))
                        .after(within(&question(client)))
                        .delivers(service, sent.length(), IN.carry(&seen)),
                ]);
            }
        }
        // A neighbour of the pod is a client like others; so is what no packet of its flow has shown to be none.
        for (who, client) in [("a_neighbour_of_the_pod", other), ("nobody_known", own)] {
            let sent = error(client, vip.0, &reply(vip, client), usize::MAX);
            let seen = error(client, pod, &reply((pod, TARGET), client), usize::MAX);
            cases.push(
                case_here(format!("error_of_{who}_about_{kind}"), within(&sent))
                    .after(within(&question(other)))
                    .delivers(service, sent.length(), IN.carry(&seen)),
            );
        }
    }
    cases
}

/// The error that nobody listens on a port; it quotes the IP header and so many bytes more.
fn error(from: IpAddr, to: IpAddr, about: &Packet, shown: usize) -> Packet {
    let (kind, header) = if to.is_ipv4() {
        ((3, 3), 20)
    } else {
        ((1, 4), 40)
    };
    let mut quote = about.bytes();
    quote.truncate(header + shown.min(quote.len()));
    Packet::icmp(from, to, kind, [0; 4], &quote)
}
