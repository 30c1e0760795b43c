//! Measures times that a test requires of the product, on a machine that may be busy with other work.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// How late the kernel may report waiting time: it adds it up every 2 s (`PSI_FREQ` in `kernel/sched/psi.c`).
const REPORTED_WITHIN: Duration = Duration::from_millis(2_100);
/// Unit of `/proc/stat`: `USER_HZ`, which is 100 on all architectures that current kernels support.
const TICK: Duration = Duration::from_millis(10);

/// A running stopwatch, which also knows for how long the machine kept tasks waiting.
#[derive(Debug)]
pub struct Stopwatch {
    started: Instant,
    cpu_wait_time: Duration,
}

impl Stopwatch {
    /// Starts a stopwatch.
    pub fn start() -> Self {
        Self {
            cpu_wait_time: cpu_wait_time(),
            started: Instant::now(),
        }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns whether the operation that just ended took less than `limit`. If it took up to twenty times as
    /// long, the time in which any task on the machine waited for a CPU does not count.
    pub fn is_within(&self, limit: Duration) -> bool {
        let elapsed = self.elapsed();
        elapsed < limit || elapsed < limit * 20 && elapsed.saturating_sub(self.waited()) < limit
    }

    /// Returns for how long any task waited for a CPU since the start. The result is never too short.
    pub fn waited(&self) -> Duration {
        thread::sleep(REPORTED_WITHIN);
        cpu_wait_time().saturating_sub(self.cpu_wait_time)
    }
}

/// Returns the total time, since boot, in which tasks waited for a CPU, and virtual CPUs for their host. Zero
/// if the kernel does not report it.
fn cpu_wait_time() -> Duration {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let waited = waited(&read("/proc/pressure/cpu")).unwrap_or_default();
    waited + stolen(&read("/proc/stat")).unwrap_or_default()
}

fn waited(pressure: &str) -> Option<Duration> {
    let some = pressure
        .lines()
        .find_map(|line| line.strip_prefix("some "))?;
    let total = some
        .split(' ')
        .find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

fn stolen(stat: &str) -> Option<Duration> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: u32 = all.split_whitespace().nth(7)?.parse().ok()?;
    Some(TICK * ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_the_kernel_tells_of_is_read() {
        let pressure =
            "some avg10=0.12 avg60=1.50 avg300=0.00 total=1500000\nfull avg10=0.00 total=7\n";
        assert_eq!(waited(pressure), Some(Duration::from_millis(1_500)));
        assert_eq!(waited(""), None);
        let stat = "cpu  1 2 3 4 5 6 7 150 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(stolen(stat), Some(Duration::from_millis(1_500)));
        assert_eq!(stolen("intr 1"), None);
    }

    #[test]
    fn time_that_nobody_withheld_counts() {
        let long_ago = |cpu_wait_time| Stopwatch {
            started: Instant::now() - Duration::from_secs(10),
            cpu_wait_time,
        };
        assert!(long_ago(Duration::ZERO).is_within(Duration::from_secs(11)));
        // More than there is by now, so that nobody has waited since.
        let all_counts = long_ago(cpu_wait_time() + Duration::from_secs(3600));
        assert!(!all_counts.is_within(Duration::from_secs(9)));
        // However long tasks have waited.
        assert!(!long_ago(Duration::ZERO).is_within(Duration::from_millis(400)));
    }
}
