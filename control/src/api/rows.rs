//! The rows of tables: services, backends and reasons.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Untrusted;

/// Counters of packets, or their growth per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Number of packets.
    pub packets: u64,
    /// Number of their bytes, if these are counted.
    pub bytes: u64,
}

impl Counts {
    /// Returns the growth per second since an earlier value; `None` if no time has passed.
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

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its name in the configuration.
    pub name: String,
    /// Address, port and protocol.
    pub service: String,
    /// Whether this is its port at an address of a machine.
    pub node_port: bool,
    /// Forwarding mode.
    pub mode: String,
    /// `cluster` or `local`.
    pub traffic_policy: String,
    /// Whether all connections of a client go to one backend.
    pub session_affinity: bool,
    /// Number of source ranges; 0 if all clients are admitted.
    pub source_ranges: usize,
    /// Number of pods of this machine that serve it.
    pub local_pods: usize,
    /// Number of pods that get no traffic because they share node and tag with another pod.
    pub left_out: usize,
    /// Number of backends that take new connections.
    pub backends: usize,
    /// Length of the lookup table; 0 while it is not installed.
    pub slots: u32,
    /// Number of past owners that its slots have lost before their day was over, once for each slot.
    pub past_owners_dropped: u64,
    /// 16 hexadecimal digits that are equal on edges whose slots have the same owners and past owners; `None` without an
    /// exchange, and for services whose owners are not exchanged.
    pub owners: Option<String>,
    /// Number of packets forwarded.
    pub packets: u64,
    /// Number of bytes of those packets on arrival.
    pub bytes: u64,
    /// Number of flows that this machine knows at the moment: those of its pods and those of NAT mode. An edge
    /// remembers no others. `None` unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Growth of the counters per second; `None` unless the answer was asked for twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Counts>,
    /// Why the tables do not have it as configured.
    pub problem: Option<String>,
    /// Whether all backends fail their checks, so that all get traffic.
    pub all_fail: bool,
}

/// A backend of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backend {
    /// Name of the service.
    pub name: String,
    /// Address, port and protocol of the service.
    pub service: String,
    /// Address and port of the pod, or address of the node that has the VIP.
    pub backend: String,
    /// Address of the node.
    pub node: String,
    /// Whether it gets no traffic because it shares node and tag with another pod.
    pub left_out: bool,
    /// Whether it terminates and keeps only the connections that it has.
    pub draining: bool,
    /// Configured weight. With weight 0 it gets no new connections from this machine.
    pub weight: u32,
    /// Number of slots that it owns.
    pub slots: u32,
    /// Length of the lookup table.
    pub table_size: u32,
    /// `resolved`, `local` or `unresolved`.
    pub state: String,
    /// The device that packets leave by, or why there is none.
    pub next_hop: String,
    /// MAC address of a resolved next hop.
    pub mac: Option<String>,
    /// MTU of the path to the node, in bytes, if a router has reported in the last ten minutes that it is
    /// smaller than that of the next hop.
    pub path_mtu: Option<u32>,
    /// `healthy`, `unhealthy`, `unreachable`, or `new` before the first result; `None` if neither the backend
    /// nor its node is checked.
    pub health: Option<String>,
    /// Seconds since this state began.
    pub since_seconds: Option<u64>,
    /// The last failure.
    pub reason: Option<String>,
    /// Whether it fails and gets traffic all the same, because all backends of the service fail.
    pub all_fail: bool,
    /// Number of packets forwarded to it for the service, at all addresses of the service together.
    pub packets: u64,
    /// Number of bytes of those packets on arrival.
    pub bytes: u64,
    /// Number of flows that this machine knows at the moment: those of its pods and those of NAT mode. An edge
    /// remembers no others. `None` unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Growth of the counters per second; `None` unless the answer was asked for twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Counts>,
}

/// A reason that ended packets, with its counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reason {
    /// `drop`, `pass`, `reply`, `to_client`, `to_node`; or `fail` if XDP sent the frame and the kernel or driver could not.
    pub action: String,
    /// The reason's label, as in the metrics.
    pub reason: String,
    /// Number of packets.
    pub packets: u64,
    /// Growth of the counter per second; `None` unless the answer was asked for twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Counts>,
    /// Counters of drivers that belong to the reason, by device and name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drivers: BTreeMap<String, u64>,
    /// The last machine that sent such a packet, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Untrusted>,
}
