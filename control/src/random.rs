//! Random numbers that nobody can guess.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random number, from a hasher that the standard library seeds.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
