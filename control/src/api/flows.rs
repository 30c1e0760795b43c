//! The flows that a machine knows.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::ServiceFilter;

/// Which flows a request is about, and how many of them are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowFilter {
    /// Those of these services.
    pub services: ServiceFilter,
    /// Those of this client.
    pub client: Option<IpAddr>,
    /// Those of this pod, or backend of NAT mode.
    pub backend: Option<IpAddr>,
    /// How many are listed at most; the others are counted.
    pub limit: usize,
}

/// Flows that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flows {
    /// Flows, as many as were asked for.
    pub flows: Vec<Flow>,
    /// How many more there are.
    pub more: u64,
}

/// A flow that has neither ended nor been idle for too long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flow {
    /// The client's address and port.
    pub client: String,
    /// Name of the service.
    pub name: String,
    /// Address, port and protocol of the service.
    pub service: String,
    /// The pod of this machine, or the backend of NAT mode, with its port.
    pub backend: String,
    /// `node` for a flow to a pod of this machine, `nat` for one that this edge translates.
    pub table: String,
    /// Whether both sides have been heard.
    pub open: bool,
    /// Seconds since its last packet; a packet is noted up to a few seconds late.
    pub idle_seconds: u64,
}
