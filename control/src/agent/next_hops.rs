//! Keeps the next hops in the tables equal to the kernel's routes and neighbours.

use std::collections::BTreeSet;
use std::net::IpAddr;

use fastpath::facts;
use fastpath::nexthop::{NetlinkError, Resolution, Resolver, Tracker};
use fastpath::tables::{TableError, Tables};

use super::LOGGED_ONE_BY_ONE;

/// Divisor of the kernel's neighbour table: backends by NAT may use one part. The rest is for nodes, edges and
/// the machine's other peers.
const NEIGHBOUR_SHARE: usize = 4;

/// Why next hops could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub(super) enum NextHopsError {
    #[error("cannot resolve next hops")]
    Netlink(#[from] NetlinkError),
    #[error("cannot store the next hop of {target}")]
    Store {
        target: IpAddr,
        #[source]
        source: TableError,
    },
    #[error("cannot store the MACs of edges")]
    EdgeMacs(#[source] TableError),
    #[error("cannot store the devices whose frames leave by another one or by the agent")]
    Links(#[source] TableError),
    #[error("cannot have errors noted about packets to nodes")]
    Paths(#[source] TableError),
}

#[derive(Debug)]
pub(super) struct NextHops {
    resolver: Resolver,
    tracker: Tracker,
    /// Addresses that packets are sent to.
    targets: BTreeSet<IpAddr>,
    /// Edges from whose MACs L2 DSR frames come.
    edges: BTreeSet<IpAddr>,
    /// Targets by NAT, which may have only a share of the kernel's neighbour table.
    by_nat: BTreeSet<IpAddr>,
    /// Warning that they need more than this share.
    beyond_share: Option<String>,
    /// The last warning about neighbours that the kernel does not keep resolved.
    unkept: Option<String>,
}

impl NextHops {
    pub(super) fn new() -> Result<Self, NetlinkError> {
        Ok(Self {
            resolver: Resolver::new()?,
            tracker: Tracker::default(),
            targets: BTreeSet::new(),
            edges: BTreeSet::new(),
            by_nat: BTreeSet::new(),
            beyond_share: None,
            unkept: None,
        })
    }

    /// Replaces the targets and edges. The targets in `by_nat` are reached by NAT only. Returns whether
    /// anything changed.
    pub(super) fn set_targets(
        &mut self,
        targets: BTreeSet<IpAddr>,
        by_nat: BTreeSet<IpAddr>,
        edges: BTreeSet<IpAddr>,
    ) -> bool {
        let changed = targets != self.targets || by_nat != self.by_nat || edges != self.edges;
        if changed {
            self.tracker.set_targets(targets.union(&edges).copied());
            self.targets = targets;
            self.by_nat = by_nat;
            self.edges = edges;
        }
        changed
    }

    /// Sets whether the agent sends what is for devices that take no frames from XDP. Returns whether that has changed.
    pub(super) fn set_carrying(&mut self, carries: bool) -> bool {
        self.resolver.set_carrying(carries)
    }

    /// Asks the kernel about every target, and updates the tables.
    pub(super) fn refresh(&mut self, tables: &mut Tables) -> Result<(), NextHopsError> {
        let limited = &self.by_nat - &self.edges;
        let most = if limited.is_empty() {
            0
        } else {
            neighbour_share()
        };
        self.tracker.limit(limited, most);
        let refresh = self.tracker.refresh(&mut self.resolver)?;
        log(&refresh.changes);
        self.note_beyond_share(refresh.beyond_limit, most);
        let unkept = refresh.unkept.map(|error| super::chain(&error));
        if unkept != self.unkept {
            if let Some(reason) = &unkept {
                tracing::warn!(
                    reason,
                    "neighbours may go stale without traffic of the kernel's own"
                );
            }
            self.unkept = unkept;
        }
        // Entries that nobody needs are removed first, to make room.
        tables.retain_next_hops(&self.targets);
        // All answers, not only changed ones: an entry that could not be stored is still missing.
        let mut outcome = Ok(());
        for (target, answer) in self.tracker.answers() {
            if let Some(answer) = answer
                && self.targets.contains(&target)
                && tables.next_hop(target) != Some(answer)
                && let Err(source) = tables.set_next_hop(target, answer)
            {
                // A failure does not keep the others from being stored.
                outcome = outcome.and(Err(NextHopsError::Store { target, source }));
            }
        }
        let edge_macs = self.edge_macs();
        let edge_macs = tables.set_edge_macs(&edge_macs);
        let links = tables.set_links_below(&refresh.links_below);
        let paths = tables.watch_paths();
        outcome
            .and(edge_macs.map_err(NextHopsError::EdgeMacs))
            .and(links.map_err(NextHopsError::Links))
            .and(paths.map_err(NextHopsError::Paths))
    }

    /// Warns of neighbours that are too many to be kept resolved.
    fn note_beyond_share(&mut self, count: usize, most: usize) {
        let warning = (count != 0).then(|| {
            format!(
                "{count} neighbours that backends by NAT are sent to are not kept resolved, and get nothing unless the \
                 kernel knows them: {most} of a family are kept, a quarter of the kernel's table; raise \
                 net.ipv4.neigh.default.gc_thresh3, or net.ipv6's, or run Guideway on these machines"
            )
        });
        if let Some(warning) = &warning
            && self.beyond_share.is_none()
        {
            tracing::warn!("{warning}");
        }
        self.beyond_share = warning;
    }

    /// Returns the current warning for users.
    pub(super) const fn warning(&self) -> Option<&String> {
        self.beyond_share.as_ref()
    }

    /// Lists the MACs of the edges on this machine's segments. L2 DSR frames come from these.
    fn edge_macs(&self) -> BTreeSet<[u8; 6]> {
        let answers = self.tracker.answers();
        let mac = |(target, answer): (IpAddr, Option<Resolution>)| match answer {
            Some(Resolution::Resolved(hop)) if self.edges.contains(&target) && !hop.via_gateway => {
                Some(hop.destination_mac)
            }
            _ => None,
        };
        answers.filter_map(mac).collect()
    }

    /// Returns the indices of the devices that lead to these pods.
    pub(super) fn devices(
        &mut self,
        pods: &BTreeSet<IpAddr>,
    ) -> Result<BTreeSet<u32>, NetlinkError> {
        let mut devices = BTreeSet::new();
        for pod in pods {
            devices.extend(self.resolver.device(*pod)?);
        }
        Ok(devices)
    }

    /// Tells the kernel to stop keeping neighbours resolved for this agent.
    pub(super) fn release(&mut self) -> Result<(), NetlinkError> {
        self.tracker.set_targets([]);
        self.tracker.refresh(&mut self.resolver).map(drop)
    }
}

/// Returns how many neighbours of a family backends by NAT may occupy in the kernel's table.
fn neighbour_share() -> usize {
    let capacity = |v4| facts::neighbour_table(v4).capacity;
    capacity(true).min(capacity(false)) / NEIGHBOUR_SHARE
}

fn log(changes: &[(IpAddr, Resolution)]) {
    for (target, resolution) in changes.iter().take(LOGGED_ONE_BY_ONE) {
        match resolution {
            Resolution::Resolved(hop) => {
                let (ifindex, mtu, carried) = (hop.ifindex, hop.mtu, hop.is_carried);
                tracing::info!(%target, ifindex, mtu, carried, "next hop resolved");
            }
            Resolution::Local => tracing::info!(%target, "backend is this machine"),
            Resolution::Unresolved(reason) => {
                tracing::warn!(%target, %reason, "next hop unresolved");
            }
        }
    }
    if changes.len() > LOGGED_ONE_BY_ONE {
        let lost = |(_, resolution): &&(IpAddr, Resolution)| {
            matches!(resolution, Resolution::Unresolved(_))
        };
        tracing::warn!(
            changes = changes.len(),
            unresolved = changes.iter().filter(lost).count(),
            "many next hops changed; `guideway backends` lists all"
        );
    }
}
