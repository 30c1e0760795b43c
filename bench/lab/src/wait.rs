//! Waiting for a condition with a deadline instead of sleeping and hoping.

use std::{
    fmt::Display,
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Result};

/// Shortest and longest time between two attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];
/// Part of the time since the begin that a pause takes: what takes long is not held up by being asked.
const PAUSE_SHARE: u32 = 20;
/// Part of its time limit that something must have worked to count as working.
const WORK_SHARE: u32 = 25;

/// Waits until `condition` holds.
///
/// # Errors
///
/// [`Error::Timeout`] with `awaited` when it does not hold within `timeout`.
pub fn wait_until(
    awaited: &str,
    timeout: Duration,
    mut condition: impl FnMut() -> bool,
) -> Result<()> {
    wait_for(awaited, timeout, || condition().then_some(()).ok_or(""))
}

/// Waits until `attempt` succeeds and returns its result.
///
/// # Errors
///
/// [`Error::Timeout`] with `awaited` and the last failure when it does not succeed within `timeout`.
pub fn wait_for<T, E: Display>(
    awaited: &str,
    timeout: Duration,
    attempt: impl FnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    wait_while_working(awaited, timeout, || Duration::ZERO, attempt)
}

/// Waits until `attempt` succeeds and returns its result. `timeout` begins anew each time that what works on it has
/// `used` a few percent of that time of the CPUs.
///
/// # Errors
///
/// [`Error::Timeout`] with `awaited` and the last failure when it does not succeed.
pub(crate) fn wait_while_working<T, E: Display>(
    awaited: &str,
    timeout: Duration,
    used: impl Fn() -> Duration,
    mut attempt: impl FnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    let began = Instant::now();
    let (mut since, mut used_before) = (began, used());
    loop {
        let failure = match attempt() {
            Ok(found) => return Ok(found),
            Err(failure) => failure.to_string(),
        };
        let used = used();
        if used.saturating_sub(used_before) * WORK_SHARE > timeout {
            (since, used_before) = (Instant::now(), used);
        } else if since.elapsed() >= timeout {
            let seen = if failure.is_empty() {
                failure
            } else {
                format!("; last: {failure}")
            };
            return Err(Error::Timeout {
                awaited: awaited.to_owned(),
                timeout,
                seen,
            });
        }
        let [shortest, longest] = PAUSES;
        thread::sleep((began.elapsed() / PAUSE_SHARE).clamp(shortest, longest));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait() {
        let mut left = 3;
        wait_until("three polls", Duration::from_secs(5), || {
            left -= 1;
            left == 0
        })
        .unwrap();
        assert_eq!(left, 0);
    }

    #[test]
    fn what_works_is_waited_for_and_what_has_stopped_is_not() {
        let (timeout, attempts) = (Duration::from_millis(1), Cell::new(0));
        // Each attempt finds a tenth of the limit more of work, up to the last of `working`.
        let wait = |working: u32, needed| {
            attempts.set(0);
            let used = || timeout / 10 * attempts.get().min(working);
            wait_while_working("work", timeout, used, || {
                attempts.set(attempts.get() + 1);
                (attempts.get() >= needed).then_some(()).ok_or("not yet")
            })
        };
        wait(20, 20).unwrap();
        wait(3, u32::MAX).unwrap_err();
        assert!(attempts.get() > 3);
    }

    #[test]
    fn a_timeout_names_the_condition_and_the_last_failure() {
        let error = wait_for("the moon", Duration::ZERO, || Err::<(), _>("clouds")).unwrap_err();
        assert_eq!(error.to_string(), "not after 0ns: the moon; last: clouds");
    }
}
