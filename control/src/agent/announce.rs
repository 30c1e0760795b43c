//! Announcements: makes the datapath answer for the right addresses, and tells neighbours about changes.
//!
//! Without a cluster the configuration says which addresses belong here. In a cluster the edges elect that. The
//! election hears from here which addresses are served and can be announced, and what other machines announce.
//!
//! The datapath answers for 3 s after each sign of life of the agent's loop. The loop gives one while this
//! machine can answer neighbours at all. So a machine whose agent hangs, crashes or cannot attach falls silent
//! by the time another one has taken over. When it goes on, the addresses that others announced in the meantime
//! are theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::announce::{self, Link};
use fastpath::facts;
use fastpath::tables::TableError;
use imbl::{OrdMap, OrdSet};
use tokio::sync::{mpsc, watch};

use super::Agent;
use super::announce_state::{Announcers, ElectionEnds, LOOK_PAUSE};
use super::apply::in_words;
use super::problems::Item;
use crate::announce::{Candidates, ElectionResult, Mac};
use crate::chain::chain;
use crate::healthz::AnnouncedServices;
use crate::kubernetes::leases::{AgentSignals, Announceable, Claims};

/// Time between two checks that the program is still on its interfaces. Nothing reports its removal.
const ATTACHED_PAUSE: Duration = Duration::from_millis(500);

impl Agent {
    /// Tells whether addresses may be announced: the tables have what is to be served, and the past of its slots.
    fn may_announce(&self) -> bool {
        !self.waits_for_state() && !self.peering.waits_for_past
    }

    /// Makes the datapath answer for the addresses that belong here, and announces the new ones.
    pub(super) fn announce(&mut self) -> Vec<(Item, Result<(), String>)> {
        // Until the desired state is known, the datapath answers for the addresses of the earlier agent.
        if !self.may_announce() {
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
            // In a cluster no machine has the addresses without an election.
            None => self.cluster.is_none(),
        };
        let vips = desired.vips.iter().filter(belongs_here);
        let wanted: BTreeSet<IpAddr> = match rules {
            Some(rules) => vips.filter(|vip| rules.includes(vip)).copied().collect(),
            None => BTreeSet::new(),
        };
        let before = self.announcing.links.clone();
        let outcome = self.follow_links(&names).and_then(|()| {
            let outcome = self.tables.set_announce_links(&self.announcing.links);
            in_words(outcome)
        });
        let mut outcomes = vec![(Item::Table("announce_links"), outcome)];
        outcomes.extend(names.iter().map(|name| self.judge_link(name)));
        if !before.is_empty() && before != self.announcing.links {
            self.announcing.plan(&wanted, Instant::now());
        }
        let before = self.tables.announced();
        let outcome = self.tables.set_announced(&wanted);
        outcomes.push((Item::Table("announced"), in_words(outcome)));
        let new: BTreeSet<IpAddr> = wanted.difference(&before).copied().collect();
        if !new.is_empty() {
            tracing::info!(addresses = new.len(), "announced from here");
        }
        let lost = before.difference(&wanted).count();
        if lost > 0 {
            tracing::info!(addresses = lost, "not announced from here any more");
        }
        let now = Instant::now();
        let is_change = !new.is_empty() || lost > 0;
        self.announcing.hold(wanted, now);
        if let Some(feed) = self.feed().filter(|_| is_change) {
            feed.reports().set_announced(self.announced_services());
        }
        self.announcing.plan(&new, now);
        self.send_announcements(now);
        outcomes
    }

    /// Finds the links to announce on, and whether neighbours there are answered. Keeps the known links if the
    /// kernel does not answer.
    fn follow_links(&mut self, names: &BTreeSet<String>) -> Result<(), String> {
        let links = announce::links(names).map_err(|error| chain(&error))?;
        // One file may serve many machines, and name links that this machine does not have.
        self.announcing.is_able = !links.is_empty() && links.iter().all(|link| self.hears(link));
        self.announcing.links = links;
        Ok(())
    }

    /// Finds out whether this machine can keep up an earlier agent's announcements before it knows the desired state.
    pub(super) fn hold_announcements(&mut self) {
        let rules = self.config.desired.announce.as_ref();
        let rules = rules.filter(|_| self.config.desired.edge);
        let names = rules.map(|rules| rules.interfaces.clone());
        if let Err(reason) = self.follow_links(&names.unwrap_or_default()) {
            tracing::warn!(
                reason,
                "cannot tell whether announced addresses are answered for"
            );
        }
    }

