//! A table from which the entry goes that was not used for the longest time.

use std::collections::{HashMap, hash_map::Entry};

use crate::consistency::addresses::{BackendId, Client};

/// No place.
const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Used {
    client: Client,
    backend: BackendId,
    older: usize,
    newer: usize,
}

/// Connections with their backends, in the order of their last use.
#[derive(Debug)]
pub(super) struct Lru {
    capacity: usize,
    places: HashMap<Client, usize>,
    used: Vec<Used>,
    oldest: usize,
    newest: usize,
}

impl Lru {
    /// Makes a table of so many entries, at least one.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            places: HashMap::new(),
            used: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// Finds a connection, which is then the newest.
    pub(super) fn get(&mut self, client: Client) -> Option<BackendId> {
        let place = *self.places.get(&client)?;
        self.take_out(place);
        self.put_in_front(place);
        Some(self.used[place].backend)
    }

    /// Adds or replaces a connection, which is then the newest.
    pub(super) fn put(&mut self, client: Client, backend: BackendId) {
        let is_full = self.used.len() >= self.capacity;
        let place = match self.places.entry(client) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) if !is_full => {
                let place = self.used.len();
                free.insert(place);
                self.used.push(Used {
                    client,
                    backend,
                    older: NONE,
                    newer: NONE,
                });
                self.put_in_front(place);
                return;
            }
            Entry::Vacant(free) => {
                free.insert(self.oldest);
                self.places.remove(&self.used[self.oldest].client);
                self.oldest
            }
        };
        self.take_out(place);
        self.put_in_front(place);
        (self.used[place].client, self.used[place].backend) = (client, backend);
    }

    fn take_out(&mut self, place: usize) {
        let Used { older, newer, .. } = self.used[place];
        match self.used.get_mut(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.used.get_mut(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }

    fn put_in_front(&mut self, place: usize) {
        (self.used[place].older, self.used[place].newer) = (self.newest, NONE);
        match self.used.get_mut(self.newest) {
            Some(newest) => newest.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_that_was_not_used_for_the_longest_goes() {
        let mut lru = Lru::new(2);
        lru.put(Client(1), 11);
        lru.put(Client(2), 12);
        assert_eq!(lru.get(Client(1)), Some(11));
        lru.put(Client(3), 13);
        assert_eq!(lru.get(Client(2)), None);
        assert_eq!(
            (lru.get(Client(3)), lru.get(Client(1))),
            (Some(13), Some(11))
        );
        lru.put(Client(3), 14);
        lru.put(Client(4), 15);
        assert_eq!((lru.get(Client(1)), lru.get(Client(3))), (None, Some(14)));
        assert_eq!(lru.len(), 2);
        lru.clear();
        assert_eq!((lru.get(Client(4)), lru.len()), (None, 0));
    }

    #[test]
    fn table_agrees_with_a_list_in_order_of_use() {
        let mut random = crate::stats::SplitMix64::new(3);
        let mut lru = Lru::new(5);
        let mut list: Vec<(Client, BackendId)> = Vec::new();
        for step in 0..10_000 {
            let client = Client(u32::try_from(random.below(12)).unwrap());
            let known = list.iter().position(|(known, _)| *known == client);
            let known = known.map(|place| list.remove(place));
            if random.below(2) == 0 {
                assert_eq!(lru.get(client), known.map(|(_, backend)| backend));
                list.extend(known);
            } else {
                lru.put(client, step);
                list.push((client, step));
                if list.len() > 5 {
                    list.remove(0);
                }
            }
        }
    }
}
