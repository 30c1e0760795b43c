//! Numbers that nobody else knows.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns one: of a hasher that the standard library keys at random.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
