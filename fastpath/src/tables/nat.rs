//! Removal of NAT mode's flows that were idle for too long.
//!
//! The datapath removes such a flow only where it is in the way. The sweep walks through
//! the reverse entries in batches, and takes the flow's claim before it looks again and removes anything: see
//! [`xdp_prog::decide::nat`].

use aya::maps::{self, MapData, MapError};
use xdp_prog::{
    abi::{NatForward, NatReverse, Tuple, map},
    decide::{
        deliver::IDLE_TRANSITORY_NS,
        nat::{Fate, GUARD_NS, fate},
    },
};

use super::{
    TableError, Tables, Usage,
    error::{read_failed, write_failed},
    walk::Walk,
};
use crate::clock::monotonic_ns;

/// The maps, and how far the walk has come.
pub(super) struct Nat {
    pub(super) entries: Entries,
    /// Through the reverse entries; counts the flows that are left alone.
    pub(super) walk: Walk<NatReverse>,
}

/// What the datapath keeps of each flow.
pub(super) struct Entries {
    pub(super) forward: maps::HashMap<MapData, Tuple, NatForward>,
    pub(super) reverse: maps::HashMap<MapData, Tuple, NatReverse>,
    pub(super) claims: maps::HashMap<MapData, Tuple, u64>,
}

/// A claim that is older is that of an agent that was killed: the datapath's last microseconds.
const STALE_CLAIM_NS: u64 = 1_000_000_000;

impl Tables {
    /// Removes flows of NAT mode that were idle for too long, looking at about `budget` of them; the next call
    /// goes on from there. Returns how many were removed.
    ///
    /// # Errors
    ///
    /// When a map cannot be read or written.
    pub fn sweep_nat(&mut self, budget: usize) -> Result<usize, TableError> {
        let now = monotonic_ns();
        let Nat { entries, walk } = &mut self.nat;
        let mut removed = 0;
        walk.go(budget, |reply, entry| {
            let old = entry.mark.idle(now) >= IDLE_TRANSITORY_NS + GUARD_NS;
            let is_removed = old && entries.expire(reply, entry, now)?;
            removed += usize::from(is_removed);
            Ok(!is_removed)
        })?;
        Ok(removed)
    }

    /// Tells whether the last whole sweep has left flows of NAT mode, or the last one was not whole.
    pub const fn may_have_nat_flows(&self) -> bool {
        self.nat.walk.counted() > 0 || !self.nat.walk.is_whole()
    }

    /// Reports how many flows of NAT mode the last whole sweep has left.
    pub const fn nat_fill(&self) -> Usage {
        self.nat.walk.usage()
    }
}

impl Entries {
    /// Removes the claims that a killed agent has left.
    pub(super) fn drop_stale_claims(&mut self) -> Result<(), TableError> {
        let now = monotonic_ns();
        let claims: Result<Vec<(Tuple, u64)>, MapError> = self.claims.iter().collect();
        for (key, since) in claims.map_err(read_failed(map::NAT_CLAIMS))? {
            if now.saturating_sub(since) >= STALE_CLAIM_NS {
                remove(&mut self.claims, map::NAT_CLAIMS, &key)?;
            }
        }
        Ok(())
    }

    /// Removes the flow of a reverse entry if it is over; tells whether it did.
    fn expire(&mut self, reply: &Tuple, seen: &NatReverse, now: u64) -> Result<bool, TableError> {
        const NOEXIST: u64 = 1;
        let key = seen.forward_key(reply.protocol());
        if self.claims.insert(key, now, NOEXIST).is_err() {
            // A packet is removing it.
            return Ok(false);
        }
        let expired = self.expire_claimed(&key, reply, now);
        remove(&mut self.claims, map::NAT_CLAIMS, &key)?;
        expired
    }

    fn expire_claimed(&mut self, key: &Tuple, reply: &Tuple, now: u64) -> Result<bool, TableError> {
        // Before the claim was there, the port may have been given to another flow.
        let entry = match self.reverse.get(reply, 0) {
            Ok(entry) if entry.forward_key(reply.protocol()) == *key => entry,
            _ => return Ok(false),
        };
        let forward = self.forward.get(key, 0).ok();
        match fate(key, forward.as_ref(), reply, &entry, now) {
            Fate::Lives => return Ok(false),
            Fate::Over => remove(&mut self.forward, map::NAT_FORWARD, key)?,
            Fate::Orphan => {}
        }
        remove(&mut self.reverse, map::NAT_REVERSE, reply)?;
        Ok(true)
    }
}

fn remove<V: aya::Pod>(
    table: &mut maps::HashMap<MapData, Tuple, V>,
    name: &'static str,
    key: &Tuple,
) -> Result<(), TableError> {
    match table.remove(key) {
        Err(MapError::KeyNotFound) | Ok(()) => Ok(()),
        Err(source) => Err(write_failed(name)(source)),
    }
}
