//! The clocks of the datapath.

use rustix::time::{ClockId, clock_gettime};

/// Returns the monotonic time in ns, on the clock by which the capture stamps packets (`bpf_ktime_get_ns`).
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// Returns the monotonic time in ns as of the kernel's last tick, on the clock by which the programs decide
/// (`bpf_ktime_get_coarse_ns`).
#[must_use]
pub fn coarse_ns() -> u64 {
    read(ClockId::MonotonicCoarse)
}

fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}
