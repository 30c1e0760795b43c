//! The ways of this machine's own checks of backends and nodes.

use std::net::IpAddr;

use xdp_prog::abi::{AddressKey, PROBE_ENCAP, PROBE_MARK, PROBE_MARK_MASK, Probe, Tag};

use super::{TableError, Tables, types::address_key};

/// The way of one check: from a marked socket to a backend, as a client's packets go, or to the backend's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The address to which the socket is connected: the node's, or the service's if their families differ.
    pub peer: IpAddr,
    /// The address that the check is for: the service's, or the node's.
    pub destination: IpAddr,
    /// The node, if the check gets an outer header.
    pub outer: Option<IpAddr>,
    /// Outer source; the socket's own address by default.
    pub source: Option<IpAddr>,
    /// The pod that the node shall choose.
    pub pod: Option<IpAddr>,
}

impl ProbeSpec {
    fn entry(&self) -> Probe {
        let tag = self
            .pod
            .map_or(Tag::default(), |pod| Tag::pod(address_key(pod)));
        Probe {
            peer: address_key(self.peer),
            destination: address_key(self.destination),
            node: self.outer.map_or(AddressKey::default(), address_key),
            source: self.source.map_or(AddressKey::default(), address_key),
            tag: tag.0,
            flags: if self.outer.is_some() { PROBE_ENCAP } else { 0 },
            reserved: 0,
        }
    }
}

/// Number of ways that a mark can name; 0 names none.
pub const MAX_PROBES: u32 = !PROBE_MARK_MASK;

/// Returns the mark of a check's socket.
pub const fn probe_mark(index: u32) -> u32 {
    PROBE_MARK | index & !PROBE_MARK_MASK
}

impl Tables {
    /// Returns how many checks can have a way. Their indices begin at 1.
    pub fn probe_capacity(&self) -> u32 {
        let entries = u32::try_from(self.probes.capacity()).unwrap_or(u32::MAX);
        entries.saturating_sub(1).min(MAX_PROBES)
    }

    /// Sets the way of the checks whose sockets carry the [`probe_mark`] of this index.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the write.
    pub fn set_probe(&mut self, index: u32, probe: &ProbeSpec) -> Result<(), TableError> {
        self.probes.insert(index, probe.entry())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_of_a_node_without_an_outer_header_names_no_pod() {
        let node: IpAddr = "10.0.0.1".parse().unwrap();
        let spec = ProbeSpec {
            peer: node,
            destination: node,
            outer: None,
            source: None,
            pod: None,
        };
        let entry = spec.entry();
        assert_eq!(
            (entry.flags, entry.tag, entry.node),
            (0, 0, AddressKey::default())
        );
        assert_eq!(
            (entry.peer, entry.destination),
            (address_key(node), address_key(node))
        );
    }

    #[test]
    fn mark_keeps_the_index_and_the_pattern_apart() {
        assert_eq!(probe_mark(1), 0x6a70_0001);
        assert_eq!(probe_mark(MAX_PROBES), 0x6a7f_ffff);
    }
}
