//! The standard test network.
//!
//! ```text
//!  client0 eth0 ---- client0 +--------+            +-- switch ---+ edge0 ----- eth0 edge0
//!  client1 eth0 ---- client1 | router | fabric --- | router  br0 | edge1 ----- eth0 edge1
//!  node2   eth0 ------ node2 +--------+            +-------------+ node0,1 --- eth0 node0, node1
//! ```
//!
//! | network | IPv4 | IPv6 |
//! |---|---|---|
//! | client `k` | 10.0.0.(16k + 2)/28 | fd00::k:2/112 |
//! | segment of the switch | 10.0.1.0/24: router 1, edges 11.., nodes 101.. | fd00:1::/64, the same numbers |
//! | routed node `j` | 10.0.(100 + j).2/24 | fd00:(100 + j)::2/64 |
//! | VIPs | 10.99.0.0/24 | fd00:99::/112 |
//! | pods of node `j` | 10.2.j.1/32, .2, .. | fd00:2::j:1/128, :2, .. |
//!
//! The router's address in a network is always `.1`. Every machine's interface is `eth0`, and its default route
//! leads to the router. So a node's replies reach the client without passing an edge. The router sends VIPs to
//! edge 0 until [`Topology::route_vips`] changes that.
//!
//! Nodes may have pods ([`Builder::pods`]; the drawing is in `pod.rs`). Nodes on the
//! segment have routes to each other's pods; the router and the clients know none.
//!
//! Offloads are off at every sender except the pods. The far end of every edge's and node's cable has a
//! pass-through XDP program, so that XDP can transmit on any of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::{Cidr, Error, Link, Mac, Namespace, Result, Route, Veth, pod};

const MAX_CLIENTS: u8 = 15;
const MAX_EDGES: u8 = 89;
const MAX_NODES: u8 = 99;
const MAX_PODS: u8 = 99;
/// First source port that a machine uses for flows.
const FIRST_PORT: u16 = 10_000;

/// Returns the `n`-th address of the IPv4 prefix that the router sends to edges.
pub fn vip_v4(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, n)
}

/// Returns the `n`-th address of the IPv6 prefix that the router sends to edges.
pub fn vip_v6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, n.into())
}

/// The description of a [`Topology`].
#[derive(Debug, Clone)]
pub struct Builder {
    clients: u8,
    edges: u8,
    nodes: u8,
    routed_nodes: u8,
    pods: u8,
    queues: u32,
    client_mtu: u32,
    fabric_mtu: u32,
    pod_mtu: u32,
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
            .map(|i| self.segment_machine(&switch, format!("edge{i}"), 11 + i))
            .collect::<Result<Vec<_>>>()?;
        let mut nodes = (0..self.nodes)
            .map(|j| self.segment_machine(&switch, format!("node{j}"), 101 + j))
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
        let side = |host: u8| {
            [
                cidr(Ipv4Addr::new(10, 0, 0, 16 * k + host), 28),
                cidr(
                    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, k.into(), host.into()),
                    112,
                ),
            ]
        };
        let plan = Plan {
            label: format!("client{k}"),
            own: side(2),
            gateway: side(1),
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
        for (node, j) in nodes.iter_mut().zip(0..) {
            pod::prepare_node(&node.namespace, j)?;
            node.pod_prefixes = Some(pod::pods_of(j));
            node.pods = (0..self.pods)
                .map(|p| pod::add(&node.namespace, j, p, self.pod_mtu))
                .collect::<Result<Vec<_>>>()?;
        }
        let on_segment = || nodes.iter().zip(0..self.nodes);
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

/// A client, edge, node or pod. It has one interface and one address of each family.
#[derive(Debug)]
pub struct Machine {
    namespace: Namespace,
    v4: Cidr,
    v6: Cidr,
    gateways: [IpAddr; 2],
    far_end: FarEnd,
    mac: Mac,
    pod_prefixes: Option<[Cidr; 2]>,
    pods: Vec<Machine>,
    /// The source port of the next flow.
    next_port: AtomicU16,
}

/// Where a machine's cable ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FarEnd {
    Router,
    Switch,
    /// The node at this index.
    Node(usize),
}

impl Machine {
    /// The name of every machine's interface.
    pub const INTERFACE: &'static str = "eth0";

    pub(crate) fn new(
        namespace: Namespace,
        [v4, v6]: [Cidr; 2],
        gateways: [IpAddr; 2],
        far_end: FarEnd,
        mac: Mac,
    ) -> Self {
        Self {
            namespace,
            v4,
            v6,
            gateways,
            far_end,
            mac,
            pod_prefixes: None,
            pods: Vec::new(),
            next_port: AtomicU16::new(FIRST_PORT),
        }
    }

    /// Returns the machine's namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the machine's name, such as `edge0`.
    pub fn label(&self) -> &str {
        self.namespace.label()
    }

