//! Allocation of the ids of array entries.

/// The free ids of one table. Low ids are allocated first; 0 is never allocated.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    used: Vec<bool>,
    /// No id below this one is free.
    lowest: usize,
    free: usize,
}

impl Ids {
    /// Makes the pool of a table with this many entries.
    pub(super) fn new(entries: u32) -> Self {
        let mut used = vec![false; entries as usize];
        if let Some(zero) = used.first_mut() {
            *zero = true;
        }
        let free = used.len().saturating_sub(1);
        Self {
            used,
            lowest: 1,
            free,
        }
    }

    /// Allocates a given id; returns whether it was free.
    pub(super) fn reserve(&mut self, id: u32) -> bool {
        match self.used.get_mut(id as usize) {
            Some(used) if !*used => {
                *used = true;
                self.free -= 1;
                true
            }
            _ => false,
        }
    }

    /// Allocates the lowest free id.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let id = self.lowest
            + self
                .used
                .get(self.lowest..)?
                .iter()
                .position(|used| !used)?;
        self.lowest = id + 1;
        self.used[id] = true;
        self.free -= 1;
        u32::try_from(id).ok()
    }

    pub(super) fn release(&mut self, id: u32) {
        self.used[id as usize] = false;
        self.free += 1;
        self.lowest = self.lowest.min(id as usize);
    }

    pub(super) fn is_free(&self, id: u32) -> bool {
        self.used.get(id as usize).is_some_and(|used| !used)
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// Returns how many ids can be allocated in all.
    pub(super) fn capacity(&self) -> usize {
        self.used.len().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_given_out_once_and_zero_never() {
        let mut ids = Ids::new(4);
        assert_eq!((ids.capacity(), ids.free()), (3, 3));
        assert!(!ids.reserve(0));
        assert!(ids.reserve(2));
        assert!(!ids.reserve(2));
        assert_eq!(
            [ids.allocate(), ids.allocate(), ids.allocate()],
            [Some(1), Some(3), None]
        );
        ids.release(2);
        assert_eq!(ids.free(), 1);
        assert_eq!(ids.allocate(), Some(2));
        assert!(!ids.reserve(4), "beyond the table");
    }
}
