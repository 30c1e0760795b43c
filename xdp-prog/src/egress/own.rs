//! Flows of the node's own kernel: masqueraded pods and local sockets.
//!
//! They may use a NodePort as their source port. What answers them must not be
//! taken for a client's packet: the XDP program asks `LOCAL_FLOWS`. On an
//! uplink this comes after masquerading, so the addresses are those that the
//! other side sees.

use super::{Memory, headers::Headers};
use crate::{
    abi::{SERVICE_NODE_PORT, ServiceKeyV4, ServiceKeyV6, Tuple},
    decide::Family,
    wire::transport::Ports,
};

/// Notes the flow of a packet that leaves from a NodePort of this machine.
#[inline(always)]
pub(super) fn note<T: Memory>(tables: &T, packet: &Headers, ports: &Ports) {
    if leaves_from_node_port(tables, packet, ports) {
        let answers = Tuple::new(
            packet.destination,
            packet.source,
            ports.destination,
            ports.source,
            packet.protocol,
        );
        tables.remember_local(&answers, tables.now());
    }
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
