//! Builds the test network: namespaces, cables, addresses and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Topology;
use crate::{
    Cidr, Error, Machine, Namespace, Result, Route, Veth,
    machine::FarEnd,
    pod,
    route::{cidr, decimal_as_hex},
};

const MAX_CLIENTS: u8 = 15;
const MAX_EDGES: u8 = 89;
const MAX_NODES: u8 = 99;
const MAX_PODS: u8 = 99;
/// Number of the first edge on the segment.
const FIRST_EDGE: u8 = 11;
/// Number of the first node on the segment.
const FIRST_NODE: u8 = 101;

/// The description of a [`Topology`].
#[derive(Debug, Clone)]
pub struct Builder {
    clients: u8,
    edges: u8,
    nodes: u8,
    routed_nodes: u8,
    pods: u8,
    first_with_pods: u8,
    has_pod_bridges: bool,
    queues: u32,
    client_mtu: u32,
    fabric_mtu: u32,
    pod_mtu: u32,
}

impl Default for Builder {
    /// One client, one edge and two nodes.
    fn default() -> Self {
        Self {
            clients: 1,
            edges: 1,
            nodes: 2,
            routed_nodes: 0,
            pods: 0,
            first_with_pods: 0,
            has_pod_bridges: false,
            queues: 1,
            client_mtu: 1500,
            fabric_mtu: 1600,
            pod_mtu: 1500,
        }
    }
}

impl Builder {
    /// Sets the number of clients; 1 by default.
    #[must_use]
    pub fn clients(mut self, clients: u8) -> Self {
        self.clients = clients;
        self
    }

    /// Sets the number of edges; 1 by default.
    #[must_use]
    pub fn edges(mut self, edges: u8) -> Self {
        self.edges = edges;
        self
    }

    /// Sets the number of nodes on the edges' segment; 2 by default.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the number of nodes in networks of their own behind the router; 0 by default. They are numbered
    /// after the others.
    #[must_use]
    pub fn routed_nodes(mut self, routed_nodes: u8) -> Self {
        self.routed_nodes = routed_nodes;
        self
    }

    /// Sets the number of pods on each node; 0 by default.
    #[must_use]
    pub fn pods(mut self, pods: u8) -> Self {
        self.pods = pods;
        self
    }

    /// Sets the first node that has pods; 0 by default.
    #[must_use]
    pub fn pods_from(mut self, node: u8) -> Self {
        self.first_with_pods = node;
        self
    }

    /// Puts the pods of each node behind a bridge, as the CNI plugin `bridge` does. By default the node has a route to each of
    /// them.
    #[must_use]
    pub fn pods_behind_bridges(mut self) -> Self {
        self.has_pod_bridges = true;
        self
    }

    /// Sets the number of receive and transmit queues of every interface except the pods'; 1 by default.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Sets the MTU between clients and router; 1500 by default.
    #[must_use]
    pub fn client_mtu(mut self, mtu: u32) -> Self {
        self.client_mtu = mtu;
        self
    }

    /// Sets the MTU between router, edges and nodes; 1600 by default, so that a client's full packet fits
    /// behind an outer header.
    #[must_use]
    pub fn fabric_mtu(mut self, mtu: u32) -> Self {
        self.fabric_mtu = mtu;
        self
    }

    /// Sets the MTU between nodes and their pods; 1500 by default.
    #[must_use]
    pub fn pod_mtu(mut self, mtu: u32) -> Self {
        self.pod_mtu = mtu;
        self
    }

