//! What the commands ask the running agent, and what it answers.
//!
//! One connection to the agent's unix socket carries one line of JSON each way:
//! a [`Request`], then a [`Reply`]. So that a command and an agent of neighbouring versions
//! understand each other, readers of replies ignore fields that they do not know. An agent refuses a request
//! with such a field, as its answer would be to another question; what is not asked for is left out.

pub mod client;
pub mod server;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Longest request that the agent reads: a jumbo frame in hexadecimal fits.
pub const MAX_REQUEST_BYTES: usize = 32 << 10;
/// Longest reply that a command reads; 250 000 backends take about 60 MB.
pub const MAX_REPLY_BYTES: u64 = 256 << 20;

/// What a command asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The agent's [`Status`].
    Status {},
    /// Every [`Service`].
    Services {},
    /// Every [`Backend`] of every service.
    Backends {},
    /// Every [`Reason`] with its counter.
    Drops {},
    /// The [`Which`] of a flow.
    Which(WhichRequest),
    /// The [`Trace`] of a flow's first packet, or of a frame.
    Trace(TraceRequest),
    /// Detach from every interface, remove every pin, and end: [`Detached`].
    Detach {},
}

/// Which flow [`Request::Which`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WhichRequest {
    /// The service, as `10.99.0.1:80/tcp`.
    pub service: String,
    /// The client's address and port.
    pub from: String,
}

/// Which packet [`Request::Trace`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The service, as `10.99.0.1:80/tcp`.
    pub service: Option<String>,
    /// The client's address and port.
    pub from: Option<String>,
    /// A frame as hexadecimal digits, from the Ethernet header on, in place of the flow's.
    pub frame: Option<String>,
    /// The interface that it comes in by; if there is none, the first one with the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// What was asked for.
    Ok(T),
    /// Why there is no answer.
    Error(String),
}

/// How the agent is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the agent's build.
    pub version: String,
    /// Process id of the agent.
    pub pid: u32,
    /// Seconds since the agent started.
    pub uptime_seconds: u64,
    /// Roles in force: `edge`, `node`.
    pub roles: Vec<String>,
    /// The configuration in force.
    pub config: ConfigStatus,
    /// How the Kubernetes API is followed; nothing where the file says everything.
    pub kubernetes: Option<Kubernetes>,
    /// Interfaces wanted or attached.
    pub interfaces: Vec<Interface>,
    /// Devices by which replies of this machine's pods leave.
    pub egress: Vec<Egress>,
    /// How full the tables are.
    pub tables: Vec<Table>,
    /// Node addresses by state of their next hop: `resolved`, `local`, `unresolved`.
    pub next_hops: BTreeMap<String, u64>,
    /// Number of services in the tables.
    pub services: usize,
    /// What the checks of backends and nodes come to.
    pub health: Health,
    /// Everything that is wrong, one line each: what could not be applied comes first, then checks that are not
    /// made, then the rules that objects of the Kubernetes API break.
    pub problems: Vec<String>,
    /// How many of the problems are changes that could not be applied; they are tried again by themselves.
    pub unapplied: usize,
    /// What is in force but deserves a look, one line each.
    pub warnings: Vec<String>,
    /// The last machine whose outer headers were refused.
    pub untrusted: Option<Untrusted>,
}

/// The last source from which IP-in-IP was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Untrusted {
    /// The outer source.
    pub source: String,
    /// Seconds since its last packet.
    pub seconds_ago: u64,
}

/// What the checks of backends and nodes come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Backends that are checked, once for each service.
    pub backends: usize,
    /// Those of them that fail.
    pub unhealthy: usize,
    /// Nodes that are checked.
    pub nodes: usize,
    /// Those of them that do not answer.
    pub unreachable: usize,
    /// Those of them of which no check has come to a result yet.
    pub unknown: usize,
    /// Checks that are not made, because the egress program is not in place or there are too many.
    pub unchecked: usize,
    /// Services of which every backend fails or has an unreachable node, so that all serve.
    pub all_fail: Vec<String>,
}

/// How the Kubernetes API is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    /// URL of the API server.
    pub server: String,
    /// Seconds since the first state was complete; none while nothing but what an earlier agent left is served.
    pub synced_seconds: Option<u64>,
    /// Seconds since the last event.
    pub last_event_seconds: Option<u64>,
    /// What is still to be learnt before anything is programmed.
    pub missing: Vec<String>,
    /// Number of objects by kind.
    pub objects: BTreeMap<String, usize>,
    /// Lists and watches that fail, one line each; tried again by themselves.
    pub broken: Vec<String>,
}

/// The configuration in force and the last attempt to replace it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigStatus {
    /// Path of the file.
    pub path: String,
    /// When the configuration in force was loaded, in seconds since 1970.
    pub loaded_at: u64,
    /// Reloads that took effect; the first load counts.
    pub reloads: u64,
    /// Reloads that were refused.
    pub failures: u64,
    /// Why the file as it is was refused; the state before it stays in force.
    pub error: Option<String>,
    /// Options that differ from those in force and wait for a restart.
    pub needs_restart: Vec<String>,
}

/// An interface that the configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The attach mode that the configuration allows.
    pub wanted: String,
    /// The mode in force; none while not attached.
    pub mode: Option<String>,
    /// Why it is not attached, or why only in generic mode.
    pub note: Option<String>,
}

/// A device by which replies of this machine's pods leave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Egress {
    /// Its name.
    pub device: String,
    /// How the egress program is attached: `tcx` or `clsact`; none while it is not.
    pub mode: Option<String>,
    /// Why it is not attached, or what runs before it.
    pub note: Option<String>,
}

/// Names each device without its program, why, and what to do.
pub fn unattached(interfaces: &[Interface], egress: &[Egress]) -> Vec<String> {
    let line = |program: &str, device: &str, note: Option<&str>| {
        let why = note.unwrap_or("somebody removed it, or the device is gone");
        format!(
            "no {program} program on {device}: {why}; the agent tries again by itself, `guideway check` names what hinders it"
        )
    };
    let interfaces = interfaces.iter().filter(|one| one.mode.is_none());
    let egress = egress.iter().filter(|one| one.mode.is_none());
    interfaces
        .map(|one| line("XDP", &one.name, one.note.as_deref()))
        .chain(egress.map(|one| line("egress", &one.device, one.note.as_deref())))
        .collect()
}

/// How full one table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// Its name, as under `tables` in the configuration.
    pub name: String,
    /// Entries in use.
    pub used: u64,
    /// Entries possible.
    pub capacity: u64,
    /// Longest run of free entries, for tables that hand out runs.
    pub largest_free_run: Option<u64>,
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its name in the configuration.
    pub name: String,
    /// Address, port and protocol.
    pub service: String,
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
    /// What the drivers of attached devices count under it, by device and name of the counter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drivers: BTreeMap<String, u64>,
    /// The last machine that sent one, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Untrusted>,
}

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

/// What a detach removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Detached {
    /// Interfaces that the program was taken off.
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
