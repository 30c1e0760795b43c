//! Removes NAT mode's flows that were idle for too long, and counts the flows of each service.
//!
//! The datapath removes such a flow only if it is in the way. The sweep walks through the reverse entries in batches.
//! It takes a flow's claim before it looks again and removes anything: see [`xdp_prog::decide::nat`]. It counts the
//! flows that stay by service and so corrects the datapath's numbers. A flow that began during the walk may be
//! missing until the next walk.

use std::collections::BTreeMap;

use xdp_prog::{
    abi::{NAT_OPEN, NatBegun, NatCount, NatForward, NatReverse, Tuple, map},
    decide::nat::{Fate, fate, may_be_over_after},
};

use super::{
    ForwardMode, Protocol, ServiceKey, TableError, Tables, Usage,
    syscall_map::{NOEXIST, SyscallMap},
    types::address_of,
    walk::Walk,
};
use crate::{clock::monotonic_ns, load::Loaded};

/// The maps, and the progress of the walk.
pub(super) struct Nat {
    pub(super) entries: Entries,
    pub(super) counts: SyscallMap<u32, NatCount>,
    pub(super) begun: SyscallMap<u32, NatBegun>,
    /// The walk through the reverse entries; it counts the flows that stay.
    pub(super) walk: Walk<NatReverse>,
    /// Flows that have stayed since the beginning of the walk, by service id.
    pub(super) found: BTreeMap<u32, NatCount>,
}

/// The tables of NAT mode's flows.
pub(super) struct Entries {
    pub(super) forward: SyscallMap<Tuple, NatForward>,
    pub(super) reverse: SyscallMap<Tuple, NatReverse>,
    pub(super) claims: SyscallMap<Tuple, u64>,
}

/// Age of a claim that a killed agent has left: the datapath's claims last microseconds.
const STALE_CLAIM_NS: u64 = 1_000_000_000;

impl Nat {
    pub(super) fn open(loaded: &Loaded) -> Result<Self, TableError> {
        Ok(Self {
            entries: Entries {
                forward: SyscallMap::open(loaded, map::NAT_FORWARD)?,
                reverse: SyscallMap::open(loaded, map::NAT_REVERSE)?,
                claims: SyscallMap::open(loaded, map::NAT_CLAIMS)?,
            },
            counts: SyscallMap::open(loaded, map::NAT_COUNTS)?,
            begun: SyscallMap::open(loaded, map::NAT_BEGUN)?,
            walk: Walk::through(loaded, map::NAT_REVERSE)?,
            found: BTreeMap::new(),
        })
    }
}

impl Tables {
    /// Removes flows of NAT mode that were idle for too long; looks at about `budget` flows. The next call continues
    /// there. Returns how many flows were removed.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be read or written.
    pub fn sweep_nat(&mut self, budget: usize) -> Result<usize, TableError> {
        let now = monotonic_ns();
        let Nat {
            entries,
            walk,
            found,
            ..
        } = &mut self.nat;
        let installed = &self.contents.installed;
        let mut removed = 0;
        walk.go(budget, |reply, entry| {
            let old = entry.mark.idle(now) >= may_be_over_after(reply.protocol(), entry.mark);
            let is_removed = old && entries.expire(reply, entry, now)?;
            removed += usize::from(is_removed);
            let service = service_key(entry, reply.protocol()).and_then(|key| installed.get(&key));
            if !is_removed && let Some(service) = service {
                let count = found.entry(service.id).or_default();
                count.flows += 1;
                count.half_open += i64::from(!entry.mark.has(NAT_OPEN));
            }
            Ok(!is_removed)
        })?;
        if self.nat.walk.is_whole() {
            self.correct_nat_counts()?;
        }
        Ok(removed)
    }

    /// Replaces the datapath's numbers by those of a complete walk.
    fn correct_nat_counts(&mut self) -> Result<(), TableError> {
        let found = std::mem::take(&mut self.nat.found);
        let by_nat = self.contents.installed.values();
        let by_nat = by_nat.filter(|service| service.mode == ForwardMode::Nat);
        for service in by_nat {
            let count = found.get(&service.id).copied().unwrap_or_default();
            self.nat.counts.insert(service.id, count)?;
        }
        let Usage { used, capacity } = self.nat_fill();
        self.set_nat_room(capacity.saturating_sub(used))
    }

    /// Records that empty tables have room; adopted tables have that number already.
    pub(super) fn find_room_for_nat(&mut self) -> Result<(), TableError> {
        if self.nat.counts.read(&0)? == NatCount::default() {
            self.set_nat_room(self.nat_fill().capacity)?;
        }
        Ok(())
    }

    fn set_nat_room(&mut self, room: usize) -> Result<(), TableError> {
        let room = NatCount {
            flows: i64::try_from(room).unwrap_or(i64::MAX),
            half_open: 0,
        };
        self.nat.counts.insert(0, room)
    }

    /// Tells whether the last complete sweep has left flows of NAT mode, or the present one is not complete.
    pub const fn may_have_nat_flows(&self) -> bool {
        self.nat.walk.counted() > 0 || !self.nat.walk.is_whole()
    }

    /// Returns how many flows of NAT mode the last complete sweep has left.
    pub const fn nat_fill(&self) -> Usage {
        self.nat.walk.usage()
    }
}

/// Returns the service that a flow goes to.
pub(super) fn service_key(entry: &NatReverse, protocol: u8) -> Option<ServiceKey> {
    Some(ServiceKey {
        address: address_of(entry.address),
        port: u16::from_be_bytes(entry.port()),
        protocol: Protocol::from_number(protocol)?,
    })
}

impl Entries {
    /// Removes the claims that a killed agent has left.
    pub(super) fn drop_stale_claims(&mut self) -> Result<(), TableError> {
        let now = monotonic_ns();
        for (key, since) in self.claims.entries()? {
            if now.saturating_sub(since) >= STALE_CLAIM_NS {
                self.claims.remove(&key)?;
            }
        }
        Ok(())
    }

    /// Removes the flow of a reverse entry if it is over; tells whether it was removed.
    fn expire(&mut self, reply: &Tuple, seen: &NatReverse, now: u64) -> Result<bool, TableError> {
        let key = seen.forward_key(reply.protocol());
        if self.claims.insert_if(key, now, NOEXIST).is_err() {
            // A packet is removing the flow.
            return Ok(false);
        }
        let expired = self.expire_claimed(&key, reply, now);
        self.claims.remove(&key)?;
        expired
    }

    fn expire_claimed(&mut self, key: &Tuple, reply: &Tuple, now: u64) -> Result<bool, TableError> {
        // The port may have gone to another flow before the claim was held.
        let entry = match self.reverse.get(reply) {
            Some(entry) if entry.forward_key(reply.protocol()) == *key => entry,
            _ => return Ok(false),
        };
        let forward = self.forward.get(key);
        match fate(key, forward.as_ref(), reply, &entry, now) {
            Fate::Lives => return Ok(false),
            Fate::Over => self.forward.remove(key)?,
            Fate::Orphan => {}
        }
        self.reverse.remove(reply)?;
        Ok(true)
    }
}