    /// Builds the network and waits until every interface is ready.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when there are not enough addresses for a number, [`Error::Kernel`] when the caller
    /// is not root.
    pub fn build(self) -> Result<Topology> {
        self.check()?;
        let router = router()?;
        let switch = Namespace::new("switch")?;
        self.connect_switch(&router, &switch)?;

        let clients = (0..self.clients)
            .map(|k| self.client(&router, k))
            .collect::<Result<Vec<_>>>()?;
        let edges = (0..self.edges)
            .map(|i| self.segment_machine(&switch, format!("edge{i}"), FIRST_EDGE + i))
            .collect::<Result<Vec<_>>>()?;
        let mut nodes = (0..self.nodes)
            .map(|j| self.segment_machine(&switch, format!("node{j}"), FIRST_NODE + j))
            .chain(
                (self.nodes..self.nodes + self.routed_nodes).map(|j| self.routed_node(&router, j)),
            )
            .collect::<Result<Vec<_>>>()?;
        if self.pods > 0 {
            self.add_pods(&mut nodes)?;
        }

        let topology = Topology {
            clients,
            edges,
            nodes,
            router,
            switch,
        };
        if self.edges > 0 {
            topology.route_vips(&[0])?;
        }
        topology.wait_until_ready()?;
        Ok(topology)
    }

    fn check(&self) -> Result<()> {
        let nodes = self.nodes.saturating_add(self.routed_nodes);
        for (what, value, limit, expected) in [
            ("clients", self.clients, MAX_CLIENTS, "at most 15"),
            ("edges", self.edges, MAX_EDGES, "at most 89"),
            ("nodes", nodes, MAX_NODES, "at most 99 with the routed ones"),
            ("pods", self.pods, MAX_PODS, "at most 99"),
        ] {
            if value > limit {
                return Err(Error::Invalid {
                    what,
                    value: value.to_string(),
                    expected,
                });
            }
        }
        Ok(())
    }

    fn connect_switch(&self, router: &Namespace, switch: &Namespace) -> Result<()> {
        let bridge = switch.add_bridge("br0")?;
        // Otherwise the bridge's MTU would follow that of its smallest port.
        bridge.set_mtu(self.fabric_mtu)?;
        let (fabric, port) = Veth::between((router, "fabric"), (switch, "router"))
            .queues(self.queues)
            .mtu(self.fabric_mtu)
            .lay()?;
        port.set_bridge(&bridge)?;
        fabric.disable_tx_offloads()?;
        port.disable_tx_offloads()?;
        for address in segment(1) {
            fabric.add_address(address)?;
        }
        Ok(())
    }

    fn client(&self, router: &Namespace, k: u8) -> Result<Machine> {
        let plan = Plan {
            label: format!("client{k}"),
            own: client_network(k, 2),
            gateway: client_network(k, 1),
            mtu: self.client_mtu,
        };
        self.machine(plan, router, FarEnd::Router)
    }

    fn routed_node(&self, router: &Namespace, j: u8) -> Result<Machine> {
        let number = 100 + j;
        let side = |host: u8| {
            [
                cidr(Ipv4Addr::new(10, 0, number, host), 24),
                cidr(
                    Ipv6Addr::new(0xfd00, decimal_as_hex(number), 0, 0, 0, 0, 0, host.into()),
                    64,
                ),
            ]
        };
        let plan = Plan {
            label: format!("node{j}"),
            own: side(2),
            gateway: side(1),
            mtu: self.fabric_mtu,
        };
        let machine = self.machine(plan, router, FarEnd::Router)?;
        machine.far_end_in(router)?.attach_pass()?;
        machine.prepare_for_vips()?;
        Ok(machine)
    }

    fn add_pods(&self, nodes: &mut [Machine]) -> Result<()> {
        let first = usize::from(self.first_with_pods);
        for (node, j) in nodes.iter_mut().zip(0..).skip(first) {
            pod::prepare_node(&node.namespace, j)?;
            node.pod_prefixes = Some(pod::pods_of(j));
            let add = if self.has_pod_bridges {
                pod::add_bridged
            } else {
                pod::add_routed
            };
            node.pods = add(&node.namespace, j, self.pods, self.pod_mtu)?;
        }
        let on_segment = || nodes.iter().zip(0..self.nodes).skip(first);
        for (node, j) in on_segment() {
            for (other, k) in on_segment().filter(|&(_, k)| k != j) {
                for (pods, gateway) in pod::pods_of(k).into_iter().zip([other.v4(), other.v6()]) {
                    node.namespace.add_route(&Route::to(pods).via(gateway))?;
                }
            }
        }
        Ok(())
    }

