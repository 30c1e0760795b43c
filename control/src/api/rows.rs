//! Services, backends and reasons: the rows of tables.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Untrusted;

/// Counters of packets, or what they grow by in each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Their bytes, where these are counted.
    pub bytes: u64,
}

impl Counts {
    /// Returns the growth in each second since an earlier value; nothing if no time has passed.
    pub fn rates_since(self, earlier: Self, span: Duration) -> Option<Self> {
        let millis = u64::try_from(span.as_millis())
            .ok()
            .filter(|millis| *millis > 0)?;
        let rate =
            |now: u64, earlier: u64| now.saturating_sub(earlier).saturating_mul(1_000) / millis;
        Some(Self {
            packets: rate(self.packets, earlier.packets),
            bytes: rate(self.bytes, earlier.bytes),
        })
    }
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its name in the configuration.
    pub name: String,
    /// Address, port and protocol.
    pub service: String,
    /// Whether this is its port at an address of the machine.
    pub node_port: bool,
    /// Forwarding mode.
    pub mode: String,
    /// `cluster` or `local`.
    pub traffic_policy: String,
    /// Whether clients are told apart by their address alone.
    pub session_affinity: bool,
    /// Number of source ranges; 0 lets all clients in.
    pub source_ranges: usize,
    /// Pods of this machine that serve it.
    pub local_pods: usize,
    /// Pods that get no traffic because they share their node and tag with another one.
    pub left_out: usize,
    /// Number of backends that take new connections.
    pub backends: usize,
    /// Length of the lookup table; 0 while it is not installed.
    pub slots: u32,
    /// Packets forwarded.
    pub packets: u64,
    /// Bytes of those packets as they came in.
    pub bytes: u64,
    /// Flows known to this machine at this moment: those of pods here, and those of NAT mode; only where they were asked
    /// for. An edge remembers no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// What the counters grow by in each second, where the answer was asked for twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Counts>,
    /// Why it is not as configured.
    pub problem: Option<String>,
    /// Whether no backend should serve, so that all do.
    pub all_fail: bool,
}

/// One backend of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backend {
    /// Name of the service.
    pub name: String,
    /// Address, port and protocol of the service.
    pub service: String,
    /// The pod with its port, or the address of the node that has the VIP.
    pub backend: String,
    /// Node address.
    pub node: String,
    /// Whether it gets no traffic because it shares its node and tag with another pod.
    pub left_out: bool,
    /// Whether it terminates, and still serves the connections that it has.
    pub draining: bool,
    /// Configured weight; without any it takes no new connections from this machine.
    pub weight: u32,
    /// Slots that it owns.
    pub slots: u32,
    /// Length of the lookup table.
    pub table_size: u32,
    /// `resolved`, `local` or `unresolved`.
    pub state: String,
    /// Where packets leave to, or why they cannot.
    pub next_hop: String,
    /// MAC address of the next hop, once it is resolved.
    pub mac: Option<String>,
    /// MTU of the path to the node, where a router has said within the last ten minutes that it is smaller than
    /// that of the next hop.
    pub path_mtu: Option<u32>,
    /// `healthy`, `unhealthy`, `unreachable`, or `new` before the first result; nothing if neither it
    /// nor its node is checked.
    pub health: Option<String>,
    /// Seconds since it is so.
    pub since_seconds: Option<u64>,
    /// The last failure.
    pub reason: Option<String>,
    /// Whether it should not serve and yet does, because that goes for all of the service.
    pub all_fail: bool,
    /// Packets forwarded to it for the service, at whichever of the service's addresses.
    pub packets: u64,
    /// Bytes of those packets as they came in.
    pub bytes: u64,
    /// Flows known to this machine at this moment: those of pods here, and those of NAT mode; only where they were asked
    /// for. An edge remembers no others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// What the counters grow by in each second, where the answer was asked for twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Counts>,
}

/// Packets that ended with one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reason {
    /// `drop`, `pass`, `reply`, `return`; `fail` for what XDP sent and the kernel or the driver could not.
    pub action: String,
    /// The reason's label, as in the metrics.
    pub reason: String,
    /// Packets.
    pub packets: u64,
    /// What they grow by in each second, where the answer was asked for twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Counts>,
    /// What the drivers of attached devices count under it, by device and name of the counter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drivers: BTreeMap<String, u64>,
    /// The last machine that sent one, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Untrusted>,
}
