//! The wall clock, in seconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
