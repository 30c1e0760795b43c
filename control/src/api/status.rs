//! How the agent is, what it runs and what is wrong.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

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
    /// What neighbours are told to send here.
    pub announced: Announced,
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

/// Addresses for which this machine answers its neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Announced {
    /// The interfaces; each address is announced on all of them.
    pub interfaces: Vec<String>,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
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
