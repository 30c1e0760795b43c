//! Which edge announces which address, from the Leases by which edges tell that.
//!
//! An address that moves is for a moment announced by both edges or by none, and the loss of an edge moves all of its
//! addresses. So changes are taken over together, a little later, and the moment in between is never written. Of two
//! edges that tell the same address, the one that began to later has it: the other one was lost, and its Lease still
//! counts for a while.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use kube::ResourceExt;
use tokio::time::Instant;

use super::crd::Condition;
use crate::kubernetes::leases::announced::{self, DURATION, PREFIX};
use crate::kubernetes::list_watch::Event;
use crate::kubernetes::schema::Lease;

/// The condition of a Service that says which edges announce its addresses.
pub(super) const ANNOUNCED: &str = "guideway.dev/Announced";
/// How long changes gather.
const SETTLE: Duration = Duration::from_secs(3);
/// How long a renewal may take to arrive.
const LATENESS: Duration = Duration::from_secs(5);

/// What the edges tell, and what of it was taken over.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    edges: BTreeMap<String, Told>,
    is_listed: bool,
    announcers: Option<Announcers>,
    /// When changes are taken over; `None` if there are none.
    due: Option<Instant>,
    settled: Option<Instant>,
}

/// Who announces the addresses.
#[derive(Debug, PartialEq, Eq)]
struct Announcers {
    /// Whether there are edges that announce addresses at all.
    is_anybody: bool,
    /// Whether every edge tells of all its addresses.
    is_complete: bool,
    /// The announced addresses, each with its edge.
    edges: BTreeMap<IpAddr, String>,
}

/// What an edge tells.
#[derive(Debug)]
struct Told {
    version: u64,
    /// When that version was first seen.
    renewed: Instant,
    /// Its addresses, each with the version of the Lease that had it first.
    addresses: BTreeMap<IpAddr, u64>,
    has_more: bool,
}

impl Told {
    fn end(&self) -> Instant {
        self.renewed + DURATION + LATENESS
    }
}

impl Announcements {
    /// Applies an event of the watch.
    pub(super) fn take(&mut self, event: Event<Lease>, now: Instant) {
        let is_news = match event {
            // An unreadable Lease tells nothing new.
            Event::Init | Event::Watching | Event::InitApply(Err(_)) | Event::Apply(Err(_)) => {
                false
            }
            Event::InitApply(Ok(lease)) | Event::Apply(Ok(lease)) => self.hear(&lease, now),
            Event::InitDone(listed) => {
                let before = self.edges.len();
                let names = listed.iter().map(|lease| &*lease.name);
                let edges: Vec<&str> = names.filter_map(|name| name.strip_prefix(PREFIX)).collect();
                self.edges.retain(|edge, _| edges.contains(&edge.as_str()));
                !std::mem::replace(&mut self.is_listed, true) || self.edges.len() != before
            }
            Event::Delete(lease) => {
                let edge = lease.name.strip_prefix(PREFIX);
                edge.is_some_and(|edge| self.edges.remove(edge).is_some())
            }
        };
        if is_news && self.is_listed {
            self.due.get_or_insert(now + SETTLE);
        }
    }

    /// Records what an edge tells. Returns whether it is new.
    fn hear(&mut self, lease: &Lease, now: Instant) -> bool {
        let Some(told) = announced::read(lease) else {
            return false;
        };
        let version = lease.resource_version();
        let version = version
            .and_then(|version| version.parse().ok())
            .unwrap_or(0);
        let known = self.edges.get(&told.edge);
        if known.is_some_and(|known| known.version == version) {
            // It was listed again, not renewed.
            return false;
        }
        let known = known.filter(|known| now < known.end());
        let since =
            |address: &IpAddr| known.and_then(|known| known.addresses.get(address).copied());
        let addresses = told.addresses.iter();
        let addresses = addresses.map(|address| (*address, since(address).unwrap_or(version)));
        let new = Told {
            version,
            renewed: now,
            addresses: addresses.collect(),
            has_more: told.has_more,
        };
        let is_news = known.is_none_or(|known| {
            (&known.addresses, known.has_more) != (&new.addresses, new.has_more)
        });
        self.edges.insert(told.edge, new);
        is_news
    }

