//! The path of a flow or frame through the datapath.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Which backend a flow gets, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Which {
    /// Name of the service in the configuration, if it has one.
    pub name: Option<String>,
    /// Address, port and protocol.
    pub service: String,
    /// The client's address and port.
    pub from: String,
    /// The lookup of the backend, as far as it got.
    pub choice: Option<Choice>,
    /// Source and destination of the packet after NAT mode.
    pub translated: Option<String>,
    /// `forward`, `pass` or `drop`.
    pub action: String,
    /// The reason of a pass or a drop.
    pub reason: Option<String>,
    /// How the packet leaves.
    pub next_hop: Option<String>,
}

/// How the backend of a flow was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    /// Forwarding mode of the service.
    pub mode: String,
    /// Hash of the flow.
    pub hash: u32,
    /// Slot in the service's lookup table.
    pub slot: u32,
    /// Length of the lookup table.
    pub table_size: u32,
    /// The backend: its node, or its pod and the node.
    pub backend: String,
    /// Configured weight of the backend.
    pub weight: Option<u32>,
    /// Number of slots that the backend owns.
    pub slots: u32,
}

/// The path of a frame, step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trace {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The frame on arrival, in hexadecimal digits.
    pub before: String,
    /// The frame afterwards, in hexadecimal digits. A dropped frame may be half edited.
    pub after: String,
    /// `forward`, `pass`, `drop` or `reply`.
    pub action: String,
    /// The reason; `None` for a forward.
    pub reason: Option<String>,
    /// The device that a forwarded frame leaves by.
    pub device: Option<String>,
}

/// One step of a [`Trace`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// The subject of the step.
    pub name: String,
    /// The finding.
    pub text: String,
}

/// The use of an address on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AtAddress {
    /// The address.
    pub address: IpAddr,
    /// Names of the services there.
    pub services: Vec<String>,
    /// Interfaces on which the machine announces the address; empty if it does not.
    pub announced_on: Vec<String>,
}
