//! How the backends of a service are checked, as it is configured.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How the backends of a service are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The kind of check.
    pub kind: CheckKind,
    /// Port to check; `None` for the backend's own.
    pub port: Option<u16>,
    /// Time from the start of one check to the start of the next.
    pub interval: Duration,
    /// Time limit of one check.
    pub timeout: Duration,
    /// Successes in a row that make an unhealthy backend healthy.
    pub rise: u32,
    /// Failures in a row that make a healthy backend unhealthy.
    pub fall: u32,
}

/// What a check does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CheckKind {
    /// Open a TCP connection.
    #[default]
    Tcp,
    /// Send a GET and check the answer.
    Http {
        /// Whether to use TLS. The certificate is not verified.
        tls: bool,
        /// The request and the expected answer.
        get: HttpGet,
    },
}

/// A GET request and the expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGet {
    /// Path and query.
    pub path: String,
    /// Value of the header `Host`; `None` for the checked address and port.
    pub host: Option<String>,
    /// Ranges of statuses that pass.
    pub status: Vec<RangeInclusive<u16>>,
    /// Text that the body must contain.
    pub body: Option<String>,
}

impl Default for Check {
    fn default() -> Self {
        Self {
            kind: CheckKind::default(),
            port: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

impl CheckKind {
    /// Returns the kind's name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http { tls: false, .. } => "http",
            Self::Http { tls: true, .. } => "https",
        }
    }
}

impl Default for HttpGet {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            host: None,
            status: vec![200..=399],
            body: None,
        }
    }
}
