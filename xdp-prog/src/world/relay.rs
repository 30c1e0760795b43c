//! Hides values from the kernel's verifier.
//!
//! The verifier checks code behind several paths once for each path, and for each range of the values there. A value
//! from a [`Relay`] could be any number to it, so it checks the code that follows only once.

/// Mask of an offset that went through [`Relay`]: above all headers that the parser follows, and below the verifier's
/// limit.
pub(crate) const OFFSETS: usize = 0x7fff;

/// A place in memory that numbers pass through unchanged, and that the verifier knows nothing about.
pub trait Relay {
    /// Returns the numbers that went in.
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]>;
    /// Returns the numbers that last went in, for the stage that goes on with them.
    fn relayed(&self) -> Option<[u64; 4]>;
    /// Returns the number, of which the verifier knows nothing from here on. This costs a packet a load and two additions.
    #[inline(always)]
    fn opaque(&self, number: u64) -> u64 {
        number
    }
}
