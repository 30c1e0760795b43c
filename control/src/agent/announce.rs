//! Announcements: keeps the datapath answering for the right addresses, and tells neighbours of a change.
//!
//! Which addresses belong here, the configuration says, or in a cluster the election of the edges: that
//! hears from here what there is to announce, once it is served, and what other machines announce.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::{OrdMap, OrdSet};
use tokio::sync::{mpsc, watch};

use fastpath::announce::{self, Announcer, Link};
use fastpath::tables::AnnouncedElsewhere;

use super::Agent;
use super::apply::table;
use super::problems::Item;
use crate::announce::{Candidates, Holdings};
use crate::chain::chain;
use crate::desired::ServiceKey;
use crate::kubernetes::leases::{Heard, Shown};

/// When an address is announced, counted from its taking over: a neighbour may miss a frame.
const REPEATS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
];
/// How often other machines' announcements of the same addresses are looked for.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// What is announced and where, as last put in force.
#[derive(Debug, Default)]
pub(super) struct Announcing {
    announcer: Option<Announcer>,
    links: Vec<Link>,
    addresses: BTreeSet<IpAddr>,
    /// Announcements that are still to be sent.
    repeats: Vec<(Instant, BTreeSet<IpAddr>)>,
    /// When other machines' announcements were last looked for; nothing while nothing is announced.
    looked: Option<Instant>,
    /// Who else announces an address.
    rivals: BTreeMap<IpAddr, [u8; 6]>,
    /// Who decides, where the configuration does not.
    election: Option<Ends>,
}

/// This side's ends of what passes to and from the election.
#[derive(Debug)]
struct Ends {
    shown: watch::Sender<Option<Shown>>,
    claims: mpsc::UnboundedSender<BTreeSet<IpAddr>>,
    /// What belongs here.
    share: BTreeSet<IpAddr>,
    /// Addresses that were assigned to services.
    assigned: OrdSet<IpAddr>,
    /// Of services with the policy `Local` at these, the Nodes that announce them.
    announcers: Announcers,
}

/// Addresses of Nodes, by service.
type Announcers = OrdMap<ServiceKey, Arc<BTreeSet<IpAddr>>>;

impl Announcing {
    /// Takes the addresses that were assigned to services, and which Nodes announce those with the policy `Local`.
    pub(super) fn set_announceable(&mut self, assigned: OrdSet<IpAddr>, announcers: Announcers) {
        if let Some(election) = &mut self.election {
            election.assigned = assigned;
            election.announcers = announcers;
        }
    }

    /// Returns how long until there is something to send or to look for.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        let repeats = self.repeats.iter().map(|(at, _)| *at);
        let look = self.looked.map(|looked| looked + LOOK_PAUSE);
        let next = repeats.chain(look).min()?;
        Some(next.saturating_duration_since(now))
    }

    /// Plans the announcements of addresses, in place of those that are still to be sent.
    fn plan(&mut self, addresses: &BTreeSet<IpAddr>, now: Instant) {
        for (_, planned) in &mut self.repeats {
            planned.retain(|address| !addresses.contains(address));
        }
        let new = REPEATS.map(|delay| (now + delay, addresses.clone()));
        self.repeats.extend(new);
        self.repeats.retain(|(_, planned)| !planned.is_empty());
    }

    /// Sends what is due of the addresses that are still announced.
    fn send(&mut self, now: Instant) {
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

    /// Tells the election who else announces the same addresses, or whoever reads the log, once.
    fn report(&mut self, mut claims: Vec<AnnouncedElsewhere>) {
        // On another link of this machine in the same segment.
        claims.retain(|claim| self.links.iter().all(|link| link.mac != claim.mac));
        if let Some(election) = self.election.as_ref().filter(|_| !claims.is_empty()) {
            let addresses = claims.iter().map(|claim| claim.address);
            // Whoever is to hear it ends with the agent.
            let _ = election.claims.send(addresses.collect());
            return;
        }
        self.rivals
            .retain(|address, _| self.addresses.contains(address));
        for AnnouncedElsewhere { address, mac } in claims {
            if self.rivals.insert(address, mac) != Some(mac) {
                let [a, b, c, d, e, f] = mac;
                let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
                tracing::warn!(%address, mac, "another machine announces this address too");
            }
        }
    }
}

