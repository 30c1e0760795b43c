//! Words that join several wire fields, in memory order.
//!
//! LLVM reads single bytes on BPF with a load, a shift and an OR each. Reading halves takes half of that.

/// Returns four bytes as a word: the first two, then the last two.
#[inline(always)]
pub(crate) const fn join_u16(first: [u8; 2], last: [u8; 2]) -> u32 {
    let (first, last) = (u16::from_le_bytes(first), u16::from_le_bytes(last));
    u32::from_le(first as u32 | (last as u32) << 16)
}

/// Returns eight bytes as a word: the first four, then the last four.
#[inline(always)]
pub(crate) const fn join_u32(first: u32, last: u32) -> u64 {
    u64::from_le(first.to_le() as u64 | (last.to_le() as u64) << 32)
}

/// Returns the first two and the last two bytes of a word.
#[inline(always)]
pub(crate) const fn split_u32(word: u32) -> [[u8; 2]; 2] {
    zerocopy::transmute!(word)
}

/// Returns the first four and the last four bytes of a word.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
pub(crate) const fn split_u64(word: u64) -> [u32; 2] {
    let word = word.to_le();
    [u32::from_le(word as u32), u32::from_le((word >> 32) as u32)]
}

/// Returns 16 bytes as two words.
#[inline(always)]
pub(crate) const fn words(bytes: [u8; 16]) -> [u64; 2] {
    zerocopy::transmute!(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lie_in_memory_as_their_parts_do() {
        assert_eq!(join_u16([1, 2], [3, 4]).to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(
            split_u32(u32::from_ne_bytes([1, 2, 3, 4])),
            [[1, 2], [3, 4]]
        );
        let [first, last] = [[1, 2, 3, 4], [5, 6, 7, 8]].map(u32::from_ne_bytes);
        let joined = join_u32(first, last);
        assert_eq!(joined.to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(split_u64(joined), [first, last]);
        let [high, _] = words([7; 16]);
        assert_eq!(high.to_ne_bytes(), [7; 8]);
    }
}
