//! Selects the endpoints of a port that get traffic here, by condition, traffic policy and topology hints.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use super::slice::{Endpoint, EndpointCondition, Slice, Slices};
use crate::desired::Protocol;

/// The location of this machine, in the terms of endpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MachineLocation<'a> {
    /// Name of its Node; `None` outside the cluster.
    pub(super) node: Option<&'a str>,
    pub(super) zone: Option<&'a str>,
    /// Whether topology hints count.
    pub(super) hints: bool,
}

impl MachineLocation<'_> {
    pub(super) fn has(&self, endpoint: &Endpoint) -> bool {
        self.node.is_some() && endpoint.node.as_deref() == self.node
    }
}

/// Name and protocol of a port in slices, and whether the slices are IPv4.
pub(super) type PortName<'a> = (&'a str, Protocol, bool);

/// The slices of a Service by port. Each slice comes with the number that it gives the port.
#[derive(Debug)]
pub(super) struct SlicesByPort<'a>(HashMap<PortName<'a>, Vec<(&'a Slice, u16)>>);

impl<'a> SlicesByPort<'a> {
    pub(super) fn of(slices: &'a Slices) -> Self {
        let mut by_port: HashMap<PortName<'a>, Vec<(&'a Slice, u16)>> = HashMap::new();
        for slice in slices.values() {
            for port in &slice.ports {
                let name = (&*port.name, port.protocol, slice.is_ipv4);
                by_port.entry(name).or_default().push((slice, port.port));
            }
        }
        Self(by_port)
    }

    fn get<'n>(&'n self, port: PortName<'n>) -> &'n [(&'a Slice, u16)] {
        self.0.get(&port).map_or(&[], Vec::as_slice)
    }

    /// Counts the endpoints of a port. An endpoint in two slices counts twice.
    pub(super) fn endpoints(&self, port: PortName<'_>) -> u64 {
        let slices = self.get(port).iter();
        slices.map(|(slice, _)| slice.endpoints.len() as u64).sum()
    }
}

/// An endpoint with the port number that traffic is sent to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortEndpoint<'a> {
    pub(super) socket: SocketAddr,
    pub(super) endpoint: &'a Endpoint,
}

/// The endpoints of a port by what this machine uses them for.
#[derive(Debug, Default)]
pub(super) struct Selection<'a> {
    /// Share the new connections.
    pub(super) used: Vec<PortEndpoint<'a>>,
    /// Not used here, but other machines may use them: pods of this machine in any condition and, with policy
    /// `Local`, endpoints that only their own node uses.
    pub(super) reachable: Vec<PortEndpoint<'a>>,
    /// Other endpoints on any machine that terminate and still serve.
    pub(super) draining: Vec<PortEndpoint<'a>>,
    /// With policy `Local`: endpoints that share the connections of their own nodes.
    pub(super) by_node: Vec<PortEndpoint<'a>>,
    /// Whether hints count, so that machines elsewhere use other endpoints.
    pub(super) is_by_hints: bool,
}

/// Selects among the endpoints that slices have for a port. Endpoints that are not `sound` count as absent.
///
/// The result is the Cluster set or, with policy `Local`, the Local sets of all nodes. A set without a ready
/// endpoint consists of those that terminate and still serve. A machine that is no Node has no Local set: it
/// uses the Cluster set.
///
/// A pod of this machine is reachable for as long as it is listed. Another machine may learn before this one
/// that the pod is ready; and packets may still be on their way to a pod that has stopped serving.
pub(super) fn select<'a>(
    slices: &SlicesByPort<'a>,
    port: PortName<'_>,
    location: &MachineLocation<'_>,
    is_local: bool,
    sound: impl FnMut(&PortEndpoint<'_>) -> bool,
) -> Selection<'a> {
    let mut all = candidates(slices, port, location);
    all.retain(sound);
    let cluster = usable(&all);
    let by_node = if is_local {
        usable_by_node(&all)
    } else {
        Vec::new()
    };
    let is_fallback = cluster
        .first()
        .is_some_and(|first| first.endpoint.condition == EndpointCondition::Draining);
    let is_by_hints = location.hints && !is_local && !is_fallback && are_divided(&cluster);
    let mut selection = Selection {
        used: if is_local && location.node.is_some() {
            by_node.clone()
        } else if is_by_hints {
            by_hints(cluster, location)
        } else {
            cluster
        },
        is_by_hints,
        ..Selection::default()
    };
    let is_used = |candidate: &PortEndpoint<'_>| {
        let found = selection
            .used
            .binary_search_by_key(&candidate.socket, |used| used.socket);
        found.is_ok()
    };
    for candidate in all.iter().filter(|candidate| !is_used(candidate)) {
        let of_node = by_node.binary_search_by_key(&candidate.socket, |used| used.socket);
        if of_node.is_ok() || location.has(candidate.endpoint) {
            selection.reachable.push(*candidate);
        }
        if candidate.endpoint.condition == EndpointCondition::Draining {
            selection.draining.push(*candidate);
        }
    }
    selection.by_node = by_node;
    selection
}

