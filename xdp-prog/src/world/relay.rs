//! Carrying what is known of a packet past the kernel's verifier.
//!
//! The verifier follows what comes behind several ways once for each of them, and each of their bounds. A value that
//! has been through a [`Relay`] could be any number to it: what follows is verified once.

/// Bits of an offset that went through [`Relay`]: beyond all headers that the parser follows,
/// and below what the verifier allows.
pub(crate) const OFFSETS: usize = 0x7fff;

/// A place that numbers pass through: what comes out is what went in, which the verifier does not see.
pub trait Relay {
    /// Returns the numbers.
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]>;
    /// Returns the numbers that went in last, for the stage that goes on with them.
    fn relayed(&self) -> Option<[u64; 4]>;
}
