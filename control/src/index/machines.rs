//! The machines of the cluster: their addresses, and which of them run Guideway.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::objects::{self, ObjectName, TO_BE_DELETED, ZONE};
use super::parse;
use super::problem::{BrokenRule, Findings, Object, Problem, quoted};
use crate::desired::unusable;

/// The machines that run Guideway, according to the endpoints of its headless Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuidewayMachines {
    /// Names of the Nodes. This machine's Node counts as running Guideway even if it is missing here.
    pub nodes: BTreeSet<String>,
    /// Addresses of edges outside the cluster.
    pub edges: BTreeSet<IpAddr>,
    /// By slice, texts that should be edge addresses but are not.
    pub unreadable: BTreeMap<ObjectName, BTreeSet<String>>,
}

impl GuidewayMachines {
    /// Returns the problems of a slice.
    pub(super) fn problems(&self, slice: &ObjectName) -> Vec<Problem> {
        let mut findings = Findings::default();
        for text in self.unreadable.get(slice).into_iter().flatten() {
            findings.add(
                BrokenRule::InvalidAddress,
                format_args!("{} is no address of an edge, whose frames are refused", quoted(text)),
                "give the endpoint the IP address that the edge sends from, or the name of its Node",
            );
        }
        findings.problems(&Object::Slice(slice.clone()))
    }
}

/// Addresses that are in use although no Service or Node object says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Addresses of this machine's interfaces except `lo`, where a VIP may be.
    pub machine: BTreeSet<IpAddr>,
    /// Addresses and ports of the API server.
    pub api_servers: BTreeSet<SocketAddr>,
}

/// What the index keeps of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// Its InternalIPs, then its ExternalIPs. Packets are sent to the first.
    reached_at: Vec<IpAddr>,
    pub(super) addresses: BTreeSet<IpAddr>,
    zone: Option<String>,
    /// Whether the Node is about to be removed.
    is_leaving: bool,
}

impl Node {
    /// Reads a Node. Invalid addresses are left out and reported.
    pub(super) fn read(node: &objects::Node, findings: &mut Findings) -> Self {
        let mut read = Self {
            zone: node
                .labels
                .get(ZONE)
                .filter(|zone| !zone.is_empty())
                .cloned(),
            // A cordoned Node is not leaving: it gets no new pods, but its pods go on serving.
            is_leaving: node.deleting || node.taints.contains(TO_BE_DELETED),
            ..Self::default()
        };
        let mut external = Vec::new();
        for entry in &node.addresses {
            let address = parse::address(&entry.address);
            let Some(address) = address.filter(|address| unusable(*address).is_none()) else {
                if entry.kind == "InternalIP" {
                    findings.add(
                        BrokenRule::InvalidAddress,
                        format_args!("nothing can be sent to {}", quoted(&entry.address)),
                        "give the Node an address that packets can be routed to",
                    );
                }
                continue;
            };
            read.addresses.insert(address);
            match entry.kind.as_str() {
                "InternalIP" => read.reached_at.push(address),
                "ExternalIP" => external.push(address),
                _ => {}
            }
        }
        // kube-proxy looks for a Node's addresses in this order.
        read.reached_at.append(&mut external);
        if read.reached_at.is_empty() {
            findings.add(
                BrokenRule::NoInternalAddress,
                format_args!("without an InternalIP its pods are reached by NAT at best"),
                "give the Node an InternalIP",
            );
        }
        read
    }
}

/// All machines, and who has which address.
#[derive(Debug, Default)]
pub(super) struct Machines {
    own_name: Option<String>,
    /// Whether this machine does not deliver to its own pods.
    edge_only: bool,
    nodes: BTreeMap<String, Node>,
    guideway_machines: GuidewayMachines,
    reserved: Reserved,
    /// Number of machines and reservations that have each address.
    taken: BTreeMap<IpAddr, usize>,
}

impl Machines {
    pub(super) fn set_own(&mut self, name: Option<&String>, edge_only: bool) {
        self.own_name = name.cloned();
        self.edge_only = edge_only;
    }

    /// Returns the name of this machine's Node if this machine delivers to its pods.
    pub(super) fn own_node(&self) -> Option<&str> {
        let name = self.own_name.as_deref()?;
        self.address_of_pods(name).map(|_| name)
    }

    /// Returns whether this machine's Node is about to be removed; `None` if there is no such Node.
    pub(super) fn is_leaving(&self) -> Option<bool> {
        let name = self.own_name.as_ref()?;
        self.nodes.get(name).map(|node| node.is_leaving)
    }

    pub(super) fn zone(&self) -> Option<&str> {
        let name = self.own_name.as_ref()?;
        self.nodes.get(name)?.zone.as_deref()
    }

    pub(super) fn is_own(&self, name: &str) -> bool {
        self.own_name.as_deref() == Some(name)
    }

