//! Next hops for tables that a test fills without an agent.

use std::{net::IpAddr, time::Duration};

use fastpath::{
    nexthop::{Resolution, Resolver, Tracker},
    tables::Tables,
};
use lab::wait_until;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Puts the ways to the targets into the tables, once the namespace that the thread is in knows them all.
pub(crate) fn resolve(tables: &mut Tables, targets: &[IpAddr]) {
    let mut resolver = Resolver::new().unwrap();
    let mut tracker = Tracker::default();
    tracker.set_targets(targets.iter().copied());
    wait_until("all next hops are resolved", TIMEOUT, || {
        for (target, way) in tracker.refresh(&mut resolver).unwrap().changes {
            tables.set_next_hop(target, way).unwrap();
        }
        tracker
            .answers()
            .all(|(_, way)| matches!(way, Some(Resolution::Resolved(_))))
    })
    .unwrap();
}
