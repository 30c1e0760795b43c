//! How quiet the machine is: what a loop that reads the clock loses, and what the kernel says of the time before.

use std::{fs, time::Instant};

use crate::{result::Quietness, stats::rounded};

/// Looks at the machine from time to time.
#[derive(Debug, Default)]
pub struct Watch {
    last: Option<(Instant, Counters)>,
}

/// What the kernel has counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    /// All time of all CPUs, in ticks.
    ticks: u64,
    /// That which a hypervisor took.
    stolen: u64,
    /// Time in which something waited for a CPU, in microseconds.
    waited: Option<u64>,
}

impl Watch {
    /// Reads the clock in a loop as [`quietness`] does, and tells what was stolen and waited for since the last look.
    pub fn look(&mut self, at: f64, seconds: f64) -> Quietness {
        let (now, counters) = (Instant::now(), Counters::read());
        let mut found = quietness(at, seconds);
        if let Some((then, before)) = self.last.replace((now, counters)) {
            let waited = counters.waited_since(&before, (now - then).as_secs_f64());
            found.stolen = counters.stolen_since(&before).map(rounded);
            found.waited = waited.map(rounded);
        }
        found
    }
}

impl Counters {
    fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/stat"), &read("/proc/pressure/cpu"))
    }

    fn parse(stat: &str, pressure: &str) -> Self {
        let ticks = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks = ticks.unwrap_or_default().split_whitespace();
        // The last two, of guests, are in the first two as well (proc(5)).
        let ticks: Vec<u64> = ticks.take(8).filter_map(|one| one.parse().ok()).collect();
        let some = pressure.lines().find(|line| line.starts_with("some "));
        let total = some.and_then(|line| line.split_once("total="));
        Self {
            ticks: ticks.iter().sum(),
            stolen: ticks.get(7).copied().unwrap_or(0),
            waited: total.and_then(|(_, total)| total.trim().parse().ok()),
        }
    }

    fn stolen_since(&self, before: &Self) -> Option<f64> {
        let all = self.ticks.checked_sub(before.ticks)?;
        let stolen = self.stolen.checked_sub(before.stolen)?;
        (all > 0).then(|| stolen as f64 / all as f64)
    }

    fn waited_since(&self, before: &Self, seconds: f64) -> Option<f64> {
        let waited = self.waited?.checked_sub(before.waited?)?;
        (seconds > 0.0).then(|| (waited as f64 / 1e6 / seconds).min(1.0))
    }
}

/// Reads the clock in a loop for `seconds`, and says in how many gaps something else had the core. `at` is the
/// time since the start of the run.
pub fn quietness(at: f64, seconds: f64) -> Quietness {
    let begin = std::time::Instant::now();
    let (mut last, mut lost) = (0, 0);
    let mut found = Quietness {
        at,
        seconds,
        gaps_over_10_us: 0,
        gaps_over_100_us: 0,
        gaps_over_1_ms: 0,
        longest_ns: 0,
        lost: 0.0,
        stolen: None,
        waited: None,
    };
    while (last as f64) < seconds * 1e9 {
        let now = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let gap = now - last;
        last = now;
        found.longest_ns = found.longest_ns.max(gap);
        if gap > 10_000 {
            lost += gap;
            found.gaps_over_10_us += 1;
            found.gaps_over_100_us += u64::from(gap > 100_000);
            found.gaps_over_1_ms += u64::from(gap > 1_000_000);
        }
    }
    found.lost = rounded(lost as f64 / last as f64);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_and_waited_shares_are_those_of_the_time_between() {
        let at = |stolen, waited| {
            let stat = format!(
                "cpu  100 0 0 {} 0 0 0 {stolen} 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
                900 - stolen
            );
            let pressure = format!(
                "some avg10=0.00 avg60=0.00 avg300=0.00 total={waited}\nfull avg10=0.00 total=9\n"
            );
            Counters::parse(&stat, &pressure)
        };
        let before = Counters::default();
        let after = at(50, 250_000);
        assert_eq!(after.stolen_since(&before), Some(0.05));
        assert_eq!(after.waited_since(&before, 2.0), None);
        assert_eq!(after.waited_since(&at(0, 50_000), 2.0), Some(0.1));
        assert_eq!(Counters::parse("", "").stolen_since(&before), None);
    }

    #[test]
    fn the_second_look_tells_of_the_time_since_the_first() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(0.0, 0.001).stolen, None);
        let second = watch.look(0.1, 0.05);
        assert!(
            second
                .stolen
                .is_none_or(|share| (0.0..=1.0).contains(&share)),
            "{second:?}"
        );
    }

    #[test]
    fn a_gap_of_the_loop_is_as_long_as_the_sum_says() {
        let found = quietness(0.0, 0.01);
        assert!(found.gaps_over_1_ms <= found.gaps_over_100_us);
        assert!(found.gaps_over_100_us <= found.gaps_over_10_us);
        assert!((0.0..=1.0).contains(&found.lost), "{found:?}");
        assert!(found.longest_ns > 0);
    }
}
