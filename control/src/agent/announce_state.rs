//! The state of announcements: what is announced on which links, what is still to be sent, and the connection
//! to the election.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::announce::{Announcer, Link};
use fastpath::tables::AnnouncedElsewhere;
use imbl::{OrdMap, OrdSet};
use tokio::sync::{mpsc, watch};

use crate::announce::Mac;
use crate::chain::chain;
use crate::desired::ServiceKey;
use crate::kubernetes::leases::{Announceable, Claims, DrainRequest, warn_of_strangers};

/// When an address is announced, after it is taken over. A neighbour may miss a frame. And an edge that has
/// lost the API may know this one only because it keeps announcing ([`crate::announce::election::UNKNOWN_EDGE_DELAY`]).
const REPEATS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_millis(3_500),
];
/// Time between two looks for other machines' announcements of the same addresses; also the longest time
/// between two signs of life of the loop.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// The announcements as last put in force.
#[derive(Debug, Default)]
pub(super) struct Announcing {
    announcer: Option<Announcer>,
    pub(super) links: Vec<Link>,
    pub(super) addresses: Arc<BTreeSet<IpAddr>>,
    /// Announcements still to be sent, with their times.
    repeats: Vec<(Instant, BTreeSet<IpAddr>)>,
    /// Whether neighbours on these links are answered.
    pub(super) is_able: bool,
    /// Whether this agent has given a sign of life.
    pub(super) has_begun: bool,
    /// When other machines' announcements were last looked for; `None` while there is nothing to announce.
    pub(super) looked: Option<Instant>,
    /// When the program was last seen on its interfaces.
    pub(super) seen_attached: Option<Instant>,
    /// The last other machine that announced each address.
    rivals: BTreeMap<IpAddr, Mac>,
    /// The election; `None` if the configuration decides.
    pub(super) election: Option<ElectionEnds>,
}

/// This side of the connection to the election.
#[derive(Debug)]
pub(super) struct ElectionEnds {
    pub(super) shown: watch::Sender<Option<Announceable>>,
    pub(super) claims: mpsc::UnboundedSender<Claims>,
    /// Where the observer leaves wishes to drain this edge.
    pub(super) drains: mpsc::UnboundedSender<DrainRequest>,
    /// Whether this edge is drained.
    pub(super) is_drained: bool,
    /// Addresses that belong to this machine.
    pub(super) share: BTreeSet<IpAddr>,
    /// Addresses that were assigned to services.
    pub(super) assigned: OrdSet<IpAddr>,
    /// For services with policy `Local` at assigned addresses, the Nodes that announce them.
    pub(super) announcers: Announcers,
}

/// Addresses of Nodes, by service.
pub(super) type Announcers = OrdMap<ServiceKey, Arc<BTreeSet<IpAddr>>>;

impl Announcing {
    /// Sets the addresses that were assigned to services, and which Nodes announce those with policy `Local`.
    pub(super) fn set_announceable(&mut self, assigned: OrdSet<IpAddr>, announcers: Announcers) {
        if let Some(election) = &mut self.election {
            election.assigned = assigned;
            election.announcers = announcers;
        }
    }

    /// Returns where wishes to drain this edge go; `None` without an election.
    pub(super) fn drains(&self) -> Option<mpsc::UnboundedSender<DrainRequest>> {
        self.election
            .as_ref()
            .map(|election| election.drains.clone())
    }

    /// Returns whether this edge is drained.
    pub(super) fn is_drained(&self) -> bool {
        self.election
            .as_ref()
            .is_some_and(|election| election.is_drained)
    }

