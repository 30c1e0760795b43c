//! Selects the backends that get traffic: all but those that fail their checks or whose node is unreachable.
//!
//! If no backend of a service remains, all of them get traffic: probably the check or the path to them is
//! broken, not every backend. And trying a failing backend is no worse than trying none.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use fastpath::tables::BackendKey;
use imbl::OrdSet;

use crate::desired::{
    BackendSpec, Desired, ForwardMode, Service, ServiceKey, ServiceSpec, Services, TrafficPolicy,
};
use crate::versions::sides;

/// A backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The service.
    pub service: ServiceKey,
    /// The backend.
    pub backend: BackendKey,
}

impl Member {
    /// Returns the identity of a backend within a service.
    pub fn new(service: &ServiceKey, mode: ForwardMode, backend: &BackendSpec) -> Self {
        Self {
            service: *service,
            backend: backend.key(mode),
        }
    }
}

/// The backends and nodes that should not get traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Backends that fail their checks.
    pub backends: BTreeSet<Member>,
    /// Nodes that are unreachable.
    pub nodes: BTreeSet<IpAddr>,
}

impl LeftOut {
    /// Returns whether a backend should not get traffic.
    pub fn has(&self, member: &Member) -> bool {
        self.nodes.contains(&member.backend.address) || self.backends.contains(member)
    }
}

/// A desired state without the backends that should not get traffic.
#[derive(Debug, Default)]
pub struct Selection {
    /// The remaining state.
    pub desired: Desired,
    /// Services whose backends all fail, so that all get traffic.
    pub all_fail: OrdSet<ServiceKey>,
    /// The services and rules that this was computed from.
    services: Services,
    rules: Rules,
}

/// The rules for all services.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rules {
    left_out: LeftOut,
    /// Addresses of this machine if it is a node. Policy `Local` restricts a node to its own pods; every other
    /// machine is a load balancer in front and uses all pods.
    own: Option<BTreeSet<IpAddr>>,
}

impl Selection {
    /// Computes the selection from a desired state, on a machine with the addresses `own`. Returns whether the
    /// selection changed. It recomputes services that changed, or all if the rules changed.
    pub fn follow(&mut self, desired: &Desired, left_out: LeftOut, own: &BTreeSet<IpAddr>) -> bool {
        let own = desired.is_node(own).then(|| own.clone());
        let rules = Rules { left_out, own };
        let before = std::mem::take(&mut self.desired);
        let mut next = before.services.clone();
        if rules != self.rules {
            next = Services::new();
            self.services = Services::new();
            self.all_fail.clear();
            self.rules = rules;
        }
        for change in self.services.diff(&desired.services) {
            let (old, new) = sides(change);
            if let Some((key, _)) = old {
                self.all_fail.remove(key);
                next.remove(key);
            }
            if let Some((key, service)) = new {
                let selected = self.rules.select(key, service).unwrap_or_else(|| {
                    self.all_fail.insert(*key);
                    Arc::clone(service)
                });
                next.insert(*key, selected);
            }
        }
        self.services = desired.services.clone();
        self.desired = Desired {
            services: next,
            ..desired.clone()
        };
        self.desired != before
    }
}

