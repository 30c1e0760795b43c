//! The clock of the datapath.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time that programs read too (`bpf_ktime_get_ns`): nanoseconds on the monotonic clock.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}
