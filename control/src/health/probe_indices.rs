//! Assigns each check an index in the table of probes. A check keeps its index while it exists.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::selection::Member;

/// The target of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checked {
    /// A node.
    Node(IpAddr),
    /// A backend of a service.
    Backend(Member),
}

/// The assigned indices, from 1 to `capacity`.
#[derive(Debug)]
pub struct ProbeIndices {
    capacity: u32,
    indices: BTreeMap<Checked, u32>,
}

impl ProbeIndices {
    /// Creates an empty assignment of the indices from 1 to `capacity`.
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity,
            indices: BTreeMap::new(),
        }
    }

    /// Returns the number of indices.
    pub fn capacity(&self) -> usize {
        usize::try_from(self.capacity).unwrap_or(usize::MAX)
    }

    /// Assigns indices to these targets and takes them from all others. If they run out, the last targets get none.
    pub fn assign(&mut self, wanted: &BTreeSet<Checked>) {
        self.indices.retain(|checked, _| wanted.contains(checked));
        let used: BTreeSet<u32> = self.indices.values().copied().collect();
        let mut free = (1..=self.capacity).filter(|index| !used.contains(index));
        for checked in wanted {
            if !self.indices.contains_key(checked) {
                let Some(index) = free.next() else { return };
                self.indices.insert(*checked, index);
            }
        }
    }

    /// Returns the index of a target, if it has one.
    pub fn index(&self, checked: &Checked) -> Option<u32> {
        self.indices.get(checked).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(hosts: &[u8]) -> BTreeSet<Checked> {
        hosts.iter().map(|host| node(*host)).collect()
    }

    fn node(host: u8) -> Checked {
        Checked::Node([10, 0, 0, host].into())
    }

    #[test]
    fn indices_stay_and_free_ones_are_used_again() {
        let mut indices = ProbeIndices::new(3);
        indices.assign(&nodes(&[2, 3]));
        assert_eq!(
            (indices.index(&node(2)), indices.index(&node(3))),
            (Some(1), Some(2))
        );
        indices.assign(&nodes(&[1, 3]));
        assert_eq!(indices.index(&node(3)), Some(2));
        assert_eq!(indices.index(&node(1)), Some(1));
        assert_eq!(indices.index(&node(2)), None);
    }

    #[test]
    fn there_are_no_more_than_the_table_holds() {
        let mut indices = ProbeIndices::new(2);
        indices.assign(&nodes(&[1, 2, 3]));
        let given: Vec<bool> = (1..4)
            .map(|host| indices.index(&node(host)).is_some())
            .collect();
        assert_eq!(given, [true, true, false]);
    }
}