impl Rules {
    /// Removes failing backends from a service. Returns `None` if that would leave none.
    fn select(&self, key: &ServiceKey, service: &Arc<Service>) -> Option<Arc<Service>> {
        let spec = &service.spec;
        let out = |backend: &BackendSpec| self.left_out.has(&Member::new(key, spec.mode, backend));
        let is_local = spec.traffic_policy == TrafficPolicy::Local;
        let own = self.own.as_ref().filter(|_| is_local);
        let sharing = spec.sharing();
        let mut used = sharing
            .clone()
            .filter(|backend| own.is_none_or(|own| own.contains(&backend.address)))
            .peekable();
        // A machine without pods must keep those of other machines: they tell it to drop packets instead of
        // rejecting them.
        let uses_none = own.is_some() && used.peek().is_none();
        if uses_none || !spec.backends.iter().any(out) {
            return Some(Arc::clone(service));
        }
        if used.peek().is_some() && used.all(out) {
            return None;
        }
        let backends = spec.backends.iter().filter(|backend| !out(backend));
        let spec = ServiceSpec {
            // The table keeps its length: with another one nearly every flow would move, twice.
            log2_slots: spec.log2_slots_for(sharing.count()),
            backends: backends.copied().collect(),
            ..ServiceSpec::clone(spec)
        };
        Some(Arc::new(Service {
            spec: spec.into(),
            ..Service::clone(service)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::desired::Role;

    const TWO_SERVICES: &str = "\
interfaces: [{name: eth0}]
vips: [10.99.0.1]
services:
  - {name: a, address: 10.99.0.1, port: 80, protocol: tcp, backends: [{address: 10.0.0.1}, {address: 10.0.0.2}]}
  - {name: b, address: 10.99.0.1, port: 81, protocol: tcp, backends: [{address: 10.0.0.1}, {address: 10.0.0.3}]}
";

    #[test]
    fn without_failures_everything_stays_as_configured() {
        let desired = desired(TWO_SERVICES);
        let selection = select(&desired, &LeftOut::default());
        assert_eq!(selection.desired, desired);
        assert!(selection.all_fail.is_empty());
    }

    #[test]
    fn failing_backend_leaves_its_service_only() {
        let left_out = left_out(&[("10.99.0.1:80/tcp", "10.0.0.1")], &[]);
        let selection = select(&desired(TWO_SERVICES), &left_out);
        assert_eq!(backends(&selection), ["10.0.0.2", "10.0.0.1 10.0.0.3"]);
    }

    #[test]
    fn unreachable_node_leaves_all_services() {
        let selection = select(&desired(TWO_SERVICES), &left_out(&[], &["10.0.0.1"]));
        assert_eq!(backends(&selection), ["10.0.0.2", "10.0.0.3"]);
        assert!(selection.all_fail.is_empty());
    }

    #[test]
    fn service_without_a_backend_that_should_serve_keeps_all() {
        let left_out = left_out(&[("10.99.0.1:80/tcp", "10.0.0.2")], &["10.0.0.1"]);
        let selection = select(&desired(TWO_SERVICES), &left_out);
        assert_eq!(backends(&selection), ["10.0.0.1 10.0.0.2", "10.0.0.3"]);
        let all_fail: Vec<String> = selection.all_fail.iter().map(ToString::to_string).collect();
        assert_eq!(all_fail, ["10.99.0.1:80/tcp"]);
    }

    #[test]
    fn machine_that_may_use_its_own_pods_only_keeps_them_when_all_of_them_fail() {
        let mut desired = desired(TWO_SERVICES);
        desired.node = Role::Yes;
        let key = *desired.services.keys().next().unwrap();
        let service = Arc::make_mut(desired.services.get_mut(&key).unwrap());
        Arc::make_mut(&mut service.spec).traffic_policy = TrafficPolicy::Local;
        let left_out = left_out(&[("10.99.0.1:80/tcp", "10.0.0.1")], &[]);
        let left_out_all = self::left_out(&[], &["10.0.0.1", "10.0.0.2"]);
        let own = |text: &str| BTreeSet::from([text.parse().unwrap()]);
        let selection = select_on(&desired, &left_out, &own("10.0.0.1"));
        assert_eq!(backends(&selection)[0], "10.0.0.1 10.0.0.2");
        assert_eq!(selection.all_fail.len(), 1);
        let elsewhere = select_on(&desired, &left_out, &own("10.0.0.2"));
        assert_eq!(backends(&elsewhere)[0], "10.0.0.2");
        assert!(elsewhere.all_fail.is_empty());
        let without = select_on(&desired, &left_out_all, &own("10.0.0.9"));
        assert_eq!(backends(&without)[0], "10.0.0.1 10.0.0.2");
        assert!(without.all_fail.is_empty());
        desired.node = Role::No;
        let in_front = select_on(&desired, &left_out, &own("10.0.0.1"));
        assert_eq!(backends(&in_front)[0], "10.0.0.2", "uses all of them");
    }

    #[test]
    fn backends_without_weight_never_serve_for_those_that_fail() {
        let mut desired = desired(TWO_SERVICES);
        let key = *desired.services.keys().next().unwrap();
        let service = Arc::make_mut(desired.services.get_mut(&key).unwrap());
        Arc::make_mut(&mut service.spec).backends[1].weight = 0;
        let selection = select(&desired, &left_out(&[], &["10.0.0.1"]));
        let service = selection.desired.services.values().next();
        assert_eq!(service, desired.services.values().next());
        assert!(selection.all_fail.contains(&key), "the failing one serves");
    }

    #[test]
    fn service_without_backends_does_not_fail() {
        let none = TWO_SERVICES.replace("[{address: 10.0.0.1}, {address: 10.0.0.2}]", "[]");
        let selection = select(&desired(&none), &left_out(&[], &["10.0.0.1"]));
        assert!(selection.all_fail.is_empty());
    }

    #[test]
    fn table_keeps_the_length_it_has_with_all_backends() {
        let many: Vec<String> = (1..=7)
            .map(|n| format!("{{address: 10.0.1.{n}}}"))
            .collect();
        let many = TWO_SERVICES.replace(
            "[{address: 10.0.0.1}, {address: 10.0.0.2}]",
            &format!("[{}]", many.join(", ")),
        );
        let desired = desired(&many);
        let length = |desired: &Desired| {
            let spec = &desired.services.values().next().unwrap().spec;
            spec.log2_slots_for(spec.backends.len())
        };
        let selection = select(&desired, &left_out(&[], &["10.0.1.1"]));
        assert_eq!(length(&desired), Some(11));
        assert_eq!(length(&selection.desired), Some(11));
    }

    #[test]
    fn selection_that_follows_is_one_that_was_made_anew() {
        let both = desired(TWO_SERVICES);
        let mut one = both.clone();
        let first = *both.services.keys().next().unwrap();
        one.services.remove(&first);
        let mut fewer = both.clone();
        let service = Arc::make_mut(fewer.services.get_mut(&first).unwrap());
        Arc::make_mut(&mut service.spec).backends.pop();
        let nothing = LeftOut::default();
        let node = left_out(&[], &["10.0.0.1"]);
        let mut selection = Selection::default();
        for (desired, left_out, is_other) in [
            (&both, &nothing, true),
            (&both, &nothing, false),
            (&both, &node, true),
            (&fewer, &node, true),
            (&fewer, &node, false),
            (&one, &node, true),
            (&both, &node, true),
            (&fewer, &nothing, true),
            (&one, &nothing, true),
        ] {
            let changed = selection.follow(desired, left_out.clone(), &BTreeSet::new());
            let anew = select(desired, left_out);
            assert_eq!(changed, is_other);
            assert_eq!(selection.desired, anew.desired);
            assert_eq!(selection.all_fail, anew.all_fail);
        }
    }

    fn select(desired: &Desired, left_out: &LeftOut) -> Selection {
        select_on(desired, left_out, &BTreeSet::new())
    }

    fn select_on(desired: &Desired, left_out: &LeftOut, own: &BTreeSet<IpAddr>) -> Selection {
        let mut selection = Selection::default();
        selection.follow(desired, left_out.clone(), own);
        selection
    }

    fn desired(text: &str) -> Desired {
        config::parse(text).unwrap().desired
    }

    fn left_out(backends: &[(&str, &str)], nodes: &[&str]) -> LeftOut {
        let member = |(service, node): &(&str, &str)| Member {
            service: service.parse().unwrap(),
            backend: BackendSpec::node(node.parse().unwrap(), 1).key(ForwardMode::Ipip),
        };
        LeftOut {
            backends: backends.iter().map(member).collect(),
            nodes: nodes.iter().map(|node| node.parse().unwrap()).collect(),
        }
    }

    fn backends(selection: &Selection) -> Vec<String> {
        let services = selection.desired.services.values();
        services
            .map(|service| {
                let backends = service.spec.backends.iter();
                let addresses: Vec<String> = backends
                    .map(|backend| backend.address.to_string())
                    .collect();
                addresses.join(" ")
            })
            .collect()
    }
}
