//! Decides what one edge announces, from the Leases and announcements of the others.
//!
//! Clocks of machines differ, so the times in Leases are ignored. An edge is alive while its Lease keeps
//! changing, by the observer's clock. If the API itself is silent, an unchanged Lease means nothing. This
//! edge's own Lease proves that the API speaks: its changes come back by the same watch as those of the others.
//! Hence three states:
//!
//! | state | takes addresses | gives up those of another edge | yields to an announcement |
//! |---|---|---|---|
//! | settled: the API has spoken for [`API_RECOVERY`] | yes | after [`HANDOVER_TIMEOUT`], or when heard | of another edge's address |
//! | the API speaks again, or for the first time | no | no | of an edge |
//! | the API is silent | no | no | of an edge |
//!
//! Any machine on the segment can send an announcement. It counts as an edge's if its MAC is in a Lease, or if
//! it is repeated for [`UNKNOWN_EDGE_DELAY`], as an edge unknown to this one would do. This edge answers any other
//! announcement by one of its own. Two edges may announce the same address for a moment: both forward its
//! packets.
//!
//! A drained edge says so in its Lease and renews it no more. The others share out its addresses at once. It keeps
//! each until it hears another edge announce it, however long that takes: so no packet is lost.
//!
//! Edges of the previous version have their Leases in another namespace ([`LeaseNamespace::Shared`]) and see no
//! others.
//! While such an edge is alive, it keeps what would be its share among edges of its version.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::edge::{Candidates, Edge, ElectionResult, LeaseNamespace};
use super::{Mac, rendezvous};

/// How long an edge with an unchanged Lease counts as alive.
pub const LEASE_DURATION: Duration = Duration::from_secs(2);
/// Time between two renewals of an edge's Lease.
pub const RENEWAL_PERIOD: Duration = Duration::from_millis(700);
/// How long the API must have spoken before another edge's silence counts. By then all live edges have renewed
/// their Leases, even if they retry slowly.
pub const API_RECOVERY: Duration = Duration::from_secs(3);
/// How long this edge keeps an address that belongs to another edge, unless it hears that edge announce it. The
/// other edge may not have settled yet.
pub const HANDOVER_TIMEOUT: Duration = API_RECOVERY.saturating_add(Duration::from_secs(1));
/// How long an unknown machine must keep announcing an address before it counts as an edge.
pub const UNKNOWN_EDGE_DELAY: Duration = Duration::from_secs(3);
/// Delay before answering an announcement of an address that belongs here. The sender may be about to give it up.
pub const DEFENCE_DELAY: Duration = Duration::from_millis(500);

/// The election as one edge sees it.
#[derive(Debug)]
pub struct Election {
    name: String,
    eligible: Option<bool>,
    wanted: Option<BTreeMap<IpAddr, Candidates>>,
    /// All edges that have a Lease, including this one.
    edges: BTreeMap<(LeaseNamespace, String), ListedEdge>,
    /// Whether the list of Leases has been complete.
    is_listed: bool,
    contact: Option<ApiContact>,
    held: BTreeMap<IpAddr, Held>,
    /// Announcements by other machines that are not decided yet.
    claims: BTreeMap<IpAddr, ForeignAnnouncement>,
    /// Machines that were reported as strangers.
    strangers: BTreeMap<IpAddr, Mac>,
    /// The addresses that belong to this edge. `share_of` has the live edges that it was computed from.
    share: BTreeSet<IpAddr>,
    share_of: Option<Live>,
}

/// The live edges, each with the addresses by which endpoints name it.
type Live = BTreeMap<(LeaseNamespace, String), BTreeSet<IpAddr>>;

/// An announcement by another machine.
#[derive(Clone, Copy, Debug)]
struct ForeignAnnouncement {
    mac: Mac,
    /// When the machine began to announce the address.
    since: Instant,
    /// When it last did.
    last: Instant,
    /// Whether it has done so since the last step.
    is_new: bool,
}

/// An edge with a Lease, and when the Lease last changed.
#[derive(Debug)]
struct ListedEdge {
    edge: Edge,
    changed: Instant,
}

/// The time during which the API has been speaking.
#[derive(Clone, Copy, Debug)]
struct ApiContact {
    since: Instant,
    last: Instant,
}

impl ApiContact {
    /// Returns when the API counts as silent. This must come before the others' last renewals, up to one period
    /// older, are too old.
    fn ends(&self) -> Instant {
        self.last + (LEASE_DURATION - RENEWAL_PERIOD)
    }

    fn settles(&self) -> Instant {
        self.since + API_RECOVERY
    }
}

/// An address that this edge announces.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// When to stop announcing it.
    release: Option<Instant>,
    /// When to announce it once more.
    defend: Option<Instant>,
}

