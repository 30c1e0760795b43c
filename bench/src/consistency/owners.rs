//! Who owned a slot when, at which edge: told from the changes themselves, apart from the product's lists.

use std::{collections::BTreeSet, ops::Range};

use xdp_prog::maglev;

use super::{addresses::BackendId, backends::Table};

/// The number of a set of backends, in the order of changes.
pub(super) type Version = u32;

/// The owners of all slots in all versions. Slots are those of the longest table; a slot of a shorter one is several.
#[derive(Debug)]
pub(super) struct Owners {
    log2: u8,
    /// Of each slot, its owners with the versions from which they own it.
    slots: Vec<Vec<(Version, BackendId)>>,
}

/// What an edge has learned, since it last began without a past.
#[derive(Debug, Default)]
pub(super) struct Learned(Vec<Lesson>);

#[derive(Clone, Copy, Debug)]
struct Lesson {
    version: Version,
    /// The length of its table, as a power of two.
    log2: u8,
    /// When the edge learned of it.
    second: u32,
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
    pub(super) fn learn(&mut self, version: Version, table: &Table, second: u32) {
        self.0.push(Lesson {
            version,
            log2: table.log2(),
            second,
        });
    }

    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Returns the places of the versions that the edge has learned of those before `end`, from `begin` on.
    fn within(&self, begin: Version, end: Version) -> Range<usize> {
        let before = |version| self.0.partition_point(|known| known.version < version);
        before(begin)..before(end)
    }
}

impl Owners {
    /// Begins with a table; none will have more than 2^`log2` slots.
    pub(super) fn new(log2: u8, table: &Table) -> Self {
        let mut owners = Self {
            log2,
            slots: vec![Vec::new(); 1 << log2],
        };
        owners.change(0, table);
        owners
    }

    /// Notes the owners of a version.
    pub(super) fn change(&mut self, version: Version, table: &Table) {
        let shift = self.log2 - table.log2();
        for (slot, owners) in self.slots.iter_mut().enumerate() {
            let owner = table.owners()[slot >> shift];
            if owners.last().is_none_or(|(_, last)| *last != owner) {
                owners.push((version, owner));
            }
        }
    }

    /// Tells what an edge has known of a backend as an owner of the slot of a hash. The backend began with a version; what
    /// had its id before was another one.
    pub(super) fn known(
        &self,
        learned: &Learned,
        hash: u32,
        (backend, began): (BackendId, Version),
    ) -> Known {
        let slot = maglev::slot(hash, self.log2) as usize;
        let is_own_life = |span: &Range<usize>| {
            let first = learned.0.get(span.start);
            first.is_some_and(|lesson| lesson.version >= began)
        };
        let own = self
            .spans(learned, slot)
            .filter(|(_, span)| is_own_life(span));
        let Some(end) = own
            .filter(|(owner, _)| *owner == backend)
            .map(|(_, span)| span.end)
            .last()
        else {
            return Known::Never;
        };
        let Some(lesson) = learned.0.get(end) else {
            return Known::Owns;
        };
        // In a shorter table, the slot's owners were those of its neighbours too.
        let since = learned.0[end..].iter().map(|lesson| lesson.log2);
        let shift = self.log2 - since.min().unwrap_or(self.log2);
        let first = slot >> shift << shift;
        let is_later = |other: usize, span: &Range<usize>| match learned.0.get(span.end) {
            Some(_) if other == slot => span.end > end,
            // Owners of neighbours that ceased in the same second may come first.
            Some(other) => other.second >= lesson.second,
            None => true,
        };
        let later = (first..first + (1 << shift)).flat_map(|other| {
            let spans = self.spans(learned, other);
            let later =
                spans.filter(move |(owner, span)| *owner != backend && is_later(other, span));
            later.map(|(owner, _)| owner)
        });
        let later: BTreeSet<BackendId> = later.collect();
        Known::Past {
            second: lesson.second,
            // One of them owns the slot.
            newer: later.len().saturating_sub(1),
        }
    }

