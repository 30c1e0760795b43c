//! The Internet checksum: the one's complement sum of RFC 1071, and its incremental update by RFC 1624.
//!
//! Input is bytes in wire order, and `u16` and `u32` values in host order. Output is a `u16` in host order, which the
//! wire types store in network order. [`Sum`] adds words in memory order and swaps the bytes once at the end; the
//! one's complement sum permits this (RFC 1071 section 2(B)).
//!
//! SCTP's CRC32c is not computed here: no SCTP ports are translated, and it covers no addresses.

/// A partial one's complement sum: of data, or of the difference between two versions of the same data.
///
/// It overflows after 2^32 additions; [`Sum::add_bytes`] makes one for every four bytes.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// Adds one 16-bit word.
    #[inline(always)]
    pub const fn add_u16(self, word: u16) -> Self {
        Self(self.0 + word.to_be() as u64)
    }

    /// Adds two 16-bit words, given as one value.
    #[inline(always)]
    pub const fn add_u32(self, words: u32) -> Self {
        Self(self.0 + words.to_be() as u64)
    }

    /// Adds an even number of bytes that is known at compile time, such as a header.
    ///
    /// The loop has a constant bound, as the verifier demands.
    #[inline(always)]
    pub fn add_array<const N: usize>(self, bytes: &[u8; N]) -> Self {
        const { assert!(N.is_multiple_of(2), "checksums count 16-bit words") };
        self.add_bytes(bytes)
    }

    /// Adds any number of bytes at any alignment. An odd last byte is padded with zero, so no data may follow it.
    #[inline(always)]
    pub fn add_bytes(self, bytes: &[u8]) -> Self {
        let (quads, rest) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for quad in quads {
            sum += u64::from(u32::from_ne_bytes(*quad));
        }
        let tail = match *rest {
            [a] => u16::from_ne_bytes([a, 0]),
            [a, b] => u16::from_ne_bytes([a, b]),
            [a, b, c] => {
                sum += u64::from(u16::from_ne_bytes([a, b]));
                u16::from_ne_bytes([c, 0])
            }
            _ => 0,
        };
        Self(sum + u64::from(tail))
    }

    /// Subtracts one 16-bit word.
    #[inline(always)]
    pub const fn sub_u16(self, word: u16) -> Self {
        self.add_u16(!word)
    }

    /// Subtracts two 16-bit words, given as one value.
    #[inline(always)]
    pub const fn sub_u32(self, words: u32) -> Self {
        self.add_u32(!words)
    }

    /// Subtracts an even number of bytes that is known at compile time.
    #[inline(always)]
    pub fn sub_array<const N: usize>(self, bytes: &[u8; N]) -> Self {
        const { assert!(N.is_multiple_of(2), "checksums count 16-bit words") };
        let (quads, rest) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for quad in quads {
            sum += u64::from(!u32::from_ne_bytes(*quad));
        }
        if let Ok(pair) = <[u8; 2]>::try_from(rest) {
            sum += u64::from(!u16::from_ne_bytes(pair));
        }
        Self(sum)
    }

    /// Records that the 16-bit word `old` becomes `new`: a port, or TTL and protocol.
    #[inline(always)]
    pub const fn replace_u16(self, old: u16, new: u16) -> Self {
        self.sub_u16(old).add_u16(new)
    }

    /// Records that the two 16-bit words `old` become `new`: both ports.
    #[inline(always)]
    pub const fn replace_u32(self, old: u32, new: u32) -> Self {
        self.sub_u32(old).add_u32(new)
    }

    /// Records that the bytes `old` become `new`: an address.
    #[inline(always)]
    pub fn replace_array<const N: usize>(self, old: &[u8; N], new: &[u8; N]) -> Self {
        self.sub_array(old).add_array(new)
    }

    /// Records that 16 bytes become others: an address of either family, IPv4 mapped into IPv6. Both are given as two
    /// words in memory order.
    #[inline(always)]
    pub const fn replace_words(self, [a, b]: [u64; 2], new: [u64; 2]) -> Self {
        self.add_words([!a, !b]).add_words(new)
    }

    /// Adds 16 bytes, given as two words in memory order.
    #[inline(always)]
    pub const fn add_words(self, [a, b]: [u64; 2]) -> Self {
        self.add_word(a).add_word(b)
    }

    #[inline(always)]
    const fn add_word(self, word: u64) -> Self {
        Self(self.0 + (word >> 32) + (word & 0xffff_ffff))
    }

    /// Adds the sum of data that begins at an even offset.
    #[inline(always)]
    pub const fn add_sum(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Returns the 16-bit one's complement sum.
    #[inline(always)]
    pub const fn fold(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "33, 18 and 17 bits were left before the last three folds"
        )]
        u16::from_be(sum as u16)
    }

    /// Returns the sum as the kernel's checksum helpers take it: 32 bits, of words in memory order.
    #[inline(always)]
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "33 bits were left before the second fold"
    )]
    pub const fn for_kernel(self) -> u32 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        ((sum >> 32) + (sum & 0xffff_ffff)) as u32
    }

    /// Converts a sum of words in memory order, as the kernel's helpers return it.
    #[inline(always)]
    pub const fn of_kernel(sum: u32) -> Self {
        Self(sum as u64)
    }

    /// Returns the value of the checksum field for data that was summed with a zero in that field.
    #[inline(always)]
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Tells whether the recorded difference leaves checksums unchanged.
    #[inline(always)]
    #[must_use]
    pub const fn is_neutral(self) -> bool {
        matches!(self.fold(), 0 | 0xffff)
    }

    /// Tells whether data that was summed with its checksum field is intact.
    #[inline(always)]
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

