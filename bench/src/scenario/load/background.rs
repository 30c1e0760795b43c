//! Live frames beside requests that are timed, and the rate that they may have a share of.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Load, SearchKind};
use crate::{datapath::Protocol, scenario::System, stats::rounded};

/// Live frames beside requests that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Background {
    /// None.
    None,
    /// So many a second.
    Rate(f64),
    /// A share of the rate that a search finds the system to bear, before the first trial: once for all shares of it.
    OfSearch(ShareOfSearch),
    /// A share of what a system of the scenario takes of such frames, measured before the first trial: the same for all
    /// systems.
    OfSystem(ShareOfSystem),
}

/// A share of the rate that a search finds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareOfSearch {
    /// The share, 0 to 1.
    pub share: f64,
    /// What is searched for.
    pub search: SearchKind,
}

/// A share of the rate of a system.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShareOfSystem {
    /// The share, 0 to 1.
    pub share: f64,
    /// The system.
    pub system: System,
}

/// A rate that live frames beside requests have a share of. It is found before the first trial.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceRate {
    /// The system whose rate it is.
    pub system: System,
    /// What is searched for; with [`SearchKind::None`] it is the rate that the system takes.
    pub search: SearchKind,
    /// The frames.
    pub frames: Load,
}

impl fmt::Display for ReferenceRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { system, frames, .. } = self;
        match self.search {
            SearchKind::None => write!(f, "the rate of {system}")?,
            search => write!(f, "the {search} of {system}")?,
        }
        write!(f, " ({frames})")
    }
}

impl Background {
    /// Returns the share of a rate that is found before the first trial; `None` if it is none.
    pub fn share(self) -> Option<f64> {
        match self {
            Self::None | Self::Rate(_) => None,
            Self::OfSearch(ShareOfSearch { share, .. })
            | Self::OfSystem(ShareOfSystem { share, .. }) => Some(share),
        }
    }

    /// Returns the frames a second, in whole ones for a share of `reference`; `None` if there are none.
    pub fn rate(self, reference: Option<f64>) -> Option<f64> {
        match self {
            Self::Rate(rate) => Some(rate),
            other => Some((other.share()? * reference?).round()),
        }
    }

    /// Says which share of which rate it is, as scenarios do; `None` if it is none.
    pub fn share_in_words(self) -> Option<String> {
        let percent = rounded(self.share()? * 100.0);
        match self {
            Self::None | Self::Rate(_) => None,
            Self::OfSearch(of) => Some(format!("{percent} % of its {}", of.search)),
            Self::OfSystem(of) => Some(format!("{percent} % of the rate of {}", of.system)),
        }
    }
}

impl Load {
    /// Returns the load of live frames beside the requests.
    pub fn background_frames(&self) -> Self {
        Self {
            flows: self.flows,
            flow_order: self.flow_order,
            ..Self::of_frames(self.family, Protocol::Udp, self.frame_bytes.clone())
        }
    }

    /// Returns the rate that the live frames beside requests to a system have a share of; `None` if they have none.
    pub fn reference_rate(&self, system: System) -> Option<ReferenceRate> {
        let (system, search) = match self.background {
            Background::None | Background::Rate(_) => return None,
            Background::OfSearch(of) => (system, of.search),
            Background::OfSystem(of) => (of.system, SearchKind::None),
        };
        Some(ReferenceRate {
            system,
            search,
            frames: self.background_frames(),
        })
    }
}
