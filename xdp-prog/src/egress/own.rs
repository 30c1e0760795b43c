//! Flows of the node's own kernel: masqueraded pods and local sockets.
//!
//! They may use a NodePort as their source port. What answers them must not be
//! taken for a client's packet: the XDP program asks `LOCAL_FLOWS`. On an
//! uplink this comes after masquerading, so the addresses are those that the
//! other side sees.
//!
//! Each packet that leaves gives its flow another while to live. A client that
//! uses the other side's address and port once the flow is dead reaches the
//! NodePort after that time, and with a TCP SYN at once.
//!
//! A RST or a SYN+ACK begins none: the kernel sends these to whatever reaches it,
//! and the flow would be that of a client, whose packets would miss its pod from
//! then on. The kernel accepts no connection at a NodePort, as each SYN is the
//! service's; one that it accepted before it was a NodePort goes on by its other
//! segments.

use super::{Memory, headers::Headers};
use crate::{
    abi::{LOCAL_PORT_NS, LocalFlow, SERVICE_NODE_PORT, ServiceKeyV4, ServiceKeyV6, Tuple},
    decide::node::deliver::{IDLE_TRANSITORY_NS, IDLE_UDP_NS},
    family::Family,
    parse::TcpFlags,
    wire::{protocol, transport::Ports},
};

/// How long the kernel keeps a masqueraded TCP connection without a packet
/// (`nf_conntrack_tcp_timeout_established`: 5 days).
const LOCAL_TCP_NS: u64 = 432_000_000_000_000;
const _: () = assert!(LOCAL_TCP_NS < LOCAL_PORT_NS / 2);

/// Remembers the flow of a packet that leaves from a NodePort of this machine.
#[inline(always)]
pub(super) fn remember<T: Memory>(tables: &T, packet: &Headers, ports: &Ports, flags: TcpFlags) {
    if leaves_from_node_port(tables, packet, ports) {
        let answers = Tuple::new(
            packet.destination,
            packet.source,
            ports.destination,
            ports.source,
            packet.protocol,
        );
        let now = tables.now();
        tables.renew_local(&answers, |known| renew(known, packet.protocol, flags, now));
    }
}

/// Returns what is known of a flow once a packet of it has left.
#[inline(always)]
const fn renew(known: LocalFlow, protocol: u8, flags: TcpFlags, now: u64) -> LocalFlow {
    if protocol != protocol::TCP {
        return LocalFlow::new(now + IDLE_UDP_NS, false);
    }
    if flags.begins_connection() {
        return LocalFlow::new(now + IDLE_TRANSITORY_NS, false);
    }
    if !known.is_alive(now) && (flags.rst() || flags.syn()) {
        return known;
    }
    if known.is_closed() || flags.fin() || flags.rst() {
        return LocalFlow::new(now + IDLE_TRANSITORY_NS, true);
    }
    LocalFlow::new(now + LOCAL_TCP_NS, false)
}

#[inline(always)]
fn leaves_from_node_port<T: Memory>(tables: &T, packet: &Headers, ports: &Ports) -> bool {
    let source = packet.source.octets();
    let (id, check) = match packet.family {
        Family::V4 => {
            let [.., a, b, c, d] = source;
            let key = ServiceKeyV4::new([a, b, c, d], ports.source, packet.protocol);
            (tables.service_v4(&key), key.check())
        }
        Family::V6 => {
            let key = ServiceKeyV6::new(source, ports.source, packet.protocol);
            (tables.service_v6(&key), key.check())
        }
    };
    let Some(id) = id else {
        return false;
    };
    // A table that changes at this moment: the flow's next packet finds it settled.
    match tables.service(id) {
        Some(service) => service.word.check() == check && service.flags & SERVICE_NODE_PORT != 0,
        None => false,
    }
}
