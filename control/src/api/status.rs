//! The status of the agent: what it runs, and what is wrong.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The status of the agent.
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
    /// The seed of the flow hash, which all edges must share.
    pub hash_seed: HashSeed,
    /// How the Kubernetes API is followed; `None` if the file lists the services.
    pub kubernetes: Option<Kubernetes>,
    /// Interfaces that are configured or attached.
    pub interfaces: Vec<Interface>,
    /// Devices that replies of this machine's pods leave by.
    pub egress: Vec<Egress>,
    /// The announcements to neighbours.
    pub announced: Announced,
    /// Use of the tables.
    pub tables: Vec<Table>,
    /// Number of past owners that slots have lost before their day was over, once for each slot: `list_full` and
    /// `table_full`.
    pub past_owners_dropped: BTreeMap<String, u64>,
    /// Number of node addresses by state of their next hop: `resolved`, `local`, `unresolved`.
    pub next_hops: BTreeMap<String, u64>,
    /// Number of services in the tables.
    pub services: usize,
    /// Results of the checks of backends and nodes.
    pub health: Health,
    /// The mending of packets; `None` if it is off.
    pub mend: Option<MendStatus>,
    /// The exchange of owners with other edges; `None` if there is none.
    pub peers: Option<PeersStatus>,
    /// All problems, one line each: first what could not be applied, then checks that are not made, then
    /// problems of Kubernetes objects.
    pub problems: Vec<String>,
    /// Number of changes that could not be applied. They are retried automatically.
    pub unapplied: usize,
    /// Warnings about what is in force, one line each.
    pub warnings: Vec<String>,
    /// The last machine whose outer headers were refused.
    pub untrusted: Option<Untrusted>,
}

/// The seed of the flow hash. It is secret, so only its fingerprint is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HashSeed {
    /// Where it comes from.
    pub source: String,
    /// Four hexadecimal digits that are equal for equal seeds; `None` until the seed is known.
    pub fingerprint: Option<String>,
}

/// The status of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerStatus {
    /// Version of the controller's build.
    pub version: String,
    /// Whether it acts; one of all controllers does.
    pub leads: bool,
    /// Kinds of objects whose lists have not arrived.
    pub missing: Vec<String>,
    /// Number of Services that have all their addresses, if it acts.
    pub assigned: u64,
    /// Number of Services that wait for an address, if it acts.
    pub waiting: u64,
}

/// The addresses for which this machine answers its neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Announced {
    /// The interfaces. Each address is announced on all of them.
    pub interfaces: Vec<String>,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether this edge is drained: it hands these addresses over, and gets no others.
    pub drained: bool,
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

/// The mending of packets that XDP cannot finish. Its numbers begin with the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MendStatus {
    /// Receive queues of the interfaces, and the one where mended packets come back.
    pub queues: usize,
    /// Those that are open; none if the thread that mends has ended.
    pub open: usize,
    /// Packets that XDP has handed over.
    pub punted: u64,
    /// Those that the agent has received.
    pub taken: u64,
    /// Those that the kernel has lost, as far as it tells.
    pub lost: u64,
    /// Those that are held at the moment.
    pub held: u64,
    /// Memory that these take.
    pub held_bytes: u64,
    /// Memory that they may take.
    pub memory_bytes: u64,
    /// Devices that take no frames from XDP, by which the agent sends; each with the number of nodes that are reached by it.
    pub carried: BTreeMap<String, u64>,
    /// Why queues are not open, and why such devices send nothing.
    pub problems: Vec<String>,
}

/// The exchange of owners with other edges. Its numbers begin with the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeersStatus {
    /// How this edge got the past of its slots: `own_past` (it was there), `from_peer`, `without` (no peer answered),
    /// `waits` (not yet).
    pub begun: String,
    /// Why the key of the edges is not known, so that nothing is exchanged; `None` if it is known.
    pub missing_key: Option<String>,
    /// Exchanges that this edge began.
    pub asked: u64,
    /// Requests of other edges that it answered.
    pub answered: u64,
    /// Exchanges and requests that were refused or failed, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Slots that got past owners from other edges.
    pub slots_taken: u64,
    /// Owners of other edges that were left out: their nodes are not known here, or a table is full.
    pub owners_left_out: u64,
    /// The edges that are asked.
    pub peers: Vec<Peer>,
}

/// Another edge that is asked for its owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peer {
    /// Its address and port.
    pub address: String,
    /// Seconds since it last answered; `None` if it never has.
    pub answered_seconds_ago: Option<u64>,
    /// Whether nothing was left to take when it last answered.
    pub agrees: bool,
    /// Why the last exchange was refused or failed; `None` if it was not.
    pub refused: Option<String>,
}

/// Results of the checks of backends and nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Number of checked backends, counted once for each service.
    pub backends: usize,
    /// Number of them that fail.
    pub unhealthy: usize,
    /// Number of checked nodes.
    pub nodes: usize,
    /// Number of them that do not answer.
    pub unreachable: usize,
    /// Number of them without a result yet.
    pub unknown: usize,
    /// Number of checks that are not made, because the egress program is missing or there are too many.
    pub unchecked: usize,
    /// Services whose backends all fail or are on unreachable nodes, so that all get traffic.
    pub all_fail: Vec<String>,
}

/// How the Kubernetes API is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    /// Name of this machine's Node; on an edge outside the cluster no Node has this name.
    pub node_name: String,
    /// URL of the API server.
    pub server: String,
    /// Seconds since the first complete state; `None` while only an earlier agent's state is served.
    pub synced_seconds: Option<u64>,
    /// Seconds since the last event.
    pub last_event_seconds: Option<u64>,
    /// What must still arrive before anything is programmed.
    pub missing: Vec<String>,
    /// Number of objects by kind.
    pub objects: BTreeMap<String, usize>,
    /// Failing lists and watches, one line each. They are retried automatically.
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
    /// Number of successful loads, including the first.
    pub reloads: u64,
    /// Number of reloads that were rejected.
    pub failures: u64,
    /// Why the current file was rejected. The configuration before it stays in force.
    pub error: Option<String>,
    /// Changed options that need a restart.
    pub needs_restart: Vec<String>,
}

/// A configured or attached interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The attach mode that the configuration allows.
    pub wanted: String,
    /// The attach mode in force; `None` if not attached.
    pub mode: Option<String>,
    /// Why it is not attached, or attached in generic mode only.
    pub note: Option<String>,
}

/// A device that replies of this machine's pods leave by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Egress {
    /// Its name.
    pub device: String,
    /// How the egress program is attached: `tcx` or `clsact`; `None` if it is not.
    pub mode: Option<String>,
    /// Why it is not attached, or which programs run before it.
    pub note: Option<String>,
}

/// Returns a line for each device that lacks its program: why, and what to do.
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

/// Use of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// Its name, as under `tables` in the configuration.
    pub name: String,
    /// Number of entries in use.
    pub used: u64,
    /// Number of entries in all.
    pub capacity: u64,
    /// Longest run of free entries, for tables that allocate runs.
    pub largest_free_run: Option<u64>,
}
