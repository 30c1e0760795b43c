//! Maglev consistent hashing: the LUT slot that a flow uses, and the backend that owns each slot.
//!
//! It follows section 3.4 of "Maglev: A Fast and Reliable Software Network Load Balancer" (Eisenbud et al., NSDI
//! 2016), with three differences. A table's length is a power of two, so a slot is the top bits of a hash. Every
//! weight becomes a quota of slots before the table is filled, so shares are exact. A bitmap tells free slots from
//! taken ones, so filling stays in the cache.
//!
//! The kernel only calls [`slot`]; `populate` is for user space.

#[cfg(not(target_arch = "bpf"))]
mod populate;

#[cfg(not(target_arch = "bpf"))]
pub use populate::{Identity, MaglevError, Member, Scratch, Turn, populate, table};

/// The largest length class, as a power of two.
pub const MAX_LOG2_LEN: u8 = 20;

/// The lengths that a service's table can have, as powers of two.
///
/// In a table of another length, nearly every slot has another owner. So the classes are coarse, and few services
/// ever change theirs.
pub const LENGTH_CLASSES: [u8; 6] = [0, 8, 11, 14, 17, MAX_LOG2_LEN];

/// How many slots a backend should have at least, on average. Shares are then exact to 1/40.
pub const SLOTS_PER_BACKEND: u32 = 40;

/// Returns the slot of a flow in a table of 2^`log2_len` slots: the top bits of its hash.
///
/// The result is below 2^`log2_len` for every length that a table can have.
#[inline(always)]
#[must_use]
pub const fn slot(hash: u32, log2_len: u8) -> u32 {
    // The hash is shifted up first, so that a length of one needs no special case. The mask saves the compiler's
    // check of the shift.
    ((hash as u64) << (log2_len & 31) >> 32) as u32
}

/// Returns the length class of a service, as a power of two: the smallest class that gives each of `members` backends
/// `slots_per_backend` slots on average.
///
/// One backend needs one slot. A service too large for every class gets the largest one if every backend can have a
/// slot there, else `None`. Weights do not count, because a change of weight must not change the length.
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
