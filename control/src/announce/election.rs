//! What one edge announces, from what it sees of the others' Leases and announcements.
//!
//! The clocks of machines differ, so a Lease's times are not read as times: an edge lives while its Lease
//! keeps changing, by the clock of who looks at it. Nor does silence mean anything while the API is
//! silent as a whole; that it speaks is proved by this edge's own Lease, whose changes come back by the
//! same watch as those of the others. Hence three conditions:
//!
//! | | takes addresses | lets go of those that belong to another | yields to an announcement |
//! |---|---|---|---|
//! | settled: the API has spoken for [`RECOVERY`] | yes | after [`LINGER`], or an edge's announcement | of what belongs to another |
//! | the API speaks again, or for the first time | no | no | of an edge |
//! | the API is silent | no | no | of an edge |
//!
//! Any machine on the segment can send an announcement. It is an edge's if it has a MAC of a Lease, or if it is
//! repeated for [`INSISTENCE`], as an edge does that this one has never heard of; anything else is answered by
//! an announcement of this edge's own. Two edges that announce one address for a moment do no harm: both forward
//! its packets.
//!
//! Edges of the version before have their Leases in another place ([`Home::Shared`]) and see no others. So as long
//! as one of them lives, it has what would be its own among them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::edge::{Candidates, Edge, Holdings, Home};
use super::{Mac, rendezvous};

/// How long an edge whose Lease does not change counts as alive.
pub const DURATION: Duration = Duration::from_secs(2);
/// How often an edge renews its Lease.
pub const RENEWAL: Duration = Duration::from_millis(700);
/// How long the API must have spoken before the silence of another edge counts: all others have renewed
/// their Leases by then, though each tries again only now and then.
pub const RECOVERY: Duration = Duration::from_secs(3);
/// How long an address is kept that belongs to another edge, unless that is heard to announce it: it may
/// not have settled yet.
pub const LINGER: Duration = RECOVERY.saturating_add(Duration::from_secs(1));
/// For how long another machine must go on announcing an address until it is taken for an edge.
pub const INSISTENCE: Duration = Duration::from_secs(3);
/// How long an announcement of an address that belongs here stands: its sender may be about to see that.
pub const DEFENCE: Duration = Duration::from_millis(500);

/// The state of one edge.
#[derive(Debug)]
pub struct Election {
    name: String,
    eligible: Option<bool>,
    wanted: Option<BTreeMap<IpAddr, Candidates>>,
    /// All edges with a Lease, this one included.
    edges: BTreeMap<(Home, String), ListedEdge>,
    /// Whether all of them have been told of once.
    is_listed: bool,
    contact: Option<ApiContact>,
    held: BTreeMap<IpAddr, Held>,
    /// Announcements of others that are to be judged.
    claims: BTreeMap<IpAddr, ForeignAnnouncement>,
    /// Machines that were told of.
    strangers: BTreeMap<IpAddr, Mac>,
    /// What belongs here, and the live edges that it was computed from.
    share: BTreeSet<IpAddr>,
    share_of: Option<Live>,
}

/// Edges that live, and the addresses by which endpoints name them.
type Live = BTreeMap<(Home, String), BTreeSet<IpAddr>>;

/// What another machine announces.
#[derive(Clone, Copy, Debug)]
struct ForeignAnnouncement {
    mac: Mac,
    /// When it began to.
    since: Instant,
    /// When it was last heard.
    last: Instant,
    /// Whether it was heard since the last step.
    is_new: bool,
}

/// An edge with a Lease, and when that changed last.
#[derive(Debug)]
struct ListedEdge {
    edge: Edge,
    changed: Instant,
}

/// The API speaks.
#[derive(Clone, Copy, Debug)]
struct ApiContact {
    since: Instant,
    last: Instant,
}

impl ApiContact {
    /// Before the others' last renewals, of up to one period earlier, are too old.
    fn ends(&self) -> Instant {
        self.last + (DURATION - RENEWAL)
    }

    fn settles(&self) -> Instant {
        self.since + RECOVERY
    }
}

/// An address that is announced.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// When to let go of it.
    release: Option<Instant>,
    /// When to announce it once more.
    defend: Option<Instant>,
}

impl Election {
    /// Begins with what an earlier agent has left announced.
    pub fn new(name: impl Into<String>, announced: BTreeSet<IpAddr>) -> Self {
        let held = announced.into_iter();
        Self {
            name: name.into(),
            eligible: None,
            wanted: None,
            edges: BTreeMap::new(),
            contact: None,
            held: held.map(|address| (address, Held::default())).collect(),
            claims: BTreeMap::new(),
            strangers: BTreeMap::new(),
            is_listed: false,
            share: BTreeSet::new(),
            share_of: None,
        }
    }

