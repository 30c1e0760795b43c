//! Computes rates from two answers, and sorts the rows of an answer.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{Backend, Counts, Reason, Service, Status};
use crate::cli::Sort;

/// An answer that can be asked for again.
pub trait Answer: Serialize + DeserializeOwned + Clone {
    /// Sets the growth of the counters per second since the answer `before`.
    fn set_rates(&mut self, before: &Self, span: Duration);
}

impl Answer for Status {
    fn set_rates(&mut self, _before: &Self, _span: Duration) {}
}

/// A row with counters.
pub trait Counted: Serialize + DeserializeOwned + Clone {
    /// Returns the texts that identify the row in later answers.
    fn identity(&self) -> (&str, &str, &str);
    /// Returns its counters.
    fn counts(&self) -> Counts;
    /// Returns the number of its flows that are known now.
    fn connections(&self) -> u64;
    /// Returns the growth of its counters per second.
    fn rates(&self) -> Option<Counts>;
    /// Sets the growth of its counters per second.
    fn set_rates(&mut self, rates: Option<Counts>);
}

impl Counted for Service {
    fn identity(&self) -> (&str, &str, &str) {
        (&self.service, "", "")
    }
    fn counts(&self) -> Counts {
        Counts {
            packets: self.packets,
            bytes: self.bytes,
        }
    }
    fn connections(&self) -> u64 {
        self.connections.unwrap_or(0)
    }
    fn rates(&self) -> Option<Counts> {
        self.rates
    }
    fn set_rates(&mut self, rates: Option<Counts>) {
        self.rates = rates;
    }
}

impl Counted for Backend {
    fn identity(&self) -> (&str, &str, &str) {
        (&self.service, &self.backend, &self.node)
    }
    fn counts(&self) -> Counts {
        Counts {
            packets: self.packets,
            bytes: self.bytes,
        }
    }
    fn connections(&self) -> u64 {
        self.connections.unwrap_or(0)
    }
    fn rates(&self) -> Option<Counts> {
        self.rates
    }
    fn set_rates(&mut self, rates: Option<Counts>) {
        self.rates = rates;
    }
}

impl Counted for Reason {
    fn identity(&self) -> (&str, &str, &str) {
        (&self.action, &self.reason, "")
    }
    fn counts(&self) -> Counts {
        Counts {
            packets: self.packets,
            bytes: 0,
        }
    }
    fn connections(&self) -> u64 {
        0
    }
    fn rates(&self) -> Option<Counts> {
        self.rates
    }
    fn set_rates(&mut self, rates: Option<Counts>) {
        self.rates = rates;
    }
}

impl<R: Counted> Answer for Vec<R> {
    fn set_rates(&mut self, before: &Self, span: Duration) {
        let before = before.iter().map(|row| (row.identity(), row.counts()));
        let before: HashMap<_, _> = before.collect();
        for row in self {
            let earlier = before.get(&row.identity());
            let rates = earlier.and_then(|earlier| row.counts().rates_since(*earlier, span));
            Counted::set_rates(row, rates);
        }
    }
}

/// Sorts the rows, those with the largest values first.
pub(super) fn sort_rows<R: Counted>(rows: &mut [R], by: Sort) {
    rows.sort_by_key(|row| {
        Reverse(match by {
            Sort::Rate => row.rates().map_or(0, |rates| rates.packets),
            Sort::Packets => row.counts().packets,
            Sort::Bytes => row.counts().bytes,
            Sort::Connections => row.connections(),
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(service: &str, packets: u64) -> Service {
        Service {
            service: service.to_owned(),
            packets,
            bytes: 1_000 - packets,
            ..Service::default()
        }
    }

    #[test]
    fn rates_are_a_row_s_own_and_rows_without_an_earlier_one_have_none() {
        let before = vec![service("a", 10), service("b", 20)];
        let mut now = vec![service("b", 25), service("new", 7), service("a", 110)];
        now.set_rates(&before, Duration::from_millis(500));
        let rates: Vec<_> = now
            .iter()
            .map(|row| row.rates.map(|rates| rates.packets))
            .collect();
        assert_eq!(rates, [Some(10), None, Some(200)]);
    }

    #[test]
    fn counters_that_begin_anew_have_no_rate() {
        let mut now = vec![service("a", 3)];
        now.set_rates(&vec![service("a", 10)], Duration::from_secs(1));
        assert_eq!(now[0].rates.map(|rates| rates.packets), Some(0));
        now.set_rates(&vec![service("a", 1)], Duration::ZERO);
        assert_eq!(now[0].rates, None);
    }

    #[test]
    fn rows_are_sorted_by_what_is_asked_for_and_else_keep_their_order() {
        let mut rows = vec![service("a", 1), service("b", 5), service("c", 5)];
        let order = |rows: &[Service]| {
            rows.iter()
                .map(|row| row.service.clone())
                .collect::<String>()
        };
        sort_rows(&mut rows, Sort::Packets);
        assert_eq!(order(&rows), "bca");
        sort_rows(&mut rows, Sort::Bytes);
        assert_eq!(order(&rows), "abc");
    }
}
