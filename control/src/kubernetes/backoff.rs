//! How long an overloaded API server asks to be left alone.

use std::time::Duration;

use kube::core::Status;

/// Longest pause that a server is granted. With more, it and our own next pause would look like a server that
/// is gone.
const LONGEST: Duration = Duration::from_secs(30);

/// Returns the pause that an overloaded or starting server asks for, at most [`LONGEST`].
///
/// The server asks in the Status in its answer's body. kube does not expose the header `Retry-After`.
pub(crate) fn asked_pause(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// What a server answers that asks for a pause.
    pub(crate) fn overloaded(seconds: u32) -> Box<Status> {
        let details = json!({"retryAfterSeconds": seconds});
        let status = Status::failure("overloaded", "TooManyRequests").with_code(429);
        let details = serde_json::from_value(details).unwrap();
        status.with_details(details).boxed()
    }

    #[test]
    fn server_says_how_long_to_wait_within_bounds() {
        let asked = |seconds| asked_pause(&overloaded(seconds));
        assert_eq!(asked(7), Some(Duration::from_secs(7)));
        assert_eq!(asked(0), None);
        assert_eq!(asked(u32::MAX), Some(LONGEST));
    }
}
