//! Who owned a slot when, at which edge: told from the changes themselves, apart from the product's lists.

use std::collections::BTreeSet;

use super::{addresses::BackendId, backends::Table};

/// The number of a set of backends, in the order of changes.
pub(super) type Version = u32;

/// The owners of all slots in all versions.
#[derive(Debug)]
pub(super) struct Owners {
    /// Of each slot, its owners with the versions from which they own it.
    slots: Vec<Vec<(Version, BackendId)>>,
}

/// What an edge has learned, since it last began without a past.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Versions, with the second in which the edge learned of each.
    versions: Vec<(Version, u32)>,
}

/// What an edge has known of an owner of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing: it has never owned the slot there.
    Never,
    /// It owns the slot.
    Owns,
    /// It ceased to own it.
    Past {
        /// Second in which it ceased.
        second: u32,
        /// Number of other owners that have ceased to own the slot after it, at most.
        newer: usize,
    },
}

impl Learned {
    pub(super) fn learn(&mut self, version: Version, second: u32) {
        self.versions.push((version, second));
    }

    pub(super) fn forget(&mut self) {
        self.versions.clear();
    }

    /// Returns the places of the versions that the edge has learned of those before `end`, from `begin` on.
    fn within(&self, begin: Version, end: Version) -> std::ops::Range<usize> {
        let before = |version| self.versions.partition_point(|(known, _)| *known < version);
        before(begin)..before(end)
    }
}

impl Owners {
    pub(super) fn new(table: &Table) -> Self {
        Self {
            slots: table.iter().map(|owner| vec![(0, *owner)]).collect(),
        }
    }

    /// Notes that slots have other owners from a version on.
    pub(super) fn change(&mut self, version: Version, table: &Table) {
        for (owners, owner) in self.slots.iter_mut().zip(table.iter()) {
            if owners.last().is_none_or(|(_, last)| last != owner) {
                owners.push((version, *owner));
            }
        }
    }

    /// Tells what an edge has known of a backend as an owner of a slot.
    pub(super) fn known(&self, learned: &Learned, slot: u32, backend: BackendId) -> Known {
        let owners = &self.slots[slot as usize];
        let ends = owners.iter().skip(1).map(|(version, _)| *version);
        let ends = ends.chain([Version::MAX]);
        let spans = owners
            .iter()
            .zip(ends)
            .map(|((begin, owner), end)| (*owner, learned.within(*begin, end)));
        let mut known = Known::Never;
        let mut newer = BTreeSet::new();
        for (owner, span) in spans.filter(|(_, span)| !span.is_empty()) {
            if owner == backend {
                newer.clear();
                known = match learned.versions.get(span.end) {
                    Some((_, second)) => Known::Past {
                        second: *second,
                        newer: 0,
                    },
                    None => Known::Owns,
                };
            } else {
                newer.insert(owner);
            }
        }
        match known {
            // The present owner has not ceased.
            Known::Past { second, .. } => Known::Past {
                second,
                newer: newer.len().saturating_sub(1),
            },
            known => known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners() -> Owners {
        let mut owners = Owners::new(&Table::from([1]));
        for (version, owner) in [(1, 2), (2, 3), (3, 2), (4, 4)] {
            owners.change(version, &Table::from([owner]));
        }
        owners
    }

    fn learned(versions: &[Version]) -> Learned {
        let mut learned = Learned::default();
        for version in versions {
            learned.learn(*version, 100 + version);
        }
        learned
    }

    #[test]
    fn edge_that_learned_all_knows_all_owners() {
        let (owners, learned) = (owners(), learned(&[0, 1, 2, 3, 4]));
        let past = |second, newer| Known::Past { second, newer };
        assert_eq!(owners.known(&learned, 0, 1), past(101, 2));
        assert_eq!(owners.known(&learned, 0, 2), past(104, 0));
        assert_eq!(owners.known(&learned, 0, 3), past(103, 1));
        assert_eq!(owners.known(&learned, 0, 4), Known::Owns);
        assert_eq!(owners.known(&learned, 0, 5), Known::Never);
    }

    #[test]
    fn edge_that_missed_a_version_never_knew_its_owner() {
        let (owners, learned) = (owners(), learned(&[0, 1, 4]));
        assert_eq!(owners.known(&learned, 0, 3), Known::Never);
        let past = Known::Past {
            second: 104,
            newer: 0,
        };
        assert_eq!(owners.known(&learned, 0, 2), past);
    }

    #[test]
    fn edge_that_begins_anew_knows_what_follows() {
        let owners = owners();
        let mut learned = learned(&[0, 1, 2]);
        learned.forget();
        learned.learn(2, 200);
        learned.learn(4, 204);
        assert_eq!(owners.known(&learned, 0, 1), Known::Never);
        assert!(matches!(
            owners.known(&learned, 0, 3),
            Known::Past { second: 204, .. }
        ));
    }
}