/// Sums the pseudo-header of TCP and UDP over IPv4 (RFC 9293 section 3.1).
#[inline(always)]
pub fn pseudo_header_v4(src: &[u8; 4], dst: &[u8; 4], protocol: u8, len: u16) -> Sum {
    Sum::ZERO
        .add_array(src)
        .add_array(dst)
        .add_u16(u16::from(protocol))
        .add_u16(len)
}

/// Sums the pseudo-header of TCP, UDP and ICMPv6 over IPv6 (RFC 8200 section 8.1).
#[inline(always)]
pub fn pseudo_header_v6(src: &[u8; 16], dst: &[u8; 16], next_header: u8, len: u32) -> Sum {
    Sum::ZERO
        .add_array(src)
        .add_array(dst)
        .add_u16(u16::from(next_header))
        .add_u32(len)
}

/// Returns the checksum field `check` after data has changed by `difference`.
///
/// This is equation 3 of RFC 1624; the equation of RFC 1141 gets a sum of zero wrong. The result is that of a full
/// computation for all data but zeros. Only zeros have a sum of 0x0000 (section 3), so the function adds all ones,
/// which change no other sum.
#[inline(always)]
#[must_use]
pub const fn update(check: u16, difference: Sum) -> u16 {
    difference.add_u16(!check).add_u16(0xffff).checksum()
}

/// Returns the checksum field `check` of UDP after data has changed by `difference`.
///
/// A checksum of zero means none and stays zero. Any other checksum never becomes zero.
#[inline(always)]
#[must_use]
pub const fn update_udp(check: u16, difference: Sum) -> u16 {
    if check == 0 {
        0
    } else {
        udp_checksum(update(check, difference))
    }
}

/// Returns the UDP checksum field for the computed checksum `check`. Zero in the field means that there is no
/// checksum, so a computed zero is sent as all ones (RFC 768).
#[inline(always)]
#[must_use]
pub const fn udp_checksum(check: u16) -> u16 {
    if check == 0 { 0xffff } else { check }
}

#[cfg(test)]
mod tests;
