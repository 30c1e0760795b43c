//! The machine's devices and neighbours at one moment, and the pure join of route, device and neighbour.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::link::{ETHERTYPE_VLAN, Link};
use super::neighbour::{Key, Neighbour};
use super::route::Route;
use super::{LinkBelow, NextHop, Reason, Resolution};

/// All devices and neighbours.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) links: HashMap<u32, Link>,
    pub(super) neighbours: HashMap<Key, Neighbour>,
    /// Whether devices take frames from XDP, as far as the kernel tells; `None` if the agent does not carry frames to
    /// those that take none.
    pub(super) redirect_targets: Option<HashMap<u32, bool>>,
}

/// A result, and the neighbour that it depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) resolution: Resolution,
    pub(super) neighbour: Option<Key>,
}

impl From<Reason> for Answer {
    fn from(reason: Reason) -> Self {
        Self {
            resolution: Resolution::Unresolved(reason),
            neighbour: None,
        }
    }
}

/// The requests that make the kernel keep the wanted neighbours, and only these.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Upkeep {
    pub(super) keep: Vec<Key>,
    pub(super) release: Vec<Key>,
}

impl View {
    /// Resolves a target whose route is known.
    pub(super) fn resolve(&self, target: IpAddr, route: &Route) -> Answer {
        self.try_resolve(target, route).unwrap_or_else(Answer::from)
    }

    fn try_resolve(&self, target: IpAddr, route: &Route) -> Result<Answer, Reason> {
        match route.route_type {
            libc::RTN_UNICAST => {}
            libc::RTN_LOCAL => {
                return Ok(Answer {
                    resolution: Resolution::Local,
                    neighbour: None,
                });
            }
            libc::RTN_UNREACHABLE => return Err(Reason::Unreachable),
            libc::RTN_BLACKHOLE => return Err(Reason::Blackhole),
            libc::RTN_PROHIBIT => return Err(Reason::Prohibited),
            _ => return Err(Reason::NotUnicast),
        }
        if route.encapsulated {
            return Err(Reason::Encapsulated);
        }
        let link = self.running_link(route.ifindex)?;
        let source_mac = link.mac.ok_or(Reason::NoMac)?;
        let (below, carrier) = self.below(link)?;

        let key = Key {
            ifindex: link.ifindex,
            address: route.gateway.unwrap_or(target),
        };
        let known = self.neighbours.get(&key).and_then(|entry| entry.mac);
        // The kernel's `arp_constructor` and `ndisc_constructor` address such frames to the device itself. An entry
        // appears only when the stack sends one.
        let destination_mac = known.or_else(|| link.no_arp.then_some(source_mac));
        let resolution = match destination_mac {
            Some(destination_mac) => Resolution::Resolved(NextHop {
                ifindex: below.ifindex,
                is_carried: below.is_carried,
                source_mac,
                destination_mac,
                via_gateway: route.gateway.is_some(),
                vlan: (below.vlan != 0).then_some(below.vlan),
                mtu: link.mtu.min(carrier.mtu).min(route.mtu.unwrap_or(u32::MAX)),
                source: route.source,
            }),
            None => Resolution::Unresolved(Reason::NeighbourUnresolved),
        };
        Ok(Answer {
            resolution,
            neighbour: (!link.no_arp).then_some(key),
        })
    }

