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
//! | pods of node `j` | 10.2.j.1, .2, .. | fd00:2::j:1, :2, .. |
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

mod builder;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use self::builder::{Builder, client_addresses, edge_addresses, node_addresses};
use crate::{Cidr, Error, Link, Machine, Namespace, Result, Route, machine::FarEnd, route::cidr};

/// Returns the `n`-th address of the IPv4 prefix that the router sends to edges.
pub fn vip_v4(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, n)
}

/// Returns the `n`-th address of the IPv6 prefix that the router sends to edges.
pub fn vip_v6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, n.into())
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
        Builder::default()
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
        let [mut v4, mut v6] = Self::vips().map(Route::to);
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

    /// Returns the prefixes of the VIPs, IPv4 first.
    pub fn vips() -> [Cidr; 2] {
        [cidr(vip_v4(0), 24), cidr(vip_v6(0), 112)]
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
