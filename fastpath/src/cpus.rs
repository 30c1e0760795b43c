//! Sizes of arrays that have a region for each CPU. Each region begins on a cache line of its own.
//!
//! Programs find a region by the CPU's number. Every number that the kernel will ever use was possible when it
//! booted, so the arrays stay large enough when CPUs are plugged in.

use std::{fs, io};

/// Length of a cache line in bytes.
const LINE: u32 = 64;

/// Returns how many CPU numbers are possible on this machine; not all need to be in use.
///
/// # Errors
///
/// Fails if the kernel's list cannot be read.
pub fn possible() -> io::Result<u32> {
    let ranges = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    highest(ranges.trim())
        .and_then(|highest| highest.checked_add(1))
        .ok_or_else(|| io::Error::other(format!("no list of CPUs: {ranges:?}")))
}

/// Returns the last number of a list like `0-3,6`.
fn highest(ranges: &str) -> Option<u32> {
    ranges.rsplit([',', '-']).next()?.parse().ok()
}

/// Returns the length of an array whose regions have `entries` entries of `bytes` bytes.
///
/// The last region has no padding behind it, so `entries_of_one` can tell the regions' distance from the length.
///
/// # Errors
///
/// Fails if the kernel's list of CPUs cannot be read.
pub fn entries_of_all(entries: u32, bytes: u32) -> io::Result<u32> {
    Ok(spaced(entries, bytes) * (possible()? - 1) + entries)
}

/// Returns the distance between the regions of an array that has `entries` entries of `bytes` bytes, in entries.
///
/// # Errors
///
/// Fails if the kernel's list of CPUs cannot be read.
pub(crate) fn entries_of_one(entries: u32, bytes: u32) -> io::Result<u32> {
    Ok(spaced(entries.div_ceil(possible()?), bytes))
}

/// Rounds a number of entries up to the end of a cache line.
fn spaced(entries: u32, bytes: u32) -> u32 {
    entries.next_multiple_of((LINE / bytes).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cpus_end_behind_the_last_possible_one() {
        assert_eq!(highest("0"), Some(0));
        assert_eq!(highest("0-127"), Some(127));
        assert_eq!(highest("0-3,6"), Some(6));
        assert_eq!(highest("0,2-5"), Some(5));
        assert_eq!(highest(""), None);
    }

    #[test]
    fn regions_begin_on_cache_lines_and_are_found_by_the_length() {
        for (entries, bytes, apart) in [(1, 128, 1), (8, 8, 8), (9, 8, 16), (65, 16, 68)] {
            let all = entries_of_all(entries, bytes).unwrap();
            assert_eq!(all, apart * (possible().unwrap() - 1) + entries);
            assert_eq!(entries_of_one(all, bytes).unwrap(), apart);
        }
    }
}
