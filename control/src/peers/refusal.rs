//! Why a peer's message is refused.

use std::fmt;
use std::io;

use crate::render::printable;

/// Why an exchange failed or a message was refused. Nothing changes then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No connection, or it broke off.
    Unreachable(String),
    /// It took too long.
    TimedOut,
    /// The peer is no Guideway, or speaks another version.
    Version(String),
    /// The peer has another key, or somebody changed the message.
    NotAuthentic,
    /// A message of so many bytes is more than the exchange takes.
    TooLarge(u64),
    /// The message contradicts itself or the request.
    Contradictory(&'static str),
    /// The peer has another hash seed, so all its slots have other owners. These are the fingerprints.
    OtherSeed { theirs: String, ours: String },
}

impl Refusal {
    /// The labels of all reasons, for metrics.
    pub(super) const LABELS: [&str; 7] = [
        "unreachable",
        "timed_out",
        "version",
        "not_authentic",
        "too_large",
        "contradictory",
        "other_seed",
    ];

    /// Returns the place of its label.
    pub(super) const fn index(&self) -> usize {
        match self {
            Self::Unreachable(_) => 0,
            Self::TimedOut => 1,
            Self::Version(_) => 2,
            Self::NotAuthentic => 3,
            Self::TooLarge(_) => 4,
            Self::Contradictory(_) => 5,
            Self::OtherSeed { .. } => 6,
        }
    }

    /// Returns the label.
    pub(crate) const fn label(&self) -> &'static str {
        Self::LABELS[self.index()]
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "not reached: {why}"),
            Self::TimedOut => f.write_str("it took too long"),
            Self::Version(what) => f.write_str(what),
            Self::NotAuthentic => f.write_str(
                "not authentic: start all edges with the same key, of peers.key_file or of the cluster's Secret",
            ),
            Self::TooLarge(bytes) => write!(f, "{bytes} bytes are more than an exchange takes"),
            Self::Contradictory(what) => write!(f, "contradictory: {what}"),
            Self::OtherSeed { theirs, ours } => write!(
                f,
                "its hash_seed has the fingerprint {}, this edge's {}: set the same on all edges",
                printable(theirs),
                ours
            ),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error.to_string())
    }
}
