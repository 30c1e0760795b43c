//! Computes the status of Services and the Events about it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::allocate::Decision;
use super::crd::Condition;
use super::objects::Service;
use super::pending_event::PendingEvent;
use super::write_scheduler::digest;
use crate::index;
use crate::index::objects::ObjectName;

/// The condition that says whether a Service has its addresses.
pub(super) const ADDRESS_ASSIGNED: &str = "guideway.dev/AddressAssigned";

/// The part of a Service's status that the controller writes, as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CurrentStatus {
    /// The addresses. They stay text because others may have written the status.
    pub(super) ingress: Vec<Ingress>,
    /// The condition [`ADDRESS_ASSIGNED`].
    pub(super) condition: Option<Condition>,
    /// The condition that says who announces the addresses.
    pub(super) announced: Option<Condition>,
}

/// One entry of a Service's `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ingress {
    pub(super) ip: Option<String>,
    pub(super) mode: Option<String>,
    /// Whether the entry has other fields, such as a host name.
    pub(super) more: bool,
}

impl CurrentStatus {
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let texts = self
            .ingress
            .iter()
            .filter_map(|ingress| ingress.ip.as_deref());
        texts.filter_map(index::address)
    }

    /// Returns whether the controller has written a condition.
    pub(super) fn has_conditions(&self) -> bool {
        self.condition.is_some() || self.announced.is_some()
    }

    fn says(&self, addresses: &[IpAddr]) -> bool {
        let plain = |ingress: &Ingress| !ingress.more && ingress.mode.as_deref() == Some("VIP");
        self.ingress.len() == addresses.len()
            && self.ingress.iter().all(plain)
            && self.addresses().eq(addresses.iter().copied())
    }
}

/// A write to the status of a Service, and the Events about it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    /// All fields of the status that the controller owns, for a server-side apply.
    pub(super) patch: Value,
    /// The addresses that the Service gets by this write.
    pub(super) given: Vec<IpAddr>,
    /// The Events, in order.
    pub(super) events: Vec<PendingEvent>,
    /// Whether only the condition that says who announces the addresses changes.
    pub(super) is_about_announcers: bool,
}

impl Write {
    /// Returns a digest of what is written.
    pub(super) fn digest(&self) -> u64 {
        digest(Some(&self.patch), None)
    }
}

/// Returns the write that gives a Service its status; `None` if the status is right already.
///
/// `announced` is the condition that says who announces the addresses, and `now` the time in RFC 3339.
pub(super) fn service(
    service: &Service,
    observed: &CurrentStatus,
    decision: &Decision,
    announced: Option<Condition>,
    now: &str,
) -> Option<Write> {
    let before = observed.condition.as_ref();
    let condition = condition(service, decision, before, now);
    let unchanged = before.is_some_and(|before| before.says_as(&condition));
    let is_right = unchanged && observed.says(&decision.addresses);
    let told = observed.announced.as_ref().map(Condition::said);
    if is_right && announced.as_ref().map(Condition::said) == told {
        return None;
    }
    let ingress: Vec<Value> = decision
        .addresses
        .iter()
        .map(|address| json!({"ip": address, "ipMode": "VIP"}))
        .collect();
    let conditions: Vec<Condition> = [condition].into_iter().chain(announced).collect();
    let status = json!({"loadBalancer": {"ingress": ingress}, "conditions": conditions});
    let had: BTreeSet<IpAddr> = observed.addresses().collect();
    let given = decision.addresses.iter().copied();
    let given: Vec<IpAddr> = given.filter(|address| !had.contains(address)).collect();
    Some(Write {
        patch: patch(&service.name, &service.uid, status),
        events: events(&given, decision, unchanged),
        given,
        is_about_announcers: is_right,
    })
}

/// Returns the write that removes everything the controller wrote to a Service that is no longer ours.
pub(super) fn withdraw(name: &ObjectName, uid: &str) -> Write {
    Write {
        patch: patch(name, uid, json!({})),
        given: Vec::new(),
        events: Vec::new(),
        is_about_announcers: false,
    }
}

/// Returns the patch of one Service's status. The uid makes the API server refuse it for a later Service of the
/// same name.
fn patch(name: &ObjectName, uid: &str, status: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": name.namespace, "name": name.name, "uid": uid},
        "status": status,
    })
}

