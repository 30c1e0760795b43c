//! Formats the agent's answers as pages, 80 columns wide for typical addresses.

mod packets;
mod services;
mod status;

use crate::api::Untrusted;
use crate::render::{count, duration, printable};

pub use self::packets::{at_address, detached, drops, explained, flows, trace, which};
pub use self::services::{backends, services};
pub use self::status::status;

/// Most notes of one kind on a page. A full table can refuse thousands of services.
const NOTES_SHOWN: usize = 10;

/// The columns of a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    /// All columns, for a terminal of 160 columns.
    pub is_wide: bool,
    /// Only the counters.
    pub stats: bool,
}

/// Returns a column's title, or none if the column is not shown.
const fn only_if(condition: bool, title: &'static str) -> &'static str {
    if condition { title } else { "" }
}

/// Formats a rate; a new row has none yet.
fn rate(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), count)
}

/// Returns a line about the last machine whose outer headers were refused.
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

/// Formats the first notes, and the number of the others.
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
