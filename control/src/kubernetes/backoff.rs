//! How long to wait after an error.

use std::time::Duration;

use kube::core::Status;

/// The longest pause that a server is granted: its own and the next of ours are not to be mistaken for silence.
const LONGEST: Duration = Duration::from_secs(30);

/// Returns for how long the server asks not to be asked, as one does that is overloaded or only starting.
///
/// It does so in the body of its answer, as a Status; kube shows nobody the header `Retry-After`.
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
