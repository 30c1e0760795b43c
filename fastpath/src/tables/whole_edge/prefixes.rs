//! Sets of prefixes, as the kernel's tries hold them.

use std::collections::{BTreeSet, HashSet};

/// The data of a trie's key.
type Data = [u8; 20];

/// A set of prefixes. A look-up takes one step for each length that occurs.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    lengths: Vec<u32>,
    /// Lengths in bits, and data without bits beyond them.
    prefixes: HashSet<(u32, Data)>,
}

impl Prefixes {
    /// Tells whether a prefix covers the data.
    pub(super) fn cover(&self, data: Data) -> bool {
        let mut lengths = self.lengths.iter();
        lengths.any(|bits| self.prefixes.contains(&(*bits, cut(data, *bits))))
    }
}

impl FromIterator<(u32, Data)> for Prefixes {
    fn from_iter<I: IntoIterator<Item = (u32, Data)>>(entries: I) -> Self {
        let cut = |(bits, data)| (bits, cut(data, bits));
        let prefixes: HashSet<_> = entries.into_iter().map(cut).collect();
        let lengths: BTreeSet<u32> = prefixes.iter().map(|(bits, _)| *bits).collect();
        Self {
            lengths: lengths.into_iter().collect(),
            prefixes,
        }
    }
}

/// Clears the bits beyond the first `bits`.
fn cut(mut data: Data, bits: u32) -> Data {
    for (first, byte) in (0..).step_by(8).zip(&mut data) {
        let kept = bits.saturating_sub(first).min(8);
        *byte &= !u8::MAX.checked_shr(kept).unwrap_or(0);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_covers_what_begins_with_it() {
        let mut data = [0; 20];
        data[..3].copy_from_slice(&[10, 0xab, 0xcd]);
        let prefixes: Prefixes = [(12, data), (160, [7; 20])].into_iter().collect();
        assert!(prefixes.cover(data) && prefixes.cover([7; 20]));
        let mut other = data;
        other[1] = 0xa0;
        assert!(prefixes.cover(other));
        other[1] = 0xbb;
        assert!(!prefixes.cover(other));
        let mut longer = [7; 20];
        longer[19] = 6;
        assert!(!prefixes.cover(longer));
    }

    #[test]
    fn empty_prefix_covers_all_and_an_empty_set_nothing() {
        let all: Prefixes = [(0, [9; 20])].into_iter().collect();
        assert!(all.cover([1; 20]));
        assert!(!Prefixes::default().cover([0; 20]));
    }
}
