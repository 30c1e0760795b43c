//! Random numbers that nobody can guess.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;

use ring::rand::{SecureRandom, SystemRandom};

/// Returns a random number, from a hasher that the standard library seeds.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns bytes for a secret.
///
/// # Errors
///
/// When the kernel gives none.
pub(crate) fn random_bytes<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the kernel gives no random numbers"))?;
    Ok(bytes)
}