    /// Gives a sign of life of the loop. While neighbours can be answered, the datapath answers on.
    pub(super) fn show_life(&mut self) {
        self.publication.heartbeat.beat(Instant::now());
        if !self.announcing.is_able {
            return;
        }
        let has_begun = std::mem::replace(&mut self.announcing.has_begun, true);
        if (has_begun && self.tables.answers_for_announced()) || self.give_up_claimed() {
            self.tables.renew_announcements();
        }
    }

    /// Gives up the addresses that others announced while this machine was silent or had no agent, and
    /// announces the rest again. Returns false if the announcements of others cannot be read.
    fn give_up_claimed(&mut self) -> bool {
        if self.announcing.election.is_some()
            && let Err(error) = self.leave_to_others()
        {
            tracing::warn!(
                error = chain(&error),
                "cannot tell what others announce, so nobody who asks is answered"
            );
            return false;
        }
        let kept = self.announcing.addresses.clone();
        self.announcing.plan(&kept, Instant::now());
        true
    }

    /// Stops announcing the addresses that others have announced, and tells the election.
    fn leave_to_others(&mut self) -> Result<(), TableError> {
        let claims = self.announcing.of_others(self.tables.take_claims()?);
        let lost: BTreeSet<IpAddr> = claims.into_iter().map(|(address, _)| address).collect();
        if lost.is_empty() {
            return Ok(());
        }
        let kept = &self.tables.announced() - &lost;
        self.tables.set_announced(&kept)?;
        tracing::info!(
            addresses = lost.len(),
            "announced by others meanwhile, not announced from here any more"
        );
        Arc::make_mut(&mut self.announcing.addresses).retain(|address| !lost.contains(address));
        if let Some(election) = &mut self.announcing.election {
            election.share.retain(|address| !lost.contains(address));
            // The send fails only if the election has ended, and that ends the agent.
            let _ = election.claims.send(Claims::Lost(lost));
        }
        Ok(())
    }

    /// Puts an election in charge of what is announced. Until it starts, the announced addresses stay.
    pub(crate) fn elect(&mut self) -> (BTreeSet<IpAddr>, AgentSignals) {
        let share = self.tables.announced();
        let (shown, to_show) = watch::channel(None);
        let (claims, to_claim) = mpsc::unbounded_channel();
        let (drains, to_drain) = mpsc::unbounded_channel();
        let now = Instant::now();
        self.announcing.looked = Some(now);
        self.announcing.election = Some(ElectionEnds {
            shown,
            claims,
            drains,
            is_drained: false,
            share: share.clone(),
            assigned: OrdSet::new(),
            announcers: OrdMap::new(),
        });
        let heard = AgentSignals {
            shown: to_show,
            claims: to_claim,
            drains: to_drain,
            heartbeat: self.publication.heartbeat.clone(),
        };
        (share, heard)
    }

