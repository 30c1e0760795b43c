//! What the controller writes: the status of Services and of pools, and what Events tell of it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::allocate::{self, Decision};
use super::block::{self, Block, Family};
use super::crd::{BlockStatus, Condition, PoolSpec, PoolStatus, READY};
use super::deletion::{self, TERMINATING};
use super::objects::{Pool, Service};
use super::selector;
use crate::index;
use crate::index::objects::ObjectName;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// The condition of a Service that tells whether it has its addresses.
pub const ADDRESS_ASSIGNED: &str = "guideway.dev/AddressAssigned";
/// Why a pool that has addresses of another one is not ready, in a word.
const OVERLAP: &str = "Overlap";

/// What the status of a Service says, as far as it is the controller's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The addresses, as text: a status can be anybody's.
    pub ingress: Vec<Ingress>,
    /// The condition [`ADDRESS_ASSIGNED`].
    pub condition: Option<Condition>,
}

/// One entry of a Service's `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ingress {
    /// `ip`.
    pub ip: Option<String>,
    /// `ipMode`.
    pub mode: Option<String>,
    /// Whether there is more than that, such as a host name.
    pub more: bool,
}

impl Observed {
    /// Returns the addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let texts = self
            .ingress
            .iter()
            .filter_map(|ingress| ingress.ip.as_deref());
        texts.filter_map(index::address)
    }

    fn says(&self, addresses: &[IpAddr]) -> bool {
        let plain = |ingress: &Ingress| !ingress.more && ingress.mode.as_deref() == Some("VIP");
        self.ingress.len() == addresses.len()
            && self.ingress.iter().all(plain)
            && self.addresses().eq(addresses.iter().copied())
    }
}

/// An Event about a Service or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether a human should look.
    pub warning: bool,
    /// What it is, in a word.
    pub reason: &'static str,
    /// What it is, in a sentence.
    pub text: String,
}

/// Something to write to the status of a Service, and what to tell about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The whole of what the controller says.
    pub patch: Value,
    /// The addresses that the Service has then and had not.
    pub given: Vec<IpAddr>,
    /// The Events, in order.
    pub notices: Vec<Notice>,
}

impl Write {
    /// Tells what is written from other things.
    pub fn digest(&self) -> u64 {
        digest(Some(&self.patch), None)
    }
}

/// Something to write to a pool, and what to tell about it.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolWrite {
    /// The version of the pool that was decided about.
    pub version: String,
    /// The whole of its status.
    pub status: Option<Value>,
    /// All finalizers that it has to have.
    pub finalizers: Option<Vec<String>>,
    /// The Event.
    pub notice: Option<Notice>,
}

impl PoolWrite {
    /// Tells what is written from other things.
    pub fn digest(&self) -> u64 {
        digest(self.status.as_ref(), self.finalizers.as_deref())
    }
}

/// Digests what is said of which object; not when, nor of which version of it.
fn digest(patch: Option<&Value>, finalizers: Option<&[String]>) -> u64 {
    let mut patch = patch.cloned().unwrap_or_default();
    for (path, key) in [
        ("/metadata", "resourceVersion"),
        ("/status/conditions/0", "lastTransitionTime"),
    ] {
        let part = patch.pointer_mut(path).and_then(Value::as_object_mut);
        part.map(|part| part.remove(key));
    }
    let mut hasher = DefaultHasher::new();
    (patch, finalizers).hash(&mut hasher);
    hasher.finish()
}

/// Compares what a Service gets with what its status says; nothing if they are equal.
///
/// `now` is the time in RFC 3339.
pub fn service(
    service: &Service,
    observed: &Observed,
    decision: &Decision,
    now: &str,
) -> Option<Write> {
    let before = observed.condition.as_ref();
    let condition = condition(service, decision, before, now);
    let unchanged = before.is_some_and(|before| same(before, &condition));
    if unchanged && observed.says(&decision.addresses) {
        return None;
    }
    let ingress: Vec<Value> = decision
        .addresses
        .iter()
        .map(|address| json!({"ip": address, "ipMode": "VIP"}))
        .collect();
    let status = json!({"loadBalancer": {"ingress": ingress}, "conditions": [condition]});
    let had: BTreeSet<IpAddr> = observed.addresses().collect();
    let given = decision.addresses.iter().copied();
    let given: Vec<IpAddr> = given.filter(|address| !had.contains(address)).collect();
    Some(Write {
        patch: patch(&service.name, &service.uid, status),
        notices: notices(&given, decision, unchanged),
        given,
    })
}

