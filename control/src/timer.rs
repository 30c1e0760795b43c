//! Waiting for a time that may not have been set.

use tokio::time::Instant;

/// Sleeps until `time`, or for ever if there is none.
pub(crate) async fn sleep_until(time: Option<impl Into<Instant>>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
