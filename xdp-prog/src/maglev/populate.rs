//! Fills a LUT from a set of weighted backends.
//!
//! The table is a function of the set, the seed and the length. The backends are sorted by their hashes first, so
//! their order in the input does not matter.

extern crate alloc;

use alloc::{vec, vec::Vec};
use core::{error::Error, fmt, net::IpAddr};

use super::MAX_LOG2_LEN;

/// A backend's address and port, which determine its slots together with its weight.
///
/// An IPv4 address is the same as its IPv4-mapped IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    address: u128,
    port: u16,
}

impl Identity {
    /// Identifies the backend at `address` and `port`.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16) -> Self {
        let address = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self {
            address: address.to_bits(),
            port,
        }
    }

    fn hash(self, seed: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the halves of the address are mixed one after the other"
        )]
        let words = [
            (self.address >> 64) as u64,
            self.address as u64,
            u64::from(self.port),
        ];
        words.iter().fold(mix(seed), |hash, word| mix(hash ^ word))
    }
}

/// The SplitMix64 step (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
const fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A backend and its weight; its share of the slots is proportional to the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Determines which slots the backend prefers.
    pub identity: Identity,
    /// Any weight but zero. The sum of 2^20 members with the largest weight is still exact.
    pub weight: u32,
}

/// Reasons why a table cannot be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaglevError {
    /// There is no backend to own the slots.
    NoMembers,
    /// Some backends would have no slot.
    MoreMembersThanSlots {
        /// The number of backends.
        members: usize,
        /// The length of the table.
        slots: usize,
    },
    /// The backend at this index has weight zero.
    ZeroWeight {
        /// Index into the members.
        member: usize,
    },
    /// The weight of the backend at this index is too small beside the others' for a slot. A longer table may give it
    /// one.
    NoSlot {
        /// Index into the members.
        member: usize,
    },
    /// The backends at these two indices are the same.
    DuplicateIdentity {
        /// The lower index into the members.
        first: usize,
        /// The higher index into the members.
        second: usize,
    },
    /// The table's length is not a power of two up to 2^20.
    BadLength {
        /// The length of the table, or `usize::MAX` if it does not fit.
        slots: usize,
    },
    /// The scratch memory is smaller than [`Scratch`] asks for.
    ScratchTooSmall,
}

impl fmt::Display for MaglevError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMembers => write!(f, "no backends"),
            Self::MoreMembersThanSlots { members, slots } => {
                write!(
                    f,
                    "{members} backends are more than the table's {slots} slots"
                )
            }
            Self::ZeroWeight { member } => write!(f, "backend {member} has weight 0"),
            Self::NoSlot { member } => write!(
                f,
                "the weight of backend {member} is too small beside the others' for a single slot"
            ),
            Self::DuplicateIdentity { first, second } => {
                write!(
                    f,
                    "backends {first} and {second} have the same address and port"
                )
            }
            Self::BadLength { slots } => write!(
                f,
                "table size {slots} is not a power of two up to {}",
                1 << MAX_LOG2_LEN
            ),
            Self::ScratchTooSmall => write!(f, "scratch memory is too small"),
        }
    }
}

impl Error for MaglevError {}

/// One backend's progress while a table is filled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// The next slot to try.
    cursor: u32,
    /// The distance to the next slot to try: odd, so that every slot is tried.
    skip: u32,
    /// Number of slots that the backend may still claim.
    quota: u32,
    /// Index into the members.
    member: u32,
    /// Amount that each round adds to `credit`, in 2^-32 slots.
    step: u64,
    /// Slots that the backend has earned but not claimed, in 2^-32 slots.
    credit: u64,
    /// The hash of the identity while the turns are sorted; the remainder of the share while quotas are handed out.
    rank: u64,
}

/// The memory needed to fill a table.
#[derive(Debug)]
pub struct Scratch<'a> {
    /// One element per backend.
    pub turns: &'a mut [Turn],
    /// One bit per slot, rounded up to elements of 64 slots.
    pub taken: &'a mut [u64],
}

/// Returns a new table of 2^`log2_len` slots; each holds the index of its owner in `members`.
///
/// # Errors
///
/// As [`populate`].
pub fn table(seed: u64, members: &[Member], log2_len: u8) -> Result<Vec<u32>, MaglevError> {
    if log2_len > MAX_LOG2_LEN {
        return Err(MaglevError::BadLength {
            slots: 1_usize.checked_shl(log2_len.into()).unwrap_or(usize::MAX),
        });
    }
    let len = 1_usize << log2_len;
    let mut table = vec![0; len];
    let scratch = Scratch {
        turns: &mut vec![Turn::default(); members.len()],
        taken: &mut vec![0; len.div_ceil(64)],
    };
    populate(seed, members, &mut table, scratch)?;
    Ok(table)
}

/// Fills `table` with the index of each slot's owner in `members`.
///
/// Every backend gets its exact share of the slots, rounded up or down by largest remainder.
///
/// # Errors
///
/// [`MaglevError`] if the set, the length or the scratch memory is unsuitable. The table is then unchanged.
pub fn populate(
    seed: u64,
    members: &[Member],
    table: &mut [u32],
    scratch: Scratch<'_>,
) -> Result<(), MaglevError> {
    let slots = table.len();
    let len = match u32::try_from(slots) {
        Ok(len) if len.is_power_of_two() && len <= 1 << MAX_LOG2_LEN => len,
        _ => return Err(MaglevError::BadLength { slots }),
    };
    if members.is_empty() {
        return Err(MaglevError::NoMembers);
    }
    if members.len() > slots {
        return Err(MaglevError::MoreMembersThanSlots {
            members: members.len(),
            slots,
        });
    }
    let (Some(turns), Some(taken)) = (
        scratch.turns.get_mut(..members.len()),
        scratch.taken.get_mut(..slots.div_ceil(64)),
    ) else {
        return Err(MaglevError::ScratchTooSmall);
    };

    order(seed, members, len, turns)?;
    share(members, len, turns)?;
    pace(members, turns);
    taken.fill(0);
    fill(table, turns, taken);
    Ok(())
}