    /// Returns when [`Self::settle`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_ahead = |end: &Instant| self.settled.is_some_and(|settled| *end > settled);
        let ends = self.edges.values().map(Told::end).filter(is_ahead);
        self.due.into_iter().chain(ends).min()
    }

    /// Takes over what the edges tell that are not lost. Returns whether that changes anything.
    pub(super) fn settle(&mut self, now: Instant) -> bool {
        self.due = None;
        self.settled = Some(now);
        let live = self.edges.iter().filter(|(_, told)| now < told.end());
        let mut holders: BTreeMap<IpAddr, (u64, &String)> = BTreeMap::new();
        for (edge, told) in live.clone() {
            for (address, since) in &told.addresses {
                let holder = holders.entry(*address).or_insert((*since, edge));
                *holder = (*holder).max((*since, edge));
            }
        }
        let announcers = Some(Announcers {
            is_anybody: !self.edges.is_empty(),
            is_complete: { live }.all(|(_, told)| !told.has_more),
            edges: holders
                .into_iter()
                .map(|(address, (_, edge))| (address, edge.clone()))
                .collect(),
        });
        let is_change = self.announcers != announcers;
        self.announcers = announcers;
        is_change
    }

    /// Returns the condition of a Service that has these addresses; `None` if it should have none. Until the edges are
    /// known, this is the one that it has.
    pub(super) fn condition(
        &self,
        addresses: &[IpAddr],
        before: Option<&Condition>,
        now: &str,
    ) -> Option<Condition> {
        let Some(announcers) = &self.announcers else {
            return before.cloned();
        };
        if addresses.is_empty() || !announcers.is_anybody {
            return None;
        }
        let edges = addresses
            .iter()
            .map(|address| announcers.edges.get(address));
        let is_whole = { edges.clone() }.all(|edge| edge.is_some());
        let (status, reason, nobody) = match announcers.is_complete {
            _ if is_whole => ("True", "Announced", ""),
            true => ("False", "NotAnnounced", "nobody"),
            false => ("Unknown", "TooManyAddresses", "an edge that is not known"),
        };
        let named = addresses.iter().zip(edges).map(|(address, edge)| {
            let edge = edge.map_or(nobody, String::as_str);
            format!("{address} by {edge}")
        });
        let condition = Condition {
            kind: ANNOUNCED.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: named.collect::<Vec<_>>().join(", "),
            last_transition_time: String::new(),
        };
        Some(condition.since(before, now))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::index::objects::ObjectName;

    const NEVER: Duration = Duration::from_secs(1_000_000);

    fn lease(edge: &str, version: u64, addresses: &str) -> Event<Lease> {
        let lease = json!({
            "metadata": {
                "name": format!("{PREFIX}{edge}"), "resourceVersion": version.to_string(),
                "annotations": {"guideway.dev/announced": addresses},
            },
            "spec": {"holderIdentity": edge},
        });
        Event::Apply(Ok(serde_json::from_value(lease).unwrap()))
    }

    fn names(edges: &[&str]) -> Event<Lease> {
        let names = edges.iter();
        let names = names.map(|edge| ObjectName::new("edges", format!("{PREFIX}{edge}")));
        Event::InitDone(names.collect())
    }

    /// Settles whenever that is due until a time, and returns what the condition of three addresses says then.
    fn at(announcements: &mut Announcements, end: Instant) -> String {
        while let Some(due) = announcements.due().filter(|due| *due <= end) {
            announcements.settle(due);
        }
        let addresses = [1, 2].map(|number| [192, 0, 2, number].into());
        let condition = announcements.condition(&addresses, None, "now");
        condition.map_or_else(String::new, |condition| {
            format!("{}: {}", condition.status, condition.message)
        })
    }

    fn begin(now: Instant) -> Announcements {
        let mut announcements = Announcements::default();
        announcements.take(Event::Init, now);
        announcements.take(lease("n1", 1, "192.0.2.1,192.0.2.2"), now);
        announcements.take(lease("n2", 2, ""), now);
        assert_eq!(announcements.due(), None, "not all are known");
        announcements.take(names(&["n1", "n2"]), now);
        announcements
    }

    #[test]
    fn address_that_moves_is_taken_over_once_whoever_tells_first() {
        let now = Instant::now();
        for n2_first in [false, true] {
            let mut announcements = begin(now);
            let later = now + SETTLE;
            let before = at(&mut announcements, later);
            assert_eq!(before, "True: 192.0.2.1 by n1, 192.0.2.2 by n1");
            let mut moves = [lease("n1", 3, "192.0.2.1"), lease("n2", 4, "192.0.2.2")];
            if n2_first {
                moves.reverse();
            }
            for event in moves {
                announcements.take(event, later);
            }
            assert_eq!(announcements.due(), Some(later + SETTLE));
            assert!(announcements.settle(later + SETTLE));
            let after = at(&mut announcements, later + SETTLE);
            assert_eq!(after, "True: 192.0.2.1 by n1, 192.0.2.2 by n2");
            // Renewals are no news.
            announcements.take(lease("n1", 5, "192.0.2.1"), later + SETTLE);
            assert!(announcements.due() > Some(later + 2 * SETTLE));
        }
    }

    #[test]
    fn edge_that_is_lost_yields_to_another_at_once_and_is_forgotten_later() {
        let now = Instant::now();
        let mut announcements = begin(now);
        at(&mut announcements, now + SETTLE);
        announcements.take(lease("n2", 3, "192.0.2.1"), now + SETTLE);
        let after = at(&mut announcements, now + 2 * SETTLE);
        assert_eq!(after, "True: 192.0.2.1 by n2, 192.0.2.2 by n1");
        let lost = now + DURATION + LATENESS;
        let after = at(&mut announcements, lost);
        assert_eq!(after, "False: 192.0.2.1 by n2, 192.0.2.2 by nobody");
        // The other one goes on, and a list shows the old Lease again.
        announcements.take(lease("n2", 4, "192.0.2.1"), lost);
        announcements.take(lease("n1", 1, "192.0.2.1,192.0.2.2"), lost);
        announcements.take(names(&["n1", "n2"]), lost);
        assert_eq!(at(&mut announcements, lost + SETTLE), after);
        // It is back.
        announcements.take(lease("n1", 9, "192.0.2.1"), lost + SETTLE);
        let back = at(&mut announcements, lost + 2 * SETTLE);
        assert_eq!(back, "False: 192.0.2.1 by n1, 192.0.2.2 by nobody");

        let end = lost + NEVER;
        let silent = at(&mut announcements, end);
        assert_eq!(silent, "False: 192.0.2.1 by nobody, 192.0.2.2 by nobody");
        assert_eq!(announcements.due(), None);
        announcements.take(names(&[]), end);
        assert_eq!(
            at(&mut announcements, end + SETTLE),
            "",
            "no edge announces"
        );
    }

    #[test]
    fn edge_with_more_addresses_than_it_tells_makes_the_rest_unknown() {
        let now = Instant::now();
        let mut announcements = begin(now);
        announcements.take(lease("n1", 3, "192.0.2.1,more"), now);
        let told = at(&mut announcements, now + SETTLE);
        assert_eq!(
            told,
            "Unknown: 192.0.2.1 by n1, 192.0.2.2 by an edge that is not known"
        );
    }

    #[test]
    fn condition_stays_until_the_edges_are_known() {
        let condition = Condition {
            kind: ANNOUNCED.to_owned(),
            status: "True".to_owned(),
            reason: "Announced".to_owned(),
            message: "192.0.2.1 by n9".to_owned(),
            last_transition_time: "then".to_owned(),
        };
        let mut announcements = Announcements::default();
        let address = [[192, 0, 2, 1].into()];
        let kept = announcements.condition(&address, Some(&condition), "now");
        assert_eq!(kept.as_ref(), Some(&condition));
        let now = Instant::now();
        announcements.take(lease("n1", 1, "192.0.2.1"), now);
        announcements.take(names(&["n1"]), now);
        announcements.settle(now + SETTLE);
        let told = announcements.condition(&address, Some(&condition), "now");
        let told = told.unwrap();
        assert_eq!(told.message, "192.0.2.1 by n1");
        assert_eq!(told.last_transition_time, "then");
        assert_eq!(announcements.condition(&[], Some(&condition), "now"), None);
    }
}