impl Agent {
    /// Has the datapath answer for the addresses that belong here, and tells neighbours of those that are new.
    pub(super) fn announce(&mut self) -> Vec<(Item, Result<(), String>)> {
        // What an earlier agent left goes on being answered for.
        if self.waits_for_state() {
            return Vec::new();
        }
        let desired = &self.config.desired;
        let rules = desired.announce.as_ref().filter(|_| desired.edge);
        let names = rules.map(|rules| rules.interfaces.clone());
        let names = names.unwrap_or_default();
        if names.is_empty() && self.tables.announced().is_empty() {
            return Vec::new();
        }
        let election = self.announcing.election.as_ref();
        let belongs_here = |vip: &&IpAddr| match election {
            Some(election) => election.share.contains(*vip),
            // In a cluster nobody has the addresses without an election.
            None => self.cluster.is_none(),
        };
        let vips = desired.vips.iter().filter(belongs_here);
        let wanted: BTreeSet<IpAddr> = match rules {
            Some(rules) => vips.filter(|vip| rules.includes(vip)).copied().collect(),
            None => BTreeSet::new(),
        };
        let mut outcomes = Vec::new();
        match announce::links(&names) {
            Ok(links) => {
                outcomes.extend(names.iter().map(|name| self.judge_link(name, &links)));
                let outcome = self.tables.set_announce_links(&links);
                outcomes.push((Item::Table("announce_links"), table(outcome)));
                let before = std::mem::replace(&mut self.announcing.links, links);
                if !before.is_empty() && before != self.announcing.links {
                    self.announcing.plan(&wanted, Instant::now());
                }
            }
            Err(error) => outcomes.push((Item::Table("announce_links"), Err(chain(&error)))),
        }
        let before = self.tables.announced();
        let outcome = self.tables.set_announced(&wanted);
        outcomes.push((Item::Table("announced"), table(outcome)));
        let new: BTreeSet<IpAddr> = wanted.difference(&before).copied().collect();
        if !new.is_empty() {
            tracing::info!(addresses = new.len(), "announced from here");
        }
        let lost = before.difference(&wanted).count();
        if lost > 0 {
            tracing::info!(addresses = lost, "not announced from here any more");
        }
        let now = Instant::now();
        self.announcing.looked = (!wanted.is_empty()).then_some(now);
        self.announcing.addresses = wanted;
        self.announcing.plan(&new, now);
        self.announcing.send(now);
        outcomes
    }

    /// Leaves it to an election what is announced; until it has begun, that stays which is.
    pub(crate) fn elect(&mut self) -> (BTreeSet<IpAddr>, Heard) {
        let share = self.tables.announced();
        let (shown, to_show) = watch::channel(None);
        let (claims, to_claim) = mpsc::unbounded_channel();
        self.announcing.election = Some(Ends {
            shown,
            claims,
            share: share.clone(),
            assigned: OrdSet::new(),
            announcers: OrdMap::new(),
        });
        let heard = Heard {
            shown: to_show,
            claims: to_claim,
        };
        (share, heard)
    }

    /// Shows the election what there is to announce, which is served by then.
    pub(super) fn show_announceable(&self) {
        let desired = &self.config.desired;
        let Some(election) = &self.announcing.election else {
            return;
        };
        let mut wanted: BTreeMap<IpAddr, Candidates> = BTreeMap::new();
        let rules = desired.announce.as_ref().filter(|_| desired.edge);
        if let Some(rules) = rules {
            let ours = election.assigned.iter().filter(|one| rules.includes(one));
            wanted.extend(ours.map(|address| (*address, Candidates::Every)));
            restrict(&mut wanted, &election.announcers);
        }
        let nodes = desired.nodes.intersection(&self.machine.addresses);
        let shown = Some(Shown {
            wanted,
            node_addresses: nodes.copied().collect(),
            node_selector: rules.map(|rules| rules.node_selector.clone()),
        });
        election.shown.send_if_modified(|before| {
            let changed = *before != shown;
            *before = shown;
            changed
        });
    }