/// Sorts the backends by hash and chooses each one's sequence of slots.
fn order(seed: u64, members: &[Member], len: u32, turns: &mut [Turn]) -> Result<(), MaglevError> {
    for ((index, member), turn) in (0..).zip(members).zip(&mut *turns) {
        if member.weight == 0 {
            return Err(MaglevError::ZeroWeight {
                member: index as usize,
            });
        }
        let hash = member.identity.hash(seed);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the two halves of the hash serve as two hashes"
        )]
        let (high, low) = ((hash >> 32) as u32, hash as u32);
        *turn = Turn {
            cursor: high & (len - 1),
            skip: low & (len - 1) | 1,
            member: index,
            rank: hash,
            ..Turn::default()
        };
    }
    let key = |turn: &Turn| (turn.rank, members[turn.member as usize].identity);
    turns.sort_unstable_by_key(key);
    for pair in turns.windows(2) {
        if key(&pair[0]) == key(&pair[1]) {
            let (a, b) = (pair[0].member as usize, pair[1].member as usize);
            return Err(MaglevError::DuplicateIdentity {
                first: a.min(b),
                second: a.max(b),
            });
        }
    }
    Ok(())
}

/// Divides the slots into quotas, by largest remainder. The order of the turns breaks ties.
fn share(members: &[Member], len: u32, turns: &mut [Turn]) -> Result<(), MaglevError> {
    // At most 2^20 weights below 2^32, and products of a weight and a length up to 2^20: all below 2^52.
    let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    let mut left = len;
    for turn in &mut *turns {
        let share = u64::from(members[turn.member as usize].weight) * u64::from(len);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most len, as weight <= total"
        )]
        let whole = (share / total) as u32;
        turn.quota = whole;
        turn.rank = share % total;
        left -= whole;
    }

    // Shares with a remainder above the threshold are rounded up, and so are the first of those at the threshold.
    // Bisection finds it. Sorting would not do, because the turns have to keep their order.
    let (mut low, mut high) = (0, total);
    while low < high {
        let middle = low + (high - low) / 2;
        let above = turns.iter().filter(|turn| turn.rank > middle).count();
        if above > left as usize {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let threshold = low;
    for turn in turns.iter_mut().filter(|turn| turn.rank > threshold) {
        turn.quota += 1;
        left -= 1;
    }
    for turn in turns.iter_mut().filter(|turn| turn.rank == threshold) {
        if left == 0 {
            break;
        }
        turn.quota += 1;
        left -= 1;
    }

    match turns.iter().find(|turn| turn.quota == 0) {
        Some(turn) => Err(MaglevError::NoSlot {
            member: turn.member as usize,
        }),
        None => Ok(()),
    }
}

/// Sets how fast each backend claims its slots.
///
/// The rates are proportional to the weights, so all backends finish together. Which of two backends claims first
/// does not depend on a third.
fn pace(members: &[Member], turns: &mut [Turn]) {
    let count = members.len() as u128;
    let weights = || members.iter().map(|member| u128::from(member.weight));
    let total: u128 = weights().sum();
    let heaviest = weights().max().unwrap_or(1);
    // The heaviest backend claims one slot per round. If it has more than four times the average weight, most turns
    // would be idle, so it claims several. The rate is a fraction, so that scaling all weights changes nothing.
    let (numerator, denominator) = if heaviest * count <= 4 * total {
        (1, heaviest)
    } else {
        (count, 4 * total)
    };
    for turn in turns {
        let weight = u128::from(members[turn.member as usize].weight);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most a quarter of 2^20 slots, in 2^-32 slots"
        )]
        let step = (((weight * numerator) << 32) / denominator) as u64;
        turn.step = step.max(1);
        // Each backend starts with almost a full slot, so that all take part in the first round, and a backend that
        // is owed a fraction of a slot gets it in time.
        turn.credit = (1 << 32) - 1;
    }
}

/// Lets the backends claim slots, round by round, until all are taken.
fn fill(table: &mut [u32], turns: &mut [Turn], taken: &mut [u64]) {
    let mask = table.len() - 1;
    let mut left = table.len();
    while left > 0 {
        for turn in &mut *turns {
            turn.credit += turn.step;
            let claims = (turn.credit >> 32).min(u64::from(turn.quota)) as u32;
            turn.credit &= (1 << 32) - 1;
            turn.quota -= claims;
            left -= claims as usize;
            for _ in 0..claims {
                let skip = turn.skip as usize;
                let slot = next_free(taken, turn.cursor as usize, skip, mask);
                taken[slot / 64] |= 1 << (slot % 64);
                table[slot] = turn.member;
                #[expect(clippy::cast_possible_truncation, reason = "below 2^20")]
                let next = ((slot + skip) & mask) as u32;
                turn.cursor = next;
            }
        }
    }
}

/// Returns the first free slot from `slot` on, in steps of `skip`.
///
/// No look depends on the result of the one before it, so the CPU can have several in flight.
#[inline]
fn next_free(taken: &[u64], mut slot: usize, skip: usize, mask: usize) -> usize {
    while taken[slot / 64] & (1 << (slot % 64)) != 0 {
        slot = (slot + skip) & mask;
    }
    slot
}

#[cfg(test)]
mod tests;
