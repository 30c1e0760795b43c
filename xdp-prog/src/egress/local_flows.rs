//! Flows of the node's own kernel: masqueraded pods and local sockets.
//!
//! They may use a NodePort as their source port. Their answers must not be taken for clients' packets, so the XDP
//! program looks them up in `LOCAL_FLOWS`. On an uplink this code runs after masquerading, so the addresses are those
//! that the other side sees.
//!
//! Every outgoing packet renews its flow. If a client uses the other side's address and port after the flow has
//! ended, its packets reach the NodePort once the entry has timed out, and a TCP SYN reaches it at once.
//!
//! A RST or a SYN+ACK begins no flow. The kernel sends these to anything that reaches it, and the flow would be a
//! client's, whose packets would miss their pod from then on. The kernel accepts no connection at a NodePort, because
//! every SYN there is for the service. A connection that it accepted before the port became a NodePort is kept by its
//! other segments.

use super::{Memory, headers::Headers};
use crate::{
    abi::{LOCAL_PORT_NS, LocalFlow, SERVICE_NODE_PORT, ServiceKeyV4, ServiceKeyV6, Tuple},
    family::Family,
    flow_state::{IDLE_TRANSITORY_NS, IDLE_UDP_NS},
    parse::TcpFlags,
    wire::{protocol, transport::Ports},
};

/// How long the kernel keeps an idle masqueraded TCP connection (`nf_conntrack_tcp_timeout_established`: 5 days).
const LOCAL_TCP_NS: u64 = 432_000_000_000_000;
const _: () = assert!(LOCAL_TCP_NS < LOCAL_PORT_NS / 2);

/// Notes the flow of a packet that leaves from a NodePort of this machine; tells whether it does.
#[inline(always)]
pub(super) fn remember<T: Memory>(
    tables: &T,
    packet: &Headers,
    ports: &Ports,
    flags: TcpFlags,
) -> bool {
    if !leaves_from_node_port(tables, packet, ports) {
        return false;
    }
    let answers = Tuple::new(
        packet.destination,
        packet.source,
        ports.destination,
        ports.source,
        packet.protocol,
    );
    let now = tables.now();
    tables.renew_local(&answers, |known| renew(known, packet.protocol, flags, now));
    true
}

/// Returns the state of a flow after an outgoing packet.
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
    let (entry, check) = match packet.family {
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
    let Some(entry) = entry else {
        return false;
    };
    // If the table changes at this moment, the flow's next packet is judged by the new one.
    match tables.service(entry.id()) {
        Some(service) => service.word.check() == check && service.flags & SERVICE_NODE_PORT != 0,
        None => false,
    }
}