    /// Says which addresses are to be announced by some edge.
    pub fn want(&mut self, addresses: BTreeMap<IpAddr, Candidates>) {
        self.wanted = Some(addresses);
        self.share_of = None;
    }

    /// Says whether this edge may announce addresses at all; until then it keeps what it has.
    pub fn set_eligible(&mut self, eligible: bool) {
        self.eligible = Some(eligible);
    }

    /// Takes note of a Lease as it is.
    pub fn see(&mut self, edge: Edge, now: Instant) {
        let key = (edge.home, edge.name.clone());
        let known = self.edges.get(&key);
        let unchanged = known.filter(|seen| seen.edge.renewal == edge.renewal);
        let changed = unchanged.map_or(now, |seen| seen.changed);
        // What the first list holds of this edge may be of its life before.
        if key.0 == Home::Own && self.is_own(&key) && known.is_some() && unchanged.is_none() {
            self.hear(now);
        }
        self.edges.insert(key, ListedEdge { edge, changed });
    }

    /// Takes note that a Lease is gone.
    pub fn forget(&mut self, home: Home, edge: &str) {
        self.edges.remove(&(home, edge.to_owned()));
    }

    /// Takes the Leases of a list for all that there are at that place.
    pub fn retain(&mut self, home: Home, edges: &BTreeSet<String>) {
        self.is_listed |= home == Home::Own;
        self.edges
            .retain(|(place, name), _| *place != home || edges.contains(name));
    }

    /// Counts the edges that have a Lease, this one included.
    pub fn edges(&self) -> usize {
        self.edges.len()
    }

    /// Takes note that another machine has announced an address.
    pub fn claim(&mut self, address: IpAddr, mac: Mac, now: Instant) {
        let before = self.claims.get(&address);
        let goes_on = before.filter(|claim| claim.mac == mac && now < claim.last + INSISTENCE);
        let since = goes_on.map_or(now, |claim| claim.since);
        let claim = ForeignAnnouncement {
            mac,
            since,
            last: now,
            is_new: true,
        };
        self.claims.insert(address, claim);
    }

    /// Takes note that addresses are held no more, since others have announced them while this edge was silent.
    pub fn lose(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.held.retain(|address, _| !addresses.contains(address));
    }

    fn hear(&mut self, now: Instant) {
        let since = match &self.contact {
            Some(contact) if now < contact.ends() => contact.since,
            _ => now,
        };
        self.contact = Some(ApiContact { since, last: now });
    }

