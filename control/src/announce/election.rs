//! What one edge announces, from what it sees of the others' Leases and announcements.
//!
//! The clocks of machines differ, so a Lease's times are not read as times: an edge lives while its Lease
//! keeps changing, by the clock of who looks at it. Nor does silence mean anything while the API is
//! silent as a whole; that it speaks is proved by this edge's own Lease, whose changes come back by the
//! same watch as those of the others. Hence three conditions:
//!
//! | | takes addresses | lets go of those that belong to another | yields to an announcement |
//! |---|---|---|---|
//! | settled: the API has spoken for [`RECOVERY`] | yes | after [`LINGER`], or its announcement | of what belongs to another |
//! | the API speaks again, or for the first time | no | no | yes |
//! | the API is silent | no | no | yes |
//!
//! Two edges that announce one address for a moment do no harm: both forward its packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::rendezvous;

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
/// How long an announcement of an address that belongs here stands: its sender may be about to see that.
pub const DEFENCE: Duration = Duration::from_millis(500);

/// An edge, as its Lease shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Its name.
    pub name: String,
    /// Addresses by which pods name their node; none where it is no Node.
    pub addresses: BTreeSet<IpAddr>,
    /// What every renewal changes.
    pub renewal: String,
}

/// The edges that may announce an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Candidates {
    /// All that are alive.
    #[default]
    Every,
    /// Of those that are Nodes, the ones with one of these addresses (`externalTrafficPolicy: Local`).
    NodesAt(BTreeSet<IpAddr>),
}

impl Candidates {
    fn include(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        match self {
            Self::Every => true,
            // To a machine that is no Node, all backends are elsewhere.
            Self::NodesAt(nodes) => addresses.is_empty() || !addresses.is_disjoint(nodes),
        }
    }
}

/// What an edge should announce.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that are to be announced once more, since another machine has done it.
    pub again: BTreeSet<IpAddr>,
}

/// The state of one edge.
#[derive(Debug)]
pub struct Election {
    name: String,
    eligible: Option<bool>,
    wanted: Option<BTreeMap<IpAddr, Candidates>>,
    /// All edges with a Lease, this one included.
    edges: BTreeMap<String, Seen>,
    contact: Option<Contact>,
    held: BTreeMap<IpAddr, Held>,
    /// Announcements of others that are to be judged.
    claimed: BTreeSet<IpAddr>,
    /// What belongs here, and the live edges that it was computed from.
    share: BTreeSet<IpAddr>,
    share_of: Option<BTreeMap<String, BTreeSet<IpAddr>>>,
}

#[derive(Debug)]
struct Seen {
    edge: Edge,
    changed: Instant,
}

/// The API speaks.
#[derive(Clone, Copy, Debug)]
struct Contact {
    since: Instant,
    last: Instant,
}

impl Contact {
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
            claimed: BTreeSet::new(),
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
        let known = self.edges.get(&edge.name);
        let unchanged = known.filter(|seen| seen.edge.renewal == edge.renewal);
        let changed = unchanged.map_or(now, |seen| seen.changed);
        // What the first list holds of this edge may be of its life before.
        if edge.name == self.name && known.is_some() && unchanged.is_none() {
            self.hear(now);
        }
        self.edges.insert(edge.name.clone(), Seen { edge, changed });
    }

    /// Takes note that a Lease is gone.
    pub fn forget(&mut self, edge: &str) {
        self.edges.remove(edge);
    }

    /// Takes the Leases of a list for all that there are.
    pub fn retain(&mut self, edges: &BTreeSet<String>) {
        self.edges.retain(|name, _| edges.contains(name));
    }

    /// Counts the edges that have a Lease, this one included.
    pub fn edges(&self) -> usize {
        self.edges.len()
    }

    /// Takes note that another machine has announced an address.
    pub fn claim(&mut self, address: IpAddr) {
        self.claimed.insert(address);
    }

    fn hear(&mut self, now: Instant) {
        let since = match &self.contact {
            Some(contact) if now < contact.ends() => contact.since,
            _ => now,
        };
        self.contact = Some(Contact { since, last: now });
    }

    /// Tells whether others' silence means something.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.contact
            .is_some_and(|contact| now < contact.ends() && now >= contact.settles())
    }

    /// Returns what this edge should announce.
    pub fn step(&mut self, now: Instant) -> Holdings {
        let claimed = std::mem::take(&mut self.claimed);
        if let Some(wanted) = &self.wanted {
            self.held.retain(|address, _| wanted.contains_key(address));
        }
        let is_judged = match (self.eligible, &self.wanted) {
            (Some(true), Some(_)) => self.is_settled(now),
            (Some(false), _) => true,
            _ => false,
        };
        if is_judged {
            self.share_out(now);
            self.take_and_let_go(&claimed, now);
        } else {
            self.held.retain(|address, _| !claimed.contains(address));
        }
        self.held
            .retain(|_, held| held.release.is_none_or(|release| now < release));
        let mut holdings = Holdings::default();
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

    /// Computes what belongs to this edge, if that may be something else than before.
    fn share_out(&mut self, now: Instant) {
        let alive = |seen: &&Seen| seen.edge.name != self.name && self.is_alive(seen, now);
        let live = self.edges.values().filter(alive);
        let mut live: BTreeMap<String, BTreeSet<IpAddr>> = live
            .map(|seen| (seen.edge.name.clone(), seen.edge.addresses.clone()))
            .collect();
        if self.eligible == Some(true)
            && let Some(own) = self.edges.get(&self.name)
        {
            live.insert(self.name.clone(), own.edge.addresses.clone());
        }
        if self.share_of.as_ref() == Some(&live) {
            return;
        }
        let belongs_here = |(address, candidates): &(&IpAddr, &Candidates)| {
            let edges = live.iter();
            let edges = edges.filter(|(_, addresses)| candidates.include(addresses));
            rendezvous::holder(**address, edges.map(|(name, _)| name.as_str()))
                == Some(self.name.as_str())
        };
        let wanted = self.wanted.iter().flatten();
        self.share = wanted
            .filter(belongs_here)
            .map(|(address, _)| *address)
            .collect();
        self.share_of = Some(live);
    }

    /// Tells whether an edge has renewed its Lease, or could not have shown it.
    fn is_alive(&self, seen: &Seen, now: Instant) -> bool {
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
            if claimed.contains(address) {
                held.defend.get_or_insert(now + DEFENCE);
            }
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