fn condition(
    service: &Service,
    decision: &Decision,
    before: Option<&Condition>,
    now: &str,
) -> Condition {
    let addresses: Vec<String> = decision.addresses.iter().map(IpAddr::to_string).collect();
    let whole = addresses.len() == service.families.len();
    let assigned = !addresses.is_empty() && (whole || !service.dual_stack_required);
    let (reason, message) = match &decision.problem {
        None => ("Assigned", addresses.join(", ")),
        Some(problem) if addresses.is_empty() => (problem.reason(), problem.to_string()),
        Some(problem) => (
            problem.reason(),
            format!("{}; {problem}", addresses.join(", ")),
        ),
    };
    Condition {
        kind: ADDRESS_ASSIGNED.to_owned(),
        status: if assigned { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: String::new(),
    }
    .since(before, now)
}

fn events(given: &[IpAddr], decision: &Decision, told: bool) -> Vec<PendingEvent> {
    let lost = decision.lost.iter().map(|(address, problem)| PendingEvent {
        warning: !problem.is_wish(),
        reason: if problem.is_conflict() {
            "AddressConflict"
        } else {
            "AddressReleased"
        },
        text: format!("took {address} back: {problem}"),
    });
    let given = given.iter().map(|address| PendingEvent {
        warning: false,
        reason: "IPAllocated",
        text: format!("assigned {address}"),
    });
    let problem = decision.problem.iter().filter(|_| !told);
    let problem = problem.map(|problem| {
        let of_machine = problem.is_machine().then(|| problem.reason());
        PendingEvent::warning(
            of_machine.unwrap_or("AllocationFailed"),
            problem.to_string(),
        )
    });
    lost.chain(given).chain(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::address_range::Family;
    use crate::controller::allocate::{AllocationError, Holder};
    use crate::controller::pool_status::PoolWrite;

    const NOW: &str = "2026-11-21T12:00:00Z";

    fn service(
        service: &Service,
        observed: &CurrentStatus,
        decision: &Decision,
        now: &str,
    ) -> Option<Write> {
        super::service(service, observed, decision, None, now)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn web(families: &[Family], required: bool) -> Service {
        Service {
            name: ObjectName::new("default", "web"),
            uid: "7".to_owned(),
            created: 0,
            labels: Default::default(),
            families: families.to_vec(),
            dual_stack_required: required,
            ports: BTreeSet::new(),
            local: false,
            selector: Default::default(),
            request: Default::default(),
            held: Vec::new(),
        }
    }

    fn decision(addresses: &[&str], problem: Option<AllocationError>) -> Decision {
        Decision {
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            problem,
            lost: Vec::new(),
        }
    }

    /// The status as the API server has it after a write.
    fn written(write: &Write) -> CurrentStatus {
        let status = &write.patch["status"];
        let entries = status["loadBalancer"]["ingress"].as_array().unwrap();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        CurrentStatus {
            ingress: entries
                .iter()
                .map(|entry| Ingress {
                    ip: text(&entry["ip"]),
                    mode: text(&entry["ipMode"]),
                    more: false,
                })
                .collect(),
            condition: serde_json::from_value(status["conditions"][0].clone()).unwrap(),
            announced: serde_json::from_value(status["conditions"][1].clone()).unwrap(),
        }
    }

    #[test]
    fn a_status_is_written_once() {
        let service_ = web(&[Family::V4], false);
        let decision = decision(&["192.0.2.1"], None);
        let write = service(&service_, &CurrentStatus::default(), &decision, NOW).unwrap();
        assert_eq!(
            write.patch["status"]["loadBalancer"]["ingress"],
            json!([{"ip": "192.0.2.1", "ipMode": "VIP"}])
        );
        let observed = written(&write);
        assert_eq!(service(&service_, &observed, &decision, "later"), None);

        // Somebody changes it: it is written again, without another Event.
        let mut proxied = observed.clone();
        proxied.ingress[0].mode = Some("Proxy".to_owned());
        let again = service(&service_, &proxied, &decision, "later").unwrap();
        assert_eq!(again.patch, write.patch);
        assert_eq!(again.events, []);
    }

    #[test]
    fn what_is_written_again_has_the_same_digest() {
        let service_ = web(&[Family::V4], false);
        let write = |service_: &Service, address, now| {
            let decision = decision(&[address], None);
            service(service_, &CurrentStatus::default(), &decision, now).unwrap()
        };
        let first = write(&service_, "192.0.2.1", NOW);
        let later = write(&service_, "192.0.2.1", "later");
        assert_ne!(first.patch, later.patch);
        assert_eq!(first.digest(), later.digest());
        let moved = write(&service_, "192.0.2.2", NOW);
        assert_ne!(first.digest(), moved.digest());
        // Another Service of the name.
        let other = Service {
            uid: "8".to_owned(),
            ..service_
        };
        let other = write(&other, "192.0.2.1", NOW);
        assert_ne!(first.digest(), other.digest());

        let pool = |version: &str, used, finalizers: &[&str]| {
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"used": used}});
            let finalizers = finalizers.iter().map(|one| (*one).to_owned()).collect();
            let write = PoolWrite {
                version: version.to_owned(),
                status: Some(patch),
                finalizers: Some(finalizers),
                event: None,
            };
            write.digest()
        };
        assert_eq!(pool("7", 1, &["a"]), pool("8", 1, &["a"]));
        assert_ne!(pool("7", 1, &["a"]), pool("7", 2, &["a"]));
        assert_ne!(pool("7", 1, &["a"]), pool("7", 1, &[]));
    }

    #[test]
    fn the_condition_is_true_with_one_of_two_families_only_if_both_are_not_required() {
        let half = decision(&["192.0.2.1"], Some(AllocationError::Exhausted(Family::V6)));
        for (required, status) in [(false, "True"), (true, "False")] {
            let service_ = web(&[Family::V4, Family::V6], required);
            let write = service(&service_, &CurrentStatus::default(), &half, NOW).unwrap();
            let condition = &write.patch["status"]["conditions"][0];
            assert_eq!(condition["status"], status);
            assert_eq!(condition["reason"], "PoolExhausted");
            assert!(
                condition["message"]
                    .as_str()
                    .unwrap()
                    .starts_with("192.0.2.1; ")
            );
        }
    }

    #[test]
    fn a_condition_keeps_the_time_at_which_its_status_turned() {
        let service_ = web(&[Family::V4], false);
        let time =
            |write: &Write| write.patch["status"]["conditions"][0]["lastTransitionTime"].clone();
        let none = decision(&[], Some(AllocationError::NoPool(Family::V4)));
        let write = service(&service_, &CurrentStatus::default(), &none, NOW).unwrap();
        assert_eq!(time(&write), NOW);
        let other = decision(&[], Some(AllocationError::Exhausted(Family::V4)));
        let write = service(&service_, &written(&write), &other, "later").unwrap();
        assert_eq!(time(&write), NOW);
        let write = service(
            &service_,
            &written(&write),
            &decision(&["192.0.2.1"], None),
            "later",
        )
        .unwrap();
        assert_eq!(time(&write), "later");
    }

    #[test]
    fn events_tell_what_was_taken_given_and_refused() {
        let service_ = web(&[Family::V4], false);
        let foreign = AllocationError::NotInPools(ip("192.0.2.1"));
        let first = service(
            &service_,
            &CurrentStatus::default(),
            &decision(&["192.0.2.1"], None),
            NOW,
        )
        .unwrap();
        let moved = Decision {
            lost: vec![(ip("192.0.2.1"), foreign)],
            ..decision(&["192.0.2.2"], None)
        };
        let write = service(&service_, &written(&first), &moved, NOW).unwrap();
        let told: Vec<_> = write
            .events
            .iter()
            .map(|event| (event.warning, event.reason))
            .collect();
        assert_eq!(told, [(true, "AddressReleased"), (false, "IPAllocated")]);
        assert_eq!(
            write.events[0].text,
            "took 192.0.2.1 back: 192.0.2.1 is in no LoadBalancerPool that is open to this Service"
        );
        let taken = |holder| AllocationError::Taken {
            address: ip("192.0.2.2"),
            holder,
        };
        let other = taken(Holder::Service(ObjectName::new("default", "older")));
        let conflict = Decision {
            lost: vec![(ip("192.0.2.2"), other)],
            ..decision(&["192.0.2.3"], None)
        };
        let write = service(&service_, &written(&write), &conflict, NOW).unwrap();
        assert_eq!(write.events[0].reason, "AddressConflict");
        for (problem, reason) in [
            (AllocationError::Exhausted(Family::V4), "AllocationFailed"),
            (taken(Holder::Node), "AddressIsNode"),
            (taken(Holder::ApiServer), "AddressIsApiServer"),
        ] {
            let gone = decision(&[], Some(problem));
            let write = service(&service_, &written(&write), &gone, NOW).unwrap();
            assert_eq!(write.events[0].reason, reason);
        }
    }
}