/// Takes back everything that the controller said about a Service that is no longer its.
pub fn withdraw(name: &ObjectName, uid: &str) -> Write {
    Write {
        patch: patch(name, uid, json!({})),
        given: Vec::new(),
        notices: Vec::new(),
    }
}

/// Says the status of one Service; the API server refuses it for another one of the same name.
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
    since(
        before,
        now,
        Condition {
            kind: ADDRESS_ASSIGNED.to_owned(),
            status: if assigned { "True" } else { "False" }.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: String::new(),
        },
    )
}

/// Dates a condition: from now if its status turned, else as before.
fn since(before: Option<&Condition>, now: &str, condition: Condition) -> Condition {
    let before = before.filter(|before| before.status == condition.status);
    let last_transition_time = before.map_or(now, |before| &before.last_transition_time);
    Condition {
        last_transition_time: last_transition_time.to_owned(),
        ..condition
    }
}

fn same(one: &Condition, other: &Condition) -> bool {
    (&one.status, &one.reason, &one.message) == (&other.status, &other.reason, &other.message)
}

fn notices(given: &[IpAddr], decision: &Decision, told: bool) -> Vec<Notice> {
    let lost = decision.lost.iter().map(|(address, problem)| Notice {
        warning: !problem.is_wish(),
        reason: if problem.is_conflict() {
            "AddressConflict"
        } else {
            "AddressReleased"
        },
        text: format!("took {address} back: {problem}"),
    });
    let given = given.iter().map(|address| Notice {
        warning: false,
        reason: "IPAllocated",
        text: format!("assigned {address}"),
    });
    let problem = decision.problem.iter().filter(|_| !told);
    let problem = problem.map(|problem| Notice {
        warning: true,
        reason: if problem.is_machine() {
            problem.reason()
        } else {
            "AllocationFailed"
        },
        text: problem.to_string(),
    });
    lost.chain(given).chain(problem).collect()
}

/// A pool as it is written, and what of it can be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolSource {
    /// The entries, with the block that each stands for.
    pub entries: Vec<(String, Option<Block>)>,
    /// What is wrong with the specification, in a word and a sentence.
    pub problem: Option<(&'static str, String)>,
    /// What of it can be used.
    pub pool: Pool,
}

impl PoolSource {
    /// Reads a specification; what is wrong with it is left out and told.
    pub fn new(spec: &PoolSpec) -> Self {
        let mut problem = None;
        let mut entries = Vec::new();
        for text in &spec.addresses {
            match text.parse() {
                Ok(block) => entries.push((text.clone(), Some(block))),
                Err(error) => {
                    let text_of = || {
                        (
                            "InvalidAddresses",
                            format!("spec.addresses {text:?} is left out: {error}"),
                        )
                    };
                    problem.get_or_insert_with(text_of);
                    entries.push((text.clone(), None));
                }
            }
        }
        let read = |field: &str, selector: Option<&LabelSelector>| {
            selector::read(selector).map_err(|error| {
                format!(
                    "spec.{field}: {error}; until it can be read the pool gives no addresses, and Services keep those \
                     that they have"
                )
            })
        };
        let services = read("serviceSelector", spec.service_selector.as_ref());
        let namespaces = read("namespaceSelector", spec.namespace_selector.as_ref());
        let selectors = services.and_then(|services| Ok((services, namespaces?)));
        let unreadable = selectors.is_err();
        // Who has an address of it may be whom it was meant for.
        let (services, namespaces) = selectors.unwrap_or_else(|text| {
            problem = Some(("InvalidSelector", text));
            Default::default()
        });
        let mut sharing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for shared in spec.sharing.iter().flatten() {
            let named = sharing.entry(shared.key.clone()).or_default();
            named.extend(shared.namespaces.iter().cloned());
        }
        let blocks = entries.iter().filter_map(|(_, block)| *block).collect();
        Self {
            pool: Pool {
                blocks,
                services,
                namespaces,
                auto_assign: spec.auto_assign,
                terminating: false,
                unreadable,
                sharing,
            },
            entries,
            problem,
        }
    }