    /// Announces what the election says.
    pub(super) fn take_holdings(&mut self, holdings: Holdings) {
        let Some(election) = &mut self.announcing.election else {
            return;
        };
        election.share = holdings.addresses;
        let now = Instant::now();
        for (item, outcome) in self.announce() {
            self.problems.note(now, item, outcome);
        }
        self.announcing.plan(&holdings.again, now);
        self.announcing.send(now);
    }

    /// Tells whether neighbours on an interface can be answered.
    fn judge_link(&self, name: &str, links: &[Link]) -> (Item, Result<(), String>) {
        let mut attached = self.attached.values();
        let outcome = match links.iter().find(|link| link.name == name) {
            None => Err(format!(
                "interface {name}: nothing can be announced on it: it is not there, or not Ethernet"
            )),
            Some(link)
                if !attached.any(|attached| {
                    let ifindex = attached.attachment.ifindex;
                    link.arrivals.iter().any(|(arrival, _)| *arrival == ifindex)
                }) =>
            {
                Err(format!(
                    "interface {name}: nobody who asks there is answered: list it, or the device below it, \
                     under interfaces"
                ))
            }
            Some(_) => Ok(()),
        };
        (Item::Announce(name.to_owned()), outcome)
    }

    /// Sends announcements that are due, and looks for those of others.
    pub(super) fn keep_announcing(&mut self) {
        let now = Instant::now();
        self.announcing.send(now);
        if self
            .announcing
            .looked
            .is_none_or(|looked| now < looked + LOOK_PAUSE)
        {
            return;
        }
        self.announcing.looked = Some(now);
        match self.tables.take_claims() {
            Ok(claims) => self.announcing.report(claims),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "cannot tell who else announces the same addresses"
            ),
        }
    }
}

/// Leaves the addresses of services with the traffic policy Local to nodes with endpoints of them.
fn restrict(wanted: &mut BTreeMap<IpAddr, Candidates>, announcers: &Announcers) {
    for (key, nodes) in announcers {
        let Some(candidates) = wanted.get_mut(&key.address) else {
            continue;
        };
        // Of services that share an address, each is to be served.
        *candidates = Candidates::NodesAt(match candidates {
            Candidates::Every => BTreeSet::clone(nodes),
            Candidates::NodesAt(others) => others.intersection(nodes).copied().collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(range: std::ops::Range<u8>) -> BTreeSet<IpAddr> {
        range.map(|n| [192, 0, 2, n].into()).collect()
    }

    #[test]
    fn address_of_local_services_is_for_nodes_where_all_of_them_have_usable_pods() {
        let nodes = |nodes: &[u8]| -> BTreeSet<IpAddr> {
            let nodes = nodes.iter().map(|node| [10, 0, 0, *node].into());
            nodes.collect()
        };
        let announcers = [
            ("192.0.2.2:80/tcp", nodes(&[1, 2])),
            ("192.0.2.3:80/tcp", nodes(&[1, 2])),
            ("192.0.2.3:80/udp", nodes(&[2, 3])),
            ("192.0.2.4:80/tcp", nodes(&[])),
        ];
        let announcers = announcers.map(|(key, nodes)| (key.parse().unwrap(), Arc::new(nodes)));
        let every = addresses(1..5).into_iter();
        let mut wanted = every.map(|vip| (vip, Candidates::Every)).collect();
        restrict(&mut wanted, &announcers.into_iter().collect());
        let expected = [
            Candidates::Every,
            Candidates::NodesAt(nodes(&[1, 2])),
            Candidates::NodesAt(nodes(&[2])),
            Candidates::NodesAt(nodes(&[])),
        ];
        assert_eq!(wanted.into_values().collect::<Vec<_>>(), expected);
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
