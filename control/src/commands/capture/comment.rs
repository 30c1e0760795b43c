//! The comment of a captured packet: its outcome, its service, and where it went.
//!
//! The datapath reports the outcome. Service and backend are derived from the packet: it is addressed to the
//! backend that it was sent to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use fastpath::capture::{Event, Headers, Packet, action};
use fastpath::tables::ServiceKey;
use xdp_prog::reason::{self, ReasonKind};

use crate::announce::Mac;
use crate::api::Backend;
use crate::desired::unspecified;

/// The names of services and backends, from the agent.
#[derive(Debug, Default)]
pub struct Names {
    services: BTreeMap<ServiceKey, String>,
    backends: Vec<Named>,
}

/// A backend of a service.
#[derive(Debug)]
struct Named {
    service: ServiceKey,
    /// The pod; `None` if the node itself is the backend.
    pod: Option<SocketAddr>,
    node: IpAddr,
    mac: Option<String>,
}

/// The destination of a forwarded packet.
#[derive(Debug, PartialEq, Eq)]
struct Destination {
    mode: &'static str,
    backend: String,
}

impl Names {
    /// Reads the agent's list of backends.
    pub fn new(rows: &[Backend]) -> Self {
        let mut names = Self::default();
        for row in rows {
            let (Ok(service), Ok(node)) = (row.service.parse(), row.node.parse()) else {
                continue;
            };
            names.services.insert(service, row.name.clone());
            names.backends.push(Named {
                service,
                pod: row.backend.parse().ok(),
                node,
                mac: row.mac.clone(),
            });
        }
        names
    }

    /// Returns the comment of a packet.
    pub fn comment(&self, event: &Event, before: &Headers, after: Option<&Headers>) -> String {
        let outcome = outcome(event);
        let service = self.service(before, after);
        let backend =
            after.and_then(|after| self.destination_of(event, service.as_ref(), before, after));
        let mut text = match &backend {
            Some(to) if outcome == "forward" => format!("{outcome} ({})", to.mode),
            _ => outcome,
        };
        if let Some(service) = service {
            let name = self.name(&service);
            let name = name.map_or_else(String::new, |name| format!(" {name}"));
            text.push_str(&format!(", service{name} {service}"));
        }
        if let Some(to) = backend {
            text.push_str(&format!(", backend {}", to.backend));
        }
        text
    }

    /// Finds the service of a packet: its destination if it comes from a client, its new source if it comes
    /// from a backend.
    fn service(&self, before: &Headers, after: Option<&Headers>) -> Option<ServiceKey> {
        let to = before.packets.iter().filter_map(destination);
        let from = after.into_iter().flat_map(|after| &after.packets);
        to.chain(from.filter_map(source))
            .find(|key| self.name(key).is_some())
            .or_else(|| before.packets.iter().find_map(destination))
    }

    /// Returns a service's name. NodePorts have the unspecified address.
    fn name(&self, key: &ServiceKey) -> Option<&str> {
        let anywhere = ServiceKey {
            address: unspecified(key.address.is_ipv4()),
            ..*key
        };
        let name = self.services.get(key);
        name.or_else(|| self.services.get(&anywhere))
            .map(String::as_str)
    }

    fn destination_of(
        &self,
        event: &Event,
        service: Option<&ServiceKey>,
        before: &Headers,
        after: &Headers,
    ) -> Option<Destination> {
        let kinds: Vec<ReasonKind> = kinds(event).collect();
        let (came, left) = (before.packets.first()?, after.packets.first()?);
        if kinds.contains(&ReasonKind::ToClient) {
            return Some(Destination {
                mode: "nat",
                backend: came.source.to_string(),
            });
        }
        let is_delivered = came.destination != left.destination || before.packets.len() > 1;
        match event.action {
            action::PASS if is_delivered => {
                let pod = after.packets.first()?.destination;
                let was_ours = before
                    .packets
                    .iter()
                    .any(|packet| packet.destination == pod);
                (!was_ours).then(|| Destination {
                    mode: "local",
                    backend: pod.to_string(),
                })
            }
            action::TRANSMIT | action::REDIRECT if kinds.is_empty() => {
                Some(self.forward(service, came, left, after))
            }
            _ => None,
        }
    }

    fn forward(
        &self,
        service: Option<&ServiceKey>,
        came: &Packet,
        left: &Packet,
        after: &Headers,
    ) -> Destination {
        if left.is_outer && !came.is_outer {
            return Destination {
                mode: "ipip",
                backend: self.pod_behind(service, left),
            };
        }
        if left.destination != came.destination {
            return Destination {
                mode: "nat",
                backend: left.destination.to_string(),
            };
        }
        let mac = Mac(after.destination_mac).to_string();
        let mut nodes: Vec<String> = self
            .of(service)
            .filter(|backend| backend.mac.as_ref() == Some(&mac))
            .map(|backend| backend.node.to_string())
            .collect();
        nodes.dedup();
        Destination {
            mode: "l2dsr",
            backend: match nodes.as_slice() {
                // The node chooses among its own pods, so only the node is known.
                [node] => format!("{node} ({mac})"),
                _ => mac,
            },
        }
    }