    /// Tells the election which addresses are served and can be announced.
    pub(super) fn show_announceable(&self) {
        let desired = &self.config.desired;
        let election = self.announcing.election.as_ref();
        let Some(election) = election.filter(|_| self.may_announce()) else {
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
        let links = self.announcing.links.iter();
        let links = links.filter(|_| self.announcing.is_able);
        let shown = Some(Announceable {
            wanted,
            macs: links.map(|link| Mac(link.mac)).collect(),
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
    pub(super) fn take_election_result(&mut self, result: ElectionResult) {
        let Some(election) = &mut self.announcing.election else {
            return;
        };
        election.share = result.addresses;
        election.is_drained = result.is_drained;
        let now = Instant::now();
        for (item, outcome) in self.announce() {
            self.problems.note(now, item, outcome);
        }
        self.announcing.plan(&result.again, now);
        self.send_announcements(now);
    }

    /// Lists the Services whose addresses are announced here, each with those addresses.
    fn announced_services(&self) -> AnnouncedServices {
        let mut services = AnnouncedServices::new();
        for (key, service) in &self.config.desired.services {
            if self.announcing.addresses.contains(&key.address) {
                let name = service.name.split(':').next().unwrap_or_default();
                services
                    .entry(name.to_owned())
                    .or_default()
                    .insert(key.address);
            }
        }
        services
    }

    /// Returns the interfaces that addresses are announced on, and the addresses.
    pub(super) fn announced(&self) -> (Vec<String>, Arc<BTreeSet<IpAddr>>) {
        let announcing = &self.announcing;
        let links = announcing.links.iter().filter(|_| announcing.is_able);
        let links = links.map(|link| link.name.clone());
        (links.collect(), Arc::clone(&announcing.addresses))
    }

    /// Returns whether neighbours on an interface can be answered, as an outcome for the list of problems.
    fn judge_link(&self, name: &str) -> (Item, Result<(), String>) {
        let outcome = match self.announcing.links.iter().find(|link| link.name == name) {
            None => Err(format!(
                "interface {name}: nothing can be announced on it: it is not there, or not Ethernet"
            )),
            Some(link) if !self.hears(link) => Err(format!(
                "interface {name}: nobody who asks there is answered: list it, or the device below it, \
                 under interfaces"
            )),
            Some(_) => Ok(()),
        };
        (Item::Announce(name.to_owned()), outcome)
    }

    /// Returns whether our program sees the frames that arrive on a link.
    fn hears(&self, link: &Link) -> bool {
        self.attachments.interfaces.values().any(|attached| {
            let ifindex = attached.attachment.ifindex;
            link.arrivals.iter().any(|(arrival, _)| *arrival == ifindex)
        })
    }

    /// Returns whether somebody took the program off one of the links' devices. Nothing reports that.
    fn has_lost_a_link(&self) -> bool {
        let announces = |ifindex: u32| {
            let mut arrivals = self.announcing.links.iter().flat_map(|link| &link.arrivals);
            arrivals.any(|(arrival, _)| *arrival == ifindex)
        };
        let mut attachments = self
            .attachments
            .interfaces
            .values()
            .map(|attached| &attached.attachment);
        attachments.any(|one| {
            // If the kernel does not answer, the next look will tell.
            announces(one.ifindex)
                && matches!(
                    facts::is_attached(&one.interface, one.ifindex, one.program),
                    Ok(false)
                )
        })
    }

    /// Sends the announcements that are due, but none of an address that others announced while this thread stood
    /// still: it may have stood still since the loop's last sign of life.
    fn send_announcements(&mut self, now: Instant) {
        self.show_life();
        self.announcing.send(now);
    }

    /// Gives a sign of life of the loop, sends the announcements that are due, and looks for those of others.
    pub(super) fn keep_announcing(&mut self) {
        let now = Instant::now();
        self.send_announcements(now);
        let seen = self.announcing.seen_attached;
        if self.announcing.is_able && seen.is_none_or(|seen| now >= seen + ATTACHED_PAUSE) {
            self.announcing.seen_attached = Some(now);
            if self.has_lost_a_link() && self.attachments.forget_lost() {
                self.settle();
            }
        }
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

/// Restricts the addresses of services with policy `Local` to nodes that have endpoints.
fn restrict(wanted: &mut BTreeMap<IpAddr, Candidates>, announcers: &Announcers) {
    let mut common: BTreeMap<IpAddr, Option<BTreeSet<IpAddr>>> = BTreeMap::new();
    for (key, nodes) in announcers {
        let common = common.entry(key.address).or_default();
        // A Service without endpoints is served nowhere. It does not exclude any node for Services that share
        // its address.
        if !nodes.is_empty() {
            *common = Some(match common.take() {
                Some(others) => others.intersection(nodes).copied().collect(),
                None => BTreeSet::clone(nodes),
            });
        }
    }
    for (address, nodes) in common {
        if let Some(candidates) = wanted.get_mut(&address) {
            *candidates = Candidates::NodesAt(nodes.unwrap_or_default());
        }
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
            ("192.0.2.5:80/tcp", nodes(&[])),
            ("192.0.2.5:80/udp", nodes(&[1, 2])),
            ("192.0.2.5:81/tcp", nodes(&[2, 3])),
            ("192.0.2.6:80/tcp", nodes(&[1])),
            ("192.0.2.6:80/udp", nodes(&[2])),
            ("192.0.2.6:81/tcp", nodes(&[3])),
        ];
        let announcers = announcers.map(|(key, nodes)| (key.parse().unwrap(), Arc::new(nodes)));
        let every = addresses(1..7).into_iter();
        let mut wanted = every.map(|vip| (vip, Candidates::Every)).collect();
        restrict(&mut wanted, &announcers.into_iter().collect());
        let expected = [
            Candidates::Every,
            Candidates::NodesAt(nodes(&[1, 2])),
            Candidates::NodesAt(nodes(&[2])),
            Candidates::NodesAt(nodes(&[])),
            Candidates::NodesAt(nodes(&[2])),
            Candidates::NodesAt(nodes(&[])),
        ];
        assert_eq!(wanted.into_values().collect::<Vec<_>>(), expected);
    }
}
