//! Health: are backends and nodes able to serve, and which of them are left out while they are not.
//!
//! ```text
//! desired state -> targets (who, how) + probe_indices -> monitor: probe, echo(es) -> schedule (results add up)
//! desired state <- selection (who serves) <-------------------------------------- what fails
//! ```
//!
//! `schedule`, `selection`, `targets` and `probe_indices` are pure; `monitor` makes the checks beside the agent's
//! thread, which reads what they come to and plans for what the selection leaves.

mod echo;
mod echoes;
pub mod monitor;
pub mod probe;
pub mod probe_indices;
pub mod schedule;
pub mod selection;
pub mod targets;

use std::ops::RangeInclusive;
use std::time::Duration;

use self::schedule::Rule;

/// How the backends of a service are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is done.
    pub kind: Kind,
    /// Port that is asked instead of the backend's own.
    pub port: Option<u16>,
    /// From the start of one check to the start of the next.
    pub interval: Duration,
    /// Longest time that a check may take.
    pub timeout: Duration,
    /// Successes in a row that bring a backend back.
    pub rise: u32,
    /// Failures in a row that take it out.
    pub fall: u32,
}

/// What a check does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Opens a TCP connection.
    #[default]
    Tcp,
    /// Sends a GET and looks at the answer.
    Http {
        /// Whether over TLS.
        tls: bool,
        /// The request, and the answer expected.
        get: Get,
    },
}

/// A GET and the answer expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// Path and query.
    pub path: String,
    /// Value of the header `Host`; none for the address and port that is asked.
    pub host: Option<String>,
    /// Statuses that pass.
    pub status: Vec<RangeInclusive<u16>>,
    /// Text that the body must have.
    pub body: Option<String>,
}

impl Default for Check {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            port: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

impl Kind {
    /// Returns the word that the configuration uses.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http { tls: false, .. } => "http",
            Self::Http { tls: true, .. } => "https",
        }
    }
}

impl Default for Get {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            host: None,
            status: vec![200..=399],
            body: None,
        }
    }
}

impl Check {
    /// Returns how the results add up.
    pub fn rule(&self) -> Rule {
        Rule {
            interval: self.interval,
            rise: self.rise,
            fall: self.fall,
            first_decides: true,
            starting: Duration::ZERO,
        }
    }
}