    /// Returns the pod that an outer header is for, if it is known; else the node.
    fn pod_behind(&self, service: Option<&ServiceKey>, outer: &Packet) -> String {
        let node = outer.destination.ip();
        let here = self.of(service).filter(|backend| backend.node == node);
        let mut pods = here
            .filter_map(|backend| backend.pod)
            .filter(|pod| outer.names_pod(pod.ip()));
        // Pods of a NodePort are listed twice: for the machine's own addresses and for those of other machines.
        match pods.next() {
            Some(pod) if pods.all(|other| other == pod) => format!("{pod} on {node}"),
            _ => node.to_string(),
        }
    }

    fn of(&self, service: Option<&ServiceKey>) -> impl Iterator<Item = &Named> {
        let wanted = service.copied();
        self.backends.iter().filter(move |backend| {
            wanted.is_some_and(|wanted| {
                backend.service.port == wanted.port
                    && backend.service.protocol == wanted.protocol
                    && (backend.service.address == wanted.address
                        || backend.service.address.is_unspecified())
            })
        })
    }
}

/// Returns the outcome of a packet and its reason, in the words of `guideway drops`.
fn outcome(event: &Event) -> String {
    let counted: Vec<String> = (0..)
        .zip(reason::all())
        .filter(|(index, _)| event.reasons.holds(*index))
        .map(|(_, (kind, label))| format!("{} {label}", word(kind)))
        .collect();
    if !counted.is_empty() {
        return counted.join(" and ");
    }
    match event.action {
        action::TRANSMIT | action::REDIRECT => "forward",
        action::PASS => "pass",
        action::DROP => "drop",
        _ => "aborted: the kernel refused to send it",
    }
    .to_owned()
}

fn kinds(event: &Event) -> impl Iterator<Item = ReasonKind> {
    let reasons = event.reasons;
    let counted = (0..).zip(reason::all());
    counted.filter_map(move |(index, (kind, _))| reasons.holds(index).then_some(kind))
}

const fn word(kind: ReasonKind) -> &'static str {
    match kind {
        ReasonKind::Pass => "pass",
        ReasonKind::Drop => "drop",
        ReasonKind::Reply => "reply",
        ReasonKind::ToClient => "to_client",
    }
}

fn destination(packet: &Packet) -> Option<ServiceKey> {
    key(packet, packet.destination)
}

fn source(packet: &Packet) -> Option<ServiceKey> {
    key(packet, packet.source)
}

fn key(packet: &Packet, end: SocketAddr) -> Option<ServiceKey> {
    (end.port() != 0).then_some(ServiceKey {
        address: end.ip(),
        port: end.port(),
        protocol: packet.protocol?,
    })
}

