//! Limits how fast each call site can log.
//!
//! Anyone who may write objects of the cluster, or send frames on a segment, decides how often some lines are
//! logged. If the log has a limited size, these would push everything else out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Number of lines that a call site may log at once.
const BURST: u32 = 60;
/// Time after which a call site may log one more line.
const PERIOD: Duration = Duration::from_secs(1);

/// Drops lines of places that log too much. Debug and trace lines are never dropped, because somebody asked for them.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    sites: Mutex<HashMap<Identifier, CallSite>>,
}

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        *event.metadata().level() > Level::INFO || self.admit(event, Instant::now())
    }

    /// After a line of a site whose lines were dropped, logs how many these were.
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let left_out = self.take_left_out(event);
        if left_out != 0 {
            let like = event.metadata().name();
            tracing::warn!(
                lines = left_out,
                like,
                "lines like the last one were left out of the log"
            );
        }
    }
}

impl RateLimit {
    fn admit(&self, event: &Event<'_>, now: Instant) -> bool {
        let mut sites = self.sites.lock();
        let site = sites.entry(event.metadata().callsite());
        site.or_insert_with(|| CallSite::new(now)).admit(now)
    }

    fn take_left_out(&self, event: &Event<'_>) -> u64 {
        let mut sites = self.sites.lock();
        let site = sites.get_mut(&event.metadata().callsite());
        site.map_or(0, |site| std::mem::take(&mut site.left_out))
    }
}

/// A call site that logs lines.
#[derive(Debug)]
struct CallSite {
    /// Number of lines that it may log now.
    lines: u32,
    /// Time up to which further lines were granted.
    since: Instant,
    /// Number of lines dropped since the last one that was logged.
    left_out: u64,
}

impl CallSite {
    const fn new(now: Instant) -> Self {
        Self {
            lines: BURST,
            since: now,
            left_out: 0,
        }
    }

    /// Returns whether a line may be logged, and counts it.
    fn admit(&mut self, now: Instant) -> bool {
        while self.lines < BURST && now >= self.since + PERIOD {
            self.lines += 1;
            self.since += PERIOD;
        }
        if self.lines == BURST {
            self.since = now;
        }
        let Some(lines) = self.lines.checked_sub(1) else {
            self.left_out += 1;
            return false;
        };
        self.lines = lines;
        true
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn call_site_writes_a_burst_and_then_one_line_in_a_period() {
        let start = Instant::now();
        let mut site = CallSite::new(start);
        let written =
            |site: &mut CallSite, now, lines| (0..lines).filter(|_| site.admit(now)).count();
        let burst = BURST as usize;
        assert_eq!(written(&mut site, start, burst + 7), burst);
        assert_eq!(site.left_out, 7);
        assert_eq!(written(&mut site, start + PERIOD, 10), 1);
        assert_eq!(written(&mut site, start + PERIOD * 3 / 2, 10), 0);
        assert_eq!(written(&mut site, start + 4 * PERIOD, 10), 3);
        let rested = start + 2 * BURST * PERIOD;
        assert_eq!(written(&mut site, rested, 2 * burst), burst);
        // What is saved up is no more than a burst.
        assert_eq!(written(&mut site, rested + PERIOD / 2, 10), 0);
    }

    /// Counts what reaches it, by level.
    #[derive(Clone, Debug, Default)]
    struct Written(std::sync::Arc<Mutex<HashMap<Level, usize>>>);

    impl<S: Subscriber> Layer<S> for Written {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            let mut counts = self.0.lock();
            *counts.entry(*event.metadata().level()).or_default() += 1;
        }
    }

    #[test]
    fn each_call_site_has_a_bound_of_its_own_and_debug_has_none() {
        let written = Written::default();
        let subscriber = tracing_subscriber::registry()
            .with(written.clone())
            .with(RateLimit::default());
        let lines = 10 * BURST as usize;
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..lines {
                tracing::warn!("a");
                tracing::debug!("b");
            }
            tracing::info!("c");
        });
        let counts = written.0.lock();
        assert_eq!((counts[&Level::DEBUG], counts[&Level::INFO]), (lines, 1));
        // A slow machine may be allowed some more.
        assert!(
            (BURST as usize..lines).contains(&counts[&Level::WARN]),
            "{counts:?}"
        );
    }
}
