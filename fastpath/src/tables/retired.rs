//! What is out of use, until no packet in flight can hold it.

use std::collections::BTreeSet;

use ipnet::IpNet;
use xdp_prog::abi::{Backend, NextHop, Service};

use super::{Run, TableError, Tables, ids::Ids, policy::Pods, whole_edge::Hash};

/// Items that are out of use and wait for their grace period.
#[derive(Debug, Default)]
pub(super) struct Retired {
    pub(super) services: Vec<RetiredService>,
    pub(super) runs: Vec<Run>,
    /// Runs of lists of past owners.
    pub(super) lists: Vec<Run>,
    pub(super) backends: Vec<u32>,
    pub(super) next_hops: Vec<u32>,
}

/// The id of a service that no key leads to any more, and the entries under that id.
#[derive(Debug)]
pub(super) struct RetiredService {
    pub(super) id: u32,
    pub(super) pods: Pods,
    pub(super) source_ranges: BTreeSet<IpNet>,
}

/// Number of retired items that is worth an RCU grace period.
pub(super) const RETIRED_AT_MOST: usize = 1024;

impl Retired {
    pub(super) fn count(&self) -> usize {
        let runs = self.runs.len() + self.lists.len();
        self.services.len() + runs + self.backends.len() + self.next_hops.len()
    }
}

/// Counts of what services have given up since the tables were opened. A service that did not fit may fit once one of
/// these grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Runs of the LUT arena.
    pub runs: u64,
    /// Entries of other tables, or sets of such entries.
    pub entries: u64,
}

impl Tables {
    /// Counts what services have given up since the tables were opened.
    pub fn freed(&self) -> Freed {
        self.freed
    }

    /// Waits until no packet in flight can hold a retired id or run, and frees them.
    pub fn reclaim(&mut self) {
        self.free_retired();
        self.retain_egress_ports();
    }

    /// Frees retired items, even if a service is half written.
    pub(super) fn free_retired(&mut self) {
        if self.retired.count() == 0 {
            return;
        }
        // The programs' notes contain ids too, and so does what threads know of the hashes. If the notes cannot be
        // invalidated, or threads have not seen all, the ids stay retired.
        if self.invalidate_notes().is_err() || self.show_unseen().is_err() {
            return;
        }
        // Tell the readers of counters, long before the ids are reused, that nobody has these ids.
        self.publish();
        self.wait_for_packets();
        let retired = std::mem::take(&mut self.retired);
        let mut has_ranges = false;
        for service in &retired.services {
            self.remove_pods(service.id, &Pods::new(), &service.pods);
            has_ranges |= self.clear_source_ranges(service.id, &service.source_ranges);
        }
        if has_ranges {
            self.show_hash(Hash::SourceRanges);
        }
        if self.unseen.is_empty() {
            for RetiredService { id, .. } in retired.services {
                self.service.write(id, Service::default());
                self.service_ids.release(id);
            }
        } else {
            // Under a service that came by one of these ids, threads would admit the clients of the former one.
            self.retired.services = retired.services;
        }
        for run in retired.runs {
            self.arena.release(run);
        }
        for run in retired.lists {
            self.pasts.release(run);
        }
        self.index.reclaim();
        for id in retired.backends {
            self.backends.write(id, Backend::default());
            self.backend_ids.release(id);
        }
        for id in retired.next_hops {
            self.next_hops.write(id, NextHop::default());
            self.next_hop_ids.release(id);
        }
        self.egress_ports.is_stale = true;
    }

    pub(super) fn reclaim_if_worth_it(&mut self) {
        if self.retired.count() >= RETIRED_AT_MOST {
            self.reclaim();
        }
    }

    /// Allocates an id of a table.
    pub(super) fn allocate(
        &mut self,
        map: &'static str,
        ids: fn(&mut Self) -> &mut Ids,
    ) -> Result<u32, TableError> {
        let id = self.or_reclaim(|tables| ids(tables).allocate());
        id.ok_or_else(|| TableError::full(map, ids(self).capacity()))
    }

    /// Calls `take`, and calls it again after a grace period if that may free something.
    pub(super) fn or_reclaim<T>(
        &mut self,
        mut take: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        take(self).or_else(|| {
            if self.retired.count() == 0 {
                return None;
            }
            self.free_retired();
            take(self)
        })
    }
}
