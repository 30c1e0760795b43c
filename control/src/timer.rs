//! Sleeps until a time that may be absent.

use tokio::time::Instant;

/// Sleeps until `time`; for ever if it is `None`.
pub(crate) async fn sleep_until(time: Option<impl Into<Instant>>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
