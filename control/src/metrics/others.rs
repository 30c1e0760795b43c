//! The traffic of services and backends that have no series of their own, summed.
//!
//! The sum of what they have counted would fall whenever one of them gets a series or is removed, and a counter
//! must not fall. So the sum is of their growth, which is kept between scrapes. What grew while a row had no
//! series, or between two scrapes of which only one showed its series, counts here; no packet counts twice.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::encoder::MOST_SERIES;
use crate::api::{Backend, Counts, Service};

/// What is kept between scrapes.
#[derive(Debug, Default)]
pub(crate) struct Others {
    pub(crate) services: Growth,
    pub(crate) backends: Growth,
}

/// The traffic of rows without series since the agent started.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    total: Counts,
    /// Rows with traffic at the last scrape, by a hash of their names.
    seen: HashMap<u64, Seen>,
    scrapes: u64,
    /// Whether there have ever been more rows than series.
    is_needed: bool,
}

/// A row at the last scrape that had it.
#[derive(Debug)]
struct Seen {
    counts: Counts,
    has_series: bool,
    scrape: u64,
}

/// A row of counters that may have a series.
pub(crate) trait Row {
    /// Returns what tells the row from all others.
    fn name(&self) -> (&str, &str);
    fn counts(&self) -> Counts;
}

impl Row for Service {
    fn name(&self) -> (&str, &str) {
        (&self.name, &self.service)
    }

    fn counts(&self) -> Counts {
        let (packets, bytes) = (self.packets, self.bytes);
        Counts { packets, bytes }
    }
}

impl Row for Backend {
    fn name(&self) -> (&str, &str) {
        (&self.name, &self.backend)
    }

    fn counts(&self) -> Counts {
        let (packets, bytes) = (self.packets, self.bytes);
        Counts { packets, bytes }
    }
}

impl Growth {
    /// Puts the rows with the most packets first, as many as get series, and returns the sum over the others;
    /// `None` as long as there have never been others.
    pub(crate) fn follow<R: Row>(&mut self, rows: &mut [R]) -> Option<Counts> {
        if rows.len() > MOST_SERIES {
            rows.select_nth_unstable_by_key(MOST_SERIES, |row| Reverse(row.counts().packets));
            self.is_needed = true;
        }
        self.scrapes += 1;
        for (place, row) in rows.iter().enumerate() {
            self.follow_row(row, place < MOST_SERIES);
        }
        let scrape = self.scrapes;
        self.seen.retain(|_, seen| seen.scrape == scrape);
        self.is_needed.then_some(self.total)
    }

    fn follow_row(&mut self, row: &impl Row, has_series: bool) {
        let counts = row.counts();
        // Most rows of a large cluster have no traffic, and need no memory.
        if counts == Counts::default() {
            return;
        }
        let mut hash = DefaultHasher::new();
        row.name().hash(&mut hash);
        let seen = Seen {
            counts,
            has_series,
            scrape: self.scrapes,
        };
        let before = self.seen.insert(hash.finish(), seen);
        let (before, had_series) = match before {
            Some(before) => (before.counts, before.has_series),
            // An earlier agent has told of what was counted before the first scrape.
            None if self.scrapes == 1 => return,
            None => (Counts::default(), has_series),
        };
        if has_series && had_series {
            return;
        }
        // Counters of what was removed and added again begin at 0.
        let growth = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        self.total.packets += growth(counts.packets, before.packets);
        self.total.bytes += growth(counts.bytes, before.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: usize, packets: u64) -> Backend {
        Backend {
            backend: name.to_string(),
            packets,
            bytes: 10 * packets,
            ..Backend::default()
        }
    }

    /// As many rows as have series, with this many packets each.
    fn large(packets: u64) -> impl Iterator<Item = Backend> {
        (1..=MOST_SERIES).map(move |name| row(name, packets))
    }

    fn packets(growth: &mut Growth, rows: impl IntoIterator<Item = Backend>) -> Option<u64> {
        let mut rows: Vec<Backend> = rows.into_iter().collect();
        let total = growth.follow(&mut rows)?;
        assert_eq!(total.bytes, 10 * total.packets);
        Some(total.packets)
    }

    #[test]
    fn rows_that_all_have_series_need_no_sum() {
        let mut growth = Growth::default();
        assert_eq!(packets(&mut growth, large(5)), None);
        assert_eq!(packets(&mut growth, large(7)), None);
    }

    #[test]
    fn largest_come_first() {
        let mut rows: Vec<Backend> = [row(0, 1)].into_iter().chain(large(5)).collect();
        Growth::default().follow(&mut rows);
        assert_eq!(rows.last().unwrap().packets, 1);
    }

    #[test]
    fn sum_has_the_growth_of_rows_without_series_and_never_falls() {
        let mut growth = Growth::default();
        // What was counted before the first scrape is not growth.
        assert_eq!(packets(&mut growth, large(100).chain([row(0, 7)])), Some(0));
        assert_eq!(packets(&mut growth, large(200).chain([row(0, 9)])), Some(2));
        // It gets a series: what it grew by until then counts here, what it grows by then does not.
        assert_eq!(
            packets(&mut growth, large(200).chain([row(0, 300)])),
            Some(293)
        );
        assert_eq!(
            packets(&mut growth, large(200).chain([row(0, 400)])),
            Some(293)
        );
        // It loses its series to a row that had none, and both grew meanwhile.
        assert_eq!(
            packets(&mut growth, large(500).chain([row(0, 410)])),
            Some(293 + 10 + 300)
        );
        let before = packets(&mut growth, large(500)).unwrap();
        // It is added anew: its counter began at 0.
        assert_eq!(
            packets(&mut growth, large(500).chain([row(0, 4)])),
            Some(before + 4)
        );
        assert_eq!(
            packets(&mut growth, large(500).chain([row(0, 3)])),
            Some(before + 7)
        );
    }
}
