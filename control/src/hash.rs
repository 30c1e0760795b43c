//! Hash functions that never change, so that edges of different builds agree.

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Returns the 64-bit FNV-1a hash of a text (draft-eastlake-fnv); `seed` 0 gives the standard hash.
pub(crate) fn fnv_1a(seed: u64, text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    text.bytes().fold(seed ^ OFFSET_BASIS, step)
}

/// SplitMix64's finalizer (Steele, Lea, Flood 2014).
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Returns four hexadecimal digits by which people compare secret seeds. They leave 48 bits of a seed unknown.
pub(crate) fn fingerprint(seed: u64) -> String {
    format!("{:04x}", mix(seed) >> 48)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_seeds_apart() {
        // SplitMix64's third number from 0 is 0x06c4_5d18_8009_454f, the mix of three times its constant.
        assert_eq!(
            fingerprint(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(3)),
            "06c4"
        );
        assert_ne!(fingerprint(7), fingerprint(8));
    }

    #[test]
    fn hashes_are_those_of_the_standard() {
        assert_eq!(fnv_1a(0, ""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(0, "a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv_1a(0, "foobar"), 0x8594_4171_f739_67e8);
    }
}
