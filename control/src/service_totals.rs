//! Totals over all services, kept up to date by counting, so that the cost of a change depends on the change alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::desired::Check;
use crate::desired::{Desired, ForwardMode, Service, ServiceKey, Services};
use crate::versions::sides;

/// Services and their totals.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServiceTotals {
    /// The services that were counted.
    services: Services,
    /// Addresses of this machine if it has the role `node`; pods there are its own.
    own: BTreeSet<IpAddr>,
    /// Addresses of backends' machines, each with the mode in which packets are sent there.
    nodes: Counts<(IpAddr, ForwardMode)>,
    pods: Counts<IpAddr>,
    checked: BTreeSet<ServiceKey>,
    /// Modes of services, with and without backends.
    modes: Counts<ForwardMode>,
}

impl ServiceTotals {
    /// Counts the changes since the last call. Counts everything again if the machine's addresses or role changed.
    pub fn follow(&mut self, desired: &Desired, own: &BTreeSet<IpAddr>) {
        let own = if desired.is_node(own) {
            own.clone()
        } else {
            BTreeSet::new()
        };
        if own != self.own {
            *self = Self {
                own,
                ..Self::default()
            };
        }
        let before = std::mem::replace(&mut self.services, desired.services.clone());
        for change in before.diff(&desired.services) {
            let (old, new) = sides(change);
            for (side, is_there) in [(old, false), (new, true)] {
                if let Some((key, service)) = side {
                    self.count(key, service, is_there);
                }
            }
        }
    }

    /// Lists the addresses of this machine's own pods.
    pub fn own_pods(&self) -> BTreeSet<IpAddr> {
        self.pods.keys().copied().collect()
    }

    /// Iterates over the addresses that packets are sent to, once for each mode.
    pub fn nodes(&self) -> impl Iterator<Item = (IpAddr, ForwardMode)> {
        self.nodes.keys().copied()
    }

    /// Iterates over the services whose backends are checked, with their checks.
    pub fn checked(&self) -> impl Iterator<Item = (&ServiceKey, &Arc<Service>, &Check)> {
        self.checked.iter().filter_map(|key| {
            let service = self.services.get(key)?;
            Some((key, service, service.health.as_ref()?))
        })
    }

    /// Returns whether packets of checks are put on the path of client packets. That needs the egress program.
    pub fn diverts_checks(&self, desired: &Desired) -> bool {
        let mut modes = self.nodes().map(|(_, mode)| mode);
        desired.edge
            && (!self.checked.is_empty()
                || (desired.node_health && modes.any(|mode| mode == ForwardMode::Ipip)))
    }

    /// Returns whether any service uses NAT.
    pub fn has_nat(&self) -> bool {
        self.modes.has(&ForwardMode::Nat)
    }

    /// Returns whether any backend of a family is reached by NAT.
    pub fn has_nat_backends(&self, is_ipv4: bool) -> bool {
        let mut nodes = self.nodes();
        nodes.any(|(node, mode)| mode == ForwardMode::Nat && node.is_ipv4() == is_ipv4)
    }

    fn count(&mut self, key: &ServiceKey, service: &Service, is_there: bool) {
        if is_there && service.health.is_some() {
            self.checked.insert(*key);
        } else {
            self.checked.remove(key);
        }
        let mode = service.spec.mode;
        self.modes.count(mode, is_there);
        for backend in &service.spec.backends {
            self.nodes.count((backend.address, mode), is_there);
            let is_own = mode != ForwardMode::Nat && self.own.contains(&backend.address);
            if let Some(pod) = backend.pod.filter(|_| is_own) {
                self.pods.count(pod.ip(), is_there);
            }
        }
    }
}

/// A multiset: how often each value occurs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counts<K>(BTreeMap<K, usize>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Counts<K> {
    /// Adds or removes one occurrence.
    pub(crate) fn count(&mut self, key: K, is_more: bool) {
        if is_more {
            *self.0.entry(key).or_default() += 1;
        } else if let Some(count) = self.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key);
            }
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    pub(crate) fn has(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const SERVICES: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1, '2001:db8:99::1']
nodes: [{address: 10.0.0.1}, {address: 10.0.0.2}]
trusted_edges: [10.0.0.100]
services:
  - name: web
    address: 10.99.0.1
    port: 80
    protocol: tcp
    health: {}
    backends:
      - {address: 10.244.1.5, node: 10.0.0.1}
      - {address: 10.244.2.5, node: 10.0.0.2}
  - name: dns
    address: 10.99.0.1
    port: 53
    protocol: udp
    backends: [{address: 10.244.1.5, node: 10.0.0.1}]
  - {name: far, address: '2001:db8:99::1', port: 81, protocol: tcp, mode: nat, backends: [{address: '2001:db8::1'}]}
";

    #[test]
    fn census_that_follows_is_one_that_was_taken_anew() {
        let all = config::parse(SERVICES).unwrap().desired;
        let without = |ports: &[u16]| {
            let mut some = all.clone();
            for key in all.services.keys().filter(|key| ports.contains(&key.port)) {
                some.services.remove(key);
            }
            some
        };
        let [none, one, two] = [without(&[80, 53, 81]), without(&[53, 81]), without(&[80])];
        let mut fewer = all.clone();
        let web = all.services.keys().find(|key| key.port == 80).unwrap();
        let service = Arc::make_mut(fewer.services.get_mut(web).unwrap());
        Arc::make_mut(&mut service.spec).backends.pop();
        service.health = None;
        let mut totals = ServiceTotals::default();
        for own in ["10.0.0.1", "10.0.0.2", "10.0.0.100"] {
            let own = [own.parse().unwrap()].into();
            for desired in [&all, &one, &fewer, &two, &all, &fewer, &none, &two] {
                totals.follow(desired, &own);
                let mut anew = ServiceTotals::default();
                anew.follow(desired, &own);
                assert_eq!(totals, anew);
            }
        }
    }

    #[test]
    fn pod_is_there_as_long_as_one_service_has_it() {
        let all = config::parse(SERVICES).unwrap().desired;
        let own = ["10.0.0.1".parse().unwrap()].into();
        let pod: IpAddr = "10.244.1.5".parse().unwrap();
        let mut totals = ServiceTotals::default();
        let mut left = all.clone();
        totals.follow(&left, &own);
        assert!(totals.has_nat_backends(false) && !totals.has_nat_backends(true));
        for (key, service) in &all.services {
            left.services.remove(key);
            totals.follow(&left, &own);
            let services = left.services.values();
            let mut pods = services.flat_map(|service| &service.spec.backends);
            let is_left = pods.any(|backend| backend.pod.is_some_and(|one| one.ip() == pod));
            assert_eq!(
                totals.own_pods().contains(&pod),
                is_left,
                "{}",
                service.name
            );
        }
        assert_eq!(
            totals,
            ServiceTotals {
                own,
                ..ServiceTotals::default()
            }
        );
    }
}
