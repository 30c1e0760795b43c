//! Reads the YAML configuration file into a validated [`Config`], or reports every rule that it breaks.
//!
//! There are four steps. `raw` decodes the shape; serde refuses unknown fields. `node_config` lays the settings of this
//! machine over those for all. `validate` applies the rules that need only the file. [`host`] applies the rules that
//! need the machine: the MTU of an interface, the machine's own addresses. Nothing here changes the dataplane, so an
//! invalid file has no effect.
//!
//! The YAML library is serde-saphyr, for two reasons. It gives each *value* a line and a column (`Spanned`),
//! not only each syntax error. And it limits aliases, depth and the number of nodes, which a hostile file could
//! otherwise use to exhaust memory.

pub mod effective;
pub mod host;
mod interfaces;
mod listen;
mod node_config;
mod problem;
mod raw;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_saphyr::MessageFormatter;
use xdp_prog::abi::size;

pub(crate) use interfaces::{InterfaceEntry, InterfaceSelector};
pub use listen::{Listen, NoNodeAddress};
pub use problem::{ConfigError, Position, Problem};
pub(crate) use validate::HealthDefaults;

use crate::desired::{Desired, ForwardMode};
use crate::index::TableEntries;
use crate::render::printable;

/// Path of the agent's socket unless `api.socket` is set.
pub const DEFAULT_SOCKET: &str = "/run/guideway/guideway.sock";
/// Directory where maps and links are pinned unless `pin_dir` is set.
pub const DEFAULT_PIN_DIR: &str = fastpath::pins::DEFAULT_ROOT;
/// Name of Guideway's headless Service unless `kubernetes.service` is set.
pub const DEFAULT_SERVICE: &str = "guideway";
/// Seed of the flow hash unless `hash_seed` is set. It is constant, so that every edge has the same.
pub const DEFAULT_HASH_SEED: u64 = 0x6775_6964_6577_6179;

/// Largest file that is read. 250 000 backends take about 15 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The part that a reload may change.
    pub desired: Desired,
    /// The entries under `interfaces`. What they stand for is in `desired`.
    pub(crate) interfaces: Vec<InterfaceEntry>,
    /// What takes frames all the way.
    pub datapath: Datapath,
    /// Sizes of the kernel tables.
    pub tables: TableSizes,
    /// Path of the agent's unix socket.
    pub socket: PathBuf,
    /// Where metrics are served; `None` if they are off.
    pub metrics: Option<Listen>,
    /// Directory on bpffs that holds the pins.
    pub pin_dir: PathBuf,
    /// Ports that a NodePort may have.
    pub node_port_range: RangeInclusive<u16>,
    /// Forwarding mode of services that do not set one.
    pub default_mode: ForwardMode,
    /// Settings of checks that a service of the file does not set.
    pub(crate) health: HealthDefaults,
    /// The exchange of owners with other edges; `None` if there is none.
    pub peers: Option<Peers>,
    /// How the Kubernetes API is used; `None` if the file itself lists the services.
    pub kubernetes: Option<Kubernetes>,
    /// The entries of `node_config` that name this machine. Their settings are in the other fields.
    pub(crate) node_config: Vec<String>,
    /// Positions of the values that the rules of [`host`] may reject.
    pub(crate) origins: Origins,
}

/// The exchange of owners with other edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Where other edges are answered; `None` if they are not.
    pub listen: Option<Listen>,
    /// How this edge finds the others, and the key.
    pub found: PeersFound,
}

/// How an edge finds the others, and the key that all share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeersFound {
    /// The file says it.
    InFile {
        /// Addresses and ports of all edges. This machine's may be among them.
        addresses: BTreeSet<SocketAddr>,
        /// The file with the key.
        key_file: PathBuf,
    },
    /// The others are the machines of Guideway's headless Service. The key is in the cluster's Secret.
    InCluster {
        /// The port at which all of them listen.
        port: u16,
    },
}

/// What takes frames all the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Datapath {
    /// The XDP programs.
    #[default]
    Xdp,
    /// Threads over AF_XDP sockets, on kernels that are too old for the programs. An edge alone, without NAT mode.
    Afxdp,
}

impl Datapath {
    /// Returns the name in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Afxdp => "afxdp",
        }
    }
}

/// Where services, nodes and virtual addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The file.
    File,
    /// The Kubernetes API.
    Kubernetes,
    /// The Kubernetes API if the file has a section `kubernetes`, else the file.
    AsWritten,
}

