//! Removal of NAT mode's flows that were idle for too long.
//!
//! The datapath removes such a flow only where it is in the way. The sweep walks through
//! the reverse entries in batches, and takes the flow's claim before it looks again and removes anything: see
//! [`xdp_prog::decide::nat`].

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
};

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
};

/// The maps, and how far the walk has come.
pub(super) struct Nat {
    pub(super) forward: maps::HashMap<MapData, Tuple, NatForward>,
    pub(super) reverse: maps::HashMap<MapData, Tuple, NatReverse>,
    pub(super) claims: maps::HashMap<MapData, Tuple, u64>,
    /// A handle of its own to `NAT_REVERSE`, for the walk.
    pub(super) walk: MapData,
    pub(super) capacity: usize,
    /// Where the walk goes on; nothing at its beginning.
    pub(super) cursor: Option<u32>,
    /// Flows that this walk has left alone so far.
    pub(super) walked: usize,
    /// Flows that the last whole walk has left alone.
    pub(super) flows: usize,
}

/// Entries that are read at once.
const BATCH: usize = 4096;
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
        let nat = &mut self.nat;
        let mut keys = vec![Tuple::default(); BATCH];
        let mut entries = vec![NatReverse::default(); BATCH];
        let (mut looked, mut removed) = (0, 0);
        while looked < budget {
            let batch = read_batch(&nat.walk, nat.cursor, &mut keys, &mut entries)?;
            for (reply, entry) in keys.iter().zip(&entries).take(batch.count) {
                let old = entry.mark.idle(now) >= IDLE_TRANSITORY_NS + GUARD_NS;
                if old && nat.expire(reply, entry, now)? {
                    removed += 1;
                } else {
                    nat.walked += 1;
                }
            }
            looked += batch.count;
            nat.cursor = batch.next;
            if batch.next.is_none() {
                nat.flows = std::mem::take(&mut nat.walked);
                break;
            }
        }
        Ok(removed)
    }

    /// Tells whether the last whole sweep has left flows of NAT mode, or the last one was not whole.
    pub const fn may_have_nat_flows(&self) -> bool {
        self.nat.flows > 0 || self.nat.cursor.is_some()
    }

    /// Reports how many flows of NAT mode the last whole sweep has left.
    pub const fn nat_fill(&self) -> Usage {
        Usage {
            used: self.nat.flows,
            capacity: self.nat.capacity,
        }
    }
}

impl Nat {
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

/// What was read at once.
struct Batch {
    count: usize,
    /// Where the next one begins; nothing at the end.
    next: Option<u32>,
}

/// The kernel's `union bpf_attr` of batch operations (linux/bpf.h).
#[repr(C)]
struct BatchAttributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a batch has a few thousand entries, and a descriptor in use is not negative"
)]
fn read_batch(
    reverse: &MapData,
    cursor: Option<u32>,
    keys: &mut [Tuple],
    entries: &mut [NatReverse],
) -> Result<Batch, TableError> {
    const LOOKUP_BATCH: libc::c_int = 24;
    let mut next = 0_u32;
    let mut attributes = BatchAttributes {
        in_batch: cursor.as_ref().map_or(0, |cursor| {
            std::ptr::from_ref(cursor).expose_provenance() as u64
        }),
        out_batch: (&raw mut next).expose_provenance() as u64,
        keys: keys.as_mut_ptr().expose_provenance() as u64,
        values: entries.as_mut_ptr().expose_provenance() as u64,
        count: keys.len().min(entries.len()) as u32,
        map_fd: reverse.fd().as_fd().as_raw_fd() as u32,
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads the attributes and the cursor, and writes a cursor of four bytes
    // and up to `count` keys and values of the map's sizes, which are those of the slices' types.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            LOOKUP_BATCH,
            &raw mut attributes,
            size_of::<BatchAttributes>(),
        )
    };
    let count = attributes.count as usize;
    if result == 0 {
        return Ok(Batch {
            count,
            next: Some(next),
        });
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOENT) {
        return Ok(Batch { count, next: None });
    }
    Err(read_failed(map::NAT_REVERSE)(MapError::IoError(error)))
}

/// Returns the clock that the datapath reads too.
#[expect(clippy::cast_sign_loss, reason = "the clock begins at zero")]
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a local that outlives the call. Every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
