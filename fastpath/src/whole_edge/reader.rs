//! The counters of all threads together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;

use super::counts::{EdgeCounts, EdgeOutcome};

/// Reads the counters of all threads, those that have ended included.
#[derive(Clone, Debug, Default)]
pub struct EdgeReader(Arc<Mutex<Threads>>);

#[derive(Debug, Default)]
struct Threads {
    /// The counters of threads that go on, and of those that have ended since the last one began.
    known: Vec<Arc<CachePadded<EdgeCounts>>>,
    /// What the others have counted.
    ended: EdgeCounts,
}

impl EdgeReader {
    /// Returns the number of frames with this outcome.
    #[must_use]
    pub fn of(&self, outcome: EdgeOutcome) -> u64 {
        self.sum(|counts| counts.of(outcome))
    }

    /// Returns the number of frames that the kernel has lost before a thread could take them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sum(EdgeCounts::lost)
    }

    /// Returns the counters of one more thread.
    pub(super) fn add(&self) -> Arc<CachePadded<EdgeCounts>> {
        let counts = Arc::default();
        let Threads { known, ended } = &mut *self.threads();
        known.retain_mut(|counts| {
            // Nobody else has them: their thread has ended.
            let is_over = Arc::get_mut(counts).is_some();
            if is_over {
                ended.add_all(counts);
            }
            !is_over
        });
        known.push(Arc::clone(&counts));
        counts
    }

    fn sum(&self, count: impl Fn(&EdgeCounts) -> u64) -> u64 {
        let threads = self.threads();
        let known: u64 = threads.known.iter().map(|counts| count(counts)).sum();
        known + count(&threads.ended)
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Losses;

    #[test]
    fn ended_threads_are_counted_and_not_kept() {
        let reader = EdgeReader::default();
        let first = reader.add();
        for _ in 0..100 {
            let counts = reader.add();
            counts.add(&mut [3, 2, 1, 0, 0, 0]);
            counts.show_losses(Losses {
                no_buffer: 1,
                ..Losses::default()
            });
        }
        first.add(&mut [1, 0, 0, 1, 0, 0]);
        let sums = EdgeOutcome::ALL.map(|outcome| reader.of(outcome));
        assert_eq!(sums, [301, 200, 100, 1, 0, 0]);
        assert_eq!(reader.lost(), 100);
        assert_eq!(reader.threads().known.len(), 2);
    }
}