    /// Returns the address to which packets for a Node's pods are sent; `None` if nobody there delivers them.
    pub(super) fn address_of_pods(&self, name: &str) -> Option<IpAddr> {
        let hands_on = !self.edge_only || !self.is_own(name);
        self.address(name).filter(|_| hands_on)
    }

    /// Returns the address of a Node, if it runs Guideway.
    pub(super) fn address(&self, name: &str) -> Option<IpAddr> {
        if !self.is_own(name) && !self.guideway_machines.nodes.contains(name) {
            return None;
        }
        self.nodes.get(name)?.reached_at.first().copied()
    }

    /// Lists the addresses of all Nodes that run Guideway.
    pub(super) fn with_guideway(&self) -> BTreeSet<IpAddr> {
        let nodes = self.nodes.iter();
        nodes
            .filter(|(name, _)| self.address(name).is_some())
            .flat_map(|(_, node)| node.reached_at.iter().copied())
            .collect()
    }

    /// Lists the source addresses from which other machines accept this machine's packets.
    pub(super) fn known_as(&self) -> BTreeSet<IpAddr> {
        let shown = |name: &&String| self.guideway_machines.nodes.contains(*name);
        let node = self.own_name.as_ref().filter(shown);
        let node = node.and_then(|name| self.nodes.get(name));
        let of_node = node.into_iter().flat_map(|node| &node.reached_at);
        of_node
            .chain(&self.guideway_machines.edges)
            .copied()
            .collect()
    }

    /// Lists an address of each other Node that runs Guideway, and those of all edges outside the cluster.
    pub(super) fn peers(&self) -> BTreeSet<IpAddr> {
        let nodes = self.nodes.keys().filter(|name| !self.is_own(name));
        let nodes = nodes.filter_map(|name| self.address(name));
        nodes.chain(self.edges().iter().copied()).collect()
    }

    pub(super) fn edges(&self) -> &BTreeSet<IpAddr> {
        &self.guideway_machines.edges
    }

    /// Returns whether any machine has an address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.taken.contains_key(&address)
    }

    /// Returns whether an address must not become virtual here, even if it was assigned to a Service: it
    /// belongs to this machine, an API server or an edge outside the cluster. Addresses that other Nodes claim
    /// do not count: anyone with a kubelet's credentials could take away any virtual address.
    pub(super) fn withholds(&self, address: IpAddr) -> bool {
        let own = self.own_name.as_ref().and_then(|name| self.nodes.get(name));
        let Reserved {
            machine,
            api_servers,
        } = &self.reserved;
        machine.contains(&address)
            || api_servers.iter().any(|socket| socket.ip() == address)
            || self.guideway_machines.edges.contains(&address)
            || own.is_some_and(|own| own.addresses.contains(&address))
    }

    /// Returns whether an address is on an interface of this machine and no object mentions it.
    pub(super) fn is_only_here(&self, address: IpAddr) -> bool {
        self.reserved.machine.contains(&address) && self.taken.get(&address) == Some(&1)
    }

    /// Returns whether an API server listens at an address and port.
    pub(super) fn is_api_server(&self, socket: SocketAddr) -> bool {
        self.reserved.api_servers.contains(&socket)
    }

    /// Sets or removes a Node. Returns the previous one.
    pub(super) fn set_node(&mut self, name: &str, node: Option<Node>) -> Option<Node> {
        let new = node.as_ref().map(|node| node.addresses.clone());
        let old = match node {
            Some(node) => self.nodes.insert(name.to_owned(), node),
            None => self.nodes.remove(name),
        };
        self.take(new.unwrap_or_default());
        self.release(old.iter().flat_map(|old| old.addresses.iter().copied()));
        old
    }

    pub(super) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    pub(super) fn node_names(&self) -> impl ExactSizeIterator<Item = &String> {
        self.nodes.keys()
    }

    pub(super) fn guideway_machines(&self) -> &GuidewayMachines {
        &self.guideway_machines
    }

    /// Replaces the machines that run Guideway. Returns the previous one.
    pub(super) fn set_guideway_machines(
        &mut self,
        guideway_machines: GuidewayMachines,
    ) -> GuidewayMachines {
        self.take(guideway_machines.edges.iter().copied());
        let old = std::mem::replace(&mut self.guideway_machines, guideway_machines);
        self.release(old.edges.iter().copied());
        old
    }

    /// Replaces the reserved addresses. Returns the previous ones.
    pub(super) fn set_reserved(&mut self, reserved: Reserved) -> Reserved {
        self.take(reserved.addresses());
        let old = std::mem::replace(&mut self.reserved, reserved);
        self.release(old.addresses());
        old
    }

    fn take(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            *self.taken.entry(address).or_default() += 1;
        }
    }

    fn release(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            if let Some(count) = self.taken.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.taken.remove(&address);
                }
            }
        }
    }
}

impl Reserved {
    /// Lists the addresses; an address may occur twice.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let api_servers = self.api_servers.iter().map(SocketAddr::ip);
        self.machine.iter().copied().chain(api_servers).collect()
    }
}
