//! The configuration file: YAML in, a validated [`Config`] or every rule it breaks out.
//!
//! Three steps: `raw` takes the shape (serde refuses unknown fields), `validate`
//! applies every rule that the file alone can break, and [`host`] those that only
//! the machine can decide (an interface's MTU, the machine's own addresses).
//! Nothing here touches the dataplane: a file that fails leaves no trace.
//!
//! serde-saphyr is the YAML library because it gives each *value* a line and a
//! column (`Spanned`), not only each syntax error, and bounds aliases, depth and
//! node counts, which a hostile file would otherwise use up memory with.

pub mod host;
mod listen;
mod problem;
mod raw;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_saphyr::MessageFormatter;
use xdp_prog::abi::size;

pub use listen::{Listen, NoNodeAddress};
pub use problem::{ConfigError, Position, Problem};

use crate::desired::{Desired, ForwardMode};
use crate::index::Room;
use crate::render::printable;

/// Where the agent listens unless `api.socket` says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/guideway/guideway.sock";
/// Where maps and links are pinned unless `pin_dir` says otherwise.
pub const DEFAULT_PIN_DIR: &str = fastpath::pins::DEFAULT_ROOT;
/// Name of our headless Service unless `kubernetes.service` says otherwise.
pub const DEFAULT_SERVICE: &str = "guideway";
/// Seed of the flow hash unless `hash_seed` says otherwise: every edge has the same.
pub const DEFAULT_HASH_SEED: u64 = 0x6775_6964_6577_6179;

/// Largest file that is read; 250 000 backends take about 15 MB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A configuration that keeps every rule of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What a reload may change.
    pub desired: Desired,
    /// Sizes of the kernel tables, fixed while they are pinned.
    pub tables: TableSizes,
    /// The agent's unix socket.
    pub socket: PathBuf,
    /// Where metrics are served; `None` when they are off.
    pub metrics: Option<Listen>,
    /// Directory on bpffs that holds the pins.
    pub pin_dir: PathBuf,
    /// Ports that NodePorts may have.
    pub node_port_range: RangeInclusive<u16>,
    /// How the API is read; `None` where the file says everything.
    pub kubernetes: Option<Kubernetes>,
    /// Where the values stand that [`host`] may object to.
    pub(crate) origins: Origins,
}

/// Where services, nodes and virtual addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The file.
    File,
    /// The Kubernetes API.
    Kubernetes,
    /// The Kubernetes API if the file has a section for it.
    AsWritten,
}

/// How the Kubernetes API is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// Name of this machine's Node; from the environment if not given.
    pub node_name: Option<String>,
    /// Namespace of Guideway's own objects; from the environment if not given.
    pub namespace: Option<String>,
    /// Namespace of the Leases of edges; the name of `service` with `-edges` behind it if not given.
    pub lease_namespace: Option<String>,
    /// The headless Service whose EndpointSlices tell who runs Guideway.
    pub service: String,
    /// Class of the Services of type LoadBalancer that are served.
    pub load_balancer_class: String,
    /// Whether those without a class are served too.
    pub default_class: bool,
    /// Networks within which `externalIPs` are served.
    pub external_ips: BTreeSet<IpNet>,
    /// Whether topology hints restrict the endpoints.
    pub honour_hints: bool,
    /// Who answers at the health check ports of Services.
    pub health_check_node_port: HealthCheckNodePorts,
    /// Where `/healthz`, `/livez` and `/readyz` are served, if they are.
    pub healthz: Option<Listen>,
    /// What one Service takes of the tables at most.
    pub service_room: Room,
    /// The same for all Services of a namespace, if that is bounded.
    pub namespace_room: Option<Room>,
    /// Forwarding mode of services that name none.
    pub default_mode: ForwardMode,
    /// Seed of the flow hash; that of the cluster's Secret if not given.
    pub hash_seed: Option<u64>,
}