    /// Tells whether others' silence means something.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.contact
            .is_some_and(|contact| now < contact.ends() && now >= contact.settles())
    }

    /// Returns what this edge should announce.
    pub fn step(&mut self, now: Instant) -> Holdings {
        if let Some(wanted) = &self.wanted {
            self.held.retain(|address, _| wanted.contains_key(address));
        }
        let mut holdings = Holdings::default();
        let (claimed, disputed) = self.judge_claims(&mut holdings.strangers, now);
        let is_judged = match (self.eligible, &self.wanted) {
            (Some(true), Some(_)) => self.is_settled(now),
            (Some(false), _) => true,
            _ => false,
        };
        if is_judged {
            self.share_out(now);
            self.take_and_let_go(&claimed, now);
            // Another edge that has what belongs here may be about to see that.
            let claimed_here = claimed.intersection(&self.share).copied();
            self.defend(&disputed.into_iter().chain(claimed_here).collect(), now);
        } else {
            self.held.retain(|address, _| !claimed.contains(address));
            self.defend(&disputed, now);
        }
        self.held
            .retain(|_, held| held.release.is_none_or(|release| now < release));
        for (address, held) in &mut self.held {
            holdings.addresses.insert(*address);
            if held.defend.is_some_and(|defend| now >= defend) {
                held.defend = None;
                holdings.again.insert(*address);
            }
        }
        holdings
    }

    /// Returns when [`Election::step`] has something to do although nothing happens.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let contact = self.contact.iter();
        let contact = contact.flat_map(|contact| [contact.ends(), contact.settles()]);
        let others = self.edges.values().map(|seen| seen.changed + DURATION);
        let held = self.held.values();
        let held = held.flat_map(|held| held.release.into_iter().chain(held.defend));
        contact
            .chain(others)
            .chain(held)
            .filter(|at| *at > now)
            .min()
    }

    /// Judges what others have announced: returns the addresses that edges have, and those that somebody else
    /// claims, if anybody was heard.
    fn judge_claims(
        &mut self,
        strangers: &mut Vec<(IpAddr, Mac)>,
        now: Instant,
    ) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
        let (mut claimed, mut disputed) = (BTreeSet::new(), BTreeSet::new());
        let mut pending = std::mem::take(&mut self.claims);
        pending.retain(|address, claim| {
            if !self.held.contains_key(address) {
                return false;
            }
            let insists = claim.last >= claim.since + INSISTENCE;
            let is_edge = self.is_edge(claim.mac, now);
            if is_edge || insists {
                claimed.insert(*address);
            } else if std::mem::take(&mut claim.is_new) {
                disputed.insert(*address);
            }
            // Who is no edge as far as all Leases are known.
            let is_strange = !is_edge && (self.is_listed || insists);
            if is_strange && self.strangers.insert(*address, claim.mac) != Some(claim.mac) {
                strangers.push((*address, claim.mac));
            }
            // A Lease that tells of the MAC may come to be known, or the machine may go on.
            !claimed.contains(address) && now < claim.last + INSISTENCE
        });
        self.claims = pending;
        let held = &self.held;
        self.strangers
            .retain(|address, _| held.contains_key(address));
        (claimed, disputed)
    }

    /// Tells whether a MAC is another edge's, or may be.
    fn is_edge(&self, mac: Mac, now: Instant) -> bool {
        let mut others = self.edges.iter().filter(|(key, _)| !self.is_own(key));
        // One of the version before does not tell which it has, and leaves its Lease behind.
        let may_have = |seen: &ListedEdge| seen.edge.macs.is_empty() && self.is_alive(seen, now);
        others.any(|(_, seen)| seen.edge.macs.contains(&mac) || may_have(seen))
    }

    fn is_own(&self, (_, name): &(Home, String)) -> bool {
        // A Lease at the other place is of this edge's own past.
        *name == self.name
    }

    /// Has addresses announced once more.
    fn defend(&mut self, addresses: &BTreeSet<IpAddr>, now: Instant) {
        for (address, held) in &mut self.held {
            if held.release.is_none() && addresses.contains(address) {
                held.defend.get_or_insert(now + DEFENCE);
            }
        }
    }

    /// Computes what belongs to this edge, if that may be something else than before.
    fn share_out(&mut self, now: Instant) {
        let others = self.edges.iter().filter(|(key, _)| !self.is_own(key));
        let mut live: Live = others
            .filter(|(_, seen)| self.is_alive(seen, now))
            .map(|(key, seen)| (key.clone(), seen.edge.addresses.clone()))
            .collect();
        let own = (Home::Own, self.name.clone());
        if self.eligible == Some(true)
            && let Some(seen) = self.edges.get(&own)
        {
            live.insert(own, seen.edge.addresses.clone());
        }
        if self.share_of.as_ref() == Some(&live) {
            return;
        }
        let belongs_here = |(address, candidates): &(&IpAddr, &Candidates)| {
            let holder = |home: Home| {
                let edges = live.iter().filter(|((place, _), _)| *place == home);
                let edges = edges.filter(|(_, addresses)| candidates.include(addresses));
                rendezvous::holder(**address, edges.map(|((_, name), _)| name.as_str()))
            };
            holder(Home::Shared).is_none() && holder(Home::Own) == Some(self.name.as_str())
        };
        let wanted = self.wanted.iter().flatten();
        self.share = wanted
            .filter(belongs_here)
            .map(|(address, _)| *address)
            .collect();
        self.share_of = Some(live);
    }

    /// Tells whether an edge has renewed its Lease, or could not have shown it.
    fn is_alive(&self, seen: &ListedEdge, now: Instant) -> bool {
        // The last renewals of all edges before the API falls silent lie one period apart.
        let heard_after = seen.changed + (DURATION - RENEWAL);
        let has_been_heard = self
            .contact
            .is_some_and(|contact| contact.last >= heard_after);
        now < seen.changed + DURATION || !has_been_heard
    }

    fn take_and_let_go(&mut self, claimed: &BTreeSet<IpAddr>, now: Instant) {
        for address in &self.share {
            let held = self.held.entry(*address).or_default();
            held.release = None;
        }
        for (address, held) in &mut self.held {
            if !self.share.contains(address) {
                held.defend = None;
                let linger = if claimed.contains(address) {
                    Duration::ZERO
                } else {
                    LINGER
                };
                let release = now + linger;
                held.release = Some(held.release.map_or(release, |at| at.min(release)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
