//! The ports whose packets the egress program examines: those that pods of this machine listen on, and NodePorts.
//!
//! A port is added before the first packet can reach its pod, and removed when no packet in flight can. A reply of
//! the pod from any other port is not translated.

use xdp_prog::abi::{SERVICE_NODE_PORT, egress_port, map, size};

use super::{ServiceKey, ServiceSpec, TableError, Tables, layout::Layout, mapped::Mapped};
use crate::load::Loaded;

/// The bits of the ports; only user space writes them.
#[derive(Debug)]
pub(super) struct EgressPorts {
    bits: Mapped<u64>,
    /// Whether some bits may belong to no installed service.
    pub(super) is_stale: bool,
}

impl EgressPorts {
    /// Maps the bits into memory.
    ///
    /// # Errors
    ///
    /// Fails if the map cannot be opened or mapped.
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Ok(Self {
            bits: Mapped::open(loaded, map::EGRESS_PORTS)?,
            is_stale: true,
        })
    }

    fn add(&mut self, port: u16) {
        let (index, bit) = egress_port(port);
        let known = self.bits.read(index).unwrap_or_default();
        self.store(index, known | bit);
    }

    fn store(&mut self, index: u32, word: u64) {
        if self.bits.read(index) != Some(word) {
            self.bits.store_u64(index, 0, word);
        }
    }
}

impl Tables {
    /// Adds the ports of a service before it is written.
    pub(super) fn add_egress_ports(
        &mut self,
        key: &ServiceKey,
        spec: &ServiceSpec,
        layout: &Layout,
    ) {
        let pods = layout.pods.values();
        let pods = pods.filter_map(|index| Some(layout.backends[*index].pod?.port()));
        let node_port = spec.node_port.then_some(key.port);
        for port in pods.chain(node_port) {
            self.egress_ports.add(port);
        }
    }

    /// Keeps only the ports of installed services. No service may be changing meanwhile.
    pub(super) fn retain_egress_ports(&mut self) {
        if !std::mem::take(&mut self.egress_ports.is_stale) {
            return;
        }
        let mut wanted = [0; size::EGRESS_PORTS];
        let mut add = |port| {
            let (index, bit) = egress_port(port);
            wanted[index as usize] |= bit;
        };
        for (key, service) in &self.contents.installed {
            let pods = service.pods.values();
            for pod in pods.filter_map(|id| self.backends.get(*id)) {
                add(u16::from_be_bytes(pod.port));
            }
            let entry = self.service.get(service.id);
            if entry.is_some_and(|entry| entry.flags & SERVICE_NODE_PORT != 0) {
                add(key.port);
            }
        }
        for (index, word) in (0..).zip(wanted) {
            self.egress_ports.store(index, word);
        }
    }
}
