//! The agent's answers as pages for people, 80 columns wide for usual addresses.

mod packets;
mod services;
mod status;

use super::Sampled;
use crate::api::Untrusted;
use crate::render::{count, duration, printable};

pub use self::packets::{detached, drops, explained, trace, which};
pub use self::services::{backends, services};
pub use self::status::status;

/// Notes of one kind on a page: a full table refuses thousands of services.
const NOTES_SHOWN: usize = 10;

/// Writes a counter, or its rate when there is a sample before it.
fn count_or_rate<T>(
    sampled: &Sampled<T>,
    value: u64,
    before: impl FnOnce(&T) -> Option<u64>,
) -> String {
    match &sampled.previous {
        None => count(value),
        Some(_) => {
            let rate = sampled.rate(value, before);
            rate.map_or_else(|| "-".to_owned(), count)
        }
    }
}

/// Names the last machine whose outer headers were refused.
fn last_untrusted(untrusted: &Untrusted) -> String {
    format!(
        "last untrusted outer source: {}, {} ago\n",
        untrusted.source,
        duration(untrusted.seconds_ago)
    )
}

fn indented(text: &str) -> String {
    let lines = text.lines();
    lines
        .map(|line| format!("  {}\n", printable(line)))
        .collect()
}

/// Writes the first notes, and says how many more there are.
fn first_notes<'n>(notes: impl ExactSizeIterator<Item = &'n String>) -> String {
    let more = more_than(NOTES_SHOWN, notes.len());
    let notes = notes.take(NOTES_SHOWN);
    notes.map(|note| indented(note)).chain([more]).collect()
}

fn more_than(shown: usize, all: usize) -> String {
    if all <= shown {
        return String::new();
    }
    format!("  and {} more; --json lists all\n", all - shown)
}

#[cfg(test)]
mod tests;
