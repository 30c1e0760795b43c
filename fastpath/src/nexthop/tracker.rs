//! A set of targets and their last results; a refresh returns the changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{LinkBelow, NetlinkError, Resolution, Resolver};

/// A set of targets, each with the result that was reported last.
///
/// # Examples
///
/// ```no_run
/// use fastpath::nexthop::{NetlinkError, Resolver, Tracker, Wake, Watcher};
///
/// # fn main() -> Result<(), NetlinkError> {
/// // Watch before the first refresh, or a change between the two is missed.
/// let mut watcher = Watcher::new()?;
/// let mut resolver = Resolver::new()?;
/// let mut tracker = Tracker::default();
/// tracker.set_targets(["192.0.2.1".parse().expect("an address")]);
/// loop {
///     for (target, resolution) in tracker.refresh(&mut resolver)?.changes {
///         println!("{target}: {resolution:?}");
///     }
///     watcher.wait(None)?;
/// }
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Tracker {
    targets: BTreeMap<IpAddr, Option<Resolution>>,
    limited: Limited,
}

/// Targets with a limit on the neighbours that are kept resolved for them.
#[derive(Debug, Default)]
struct Limited {
    targets: BTreeSet<IpAddr>,
    most: usize,
}

/// The result of one refresh.
#[derive(Debug)]
pub struct Refresh {
    /// The targets whose result is new or differs from the last, sorted by address.
    pub changes: Vec<(IpAddr, Resolution)>,
    /// Why neighbours could not be kept resolved. The changes are valid all the same, and the next refresh asks
    /// again.
    pub unkept: Option<NetlinkError>,
    /// Number of neighbours that the limit of [`Tracker::limit`] leaves out.
    pub beyond_limit: usize,
    /// The VLAN devices for which XDP can write the tag, and those whose frames the agent sends.
    pub links_below: BTreeMap<u32, LinkBelow>,
}

impl Tracker {
    /// Replaces the set of targets. Targets that stay keep their last result.
    pub fn set_targets(&mut self, targets: impl IntoIterator<Item = IpAddr>) {
        let mut last = std::mem::take(&mut self.targets);
        self.targets = targets
            .into_iter()
            .map(|target| (target, last.remove(&target).flatten()))
            .collect();
    }

    /// Limits how many of these targets are kept resolved as neighbours, to `most` per family. Gateways do not count.
    ///
    /// The kernel's table has room for some thousand neighbours of the whole machine.
    pub fn limit(&mut self, targets: BTreeSet<IpAddr>, most: usize) {
        self.limited = Limited { targets, most };
    }

    /// Returns the last result of each target; `None` before its first refresh.
    pub fn answers(&self) -> impl Iterator<Item = (IpAddr, Option<Resolution>)> + '_ {
        self.targets.iter().map(|(target, last)| (*target, *last))
    }

    /// Resolves all targets again and makes the kernel keep their neighbours resolved.
    ///
    /// A refresh without targets releases all neighbours; do this before the machine stops using Guideway for good.
    ///
    /// # Errors
    ///
    /// Fails if the kernel cannot be asked or its answer is not understood. No change is recorded then, so the next
    /// refresh reports it.
    pub fn refresh(&mut self, resolver: &mut Resolver) -> Result<Refresh, NetlinkError> {
        let mut snapshot = resolver.snapshot()?;
        let mut answers = Vec::with_capacity(self.targets.len());
        let mut neighbours = BTreeSet::new();
        let mut limited = BTreeSet::new();
        for target in self.targets.keys() {
            let answer = snapshot.answer(*target)?;
            if let Some(neighbour) = answer.neighbour {
                let is_limited =
                    neighbour.address == *target && self.limited.targets.contains(target);
                let kept = if is_limited {
                    &mut limited
                } else {
                    &mut neighbours
                };
                kept.insert(neighbour);
            }
            answers.push((*target, answer.resolution));
        }
        let chosen = snapshot.view.choose(&limited, self.limited.most);
        let beyond_limit = limited.len() - chosen.len();
        neighbours.extend(chosen);
        let unkept = snapshot.keep(&neighbours).err();
        Ok(Refresh {
            changes: self.record(answers),
            unkept,
            beyond_limit,
            links_below: snapshot.view.links_below(),
        })
    }

    /// Records new results, and returns those that differ from the last.
    fn record(&mut self, answers: Vec<(IpAddr, Resolution)>) -> Vec<(IpAddr, Resolution)> {
        let mut changes = answers;
        changes.retain(|(target, resolution)| match self.targets.get_mut(target) {
            Some(last) => last.replace(*resolution) != Some(*resolution),
            None => false,
        });
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reason;
    use super::*;

    const DOWN: Resolution = Resolution::Unresolved(Reason::LinkDown);

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn only_changes_are_returned() {
        let mut tracker = Tracker::default();
        tracker.set_targets([address(1), address(2)]);
        let first = vec![(address(1), DOWN), (address(2), Resolution::Local)];
        assert_eq!(tracker.record(first.clone()), first);
        assert_eq!(tracker.record(first), []);

        let second = vec![(address(1), DOWN), (address(2), DOWN)];
        assert_eq!(tracker.record(second), [(address(2), DOWN)]);
    }

    #[test]
    fn a_target_that_stays_is_not_reported_again() {
        let mut tracker = Tracker::default();
        tracker.set_targets([address(1), address(2)]);
        tracker.record(vec![(address(1), DOWN), (address(2), DOWN)]);

        tracker.set_targets([address(2), address(3), address(3)]);

        let answers: Vec<_> = tracker.answers().collect();
        assert_eq!(answers, [(address(2), Some(DOWN)), (address(3), None)]);
        let again = vec![(address(2), DOWN), (address(3), DOWN)];
        assert_eq!(tracker.record(again), [(address(3), DOWN)]);
    }

    #[test]
    fn a_target_that_returns_is_reported_again() {
        let mut tracker = Tracker::default();
        tracker.set_targets([address(1)]);
        tracker.record(vec![(address(1), DOWN)]);
        tracker.set_targets([]);
        tracker.set_targets([address(1)]);
        assert_eq!(
            tracker.record(vec![(address(1), DOWN)]),
            [(address(1), DOWN)]
        );
    }
}