    /// Says what the pool has come to: `ours` are the addresses that Services have from the
    /// controller and that it counts, `taken` all that somebody has, `before_it` the pools that count what it has too,
    /// `users` the Services that keep it from being deleted.
    pub fn status(
        &self,
        ours: &BTreeSet<IpAddr>,
        taken: &BTreeSet<IpAddr>,
        before_it: &[(&str, &Pool)],
        users: &BTreeSet<&ObjectName>,
        before: &PoolStatus,
        now: &str,
    ) -> PoolStatus {
        let mut blocks: Vec<BlockStatus> = self
            .entries
            .iter()
            .map(|(text, _)| BlockStatus {
                addresses: text.clone(),
                used: 0,
            })
            .collect();
        let mut used = 0;
        for address in ours {
            let having = self.entries.iter().enumerate();
            let having = having.filter_map(|(index, (_, block))| {
                let block = block.filter(|block| block.contains(*address))?;
                Some((block.size(), index))
            });
            // In the smallest: who makes a block smaller adds the smaller one first.
            if let Some((_, index)) = having.min() {
                blocks[index].used += 1;
                used += 1;
            }
        }
        let others = before_it.iter().flat_map(|(_, pool)| &pool.blocks);
        let counted = block::without(&self.pool.blocks, others);
        let free = |family| {
            let (used, size) = allocate::usage(&counted, family, taken);
            i64::try_from(size - used).unwrap_or(i64::MAX)
        };
        let (status, reason, message) = match &self.problem {
            _ if self.pool.terminating => ("False", TERMINATING, deletion::message(users)),
            Some((reason, message)) => ("False", *reason, message.clone()),
            None => match self.overlap(before_it) {
                Some(message) => ("False", OVERLAP, message),
                None => ("True", "Valid", String::new()),
            },
        };
        let ready = Condition {
            kind: READY.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: String::new(),
        };
        let told = before.ready();
        PoolStatus {
            used,
            free_ipv4: free(Family::V4),
            free_ipv6: free(Family::V6),
            blocks,
            conditions: vec![since(told, now, ready)],
        }
    }