    /// Returns the machine's interface.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when it has been removed.
    pub fn link(&self) -> Result<Link<'_>> {
        self.namespace.link(Self::INTERFACE)
    }

    /// Returns the machine's IPv4 address.
    pub fn v4(&self) -> IpAddr {
        self.v4.address
    }

    /// Returns the machine's IPv6 address.
    pub fn v6(&self) -> IpAddr {
        self.v6.address
    }

    /// Returns the machine's address in the family of `other`.
    pub fn address_like(&self, other: IpAddr) -> IpAddr {
        if other.is_ipv4() {
            self.v4.address
        } else {
            self.v6.address
        }
    }

    /// Returns a source port that this machine has not used. If one port talked to a pod by two addresses, the
    /// flows would be in conflict for minutes after the first socket is closed.
    ///
    /// # Panics
    ///
    /// When all ports have been used.
    pub fn fresh_port(&self) -> u16 {
        let port = self.next_port.fetch_add(1, Ordering::Relaxed);
        assert!(
            port >= FIRST_PORT,
            "{} has had all source ports",
            self.label()
        );
        port
    }

    /// Returns the machine's pods; empty unless it is a node with pods.
    pub fn pods(&self) -> &[Machine] {
        &self.pods
    }

    /// Returns the prefixes of the pods' addresses, IPv4 first; `None` unless the machine is a node with pods.
    pub fn pod_prefixes(&self) -> Option<[Cidr; 2]> {
        self.pod_prefixes
    }

    /// Returns the addresses of the machine's router, or of a pod's node, IPv4 first.
    pub fn gateways(&self) -> [IpAddr; 2] {
        self.gateways
    }

    /// Returns the MAC address of the machine's interface.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Adds a VIP to loopback. Local sockets accept it there, and ARP and ND do not answer for it.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], for example when the VIP is there already.
    pub fn add_vip(&self, vip: impl Into<IpAddr>) -> Result<()> {
        self.namespace.link("lo")?.add_address(Cidr::host(vip))
    }

    /// Removes a VIP from loopback.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], for example when the VIP is not there.
    pub fn remove_vip(&self, vip: impl Into<IpAddr>) -> Result<()> {
        self.namespace.link("lo")?.remove_address(Cidr::host(vip))
    }

    fn far_end_in<'ns>(&self, other: &'ns Namespace) -> Result<Link<'ns>> {
        other.link(self.label())
    }

    /// Stops ARP answers for loopback addresses. Linux sends them on every interface by default; ND does not.
    fn prepare_for_vips(&self) -> Result<()> {
        self.namespace
            .set_sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
        self.namespace
            .set_sysctl("net/ipv4/conf/all/arp_announce", "2")
    }
}

/// A running network: clients, a router, a switch, edges and nodes.
#[derive(Debug)]
pub struct Topology {
    clients: Vec<Machine>,
    edges: Vec<Machine>,
    nodes: Vec<Machine>,
    router: Namespace,
    switch: Namespace,
}

impl Topology {
    /// Starts the description of a network. By default it has one client, one edge and two nodes.
    pub fn builder() -> Builder {
        Builder {
            clients: 1,
            edges: 1,
            nodes: 2,
            routed_nodes: 0,
            pods: 0,
            queues: 1,
            client_mtu: 1500,
            fabric_mtu: 1600,
            pod_mtu: 1500,
        }
    }

    /// Returns the clients.
    pub fn clients(&self) -> &[Machine] {
        &self.clients
    }

    /// Returns the edges.
    pub fn edges(&self) -> &[Machine] {
        &self.edges
    }

    /// Returns the nodes: those on the segment, then the routed ones.
    pub fn nodes(&self) -> &[Machine] {
        &self.nodes
    }

    /// Returns the router's namespace.
    pub fn router(&self) -> &Namespace {
        &self.router
    }

    /// Returns the namespace of the bridge `br0`.
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// Returns the pods of all nodes.
    pub fn pods(&self) -> impl Iterator<Item = &Machine> {
        self.nodes.iter().flat_map(Machine::pods)
    }

    /// Returns the far end of a machine's cable: at the switch, the router, or a pod's node.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when it has been removed.
    pub fn far_end(&self, machine: &Machine) -> Result<Link<'_>> {
        machine.far_end_in(match machine.far_end {
            FarEnd::Router => &self.router,
            FarEnd::Switch => &self.switch,
            FarEnd::Node(index) => &self.nodes[index].namespace,
        })
    }

    /// Makes the router send VIPs to these edges, and spread flows over them by their ports.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when an edge is unreachable, [`Error::Invalid`] when there is no such edge.
    pub fn route_vips(&self, edges: &[usize]) -> Result<()> {
        let mut v4 = Route::to(cidr(vip_v4(0), 24));
        let mut v6 = Route::to(cidr(vip_v6(0), 112));
        for &index in edges {
            let edge = self.edges.get(index).ok_or_else(|| Error::Invalid {
                what: "edge",
                value: index.to_string(),
                expected: "the index of an edge",
            })?;
            v4 = v4.via(edge.v4());
            v6 = v6.via(edge.v6());
        }
        self.router.replace_route(&v4)?;
        self.router.replace_route(&v6)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let machines = || {
            let machines = self.clients.iter().chain(&self.edges).chain(&self.nodes);
            machines.chain(self.pods())
        };
        let mut links = vec![self.router.link("fabric")?, self.switch.link("router")?];
        for machine in machines() {
            links.push(machine.link()?);
            links.push(self.far_end(machine)?);
        }
        for link in &links {
            link.wait_until_ready()?;
        }
        Ok(())
    }
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

fn segment(host: u8) -> [Cidr; 2] {
    [
        cidr(Ipv4Addr::new(10, 0, 1, host), 24),
        cidr(
            Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, decimal_as_hex(host)),
            64,
        ),
    ]
}

pub(crate) fn cidr(address: impl Into<IpAddr>, length: u8) -> Cidr {
    Cidr {
        address: address.into(),
        length,
    }
}

/// Converts 11 to 0x11, so that an IPv6 address reads like the IPv4 address.
pub(crate) fn decimal_as_hex(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
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
