//! Addresses of the simulated network, and the numbers that stand for them.
//!
//! ```text
//! clients 100.64.0.0/10 --> VIP 192.0.2.1:80 at edges 10.0.0.e --IP-in-IP--> nodes 10.1.n.n, pods 10.128-255.n.k:8080
//! ```
//!
//! A pod's address is given to another pod once it has ended, as a node's own address management does, and its number
//! with it: the product knows backends by their address.

use std::net::{IpAddr, Ipv4Addr};

use xdp_prog::{
    abi::{AddressKey, BACKEND_LOCAL, BACKEND_POD, BACKEND_V4, Backend, Tag},
    flow::{FlowKey, V4},
    maglev::{Identity, Member},
    wire::protocol,
};

/// Address of the Service.
pub(super) const VIP: [u8; 4] = [192, 0, 2, 1];
/// Port of the Service, in wire order.
pub(super) const PORT: [u8; 2] = 80_u16.to_be_bytes();
/// Port of the pods, in wire order.
pub(super) const POD_PORT: [u8; 2] = 8080_u16.to_be_bytes();
/// Seed of the flow hash and of the lookup tables, the same on all edges.
pub(super) const HASH_SEED: u64 = 0x6775_6964_6577_6179;
/// Pods that a node has addresses for.
const PODS_OF_NODE: u32 = 250;
/// Client ports of an address, and the first one.
const PORTS_OF_CLIENT: u32 = 1 << 15;
const FIRST_PORT: u32 = 1 << 14;

/// The number of a backend: its index in `BACKENDS`.
pub(super) type BackendId = u32;

/// Returns the number of backend ids, with id 0, for pods on so many nodes.
pub(super) const fn backend_ids(nodes: u32) -> u32 {
    1 + nodes * PODS_OF_NODE
}

/// Returns the id of the backend at a place of a node.
pub(super) const fn backend_id(node: u32, place: u32) -> BackendId {
    1 + node * PODS_OF_NODE + place % PODS_OF_NODE
}

/// Returns the address of an edge.
pub(super) fn edge_address(edge: u32) -> [u8; 4] {
    (0x0a00_0001 + edge).to_be_bytes()
}

/// Returns the number of the edge with this address.
pub(super) fn edge_of(address: [u8; 4]) -> Option<u32> {
    let number = u32::from_be_bytes(address).checked_sub(0x0a00_0001)?;
    (number < 1 << 15).then_some(number)
}

fn node_address(node: u32) -> [u8; 4] {
    (0x0a01_0000 + node).to_be_bytes()
}

/// Returns the number of the node with this address.
pub(super) fn node_of(address: [u8; 4]) -> Option<u32> {
    let number = u32::from_be_bytes(address).checked_sub(0x0a01_0000)?;
    (number < 1 << 15).then_some(number)
}

const fn parts(id: BackendId) -> (u32, u32) {
    ((id - 1) / PODS_OF_NODE, (id - 1) % PODS_OF_NODE)
}

/// Returns the address of a pod.
pub(super) fn pod_address(id: BackendId) -> [u8; 4] {
    let (node, place) = parts(id);
    (0x0a80_0000 + (node << 8) + place + 1).to_be_bytes()
}

/// Returns the backend of a node that a tag names.
pub(super) const fn tagged(node: u32, tag: Tag) -> Option<BackendId> {
    let place = tag.pod_bits() as u32 & 0xff;
    if place == 0 || place > PODS_OF_NODE {
        return None;
    }
    Some(backend_id(node, place - 1))
}

/// Returns a backend as a member of a lookup table.
pub(super) fn member(id: BackendId) -> Member {
    let address = IpAddr::V4(Ipv4Addr::from(pod_address(id)));
    Member {
        identity: Identity::new(address, u16::from_be_bytes(POD_PORT)),
        weight: 1,
    }
}

/// Returns the entry of a backend at an edge, or at its own node.
pub(super) fn backend(id: BackendId, is_own: bool) -> Backend {
    if id == 0 {
        return Backend::default();
    }
    let (node, _) = parts(id);
    let [a, b, c, d] = node_address(node);
    let pod = AddressKey::v4(pod_address(id));
    let own = if is_own { BACKEND_LOCAL } else { 0 };
    Backend {
        address: [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        next_hop: 1,
        flags: BACKEND_V4 | BACKEND_POD | own,
        pod,
        port: POD_PORT,
        tag: Tag::pod(pod).0,
        ..Backend::default()
    }
}

/// The end of a connection at its client: address and port, by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Client(pub(super) u32);

impl Client {
    /// Returns the address.
    pub(super) const fn address(self) -> [u8; 4] {
        (0x6440_0001 + self.0 / PORTS_OF_CLIENT).to_be_bytes()
    }

    /// Returns the port, in wire order.
    #[expect(clippy::cast_possible_truncation, reason = "below 2^16")]
    pub(super) const fn port(self) -> [u8; 2] {
        ((FIRST_PORT + self.0 % PORTS_OF_CLIENT) as u16).to_be_bytes()
    }

    /// Returns the hash of its connections, which chooses their slot.
    pub(super) fn hash(self) -> u32 {
        let key = FlowKey {
            source: V4(self.address()),
            destination: V4(VIP),
            source_port: self.port(),
            destination_port: PORT,
            protocol: protocol::TCP,
        };
        key.hash(HASH_SEED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses_stand_for_each_other() {
        for id in [1, 250, 251, 100 * PODS_OF_NODE] {
            let entry = backend(id, false);
            let node = node_of(entry.address_v4()).unwrap();
            assert_eq!(tagged(node, Tag(entry.tag)), Some(id));
            assert_eq!(edge_of(entry.address_v4()), None);
        }
        assert_eq!(edge_of(edge_address(63)), Some(63));
        assert_eq!(tagged(3, Tag(0)), None);
        let (one, other) = (Client(7), Client(7 + PORTS_OF_CLIENT));
        assert_eq!(one.port(), other.port());
        assert_ne!(one.address(), other.address());
    }
}
