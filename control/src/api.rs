//! The protocol between commands and the running agent.
//!
//! One connection to the agent's unix socket carries one line of JSON each way: a [`Request`], then a
//! [`Reply`]. Commands and agents of neighbouring versions can talk to each other. A reader of replies ignores
//! unknown fields. An agent refuses a request with an unknown field, because it would answer a different
//! question. Fields of a request that are not used are left out.

pub mod client;
mod flows;
mod rows;
pub mod server;
mod service_filter;
mod status;
mod trace;

use serde::{Deserialize, Serialize};

pub use self::flows::{Flow, FlowFilter, Flows};
pub use self::rows::{Backend, Counts, Reason, Service};
pub use self::service_filter::{NameParts, ServiceFilter};
pub use self::status::{
    Announced, ConfigStatus, ControllerStatus, Egress, HashSeed, Health, Interface, Kubernetes,
    MendStatus, Peer, PeersStatus, Status, Table, Untrusted, unattached,
};
pub use self::trace::{AtAddress, Choice, Step, Trace, Which};

/// Longest request that the agent reads, in bytes: a jumbo frame in hexadecimal fits.
pub const MAX_REQUEST_BYTES: usize = 32 << 10;
/// Longest reply that a command reads, in bytes. 250 000 backends take about 60 MB.
pub const MAX_REPLY_BYTES: u64 = 256 << 20;

/// A question of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The agent's [`Status`].
    Status {},
    /// Each selected [`Service`].
    Services(ServiceFilter),
    /// Every [`Backend`] of each selected service.
    Backends(ServiceFilter),
    /// The selected [`Flows`].
    Flows(FlowFilter),
    /// The settings in force; see [`crate::config::effective`].
    Config {},
    /// Every [`Reason`] with its counter.
    Drops {},
    /// The [`CapturedEvents`] that nobody has taken yet, of the capture under way.
    Capture {},
    /// The [`Which`] of a flow.
    Which(WhichRequest),
    /// The [`Trace`] of a flow's first packet, or of a frame.
    Trace(TraceRequest),
    /// Drain this edge, or end that; answered once the cluster knows, without content.
    DrainEdge {
        /// Whether to drain it.
        drained: bool,
    },
    /// Detach from every interface, remove every pin, and end: [`Detached`].
    Detach {},
}

/// The flow of [`Request::Which`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhichRequest {
    /// The service, such as `10.99.0.1:80/tcp`.
    pub service: String,
    /// The client's address and port, such as `192.0.2.1:1234`.
    pub from: String,
}

/// The packet of [`Request::Trace`]: the first one of a flow, or a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The service, such as `10.99.0.1:80/tcp`.
    pub service: Option<String>,
    /// The client's address and port, such as `192.0.2.1:1234`.
    pub from: Option<String>,
    /// A frame in hexadecimal digits, from the Ethernet header on. It replaces the packet of a flow.
    pub frame: Option<String>,
    /// The interface that the packet arrives on; without it, the first one with the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// The answer.
    Ok(T),
    /// Why there is no answer.
    Error(String),
}

/// Packets that threads have copied for a capture, and that nobody has taken before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CapturedEvents {
    /// For each packet in hexadecimal digits what [`Captured::read`](fastpath::capture::Captured::read) reads, the oldest first.
    pub events: Vec<String>,
    /// Packets that have been lost since the last answer, for want of room.
    pub lost: u64,
}

/// What a detach removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Detached {
    /// Interfaces that the program was detached from.
    pub interfaces: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_without_an_interface_is_asked_for_as_agents_without_that_field_know_it() {
        let trace = Request::Trace(TraceRequest {
            service: None,
            from: None,
            frame: Some("00".to_owned()),
            interface: None,
        });
        let asked = serde_json::to_string(&trace).unwrap();
        assert!(!asked.contains("interface"), "{asked}");
        assert_eq!(serde_json::from_str::<Request>(&asked).unwrap(), trace);
    }

    #[test]
    fn a_request_with_a_field_that_nobody_knows_is_refused() {
        for request in [
            r#"{"request": "status", "new": 1}"#,
            r#"{"request": "which", "service": "10.99.0.1:80/tcp", "from": "192.0.2.1:1", "new": 1}"#,
            r#"{"request": "trace", "frame": "00", "new": 1}"#,
        ] {
            let error = serde_json::from_str::<Request>(request).unwrap_err();
            assert!(error.to_string().contains("unknown field `new`"), "{error}");
        }
    }
}
