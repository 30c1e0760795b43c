//! Which way a flow or a frame takes.

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
    /// The client.
    pub from: String,
    /// The look-up, as far as it got.
    pub choice: Option<Choice>,
    /// The ends that NAT mode gives the packet: source and destination.
    pub translated: Option<String>,
    /// `forward`, `pass` or `drop`.
    pub action: String,
    /// The reason of a pass or drop.
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
    /// Node address.
    pub backend: String,
    /// Configured weight of the backend.
    pub weight: Option<u32>,
    /// Slots that the backend owns.
    pub slots: u32,
}

/// The way of one frame, step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trace {
    /// What was looked at, in order.
    pub steps: Vec<Step>,
    /// The frame as it came, as hexadecimal digits.
    pub before: String,
    /// The frame as it goes on; that of a dropped one may be half edited.
    pub after: String,
    /// `forward`, `pass`, `drop` or `reply`.
    pub action: String,
    /// The reason of all but a forward.
    pub reason: Option<String>,
    /// The device that a forwarded frame leaves by.
    pub device: Option<String>,
}

/// One step of a [`Trace`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// What it is about.
    pub name: String,
    /// What was found.
    pub text: String,
}

/// What a machine has at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AtAddress {
    /// The address.
    pub address: IpAddr,
    /// Names of the services there.
    pub services: Vec<String>,
    /// Interfaces whose neighbours are told to send here; none where the machine does not announce it.
    pub announced_on: Vec<String>,
}