    /// Returns how long until something is to be sent or looked for.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        let repeats = self.repeats.iter().map(|(at, _)| *at);
        let look = self.looked.map(|looked| looked + LOOK_PAUSE);
        let next = repeats.chain(look).min()?;
        Some(next.saturating_duration_since(now))
    }

    /// Replaces the announced addresses.
    pub(super) fn hold(&mut self, addresses: BTreeSet<IpAddr>, now: Instant) {
        // The time of the last look stays: frequent changes must not delay the next one.
        let looks = !addresses.is_empty() || self.election.is_some();
        self.looked = self.looked.or(Some(now)).filter(|_| looks);
        self.addresses = Arc::new(addresses);
    }

    /// Schedules the announcements of addresses. They replace those of the same addresses that are still to be sent.
    pub(super) fn plan(&mut self, addresses: &BTreeSet<IpAddr>, now: Instant) {
        for (_, planned) in &mut self.repeats {
            planned.retain(|address| !addresses.contains(address));
        }
        let new = REPEATS.map(|delay| (now + delay, addresses.clone()));
        self.repeats.extend(new);
        self.repeats.retain(|(_, planned)| !planned.is_empty());
    }

    /// Sends the announcements that are due, of addresses that are still announced.
    pub(super) fn send(&mut self, now: Instant) {
        let due = self.repeats.extract_if(.., |(at, _)| *at <= now);
        let due: BTreeSet<IpAddr> = due.flat_map(|(_, addresses)| addresses).collect();
        if due.is_empty() {
            return;
        }
        let outcome = self.tell_neighbours(&due);
        if let Err(error) = outcome {
            tracing::warn!(
                error = chain(&error),
                "not every address could be announced; who asks is answered"
            );
        }
    }

    fn tell_neighbours(&mut self, addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
        let announcer = match &mut self.announcer {
            Some(announcer) => announcer,
            closed => closed.insert(Announcer::new()?),
        };
        let mut outcome = Ok(());
        for address in addresses.intersection(&self.addresses) {
            for link in &self.links {
                outcome = outcome.and(announcer.announce(*address, link));
            }
        }
        outcome
    }

    /// Reports other machines that announce the same addresses: to the election, or without one to the log,
    /// once each.
    pub(super) fn report(&mut self, claims: Vec<AnnouncedElsewhere>) {
        let claims = self.of_others(claims);
        if let Some(election) = &self.election {
            if !claims.is_empty() {
                // The send fails only if the election has ended, and that ends the agent.
                let _ = election.claims.send(Claims::Heard(claims));
            }
            return;
        }
        self.rivals
            .retain(|address, _| self.addresses.contains(address));
        let rivals = &mut self.rivals;
        let new = claims
            .into_iter()
            .filter(|(address, mac)| rivals.insert(*address, *mac) != Some(*mac));
        warn_of_strangers(&new.collect::<Vec<_>>());
    }

    /// Leaves out announcements by this machine's other links in the same segment.
    pub(super) fn of_others(&self, claims: Vec<AnnouncedElsewhere>) -> Vec<(IpAddr, Mac)> {
        let claims = claims.into_iter();
        let others = claims.filter(|claim| self.links.iter().all(|link| link.mac != claim.mac));
        others
            .map(|claim| (claim.address, Mac(claim.mac)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(range: std::ops::Range<u8>) -> BTreeSet<IpAddr> {
        range.map(|n| [192, 0, 2, n].into()).collect()
    }

    #[test]
    fn announcements_are_repeated_and_then_over() {
        let mut announcing = Announcing::default();
        let now = Instant::now();
        assert_eq!(announcing.pause(now), None);
        announcing.plan(&addresses(0..2), now);
        let mut pauses = Vec::new();
        while let Some(pause) = announcing.pause(now) {
            pauses.push(pause);
            announcing.send(now + pause);
        }
        assert_eq!(pauses, REPEATS);
    }

    #[test]
    fn announcements_of_others_are_looked_for_however_often_something_changes() {
        let mut announcing = Announcing::default();
        let begin = Instant::now();
        let mut now = begin;
        while now < begin + LOOK_PAUSE {
            announcing.hold(addresses(0..1), now);
            now += LOOK_PAUSE / 10;
        }
        assert_eq!(announcing.pause(now), Some(Duration::ZERO));
        announcing.hold(BTreeSet::new(), now);
        assert_eq!(announcing.pause(now), None);
    }

    #[test]
    fn address_that_is_new_again_begins_anew() {
        let mut announcing = Announcing::default();
        let now = Instant::now();
        announcing.plan(&addresses(0..1), now);
        let later = now + REPEATS[1] / 2;
        announcing.plan(&addresses(0..1), later);
        assert_eq!(announcing.repeats.len(), REPEATS.len());
        assert_eq!(announcing.pause(later), Some(Duration::ZERO));
        announcing.plan(&addresses(1..2), later);
        assert_eq!(announcing.repeats.len(), 2 * REPEATS.len());
    }
}
