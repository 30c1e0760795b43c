//! The comment of a captured packet: its outcome, its service, and where it went.
//!
//! The datapath reports the outcome. Service and backend are derived from the packet: it is addressed to the
//! backend that it was sent to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use fastpath::capture::{Event, Headers, Packet, action};
use fastpath::tables::ServiceKey;
use xdp_prog::reason::{self, PuntReason, ReasonKind};

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
        if is_carried(event) {
            text.push_str(" by the agent");
        }
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
    let counted: Vec<String> = reasons(event)
        .map(|(kind, label)| format!("{} {label}", kind.label()))
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
    reasons(event).map(|(kind, _)| kind)
}

/// Lists what a frame was counted for. That the agent sends a finished one is no reason of its own.
fn reasons(event: &Event) -> impl Iterator<Item = (ReasonKind, &'static str)> {
    let reasons = event.reasons;
    let counted = (0..).zip(reason::all());
    counted.filter_map(move |(index, reason)| {
        (reasons.holds(index) && index != PuntReason::Carry.index()).then_some(reason)
    })
}

/// Tells whether a frame went to the agent, to be mended. After the program it is the same, behind what only the agent
/// reads.
pub(super) fn is_punted(event: &Event) -> bool {
    kinds(event).any(|kind| kind == ReasonKind::Punt)
}

/// Tells whether a finished frame went to the agent, which sends it. After the program, it is behind what only the agent
/// reads.
pub(super) fn is_carried(event: &Event) -> bool {
    event.reasons.holds(PuntReason::Carry.index())
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
mod tests;