/// Lists the endpoints of a port by socket, each once. Of duplicates it keeps one on this machine, else the one
/// in the better [`EndpointCondition`].
fn candidates<'a>(
    slices: &SlicesByPort<'a>,
    port: PortName<'_>,
    location: &MachineLocation<'_>,
) -> Vec<PortEndpoint<'a>> {
    let mut all = Vec::new();
    for (slice, number) in slices.get(port) {
        all.extend(slice.endpoints.iter().map(|endpoint| PortEndpoint {
            socket: SocketAddr::new(endpoint.address, *number),
            endpoint,
        }));
    }
    all.sort_unstable_by_key(|candidate| {
        let endpoint = candidate.endpoint;
        let rank = (!location.has(endpoint), endpoint.condition, &endpoint.node);
        (candidate.socket, rank)
    });
    all.dedup_by_key(|candidate| candidate.socket);
    all
}

/// Returns the ready endpoints. If there are none, returns those that terminate and still serve.
fn usable<'a>(all: &[PortEndpoint<'a>]) -> Vec<PortEndpoint<'a>> {
    let of = |wanted: EndpointCondition| -> Vec<PortEndpoint<'a>> {
        let all = all.iter();
        all.filter(|candidate| candidate.endpoint.condition == wanted)
            .copied()
            .collect()
    };
    match of(EndpointCondition::Ready) {
        ready if ready.is_empty() => of(EndpointCondition::Draining),
        ready => ready,
    }
}

/// Returns the usable endpoints of each node, ordered by socket.
fn usable_by_node<'a>(all: &[PortEndpoint<'a>]) -> Vec<PortEndpoint<'a>> {
    let ready = all.iter();
    let ready = ready.filter(|candidate| candidate.endpoint.condition == EndpointCondition::Ready);
    let ready: BTreeSet<Option<&str>> = ready
        .map(|candidate| candidate.endpoint.node.as_deref())
        .collect();
    let mut usable = all.to_vec();
    usable.retain(|candidate| match candidate.endpoint.condition {
        EndpointCondition::Ready => true,
        EndpointCondition::Draining => !ready.contains(&candidate.endpoint.node.as_deref()),
        EndpointCondition::Unusable => false,
    });
    usable
}

/// The names that an endpoint's hints of a kind have.
type HintsOfKind = fn(&Endpoint) -> &[Arc<str>];

const NODES: HintsOfKind = |endpoint| endpoint.hints.as_ref().map_or(&[], |hints| &hints.nodes);
const ZONES: HintsOfKind = |endpoint| endpoint.hints.as_ref().map_or(&[], |hints| &hints.zones);

/// Tells whether every endpoint has hints of a kind. Else those of the kind do not count.
fn are_whole(hints: HintsOfKind, ready: &[PortEndpoint<'_>]) -> bool {
    let mut ready = ready.iter();
    ready.all(|candidate| !hints(candidate.endpoint).is_empty())
}

/// Tells whether hints divide the endpoints between machines. All machines find the same, wherever they are.
fn are_divided(ready: &[PortEndpoint<'_>]) -> bool {
    !ready.is_empty() && (are_whole(NODES, ready) || are_whole(ZONES, ready))
}

/// Returns the endpoints that hints assign to this machine: by node, else by zone, else all of them.
fn by_hints<'a>(
    ready: Vec<PortEndpoint<'a>>,
    location: &MachineLocation<'_>,
) -> Vec<PortEndpoint<'a>> {
    for (hints, own) in [(NODES, location.node), (ZONES, location.zone)] {
        let Some(own) = own.filter(|_| are_whole(hints, &ready)) else {
            continue;
        };
        let names_own = |candidate: &&PortEndpoint<'a>| {
            let mut hints = hints(candidate.endpoint).iter();
            hints.any(|hint| **hint == *own)
        };
        let left: Vec<PortEndpoint<'a>> = ready.iter().filter(names_own).copied().collect();
        if !left.is_empty() {
            return left;
        }
    }
    ready
}