impl Election {
    /// Creates the election. `announced` are the addresses that an earlier agent left announced.
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

    /// Sets the addresses that some edge must announce, each with its candidates.
    pub fn want(&mut self, addresses: BTreeMap<IpAddr, Candidates>) {
        self.wanted = Some(addresses);
        self.share_of = None;
    }

    /// Sets whether this edge may announce addresses at all. Before the first call it keeps what it has.
    pub fn set_eligible(&mut self, eligible: bool) {
        self.eligible = Some(eligible);
    }

    /// Records the current state of a Lease.
    pub fn see(&mut self, edge: Edge, now: Instant) {
        let key = (edge.namespace, edge.name.clone());
        let known = self.edges.get(&key);
        let unchanged = known.filter(|seen| seen.edge.renewal == edge.renewal);
        let changed = unchanged.map_or(now, |seen| seen.changed);
        // In the first list, this edge's own Lease may be left over from an earlier process.
        if key.0 == LeaseNamespace::Own
            && self.is_own(&key)
            && known.is_some()
            && unchanged.is_none()
        {
            self.hear(now);
        }
        self.edges.insert(key, ListedEdge { edge, changed });
    }

    /// Records that a Lease is gone.
    pub fn forget(&mut self, namespace: LeaseNamespace, edge: &str) {
        self.edges.remove(&(namespace, edge.to_owned()));
    }

    /// Forgets the Leases of a namespace that a complete list does not have.
    pub fn retain(&mut self, namespace: LeaseNamespace, edges: &BTreeSet<String>) {
        self.is_listed |= namespace == LeaseNamespace::Own;
        self.edges
            .retain(|(of, name), _| *of != namespace || edges.contains(name));
    }

    /// Returns whether this edge is drained.
    pub fn is_drained(&self) -> bool {
        let own = self.edges.get(&(LeaseNamespace::Own, self.name.clone()));
        own.is_some_and(|seen| seen.edge.is_drained)
    }

    /// Returns the number of edges that have a Lease, including this one.
    pub fn edges(&self) -> usize {
        self.edges.len()
    }

    /// Records that another machine has announced an address.
    pub fn claim(&mut self, address: IpAddr, mac: Mac, now: Instant) {
        let before = self.claims.get(&address);
        let goes_on =
            before.filter(|claim| claim.mac == mac && now < claim.last + UNKNOWN_EDGE_DELAY);
        let since = goes_on.map_or(now, |claim| claim.since);
        let claim = ForeignAnnouncement {
            mac,
            since,
            last: now,
            is_new: true,
        };
        self.claims.insert(address, claim);
    }

    /// Drops addresses that others have announced while this edge was not answering.
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

