//! The clusters, and the measurements made with each.

use std::time::Duration;

use super::{Cluster, Source};

/// A cluster and the measurements made with it.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Where the cluster comes from.
    pub source: Source,
    /// The size of the cluster.
    pub cluster: Cluster,
    /// Number of single changes.
    pub changes: u32,
    /// Changes per second of the storm, and its duration.
    pub storm: Option<(u32, Duration)>,
    /// Heartbeats of Nodes per second, and for how long.
    pub heartbeats: Option<(u32, Duration)>,
    /// Duration of the measurement while nothing changes.
    pub idle: Duration,
}

/// Duration of the measurement of heartbeats.
const HEARTBEATS_LAST: Duration = Duration::from_secs(20);

impl Scenario {
    /// The scenarios of the size that Guideway is made for.
    pub const ALL: [Self; 4] = [
        Self {
            source: Source::Recorded,
            cluster: Cluster {
                services: 10_000,
                endpoints: 2,
                nodes: 500,
            },
            changes: 1_000,
            storm: None,
            heartbeats: None,
            idle: Duration::from_secs(70),
        },
        Self {
            source: Source::Recorded,
            cluster: Cluster {
                services: 44_000,
                endpoints: 1,
                nodes: 500,
            },
            changes: 200,
            storm: Some((1_000, Duration::from_secs(30))),
            heartbeats: None,
            idle: Duration::from_secs(70),
        },
        Self {
            source: Source::Real,
            cluster: Cluster {
                services: 5_000,
                endpoints: 50,
                nodes: 500,
            },
            changes: 200,
            storm: None,
            heartbeats: None,
            idle: Duration::from_secs(70),
        },
        Self {
            source: Source::Recorded,
            cluster: Cluster {
                services: 1_000,
                endpoints: 2,
                nodes: 2_500,
            },
            changes: 200,
            storm: None,
            // Each kubelet of the cluster writes every ten seconds, which is the maximum.
            heartbeats: Some((250, HEARTBEATS_LAST)),
            idle: Duration::from_secs(70),
        },
    ];

    /// Returns the scenario with another number of Nodes.
    pub fn with_nodes(mut self, nodes: u32) -> Self {
        self.cluster.nodes = nodes;
        self
    }

    /// Returns the scenario with another rate of heartbeats, per second.
    pub fn with_heartbeats(mut self, rate: u32) -> Self {
        self.heartbeats = Some((rate, HEARTBEATS_LAST));
        self
    }
}
