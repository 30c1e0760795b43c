//! Formats the agent's answers as pages, 80 columns wide for typical addresses.

mod packets;
mod services;
mod status;

use crate::api::Untrusted;
use crate::render::{Page, count, duration};

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
        "last untrusted outer source: {}, {} ago",
        untrusted.source,
        duration(untrusted.seconds_ago)
    )
}

/// Adds the first notes, and the number of the others.
fn first_notes<'n>(page: &mut Page, notes: impl ExactSizeIterator<Item = &'n String>) {
    let all = notes.len();
    for note in notes.take(NOTES_SHOWN) {
        page.note(note);
    }
    more_than(page, NOTES_SHOWN, all);
}

fn more_than(page: &mut Page, shown: usize, all: usize) {
    if all > shown {
        page.note(&format!("and {} more; --json lists all", all - shown));
    }
}

#[cfg(test)]
mod tests;
