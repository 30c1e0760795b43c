//! Maglev consistent hashing: which slot of a service's LUT a flow uses, and
//! which backend owns each slot.
//!
//! Based on section 3.4 of "Maglev: A Fast and Reliable Software Network Load
//! Balancer" (Eisenbud et al., NSDI 2016), with three differences: a table's
//! length is a power of two, so that a slot is the top bits of a hash; every
//! weight becomes a quota of slots before the table is filled, so that shares
//! are exact; and a bitmap tells free slots from taken ones, so that filling
//! stays in the cache.
//!
//! The kernel only calls [`slot`]; `populate` is for user space.

#[cfg(not(target_arch = "bpf"))]
mod populate;

#[cfg(not(target_arch = "bpf"))]
pub use populate::{Identity, MaglevError, Member, Scratch, Turn, populate, table};

/// The largest length class, as a power of two.
pub const MAX_LOG2_LEN: u8 = 20;

/// The lengths a service's table can have, as powers of two.
///
/// Another length is another table, in which nearly every slot has another
/// owner; so the classes are coarse, and few services ever change theirs.
pub const LENGTH_CLASSES: [u8; 6] = [0, 8, 11, 14, 17, MAX_LOG2_LEN];

/// How many slots a backend should have at least, on average: shares are then
/// exact to 1/40.
pub const SLOTS_PER_BACKEND: u32 = 40;

/// Returns the slot of a flow in a table of 2^`log2_len` slots: the top bits
/// of its hash.
///
/// The result is below 2^`log2_len` for every length a table can have.
#[inline(always)]
#[must_use]
pub const fn slot(hash: u32, log2_len: u8) -> u32 {
    // The hash moves up and not down, so that a length of one needs no case of
    // its own; the mask spares the compiler a check of the shift.
    ((hash as u64) << (log2_len & 31) >> 32) as u32
}

/// Returns the length class for a service: the smallest that gives each of
/// `members` backends `slots_per_backend` slots on average, as a power of two.
///
/// One backend needs one slot. A service too large for that gets the largest
/// class while every backend can have a slot, and none beyond. Weights do not
/// count: a change of weight must not change the length.
#[must_use]
pub fn class_for(members: u32, slots_per_backend: u32) -> Option<u8> {
    let wanted = match members {
        0 => return None,
        1 => 1,
        _ => u64::from(members) * u64::from(slots_per_backend.max(1)),
    };
    LENGTH_CLASSES
        .into_iter()
        .find(|&log2_len| wanted <= 1 << log2_len)
        .or((u64::from(members) <= 1 << MAX_LOG2_LEN).then_some(MAX_LOG2_LEN))
}

#[cfg(test)]
mod tests;