/// The section `kubernetes`, with the settings that apply to services from the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// Name of this machine's Node; `None` to take it from the environment.
    pub node_name: Option<String>,
    /// Namespace of Guideway's own objects; `None` to take it from the environment.
    pub namespace: Option<String>,
    /// Namespace of the edges' Leases; `None` for `service` with `-edges` appended.
    pub lease_namespace: Option<String>,
    /// The headless Service whose EndpointSlices show which machines run Guideway.
    pub service: String,
    /// The `loadBalancerClass` that is served.
    pub load_balancer_class: String,
    /// Whether LoadBalancer Services without a class are served too.
    pub default_class: bool,
    /// Networks within which `externalIPs` are served.
    pub external_ips: BTreeSet<IpNet>,
    /// Whether topology hints restrict the endpoints.
    pub honour_hints: bool,
    /// Whether this agent answers at the health check ports of Services.
    pub health_check_node_port: HealthCheckNodePorts,
    /// Where `/healthz`, `/livez` and `/readyz` are served; `None` if they are off.
    pub healthz: Option<Listen>,
    /// What Services can take of the tables.
    pub room: TableEntries,
    /// The most that one Service may take of it, in percent.
    pub table_share: u64,
    /// The most that all Services of a namespace may take of it together, in percent; `None` for no limit.
    pub namespace_table_share: Option<u64>,
    /// Forwarding mode of services that do not set one.
    pub default_mode: ForwardMode,
    /// Seed of the flow hash; `None` to take it from the cluster's Secret.
    pub hash_seed: Option<u64>,
}

/// Whether the agent answers at the health check ports of Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthCheckNodePorts {
    /// At the ports that no other program has.
    #[default]
    Auto,
    /// At all ports. A port that cannot be opened is a problem.
    On,
    /// At no port.
    Off,
}

/// Number of entries of each kernel table. The kernel allocates the memory when it creates the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSizes {
    /// Slots of all lookup tables together, 4 bytes each.
    pub lut_slots: u32,
    /// Services, IPv4 and IPv6 together.
    pub services: u32,
    /// Backends. A backend (node, pod and port, or address and port of NAT mode) takes one entry for every
    /// service that has it.
    pub backends: u32,
    /// Next hops: node addresses that are reached without a lookup in the kernel's FIB.
    pub next_hops: u32,
    /// Virtual addresses and addresses of this machine.
    pub vips: u32,
    /// Prefixes of trusted edges.
    pub trusted_edges: u32,
    /// Pods of this machine, counted once for each address of a service.
    pub pods: u32,
    /// Source ranges, counted once for each address of a service.
    pub source_ranges: u32,
    /// Flows that a node remembers, for each of four kinds: answered TCP flows, answered flows of other
    /// protocols, unanswered flows, and flows of its own kernel.
    pub flows: u32,
    /// Flows of NAT mode.
    pub nat_flows: u32,
}

impl Default for TableSizes {
    fn default() -> Self {
        Self {
            lut_slots: entries(size::LUT_SLOTS),
            services: entries(size::SERVICES),
            backends: entries(size::BACKENDS),
            next_hops: entries(size::NEXT_HOPS),
            vips: entries(size::VIPS),
            trusted_edges: entries(size::TRUSTED_EDGES),
            pods: entries(size::PODS),
            source_ranges: entries(size::SOURCE_RANGES),
            flows: entries(size::FLOWS),
            nat_flows: entries(size::NAT),
        }
    }
}

/// Returns a table size as the kernel takes it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the object declares no table of more than 2^24 entries"
)]
const fn entries(size: usize) -> u32 {
    size as u32
}

/// Positions of values in the file, for the rules about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    pub(crate) interfaces: BTreeMap<String, Position>,
    pub(crate) vips: BTreeMap<IpAddr, Position>,
    pub(crate) sources: BTreeMap<IpAddr, Position>,
    pub(crate) nat: BTreeMap<IpAddr, Position>,
    pub(crate) nodes: BTreeMap<IpAddr, Position>,
    pub(crate) key_file: Option<Position>,
    pub(crate) datapath: Option<Position>,
}

/// Reads and validates the file at `path`.
///
/// # Errors
///
/// When the file cannot be read, or is invalid; then with every problem.
pub fn load(path: &Path, source: Source) -> Result<Config, ConfigError> {
    let unreadable = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let bytes = read(path).map_err(unreadable)?;
    parse_bytes(&bytes, source).map_err(|problems| ConfigError::Invalid {
        path: path.to_owned(),
        problems,
    })
}

/// Reads a file. Of a file that is too large it reads one byte more than allowed.
///
/// # Errors
///
/// When the file cannot be read, or is a pipe or device, which could block.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut open = File::options();
    // Without O_NONBLOCK, opening a pipe without a writer would block.
    let file = open
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Decodes and validates the content of a file.
///
/// # Errors
///
/// With every problem found, ordered by position.
pub fn parse_bytes(bytes: &[u8], source: Source) -> Result<Config, Vec<Problem>> {
    let whole_file = |reason: String, remedy: &str| {
        vec![Problem {
            position: None,
            field: String::new(),
            value: String::new(),
            reason,
            remedy: remedy.to_owned(),
        }]
    };
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_FILE_BYTES) {
        return Err(whole_file(
            format!("the file is larger than {} MiB", MAX_FILE_BYTES >> 20),
            "split it over several edges",
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.split(|&byte| byte == b'\n').count();
        whole_file(
            format!("line {line} is not UTF-8"),
            "save the file as UTF-8 text",
        )
    })?;
    parse_for(text, source)
}

