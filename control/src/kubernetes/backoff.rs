//! How long watches wait after an error.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;

/// kube's own pauses, 0.8 s to 30 s, which begin anew after two minutes without an error and not before.
///
/// A watcher says that it begins a list before the server was asked for it. By kube's reset at any sign of
/// life the pauses would never grow while the server is away.
#[derive(Default)]
pub(crate) struct Patience(DefaultBackoff);

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_whatever_was_heard_between() {
        let mut pauses = Patience::default();
        for _ in 0..8 {
            assert!(pauses.next().is_some());
            pauses.reset();
        }
        let pause = pauses.next().unwrap();
        assert!(pause >= Duration::from_secs(30), "{pause:?}");
    }
}