    fn segment_machine(&self, switch: &Namespace, label: String, host: u8) -> Result<Machine> {
        let plan = Plan {
            label,
            own: segment(host),
            gateway: segment(1),
            mtu: self.fabric_mtu,
        };
        let machine = self.machine(plan, switch, FarEnd::Switch)?;
        machine.far_end_in(switch)?.attach_pass()?;
        machine.prepare_for_vips()?;
        Ok(machine)
    }

    /// Creates a machine and its cable. The far end has the name of the machine.
    fn machine(&self, plan: Plan, other: &Namespace, far_end: FarEnd) -> Result<Machine> {
        let [v4, v6] = plan.own;
        let namespace = Namespace::new(&plan.label)?;
        let (link, far) = Veth::between((&namespace, Machine::INTERFACE), (other, &plan.label))
            .queues(self.queues)
            .mtu(plan.mtu)
            .lay()?;
        if let FarEnd::Switch = far_end {
            far.set_bridge(&other.link("br0")?)?;
        } else {
            for gateway in plan.gateway {
                far.add_address(gateway)?;
            }
        }
        link.disable_tx_offloads()?;
        far.disable_tx_offloads()?;
        link.add_address(v4)?;
        link.add_address(v6)?;
        let gateways = plan.gateway.map(|gateway| gateway.address);
        for (any, gateway) in [Cidr::ANY_V4, Cidr::ANY_V6].into_iter().zip(gateways) {
            namespace.add_route(&Route::to(any).via(gateway))?;
        }
        let mac = link.mac();
        Ok(Machine::new(namespace, [v4, v6], gateways, far_end, mac))
    }
}

/// Properties of a machine that is about to be created.
struct Plan {
    label: String,
    own: [Cidr; 2],
    gateway: [Cidr; 2],
    mtu: u32,
}

fn router() -> Result<Namespace> {
    let router = Namespace::new("router")?;
    router.enable_forwarding()?;
    // Edges and nodes share a segment. A redirect from an edge to a node would bypass what is being tested.
    router.set_sysctl("net/ipv4/conf/all/send_redirects", "0")?;
    router.set_sysctl("net/ipv4/conf/default/send_redirects", "0")?;
    for family in ["ipv4", "ipv6"] {
        router.set_sysctl(&format!("net/{family}/fib_multipath_hash_policy"), "1")?;
    }
    Ok(router)
}

/// Returns the addresses that client `k` has, IPv4 first.
pub fn client_addresses(k: u8) -> [IpAddr; 2] {
    client_network(k, 2).map(|cidr| cidr.address)
}

/// Returns the addresses that node `j` on the edges' segment has, IPv4 first.
pub fn node_addresses(j: u8) -> [IpAddr; 2] {
    segment(FIRST_NODE + j).map(|cidr| cidr.address)
}

/// Returns the addresses that edge `i` has, IPv4 first.
pub fn edge_addresses(i: u8) -> [IpAddr; 2] {
    segment(FIRST_EDGE + i).map(|cidr| cidr.address)
}

fn client_network(k: u8, host: u8) -> [Cidr; 2] {
    [
        cidr(Ipv4Addr::new(10, 0, 0, 16 * k + host), 28),
        cidr(
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, k.into(), host.into()),
            112,
        ),
    ]
}

fn segment(host: u8) -> [Cidr; 2] {
    [
        cidr(Ipv4Addr::new(10, 0, 1, host), 24),
        cidr(
            Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, decimal_as_hex(host)),
            64,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_a_host_read_alike() {
        let [v4, v6] = segment(101);
        assert_eq!(v4.to_string(), "10.0.1.101/24");
        assert_eq!(v6.to_string(), "fd00:1::101/64");
    }

    #[test]
    fn more_machines_than_addresses_are_refused() {
        let error = Topology::builder().nodes(99).routed_nodes(1).build();
        let message = error.unwrap_err().to_string();
        assert!(
            message.contains("nodes") && message.contains("100"),
            "{message}"
        );
    }
}
