//! The maps as the TC egress program sees them.

use aya_ebpf::{btf_maps::Array, macros::btf_map};
use xdp_prog::{
    abi::{
        AddressKey, Config, Datagram, IndexEntry, LocalFlow, PodFlow, Probe, Service, ServiceKeyV4,
        ServiceKeyV6, Tuple, egress_port, size,
    },
    egress::Memory,
    world::{Clock, Counters, FlowTable, Flows, Inserted, Relay},
};

use super::{Cpu, flows, fragments, probes};

#[btf_map]
static EGRESS_PORTS: Array<u64, { size::EGRESS_PORTS }, { super::MMAPABLE }> = Array::new();

/// The maps as [`Memory`].
pub(crate) struct EgressTables {
    cpu: Cpu,
}

impl EgressTables {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            cpu: Cpu::current(),
        }
    }
}

impl Memory for EgressTables {
    #[inline(always)]
    fn config(&self) -> Option<&Config> {
        super::config()
    }

    #[inline(always)]
    fn service_v4(&self, key: &ServiceKeyV4) -> Option<IndexEntry> {
        super::service_v4(key, super::config()?)
    }

    #[inline(always)]
    fn service_v6(&self, key: &ServiceKeyV6) -> Option<IndexEntry> {
        super::service_v6(key, super::config()?)
    }

    #[inline(always)]
    fn service(&self, id: u32) -> Option<Service> {
        super::service(id)
    }

    #[inline(always)]
    fn is_egress_port(&self, port: u16) -> bool {
        let (index, bit) = egress_port(port);
        EGRESS_PORTS
            .get(index)
            .is_some_and(|word| super::read_once(word) & bit != 0)
    }

    #[inline(always)]
    fn datagram(&self, key: &Tuple) -> Option<Datagram> {
        fragments::datagram(key)
    }

    #[inline(always)]
    fn publish(&self, key: &Tuple, datagram: &Datagram) {
        fragments::publish(key, datagram);
    }

    fn probe(&self, index: u32) -> Option<&Probe> {
        probes::get(index)
    }

    #[inline(always)]
    fn remember_probe(&self, answer: &Tuple, peer: &AddressKey) {
        probes::remember(answer, peer);
    }

    #[inline(always)]
    fn renew_local(&self, flow: &Tuple, renew: impl Fn(LocalFlow) -> LocalFlow) {
        flows::renew_local(self.cpu, flow, renew);
    }
}

impl Clock for EgressTables {
    #[inline(always)]
    fn now(&self) -> u64 {
        self.cpu.now()
    }
}

impl Flows for EgressTables {
    #[inline(always)]
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        flows::with(table, key, f)
    }

    #[inline(always)]
    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted {
        flows::insert(table, key, flow)
    }

    #[inline(always)]
    fn remove_flow(&self, table: FlowTable, key: &Tuple) {
        flows::remove(table, key);
    }

    #[inline(always)]
    fn noted_flow(&self, key: &Tuple) -> Option<PodFlow> {
        flows::noted(self.cpu, key)
    }

    #[inline(always)]
    fn note_flow(&self, key: &Tuple, flow: &PodFlow) {
        flows::note(self.cpu, key, flow);
    }

    #[inline(always)]
    fn forget_note(&self, key: &Tuple) {
        flows::forget_note(key);
    }

    #[inline(always)]
    fn forget_deliveries(&self, forward: &Tuple) {
        flows::forget_deliveries(forward);
    }
}

impl Relay for EgressTables {
    #[inline(always)]
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]> {
        self.cpu.relay(words)
    }

    #[inline(always)]
    fn relayed(&self) -> Option<[u64; 4]> {
        self.cpu.relayed()
    }
}

impl Counters for EgressTables {
    #[inline(always)]
    fn count_reason(&self, index: u32) {
        self.cpu.count_reason(index);
    }

    #[inline(always)]
    fn count_forward(&self, service: u32, backend: u32, bytes: u64) {
        if let Some(config) = super::config() {
            self.cpu.count_forward(config, service, backend, bytes);
        }
    }
}