/// Whether the agent answers at the health check ports of Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HealthCheckNodePorts {
    /// At those that nobody else has.
    #[default]
    Auto,
    /// At all; one that cannot be had is a problem.
    On,
    /// At none.
    Off,
}

/// How many entries each kernel table has; memory is committed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSizes {
    /// Slots of the LUT arena, 4 bytes each.
    pub lut_slots: u32,
    /// Services of both families together.
    pub services: u32,
    /// Backends: node, pod and port, or address and port of NAT mode, each once for every service that has it.
    pub backends: u32,
    /// Next hops: one per node address that is reached without asking the kernel's FIB.
    pub next_hops: u32,
    /// Virtual addresses and addresses of this machine.
    pub vips: u32,
    /// Prefixes of trusted edges.
    pub trusted_edges: u32,
    /// Pods of this machine, once for each address of a service.
    pub pods: u32,
    /// Source ranges, once for each address of a service.
    pub source_ranges: u32,
    /// Flows that a node remembers, of each kind: answered ones of TCP, those of other protocols, unanswered ones,
    /// and those of its own kernel.
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

/// Counts in 32 bits, as the kernel does.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the object declares no table of more than 2^24 entries"
)]
const fn entries(size: usize) -> u32 {
    size as u32
}

/// Places of values that the rules about the machine look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origins {
    pub(crate) interfaces: BTreeMap<String, Position>,
    pub(crate) vips: BTreeMap<IpAddr, Position>,
    pub(crate) sources: BTreeMap<IpAddr, Position>,
    pub(crate) nat: BTreeMap<IpAddr, Position>,
    pub(crate) nodes: BTreeMap<IpAddr, Position>,
}

/// Reads and validates the file at `path`.
///
/// # Errors
///
/// When the file cannot be read, or with every problem found in it.
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

/// Reads a file, or the beginning of one that is too large.
///
/// # Errors
///
/// When it cannot be read, or could keep the reader waiting: a pipe, a device.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut open = File::options();
    // Opening a pipe that nobody writes to would not return otherwise.
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

/// Validates the bytes of a file.
///
/// # Errors
///
/// With every problem found, in the order of the file.
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

/// Validates the text of a file that says itself where services come from.
///
/// # Errors
///
/// With every problem found, in the order of the file.
pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    parse_for(text, Source::AsWritten)
}

fn parse_for(text: &str, source: Source) -> Result<Config, Vec<Problem>> {
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
    let file: raw::File = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| vec![shape_problem(text, &error)])?;
    validate::validate(&file, source)
}

/// Parses a network as `kubernetes.external_ips` has them, or an address.
pub fn parse_network(text: &str) -> Option<IpNet> {
    validate::network(text).ok()
}

/// Parses a seed as `hash_seed` is written: 64 bits, decimal or `0x`.
pub fn parse_seed(text: &str) -> Option<u64> {
    validate::seed(text).ok()
}

/// Turns the first thing that serde or the YAML scanner refused into a [`Problem`].
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
                "control/README.md shows the form of every field".to_owned(),
            )
        }
        other => {
            let message = serde_saphyr::UserMessageFormatter.format_message(other);
            problem(
                "",
                format!("not valid YAML: {}", shorten(&printable(&message))),
                "control/README.md shows the form of every field".to_owned(),
            )
        }
    }
}

/// Returns the text at a position up to the end of the line, shortened.
fn word_at(text: &str, position: Position) -> Option<String> {
    let line = text
        .lines()
        .nth(usize::try_from(position.line).ok()?.checked_sub(1)?)?;
    let column = usize::try_from(position.column).ok()?.checked_sub(1)?;
    let word: String = line.chars().skip(column).collect();
    let word = word.trim();
    (!word.is_empty()).then(|| shorten(word))
}

/// Bounds what a message repeats of the file.
fn shorten(value: &str) -> String {
    const LONGEST: usize = 120;
    match value.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}
