//! Waiting for a condition with a deadline instead of sleeping and hoping.

use std::{
    fmt::Display,
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(5);

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
    mut attempt: impl FnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let failure = match attempt() {
            Ok(found) => return Ok(found),
            Err(failure) => failure.to_string(),
        };
        if Instant::now() >= deadline {
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
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
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
    fn a_timeout_names_the_condition_and_the_last_failure() {
        let error = wait_for("the moon", Duration::ZERO, || Err::<(), _>("clouds")).unwrap_err();
        assert_eq!(error.to_string(), "not after 0ns: the moon; last: clouds");
    }
}
