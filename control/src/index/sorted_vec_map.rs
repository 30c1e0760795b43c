//! A map that takes little more memory than its entries. Every Service has several small maps, and a `BTreeMap`
//! allocates room for eleven entries with its first one.

use std::borrow::Borrow;

/// A map stored as a list that is sorted by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SortedVecMap<K, V>(Vec<(K, V)>);

impl<K: Ord, V> SortedVecMap<K, V> {
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0
            .binary_search_by(|(known, _)| known.borrow().cmp(key))
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        Some(&self.0[self.find(key).ok()?].1)
    }

    /// Sets an entry. Returns the previous value.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(index) => Some(std::mem::replace(&mut self.0[index].1, value)),
            Err(index) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    /// Removes an entry. Returns its value.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        Some(self.0.remove(self.find(key).ok()?).1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.0.iter()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }
}

impl<K, V> Default for SortedVecMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedVecMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_replaced_and_removed_in_the_order_of_their_keys() {
        let mut map: SortedVecMap<String, u8> = [("b".to_owned(), 2), ("a".to_owned(), 1)]
            .into_iter()
            .collect();
        assert_eq!(map.insert("c".to_owned(), 3), None);
        assert_eq!(map.insert("b".to_owned(), 9), Some(2));
        assert_eq!(map.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(map.values().copied().collect::<Vec<_>>(), [1, 9, 3]);
        assert_eq!((map.get("b"), map.get("d")), (Some(&9), None));
        assert_eq!((map.remove("a"), map.remove("a")), (Some(1), None));
        for (_, value) in map.values_mut() {
            *value += 1;
        }
        assert_eq!(map.get("c"), Some(&4));
    }
}
