//! The clock of the datapath.

use rustix::time::{ClockId, clock_gettime};

/// Returns the monotonic time in ns, on the clock that the programs read (`bpf_ktime_get_ns`).
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}