    /// Says which addresses another pool has too.
    fn overlap(&self, before_it: &[(&str, &Pool)]) -> Option<String> {
        let entries = self.entries.iter();
        let mut entries = entries.filter_map(|(text, block)| Some((text, (*block)?)));
        entries.find_map(|(text, block)| {
            let mut pools = before_it.iter();
            let meets = |other: &&Block| other.meets(&block);
            let (name, _) = pools.find(|(_, pool)| pool.blocks.iter().any(|other| meets(&other)))?;
            Some(format!(
                "spec.addresses {text:?} has addresses that LoadBalancerPool {name} has too, which counts them; take them \
                 out of one of the two"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::allocate::{Holder, Problem};

    const NOW: &str = "2026-11-21T12:00:00Z";

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

    fn decision(addresses: &[&str], problem: Option<Problem>) -> Decision {
        Decision {
            addresses: addresses.iter().map(|text| ip(text)).collect(),
            problem,
            lost: Vec::new(),
        }
    }

    /// The status as the API server has it after a write.
    fn written(write: &Write) -> Observed {
        let status = &write.patch["status"];
        let entries = status["loadBalancer"]["ingress"].as_array().unwrap();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Observed {
            ingress: entries
                .iter()
                .map(|entry| Ingress {
                    ip: text(&entry["ip"]),
                    mode: text(&entry["ipMode"]),
                    more: false,
                })
                .collect(),
            condition: serde_json::from_value(status["conditions"][0].clone()).unwrap(),
        }
    }

    #[test]
    fn a_status_is_written_once() {
        let service_ = web(&[Family::V4], false);
        let decision = decision(&["192.0.2.1"], None);
        let write = service(&service_, &Observed::default(), &decision, NOW).unwrap();
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
        assert_eq!(again.notices, []);
    }

    #[test]
    fn what_is_written_again_has_the_same_digest() {
        let service_ = web(&[Family::V4], false);
        let write = |service_: &Service, address, now| {
            let decision = decision(&[address], None);
            service(service_, &Observed::default(), &decision, now).unwrap()
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
                notice: None,
            };
            write.digest()
        };
        assert_eq!(pool("7", 1, &["a"]), pool("8", 1, &["a"]));
        assert_ne!(pool("7", 1, &["a"]), pool("7", 2, &["a"]));
        assert_ne!(pool("7", 1, &["a"]), pool("7", 1, &[]));
    }

    #[test]
    fn the_condition_is_true_with_one_of_two_families_only_if_both_are_not_required() {
        let half = decision(&["192.0.2.1"], Some(Problem::Exhausted(Family::V6)));
        for (required, status) in [(false, "True"), (true, "False")] {
            let service_ = web(&Family::ALL, required);
            let write = service(&service_, &Observed::default(), &half, NOW).unwrap();
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
        let none = decision(&[], Some(Problem::NoPool(Family::V4)));
        let write = service(&service_, &Observed::default(), &none, NOW).unwrap();
        assert_eq!(time(&write), NOW);
        let other = decision(&[], Some(Problem::Exhausted(Family::V4)));
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
        let foreign = Problem::NotInPools(ip("192.0.2.1"));
        let first = service(
            &service_,
            &Observed::default(),
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
            .notices
            .iter()
            .map(|notice| (notice.warning, notice.reason))
            .collect();
        assert_eq!(told, [(true, "AddressReleased"), (false, "IPAllocated")]);
        assert_eq!(
            write.notices[0].text,
            "took 192.0.2.1 back: 192.0.2.1 is in no LoadBalancerPool that is open to this Service"
        );
        let taken = |holder| Problem::Taken {
            address: ip("192.0.2.2"),
            holder,
        };
        let other = taken(Holder::Service(ObjectName::new("default", "older")));
        let conflict = Decision {
            lost: vec![(ip("192.0.2.2"), other)],
            ..decision(&["192.0.2.3"], None)
        };
        let write = service(&service_, &written(&write), &conflict, NOW).unwrap();
        assert_eq!(write.notices[0].reason, "AddressConflict");
        for (problem, reason) in [
            (Problem::Exhausted(Family::V4), "AllocationFailed"),
            (taken(Holder::Node), "AddressIsNode"),
            (taken(Holder::ApiServer), "AddressIsApiServer"),
        ] {
            let gone = decision(&[], Some(problem));
            let write = service(&service_, &written(&write), &gone, NOW).unwrap();
            assert_eq!(write.notices[0].reason, reason);
        }
    }

    #[test]
    fn an_address_counts_for_the_smallest_entry_that_has_it() {
        let spec = PoolSpec {
            addresses: ["192.0.2.0/24", "192.0.2.0/30", "192.0.2.1-192.0.2.9", "x"]
                .map(str::to_owned)
                .into(),
            ..PoolSpec::default()
        };
        let ours = ["192.0.2.1", "192.0.2.5", "192.0.2.77", "198.51.100.1"]
            .map(ip)
            .into();
        let taken = ["192.0.2.1", "192.0.2.5", "192.0.2.77", "192.0.2.99"]
            .map(ip)
            .into();
        let source = PoolSource::new(&spec);
        let users = BTreeSet::new();
        let status = source.status(&ours, &taken, &[], &users, &PoolStatus::default(), NOW);
        let used: Vec<i64> = status.blocks.iter().map(|block| block.used).collect();
        assert_eq!(used, [1, 1, 1, 0]);
        assert_eq!(
            (status.used, status.free_ipv4, status.free_ipv6),
            (3, 252, 0)
        );
        assert_eq!(status.conditions[0].reason, "InvalidAddresses");
        let again = source.status(&ours, &taken, &[], &users, &status, "later");
        assert_eq!(again, status);
    }

    #[test]
    fn more_addresses_than_fit_are_told_as_the_most() {
        let spec = PoolSpec {
            addresses: vec!["2001:db8::/32".to_owned()],
            ..PoolSpec::default()
        };
        let (none, users) = (BTreeSet::new(), BTreeSet::new());
        let before = PoolStatus::default();
        let status = PoolSource::new(&spec).status(&none, &none, &[], &users, &before, NOW);
        assert_eq!(status.free_ipv6, i64::MAX);
    }
}
