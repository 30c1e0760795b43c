//! The flows that a machine knows, as a request selects them and an answer lists them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::ServiceFilter;

/// Selects flows, and limits how many are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowFilter {
    /// Flows of these services.
    pub services: ServiceFilter,
    /// Flows of this client.
    pub client: Option<IpAddr>,
    /// Flows of this pod, or of this backend of NAT mode.
    pub backend: Option<IpAddr>,
    /// Most flows to list. Further ones are only counted.
    pub limit: usize,
}

/// The selected flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flows {
    /// The flows, up to the limit.
    pub flows: Vec<Flow>,
    /// Number of further flows.
    pub more: u64,
}

/// A flow that has not ended and has not been idle for too long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flow {
    /// The client's address and port.
    pub client: String,
    /// Name of the service.
    pub name: String,
    /// Address, port and protocol of the service.
    pub service: String,
    /// Address and port of the pod of this machine, or of the backend of NAT mode.
    pub backend: String,
    /// `node` for a flow to a pod of this machine, `nat` for one that this edge translates.
    pub table: String,
    /// Whether packets have been seen from both sides.
    pub open: bool,
    /// Seconds since its last packet. A packet is recorded up to a few seconds late.
    pub idle_seconds: u64,
}
