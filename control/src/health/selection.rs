//! Which backends serve: all but those that fail their checks or whose node is unreachable.
//!
//! Where that leaves a service with none, all of them serve: more likely than that every backend is
//! broken is that the check is, or the way to them, and a backend that is tried anyway can only win.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use fastpath::tables::BackendKey;

use crate::desired::{BackendSpec, Desired, ForwardMode, ServiceKey, TrafficPolicy};

/// A backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The service.
    pub service: ServiceKey,
    /// The backend.
    pub backend: BackendKey,
}

impl Member {
    /// Names a backend of a service.
    pub fn new(service: &ServiceKey, mode: ForwardMode, backend: &BackendSpec) -> Self {
        Self {
            service: *service,
            backend: backend.key(mode),
        }
    }
}

/// What should not serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Backends that fail their checks.
    pub backends: BTreeSet<Member>,
    /// Nodes that are unreachable.
    pub nodes: BTreeSet<IpAddr>,
}

impl LeftOut {
    /// Tells whether a backend should not serve.
    pub fn has(&self, member: &Member) -> bool {
        self.nodes.contains(&member.backend.address) || self.backends.contains(member)
    }
}

/// A desired state without the backends that should not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The state.
    pub desired: Desired,
    /// Services of which no backend should serve, so that all do.
    pub all_fail: BTreeSet<ServiceKey>,
}

impl Selection {
    /// Leaves nothing out.
    pub fn all(desired: &Desired) -> Self {
        Self {
            desired: desired.clone(),
            all_fail: BTreeSet::new(),
        }
    }

    /// Leaves backends out of a desired state, on a machine with the addresses `own`.
    pub fn of(desired: &Desired, left_out: &LeftOut, own: &BTreeSet<IpAddr>) -> Self {
        let mut selection = Self::all(desired);
        if *left_out == LeftOut::default() {
            return selection;
        }
        // Any other machine is the load balancer in front and uses all.
        let is_node = desired.is_node(own);
        for (key, service) in &mut selection.desired.services {
            let mode = service.spec.mode;
            let is_local = is_node && service.spec.traffic_policy == TrafficPolicy::Local;
            let out = |backend: &BackendSpec| left_out.has(&Member::new(key, mode, backend));
            let backends = service.spec.backends.iter();
            let mut used = backends
                .filter(|backend| backend.weight != 0)
                .filter(|backend| !is_local || own.contains(&backend.address))
                .peekable();
            if used.peek().is_some() && used.all(out) {
                selection.all_fail.insert(*key);
                continue;
            }
            if !service.spec.backends.iter().any(out) {
                continue;
            }
            let service = Arc::make_mut(service);
            // A table of another length would move nearly every flow, and back again.
            let sharing = service.spec.backends.iter();
            let sharing = sharing.filter(|backend| backend.weight != 0).count();
            service.spec.log2_slots = service.spec.log2_slots_for(sharing);
            service.spec.backends.retain(|backend| !out(backend));
        }
        selection
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
        let service = desired
            .services
            .values_mut()
            .next()
            .map(Arc::make_mut)
            .unwrap();
        service.spec.traffic_policy = TrafficPolicy::Local;
        let left_out = left_out(&[("10.99.0.1:80/tcp", "10.0.0.1")], &[]);
        let own = |text: &str| BTreeSet::from([text.parse().unwrap()]);
        let selection = Selection::of(&desired, &left_out, &own("10.0.0.1"));
        assert_eq!(backends(&selection)[0], "10.0.0.1 10.0.0.2");
        assert_eq!(selection.all_fail.len(), 1);
        let elsewhere = Selection::of(&desired, &left_out, &own("10.0.0.2"));
        assert_eq!(backends(&elsewhere)[0], "10.0.0.2");
        assert!(elsewhere.all_fail.is_empty());
        desired.node = Role::No;
        let in_front = Selection::of(&desired, &left_out, &own("10.0.0.1"));
        assert_eq!(backends(&in_front)[0], "10.0.0.2", "uses all of them");
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

    fn select(desired: &Desired, left_out: &LeftOut) -> Selection {
        Selection::of(desired, left_out, &BTreeSet::new())
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