    /// Returns where frames of `link` leave, and the device there.
    fn below<'a>(&'a self, link: &'a Link) -> Result<(LinkBelow, &'a Link), Reason> {
        let (vlan, carrier) = match self.carrier(link) {
            // The device writes its tags to what the agent sends.
            Err(Reason::VlanUnsupported) if self.redirect_targets.is_some() => (0, link),
            found => found?,
        };
        let below = LinkBelow {
            ifindex: carrier.ifindex,
            vlan,
            is_carried: self.is_carried(carrier),
        };
        Ok((below, carrier))
    }

    /// Returns the device on which XDP sends frames of `link`, and their tag; 0 for none.
    fn carrier<'a>(&'a self, link: &'a Link) -> Result<(u16, &'a Link), Reason> {
        let Some(vlan) = &link.vlan else {
            return Ok((0, link));
        };
        let lower = vlan.lower.ok_or(Reason::VlanUnsupported)?;
        let carrier = self.running_link(lower)?;
        if vlan.ethertype != ETHERTYPE_VLAN || carrier.vlan.is_some() {
            return Err(Reason::VlanUnsupported);
        }
        Ok((vlan.id, carrier))
    }

    /// Returns the device of a route if the agent sends what leaves by it.
    pub(super) fn carried_by(&self, route: &Route) -> Option<u32> {
        let link = self.running_link(route.ifindex).ok()?;
        let (below, _) = self.below(link).ok()?;
        let is_unicast = route.route_type == libc::RTN_UNICAST;
        (is_unicast && link.mac.is_some() && below.is_carried).then_some(below.ifindex)
    }

    /// Tells whether the agent sends what is to leave by a device. One of which the kernel does not tell, before Linux
    /// 6.3, counts as taking frames from XDP unless none of its kind does.
    fn is_carried(&self, link: &Link) -> bool {
        self.redirect_targets.as_ref().is_some_and(|known| {
            let takes = known.get(&link.ifindex).copied();
            !takes.unwrap_or(!link.is_no_redirect_target)
        })
    }

    /// Lists the devices whose frames leave by another one, with a tag, or by the agent; each with where they leave.
    pub(super) fn links_below(&self) -> BTreeMap<u32, LinkBelow> {
        let ethernet = self.links.values().filter(|link| link.mac.is_some());
        let below = |link: &Link| {
            let (below, _) = self.below(link).ok()?;
            (below.vlan != 0 || below.is_carried).then_some((link.ifindex, below))
        };
        ethernet.filter_map(below).collect()
    }

    fn running_link(&self, ifindex: u32) -> Result<&Link, Reason> {
        let link = self.links.get(&ifindex).ok_or(Reason::NoDevice)?;
        if link.running {
            Ok(link)
        } else {
            Err(Reason::LinkDown)
        }
    }

    /// Chooses at most `most` neighbours of each family. Those that answer come first, then those that have not
    /// failed, so that addresses without a machine make room for others.
    pub(super) fn choose(&self, candidates: &BTreeSet<Key>, most: usize) -> BTreeSet<Key> {
        let rank = |key: &Key| match self.neighbours.get(key) {
            // Neighbours that are kept already come first; otherwise two of them would take turns.
            Some(entry) if entry.mac.is_some() => u8::from(!entry.ours),
            Some(entry) if entry.ours && !entry.failed => 2,
            None => 3,
            // It was asked while it had a place, and may be asked once more because it has none.
            Some(_) => 4,
        };
        let of_family = |is_ipv4: bool| {
            let candidates = candidates.iter().copied();
            let mut keys: Vec<Key> = candidates
                .filter(|key| key.address.is_ipv4() == is_ipv4)
                .collect();
            keys.sort_by_key(rank);
            keys.truncate(most);
            keys
        };
        of_family(true)
            .into_iter()
            .chain(of_family(false))
            .collect()
    }

    /// Compares the wanted neighbours with those that the kernel keeps resolved.
    pub(super) fn upkeep(&self, wanted: &BTreeSet<Key>) -> Upkeep {
        let is_kept = |key: &Key| matches!(self.neighbours.get(key), Some(entry) if entry.managed || entry.fixed);
        let keep = wanted.iter().filter(|key| !is_kept(key)).copied().collect();
        let mut release: Vec<Key> = self
            .neighbours
            .iter()
            .filter(|(key, entry)| entry.ours && !entry.fixed && !wanted.contains(key))
            .map(|(key, _)| *key)
            .collect();
        release.sort_unstable();
        Upkeep { keep, release }
    }
}

#[cfg(test)]
mod tests;
