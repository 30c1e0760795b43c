//! Options of the commands that show what the agent knows: where the agent is, which rows, and how they are written.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::api::ServiceFilter;
use crate::config::{self, ConfigError, DEFAULT_SOCKET};
use crate::reasons::{self, Explanation};

/// Where the agent is.
#[derive(Debug, Args)]
pub struct Agent {
    /// The agent's socket [default: that of --config, or $GUIDEWAY_SOCKET, or /run/guideway/guideway.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub socket: Option<PathBuf>,
    /// The agent's configuration file, which says where its socket is
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Agent {
    /// Returns the agent's socket.
    ///
    /// # Errors
    ///
    /// When the configuration file cannot be read.
    pub fn socket(&self) -> Result<PathBuf, ConfigError> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        if let Some(file) = &self.config {
            return config::socket(file);
        }
        let socket = std::env::var_os("GUIDEWAY_SOCKET").filter(|socket| !socket.is_empty());
        Ok(socket.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from))
    }
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A page with the usual columns.
    Table,
    /// A page with more columns.
    Wide,
    /// JSON, with everything there is.
    Json,
    /// The same as YAML.
    Yaml,
}

/// How an answer is written, by either of two options.
#[derive(Clone, Copy, Debug, Args)]
pub struct Format {
    /// How to print it
    #[arg(
        long,
        short,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub output: Output,
    /// Print JSON: the same as -o json
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
}

impl Format {
    /// Returns what is asked for.
    pub const fn output(self) -> Output {
        if self.json { Output::Json } else { self.output }
    }
}

/// Options of the commands that show something.
#[derive(Debug, Args)]
pub struct Show {
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
    /// Show it again every SECONDS (1 if not given), with rates per second
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
}

/// Options of `services` and `backends`.
#[derive(Debug, Args)]
pub struct Rows {
    /// Only this service: NAME, NAMESPACE/NAME, either followed by :PORT, or ADDRESS, ADDRESS:PORT, ADDRESS:PORT/PROTO
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    /// Only the services of this namespace
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Sort the rows, largest value first
    #[arg(long, value_enum, value_name = "BY")]
    pub sort: Option<Sort>,
    /// Show what was counted: connections, packets, bytes
    ///
    /// Connections are the flows that this machine knows now: those of its pods, and those of NAT mode.
    /// An edge keeps no record of others.
    #[arg(long)]
    pub stats: bool,
    /// Show packets and bytes per second, from two samples one second apart
    #[arg(long, conflicts_with = "watch")]
    pub rate: bool,
    /// How to show it.
    #[command(flatten)]
    pub show: Show,
}

/// Options of `flows`.
#[derive(Debug, Args)]
pub struct Flows {
    /// Only flows of this service, by its name or address as for `services`
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    /// Only flows of services of this namespace
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Only flows of this client
    #[arg(long, value_name = "ADDRESS")]
    pub client: Option<IpAddr>,
    /// Only flows of this pod or backend
    #[arg(long, value_name = "ADDRESS")]
    pub backend: Option<IpAddr>,
    /// List at most NUMBER flows, and say how many more there are
    #[arg(long, value_name = "NUMBER", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Packets per second.
    Rate,
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Flows that are known.
    Connections,
}

impl Rows {
    /// Returns which services are meant.
    pub fn filter(&self) -> ServiceFilter {
        ServiceFilter {
            service: self.service.clone(),
            namespace: self.namespace.clone(),
            connections: self.stats || self.sort == Some(Sort::Connections),
        }
    }

    /// Tells whether one answer alone does not do.
    pub fn needs_rates(&self) -> bool {
        self.rate || self.sort == Some(Sort::Rate)
    }
}

/// Options of `drops`.
#[derive(Debug, Args)]
pub struct Drops {
    /// How to show it.
    #[command(flatten)]
    pub show: Show,
    /// Show reasons without packets too
    #[arg(long, short)]
    pub all: bool,
    /// Explain a reason: meaning, cause and remedy. This needs no agent
    #[arg(long, value_name = "REASON", value_parser = reasons::parse)]
    pub explain: Option<Explanation>,
}
