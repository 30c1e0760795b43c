//! A machine of the test network: its namespace, its one interface and its addresses.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::{Cidr, Link, Mac, Namespace, Result};

/// First source port that a machine uses for flows.
const FIRST_PORT: u16 = 10_000;

/// A client, edge, node or pod. It has one interface and one address of each family.
#[derive(Debug)]
pub struct Machine {
    pub(crate) namespace: Namespace,
    v4: Cidr,
    v6: Cidr,
    gateways: [IpAddr; 2],
    pub(crate) far_end: FarEnd,
    mac: Mac,
    pub(crate) pod_prefixes: Option<[Cidr; 2]>,
    pub(crate) pods: Vec<Machine>,
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
    /// [`Error::Kernel`](crate::Error::Kernel) when it has been removed.
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
    /// [`Error::Kernel`](crate::Error::Kernel), for example when the VIP is there already.
    pub fn add_vip(&self, vip: impl Into<IpAddr>) -> Result<()> {
        self.namespace.link("lo")?.add_address(Cidr::host(vip))
    }

    /// Removes a VIP from loopback.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel), for example when the VIP is not there.
    pub fn remove_vip(&self, vip: impl Into<IpAddr>) -> Result<()> {
        self.namespace.link("lo")?.remove_address(Cidr::host(vip))
    }

    pub(crate) fn far_end_in<'ns>(&self, other: &'ns Namespace) -> Result<Link<'ns>> {
        other.link(self.label())
    }

    /// Stops ARP answers for loopback addresses. Linux sends them on every interface by default; ND does not.
    pub(crate) fn prepare_for_vips(&self) -> Result<()> {
        self.namespace
            .set_sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
        self.namespace
            .set_sysctl("net/ipv4/conf/all/arp_announce", "2")
    }
}
