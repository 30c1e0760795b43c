//! Everything except the edge: the clients, and all nodes of the cluster, on one machine.
//!
//! ```text
//!   +-- wire ---------------------+          +-- edge -----------+
//!   | eth0 10.0.0.1               | -------- | eth0 10.0.0.2     |
//!   | lo   10.1.0.1 .. all nodes  |          | guideway          |
//!   +-----------------------------+          +-------------------+
//! ```
//!
//! A client's SYN to a virtual address goes to the edge. The edge encapsulates it for a node, and it arrives
//! here again. Its outer destination shows which version of the table it was balanced by.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use lab::{Cidr, Namespace, Route, Veth};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto,
    socket_with,
};

use super::{
    cluster::{Cluster, PORT},
    nodes::Nodes,
};

/// The edge's interface.
pub(super) const INTERFACE: &str = "eth0";
const WIRE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const EDGE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// All virtual addresses.
const VIPS: (Ipv4Addr, u8) = (Ipv4Addr::new(100, 64, 0, 0), 10);
/// Number of flows sent at a time. One of them usually has a slot of the endpoint that changed.
const BURST: u16 = 8;
/// Shortest and longest pause between bursts. The pause is a share of the time waited so far, so that a long
/// wait takes little CPU from the agent. It limits the precision of the figure.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];
const PAUSE_SHARE: u32 = 20;
/// Most packets received in one go.
const MOST_AT_ONCE: usize = 1024;
const IP_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
const TCP: u8 = 6;

/// The two machines and the cable between them.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) edge: Namespace,
    machine: Namespace,
}

impl Wire {
    /// Builds the two machines, with the addresses of `nodes` nodes.
    pub(super) fn new(nodes: u32) -> Result<Self> {
        let (machine, edge) = (Namespace::new("wire")?, Namespace::new("edge")?);
        let (near, far) = Veth::between((&machine, INTERFACE), (&edge, INTERFACE)).create()?;
        let on_wire = |address: Ipv4Addr, length| Cidr {
            address: address.into(),
            length,
        };
        near.add_address(on_wire(WIRE, 24))?;
        far.add_address(on_wire(EDGE, 24))?;
        // Frames that the edge sends by XDP_TX arrive only if this end has a program.
        near.attach_pass()?;
        near.disable_tx_offloads()?;
        edge.add_route(&Route::to(Cidr::ANY_V4).via(WIRE))?;
        machine.add_route(&Route::to(on_wire(VIPS.0, VIPS.1)).via(EDGE))?;
        let lo = machine.link("lo")?;
        for node in 0..nodes {
            lo.add_address(Cidr::host(Cluster::node_address(node)))?;
        }
        Ok(Self { edge, machine })
    }

    /// Makes the nodes answer echoes until the returned value is dropped.
    pub(super) fn nodes(&self) -> Result<Nodes> {
        Nodes::start(&self.machine)
    }

    /// Opens the sockets of the clients and nodes.
    pub(super) fn prober(&self) -> Result<Prober> {
        let open = |protocol| {
            let kind = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socket_with(AddressFamily::INET, SocketType::RAW, kind, Some(protocol))
        };
        self.machine.run(|| {
            Ok(Prober {
                clients: open(ipproto::RAW).context("opening a client's socket")?,
                nodes: open(ipproto::IPIP).context("opening the nodes' socket")?,
                source_port: 1024,
            })
        })
    }
}

/// The sockets of the clients and nodes.
#[derive(Debug)]
pub(super) struct Prober {
    /// Sends IPv4 packets with their headers.
    clients: OwnedFd,
    /// Receives IPv4 packets that are encapsulated in IPv4.
    nodes: OwnedFd,
    source_port: u16,
}

impl Prober {
    /// Opens new connections to a service until one of them reaches a node.
    pub(super) fn wait_for(
        &mut self,
        vip: Ipv4Addr,
        node: Ipv4Addr,
        limit: Duration,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            for _ in 0..BURST {
                self.send_syn(vip)?;
            }
            if self.has_arrived(vip, node)? {
                return Ok(());
            }
            let passed = begun.elapsed();
            if passed > limit {
                bail!("no connection to {vip} has reached {node} within {limit:?}");
            }
            let [shortest, longest] = PAUSES;
            thread::sleep((passed / PAUSE_SHARE).clamp(shortest, longest));
        }
    }

    fn send_syn(&mut self, vip: Ipv4Addr) -> Result<()> {
        self.source_port = self.source_port.checked_add(1).unwrap_or(1024);
        let packet = syn(vip, self.source_port);
        let to = SocketAddr::from((vip, 0));
        sendto(&self.clients, &packet, SendFlags::empty(), &to).context("sending a SYN")?;
        Ok(())
    }

    /// Receives what has arrived. Returns whether a packet to the service was among it that was sent to the node.
    fn has_arrived(&self, vip: Ipv4Addr, node: Ipv4Addr) -> Result<bool> {
        let mut packet = [0; 2 * IP_HEADER + TCP_HEADER];
        for _ in 0..MOST_AT_ONCE {
            match recv(&self.nodes, &mut packet, RecvFlags::empty()) {
                Ok(_) if destinations(&packet) == (node, vip) => return Ok(true),
                Ok(_) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error).context("receiving at the nodes"),
            }
        }
        Ok(false)
    }
}

/// Returns a SYN. The kernel fills in the IP checksum; the TCP checksum stays 0, because nobody verifies it here.
fn syn(vip: Ipv4Addr, source_port: u16) -> [u8; IP_HEADER + TCP_HEADER] {
    let mut packet = [0; IP_HEADER + TCP_HEADER];
    let length = u16::try_from(packet.len()).expect("both headers have 40 bytes");
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[8] = 64;
    packet[9] = TCP;
    packet[12..16].copy_from_slice(&WIRE.octets());
    packet[16..20].copy_from_slice(&vip.octets());
    packet[20..22].copy_from_slice(&source_port.to_be_bytes());
    packet[22..24].copy_from_slice(&PORT.to_be_bytes());
    // Data offset of five words, SYN, and a window.
    packet[32..36].copy_from_slice(&[0x50, 0x02, 0x72, 0x10]);
    packet
}

/// Returns the destinations of the outer and the inner header.
fn destinations(packet: &[u8; 2 * IP_HEADER + TCP_HEADER]) -> (Ipv4Addr, Ipv4Addr) {
    let at = |offset: usize| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|byte| packet[offset + byte]);
        Ipv4Addr::new(a, b, c, d)
    };
    (at(16), at(IP_HEADER + 16))
}