/// Decodes and validates the text of a file. The file itself decides where services come from.
///
/// # Errors
///
/// With every problem found, ordered by position.
pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    parse_for(text, Source::AsWritten)
}

fn parse_for(text: &str, source: Source) -> Result<Config, Vec<Problem>> {
    node_config::validate(shape(text)?, source)
}

/// Returns the socket of the agent that runs with the file at `path`, even if other fields of the file are invalid.
///
/// # Errors
///
/// When the file cannot be read, or does not have the shape of a configuration.
pub fn socket(path: &Path) -> Result<PathBuf, ConfigError> {
    let unreadable = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let bytes = read(path).map_err(unreadable)?;
    let file = shape(&String::from_utf8_lossy(&bytes)).and_then(node_config::settings_here);
    let file = file.map_err(|problems| ConfigError::Invalid {
        path: path.to_owned(),
        problems,
    })?;
    let socket = file.api.and_then(|api| api.socket);
    Ok(socket.map_or_else(|| DEFAULT_SOCKET.into(), |socket| socket.value.into()))
}

/// Reads a file and decodes its shape, without validating it.
fn shape(text: &str) -> Result<raw::File, Vec<Problem>> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
        budget: serde_saphyr::budget! {
            max_nodes: 8_000_000,
            max_events: 16_000_000,
            max_total_scalar_bytes: 64 << 20,
            max_depth: 16,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_documents: 1,
        },
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| vec![shape_problem(text, &error)])
}

/// Parses a network or an address as in `kubernetes.external_ips`.
pub fn parse_network(text: &str) -> Option<IpNet> {
    validate::network(text).ok()
}

/// Parses a seed as in `hash_seed`: 64 bits, decimal or hexadecimal with `0x`.
pub fn parse_seed(text: &str) -> Option<u64> {
    validate::seed(text).ok()
}

/// Converts the first error of serde or the YAML scanner into a [`Problem`].
fn shape_problem(text: &str, error: &serde_saphyr::Error) -> Problem {
    use serde_saphyr::Error as Yaml;

    let position = error.location().map(Position::from);
    let position = position.filter(|position| position.line > 0);
    let problem = |field: &str, reason: String, remedy: String| Problem {
        position,
        field: field.to_owned(),
        value: String::new(),
        reason,
        remedy,
    };
    let mut cause = error.without_snippet();
    while let Yaml::AliasError { error, .. } = cause {
        cause = error.without_snippet();
    }
    let found = position.and_then(|position| word_at(text, position));
    match cause {
        Yaml::SerdeUnknownField {
            field, expected, ..
        } => problem(
            &shorten(field),
            "unknown field".to_owned(),
            format!("the fields here are {}", expected.join(", ")),
        ),
        Yaml::DuplicateMappingKey { key, .. } => problem(
            &shorten(key.as_deref().unwrap_or("key")),
            "this field is given twice".to_owned(),
            "keep one of the two".to_owned(),
        ),
        Yaml::Unexpected { expected, .. } => {
            let wanted = match *expected {
                "sequence start" => "a list",
                "mapping start" => "fields (name: value)",
                "string scalar" => "a single value",
                other => other,
            };
            problem(
                "",
                match found {
                    Some(found) => format!("found {found:?} where {wanted} belongs"),
                    None => format!("expected {wanted}"),
                },
                "deploy/docs/configuration.md shows the form of every field".to_owned(),
            )
        }
        other => {
            let message = serde_saphyr::UserMessageFormatter.format_message(other);
            problem(
                "",
                format!("not valid YAML: {}", shorten(&printable(&message))),
                "deploy/docs/configuration.md shows the form of every field".to_owned(),
            )
        }
    }
}

/// Returns the text from a position to the end of its line, shortened.
fn word_at(text: &str, position: Position) -> Option<String> {
    let line = text
        .lines()
        .nth(usize::try_from(position.line).ok()?.checked_sub(1)?)?;
    let column = usize::try_from(position.column).ok()?.checked_sub(1)?;
    let word: String = line.chars().skip(column).collect();
    let word = word.trim();
    (!word.is_empty()).then(|| shorten(word))
}

/// Shortens a value for a message.
fn shorten(value: &str) -> String {
    const LONGEST: usize = 120;
    match value.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}
