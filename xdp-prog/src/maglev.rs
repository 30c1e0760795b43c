//! Maglev consistent hashing: which slot of a service's table a flow uses.

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

#[cfg(test)]
mod tests;
