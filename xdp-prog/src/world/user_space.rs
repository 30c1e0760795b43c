//! What stages leave for each other where they run in user space.

use core::cell::Cell;

use super::{HandOver, HandOvers, Relay};

/// What the stages of one packet leave for each other.
#[derive(Debug, Default)]
pub struct BetweenStages {
    relayed: Cell<[u64; 4]>,
    handed_over: Cell<HandOver>,
}

/// A world whose stages run one after the other on one thread, for one packet at a time.
pub trait InUserSpace {
    /// Returns the place where stages leave it.
    fn between_stages(&self) -> &BetweenStages;
}

impl<T: InUserSpace> Relay for T {
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]> {
        self.between_stages().relayed.set(words);
        Some(words)
    }

    fn relayed(&self) -> Option<[u64; 4]> {
        Some(self.between_stages().relayed.get())
    }
}

impl<T: InUserSpace> HandOvers for T {
    fn hand_over(&self, known: HandOver) {
        self.between_stages().handed_over.set(known);
    }

    fn handed_over(&self) -> HandOver {
        self.between_stages().handed_over.get()
    }
}
