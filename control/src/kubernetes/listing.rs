//! The list of all objects of one kind, which comes in parts and may break off.

use std::collections::BTreeSet;

use crate::index::objects::ObjectName;

/// What has been read of a list, and whether one was ever read to its end.
#[derive(Debug, Default)]
pub(super) struct Listing {
    listed: BTreeSet<ObjectName>,
    is_under_way: bool,
    is_complete: bool,
}

impl Listing {
    /// Begins a list, in place of one that broke off.
    pub(super) fn begin(&mut self) {
        self.listed.clear();
        self.is_under_way = true;
    }

    /// Notes an object that is there.
    pub(super) fn note(&mut self, name: &ObjectName) {
        if self.is_under_way {
            self.listed.insert(name.clone());
        }
    }

    /// Ends the list; what it does not have is gone.
    pub(super) fn end(&mut self) -> BTreeSet<ObjectName> {
        self.is_under_way = false;
        self.is_complete = true;
        std::mem::take(&mut self.listed)
    }

    /// Tells whether a list was read to its end.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<ObjectName> {
        let names = names.iter();
        names
            .map(|name| ObjectName::new("default", *name))
            .collect()
    }

    fn note(listing: &mut Listing, name: &str) {
        listing.note(&ObjectName::new("default", name));
    }

    #[test]
    fn list_is_complete_with_its_end() {
        let mut listing = Listing::default();
        listing.begin();
        note(&mut listing, "a");
        assert!(!listing.is_complete());
        assert_eq!(listing.end(), names(&["a"]));
        assert!(listing.is_complete());
    }

    #[test]
    fn list_that_broke_off_counts_for_nothing() {
        let mut listing = Listing::default();
        listing.begin();
        note(&mut listing, "a");
        listing.begin();
        note(&mut listing, "b");
        assert_eq!(listing.end(), names(&["b"]));
    }

    #[test]
    fn changes_between_lists_are_not_listed() {
        let mut listing = Listing::default();
        listing.begin();
        listing.end();
        note(&mut listing, "a");
        assert_eq!(listing.end(), names(&[]));
    }
}
