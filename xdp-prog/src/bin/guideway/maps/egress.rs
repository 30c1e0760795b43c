//! The maps as the TC egress program sees them.

use aya_ebpf::{btf_maps::Array, macros::btf_map};
use xdp_prog::{
    abi::{
        AddressKey, Config, IndexEntry, LocalFlow, Probe, Service, ServiceKeyV4, ServiceKeyV6,
        Tuple, egress_port, size,
    },
    egress::Memory,
};

use super::{Cpu, Kind, Maps, flows, probes};

#[btf_map]
static EGRESS_PORTS: Array<u64, { size::EGRESS_PORTS }, { super::MMAPABLE }> = Array::new();

/// What only the TC program has. Few of its packets need the settings.
pub(crate) struct Tc;

impl Kind for Tc {
    #[inline(always)]
    fn config(&self) -> Option<&'static Config> {
        super::config()
    }
}

pub(crate) type TcMaps = Maps<Tc>;

impl TcMaps {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            of: Tc,
            cpu: Cpu::current(),
        }
    }
}

impl Memory for TcMaps {
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
