//! Checks over the words of keys and entries.

use super::ServiceWord;

/// 2^64 divided by the golden ratio, made odd: multiplicative hashing (Knuth, TAOCP 6.4).
pub(super) const CHECK_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of a check over several words.
#[inline(always)]
pub(super) const fn mix(word: u64) -> u64 {
    let mixed = word.wrapping_mul(CHECK_MULTIPLIER);
    mixed ^ (mixed >> 32)
}

/// Returns the check of a word that is kept beside a value.
#[inline(always)]
pub(super) const fn fold_check(word: u64) -> u32 {
    (word.wrapping_mul(CHECK_MULTIPLIER) >> (64 - ServiceWord::CHECK_BITS)) as u32
}