#[cfg(test)]
mod tests {
    use fastpath::capture::Reasons;
    use fastpath::tables::Protocol;
    use xdp_prog::reason::{DropReason, PassReason, ToClientReason};

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];

    fn names() -> Names {
        let row = |service: &str, backend: &str, node: &str| Backend {
            name: "web".to_owned(),
            service: service.to_owned(),
            backend: backend.to_owned(),
            node: node.to_owned(),
            mac: Some(Mac(MAC).to_string()),
            ..Backend::default()
        };
        Names::new(&[
            row("192.0.2.1:80/tcp", "10.1.0.5:8080", "10.0.0.11"),
            row("192.0.2.1:80/tcp", "10.1.0.6:8080", "10.0.0.11"),
            row("192.0.2.1:80/tcp", "10.1.1.5:8080", "10.0.0.12"),
            row("0.0.0.0:30080/tcp", "10.1.0.5:8080", "10.0.0.11"),
        ])
    }

    fn event(action: u32, reason: Option<u32>) -> Event {
        let mut reasons = Reasons::default();
        if let Some(index) = reason {
            reasons.insert(index);
        }
        Event {
            before_ns: 1,
            after_ns: 2,
            reasons,
            ifindex: 1,
            action,
            before_length: 60,
            before_copied: 60,
            after_length: 60,
            after_copied: 60,
        }
    }

    fn packet(source: &str, destination: &str) -> Packet {
        Packet {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: Some(Protocol::Tcp),
            is_outer: false,
            tag: 0,
        }
    }

    fn outer(destination: &str, tag: u16) -> Packet {
        Packet {
            protocol: None,
            is_outer: true,
            tag,
            ..packet("10.0.0.1:0", &format!("{destination}:0"))
        }
    }

    fn headers(packets: &[Packet]) -> Headers {
        Headers {
            destination_mac: MAC,
            source_mac: [2, 0, 0, 0, 0, 1],
            packets: packets.to_vec(),
        }
    }

    const CLIENT: &str = "198.51.100.7:40000";
    const WEB: &str = "service web 192.0.2.1:80/tcp";

    fn from_client() -> Packet {
        packet(CLIENT, "192.0.2.1:80")
    }

    #[test]
    fn outer_header_names_node_and_pod() {
        let comment = |tag| {
            let after = headers(&[outer("10.0.0.11", tag), from_client()]);
            let event = event(action::TRANSMIT, None);
            names().comment(&event, &headers(&[from_client()]), Some(&after))
        };
        let pod = format!("forward (ipip), {WEB}, backend 10.1.0.6:8080 on 10.0.0.11");
        assert_eq!(comment(6), pod);
        let node = format!("forward (ipip), {WEB}, backend 10.0.0.11");
        assert_eq!(comment(77), node, "no pod there has this tag");
    }

    #[test]
    fn without_names_the_packet_still_tells() {
        let after = headers(&[outer("10.0.0.11", 6), from_client()]);
        let event = event(action::REDIRECT, None);
        let before = headers(&[from_client()]);
        assert_eq!(
            Names::default().comment(&event, &before, Some(&after)),
            "forward (ipip), service 192.0.2.1:80/tcp, backend 10.0.0.11"
        );
    }

    #[test]
    fn l2dsr_names_the_node_by_its_mac_and_only_if_it_is_one() {
        let before = headers(&[from_client()]);
        let comment =
            |names: &Names| names.comment(&event(action::TRANSMIT, None), &before, Some(&before));
        let mut names = names();
        let several = format!("forward (l2dsr), {WEB}, backend 02:00:00:00:00:0b");
        assert_eq!(comment(&names), several);
        names
            .backends
            .retain(|backend| backend.node != IpAddr::from([10, 0, 0, 12]));
        let one = format!("forward (l2dsr), {WEB}, backend 10.0.0.11 (02:00:00:00:00:0b)");
        assert_eq!(comment(&names), one);
    }

    #[test]
    fn nat_names_the_backend_both_ways() {
        let there = headers(&[packet("10.0.0.1:20000", "10.1.0.5:8080")]);
        let comment = names().comment(
            &event(action::TRANSMIT, None),
            &headers(&[from_client()]),
            Some(&there),
        );
        assert_eq!(
            comment,
            format!("forward (nat), {WEB}, backend 10.1.0.5:8080")
        );

        let back = headers(&[packet("10.1.0.5:8080", "10.0.0.1:20000")]);
        let left = headers(&[packet("192.0.2.1:80", CLIENT)]);
        let reason = ToClientReason::NatReply.index();
        let event = event(action::TRANSMIT, Some(reason));
        let comment = names().comment(&event, &back, Some(&left));
        assert_eq!(
            comment,
            format!("to_client nat_reply, {WEB}, backend 10.1.0.5:8080")
        );
    }

    #[test]
    fn delivery_names_the_pod_and_node_ports_their_service() {
        let before = headers(&[outer("10.0.0.11", 5), packet(CLIENT, "10.0.0.11:30080")]);
        let after = headers(&[packet(CLIENT, "10.1.0.5:8080")]);
        let event = event(action::PASS, Some(PassReason::Delivered.index()));
        assert_eq!(
            names().comment(&event, &before, Some(&after)),
            "pass delivered, service web 10.0.0.11:30080/tcp, backend 10.1.0.5:8080"
        );
    }

    #[test]
    fn what_does_not_go_on_has_no_backend() {
        let before = headers(&[from_client()]);
        let dropped = event(action::DROP, Some(DropReason::SourceRange.index()));
        let comment = names().comment(&dropped, &before, None);
        assert_eq!(comment, format!("drop source_range, {WEB}"));

        let decapsulated = event(action::PASS, Some(PassReason::Decapsulated.index()));
        let before = headers(&[outer("10.0.0.11", 0), from_client()]);
        let after = headers(&[from_client()]);
        let comment = names().comment(&decapsulated, &before, Some(&after));
        assert_eq!(comment, format!("pass decapsulated, {WEB}"));

        let not_ip = event(action::PASS, Some(PassReason::NotIp.index()));
        let comment = names().comment(&not_ip, &headers(&[]), Some(&headers(&[])));
        assert_eq!(comment, "pass not_ip");
    }
}