    /// Returns whether the API has spoken for long enough that another edge's silence counts.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.contact
            .is_some_and(|contact| now < contact.ends() && now >= contact.settles())
    }

    /// Advances the election to `now`. Returns what this edge should announce.
    pub fn step(&mut self, now: Instant) -> ElectionResult {
        if let Some(wanted) = &self.wanted {
            self.held.retain(|address, _| wanted.contains_key(address));
        }
        let mut result = ElectionResult {
            is_drained: self.is_drained(),
            ..ElectionResult::default()
        };
        let (claimed, disputed) = self.judge_claims(&mut result.strangers, now);
        let is_judged = match (self.eligible, &self.wanted) {
            (Some(true), Some(_)) => self.is_settled(now),
            (Some(false), _) => true,
            _ => false,
        };
        if is_judged {
            self.share_out(now);
            self.take_and_let_go(&claimed, now);
            // Another edge that announces an address of ours may be about to give it up.
            let claimed_here = claimed.intersection(&self.share).copied();
            self.defend(&disputed.into_iter().chain(claimed_here).collect(), now);
        } else {
            self.held.retain(|address, _| !claimed.contains(address));
            self.defend(&disputed, now);
        }
        self.held
            .retain(|_, held| held.release.is_none_or(|release| now < release));
        for (address, held) in &mut self.held {
            result.addresses.insert(*address);
            if held.defend.is_some_and(|defend| now >= defend) {
                held.defend = None;
                result.again.insert(*address);
            }
        }
        result
    }

    /// Returns when [`Election::step`] must run although nothing happens.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let contact = self.contact.iter();
        let contact = contact.flat_map(|contact| [contact.ends(), contact.settles()]);
        let others = self
            .edges
            .values()
            .map(|seen| seen.changed + LEASE_DURATION);
        let held = self.held.values();
        let held = held.flat_map(|held| held.release.into_iter().chain(held.defend));
        contact
            .chain(others)
            .chain(held)
            .filter(|at| *at > now)
            .min()
    }

    /// Judges the announcements of other machines. Returns the addresses that edges have, and those that other
    /// machines have claimed since the last step.
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
            let insists = claim.last >= claim.since + UNKNOWN_EDGE_DELAY;
            let is_edge = self.is_edge(claim.mac, now);
            if is_edge || insists {
                claimed.insert(*address);
            } else if std::mem::take(&mut claim.is_new) {
                disputed.insert(*address);
            }
            // A stranger is a machine that no Lease lists. Before all Leases are known, only one that insists counts.
            let is_strange = !is_edge && (self.is_listed || insists);
            if is_strange && self.strangers.insert(*address, claim.mac) != Some(claim.mac) {
                strangers.push((*address, claim.mac));
            }
            // Undecided claims are kept: a Lease with the MAC may still appear, or the machine may insist.
            !claimed.contains(address) && now < claim.last + UNKNOWN_EDGE_DELAY
        });
        self.claims = pending;
        let held = &self.held;
        self.strangers
            .retain(|address, _| held.contains_key(address));
        (claimed, disputed)
    }

    /// Returns whether a MAC belongs, or may belong, to another edge.
    fn is_edge(&self, mac: Mac, now: Instant) -> bool {
        let mut others = self.edges.iter().filter(|(key, _)| !self.is_own(key));
        // A Lease of the previous version does not list MACs, and stays when its edge is gone.
        let may_have = |seen: &ListedEdge| seen.edge.macs.is_empty() && self.is_alive(seen, now);
        others.any(|(_, seen)| seen.edge.macs.contains(&mac) || may_have(seen))
    }

    fn is_own(&self, (_, name): &(LeaseNamespace, String)) -> bool {
        // A Lease with this edge's name in the other namespace is left over from this edge's earlier version.
        *name == self.name
    }

    /// Schedules another announcement of these addresses.
    fn defend(&mut self, addresses: &BTreeSet<IpAddr>, now: Instant) {
        for (address, held) in &mut self.held {
            if held.release.is_none() && addresses.contains(address) {
                held.defend.get_or_insert(now + DEFENCE_DELAY);
            }
        }
    }

    /// Computes which addresses belong to this edge, if the inputs have changed.
    fn share_out(&mut self, now: Instant) {
        let others = self.edges.iter().filter(|(key, _)| !self.is_own(key));
        let mut live: Live = others
            .filter(|(_, seen)| !seen.edge.is_drained && self.is_alive(seen, now))
            .map(|(key, seen)| (key.clone(), seen.edge.addresses.clone()))
            .collect();
        let own = (LeaseNamespace::Own, self.name.clone());
        if self.eligible == Some(true)
            && let Some(seen) = self.edges.get(&own)
        {
            live.insert(own, seen.edge.addresses.clone());
        }
        if self.share_of.as_ref() == Some(&live) {
            return;
        }
        let belongs_here = |(address, candidates): &(&IpAddr, &Candidates)| {
            let holder = |namespace: LeaseNamespace| {
                let edges = live.iter().filter(|((of, _), _)| *of == namespace);
                let edges = edges.filter(|(_, addresses)| candidates.include(addresses));
                rendezvous::holder(**address, edges.map(|((_, name), _)| name.as_str()))
            };
            holder(LeaseNamespace::Shared).is_none()
                && holder(LeaseNamespace::Own) == Some(self.name.as_str())
        };
        let wanted = self.wanted.iter().flatten();
        self.share = wanted
            .filter(belongs_here)
            .map(|(address, _)| *address)
            .collect();
        self.share_of = Some(live);
    }

    /// Returns whether an edge has renewed its Lease in time, or the API was too silent to show it.
    fn is_alive(&self, seen: &ListedEdge, now: Instant) -> bool {
        // Before the API falls silent, the last renewals of different edges may be one period apart.
        let heard_after = seen.changed + (LEASE_DURATION - RENEWAL_PERIOD);
        let has_been_heard = self
            .contact
            .is_some_and(|contact| contact.last >= heard_after);
        now < seen.changed + LEASE_DURATION || !has_been_heard
    }

    fn take_and_let_go(&mut self, claimed: &BTreeSet<IpAddr>, now: Instant) {
        for address in &self.share {
            let held = self.held.entry(*address).or_default();
            held.release = None;
        }
        let is_drained = self.is_drained();
        for (address, held) in &mut self.held {
            if !self.share.contains(address) {
                held.defend = None;
                let release = match claimed.contains(address) {
                    true => Some(now),
                    false if is_drained => None,
                    false => Some(now + HANDOVER_TIMEOUT),
                };
                held.release = held.release.into_iter().chain(release).min();
            }
        }
    }
}

#[cfg(test)]
mod tests;