    /// Returns the owners of a slot that an edge has known, with the places of the versions in which they owned it.
    fn spans<'a>(
        &'a self,
        learned: &'a Learned,
        slot: usize,
    ) -> impl Iterator<Item = (BackendId, Range<usize>)> + 'a {
        let owners = &self.slots[slot];
        let ends = owners.iter().skip(1).map(|(version, _)| *version);
        let spans = owners.iter().zip(ends.chain([Version::MAX]));
        let spans = spans.map(|((begin, owner), end)| (*owner, learned.within(*begin, end)));
        spans.filter(|(_, span)| !span.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(owners: &[BackendId]) -> Table {
        Table::new(u8::try_from(owners.len().ilog2()).unwrap(), owners)
    }

    fn owners() -> Owners {
        let mut owners = Owners::new(0, &table(&[1]));
        for (version, owner) in [(1, 2), (2, 3), (3, 2), (4, 4)] {
            owners.change(version, &table(&[owner]));
        }
        owners
    }

    fn learned(versions: &[Version]) -> Learned {
        let mut learned = Learned::default();
        for version in versions {
            learned.learn(*version, &Table::empty(), 100 + version);
        }
        learned
    }

    #[test]
    fn edge_that_learned_all_knows_all_owners() {
        let (owners, learned) = (owners(), learned(&[0, 1, 2, 3, 4]));
        let past = |second, newer| Known::Past { second, newer };
        assert_eq!(owners.known(&learned, 0, (1, 0)), past(101, 2));
        assert_eq!(owners.known(&learned, 0, (2, 0)), past(104, 0));
        assert_eq!(owners.known(&learned, 0, (3, 0)), past(103, 1));
        assert_eq!(owners.known(&learned, 0, (4, 0)), Known::Owns);
        assert_eq!(owners.known(&learned, 0, (5, 0)), Known::Never);
    }

    #[test]
    fn edge_that_missed_a_version_never_knew_its_owner() {
        let (owners, learned) = (owners(), learned(&[0, 1, 4]));
        assert_eq!(owners.known(&learned, 0, (3, 0)), Known::Never);
        let past = Known::Past {
            second: 104,
            newer: 0,
        };
        assert_eq!(owners.known(&learned, 0, (2, 0)), past);
    }

    #[test]
    fn earlier_backend_of_the_same_id_is_another_one() {
        let (owners, learned) = (owners(), learned(&[0, 1, 2, 4]));
        assert!(matches!(
            owners.known(&learned, 0, (2, 1)),
            Known::Past { .. }
        ));
        assert_eq!(owners.known(&learned, 0, (2, 3)), Known::Never);
    }

    #[test]
    fn edge_that_begins_anew_knows_what_follows() {
        let owners = owners();
        let mut learned = learned(&[0, 1, 2]);
        learned.forget();
        learned.learn(2, &Table::empty(), 200);
        learned.learn(4, &Table::empty(), 204);
        assert_eq!(owners.known(&learned, 0, (1, 0)), Known::Never);
        let past = Known::Past {
            second: 204,
            newer: 0,
        };
        assert_eq!(owners.known(&learned, 0, (3, 0)), past);
    }

    #[test]
    fn slot_of_a_shorter_table_has_had_the_owners_of_its_part() {
        let long = table(&[1, 2, 3, 4]);
        let mut owners = Owners::new(2, &long);
        let short = table(&[5, 6]);
        owners.change(1, &short);
        let mut learned = Learned::default();
        learned.learn(0, &long, 100);
        learned.learn(1, &short, 101);
        // Of the hash's top bits, the first two choose.
        let known = |bits: u32, backend| owners.known(&learned, bits << 30, (backend, 0));
        // The neighbour's owner ceased at the same time, and 5 owns the slot.
        let past = |newer| Known::Past { second: 101, newer };
        assert_eq!((known(0, 1), known(1, 2)), (past(1), past(1)));
        assert_eq!(known(0, 2), Known::Never);
        assert_eq!((known(0, 5), known(3, 6)), (Known::Owns, Known::Owns));
        owners.change(2, &table(&[7, 8, 9, 10]));
        learned.learn(2, &table(&[7, 8, 9, 10]), 102);
        let known = |bits: u32, backend| owners.known(&learned, bits << 30, (backend, 0));
        // 2, 5, and 7 and 8, of which one owns the slot.
        assert_eq!(known(0, 1), past(3));
    }
}
