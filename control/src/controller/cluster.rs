//! What is known of the cluster, and what has to be written for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::json;

use super::allocate::{self, Decision, Inventory};
use super::convert::{Seen, SeenPool};
use super::crd::PoolStatus;
use super::deletion;
use super::metrics::PoolValues;
use super::mirror::Mirror;
use super::objects::{Labels, Pool, Service};
use super::refusal::Refusals;
use super::status::{self, Notice, PoolSource, PoolWrite, Write};
use crate::index::objects::ObjectName;
use crate::index::{self, Problem};

/// Events about what is wrong with Services that are published together.
const NOTICES_AT_ONCE: usize = 20;

/// The objects that the controller follows, and what it decided about them.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) services: Mirror<Seen>,
    pub(super) pools: Mirror<SeenPool>,
    pub(super) nodes: Mirror<Vec<IpAddr>>,
    /// Where this process reaches the API server, and where the slices of its own Service show it.
    api_server: BTreeSet<IpAddr>,
    pub(super) api_servers: Mirror<Vec<IpAddr>>,
    /// Edges outside the cluster, as slices of Guideway's own Service show them.
    pub(super) edges: Mirror<Vec<IpAddr>>,
    pub(super) namespaces: Mirror<Labels>,
    /// The addresses last decided in this term, by name and uid: the watch may not show yet that they are written.
    decided: BTreeMap<ObjectName, (String, Vec<IpAddr>)>,
    /// What Events of this term have told to be wrong with Services, by name and uid.
    published: BTreeMap<ObjectName, (String, Vec<Problem>)>,
    /// Pools that could not be written when that was last tried.
    pub(super) refusals: Refusals,
}

type Decisions = BTreeMap<ObjectName, Decision>;

/// What has to be written.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// What to write to pools, which have to count an address before a Service has it.
    pub(super) pools: Vec<(ObjectName, PoolWrite)>,
    /// Status of Services.
    pub(super) services: Vec<(ObjectName, Write)>,
    /// What to tell of Services, by name and uid, to which nothing is to be written for it.
    pub(super) notices: Vec<(ObjectName, String, Notice)>,
    /// Whether there is more to tell than that.
    pub(super) has_more: bool,
    /// Services that have what they want, and those that wait.
    pub(super) assigned: u64,
    pub(super) waiting: u64,
    /// Addresses of Services that machines have come to have.
    pub(super) claimed: BTreeSet<IpAddr>,
    /// Use of the pools.
    pub(super) usage: BTreeMap<String, PoolValues>,
}

impl Cluster {
    /// Begins with nothing but the addresses at which the API server is reached.
    pub(super) fn new(api_server: BTreeSet<IpAddr>) -> Self {
        Self {
            api_server,
            ..Self::default()
        }
    }

    /// Lists what is not known yet.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        [
            ("services", self.services.is_complete()),
            ("loadbalancerpools", self.pools.is_complete()),
            ("nodes", self.nodes.is_complete()),
            (
                "endpointslices",
                self.api_servers.is_complete() && self.edges.is_complete(),
            ),
            ("namespaces", self.namespaces.is_complete()),
        ]
        .into_iter()
        .filter(|(_, complete)| !complete)
        .map(|(kind, _)| kind)
        .collect()
    }

    /// Forgets what was decided: another controller may have decided since.
    pub(super) fn forget(&mut self) {
        self.decided.clear();
        self.refusals = Refusals::default();
        self.published.clear();
    }

    /// Decides, and says what has to be written for it; `now` is the time in RFC 3339.
    pub(super) fn plan(&mut self, now: &str) -> Plan {
        let inventory = self.inventory();
        let decisions = allocate::allocate(&inventory);
        let mut plan = Plan::default();
        self.plan_pools(&mut plan, &inventory, &decisions, now);
        let is_due = |name: &ObjectName| plan.pools.iter().any(|(pool, _)| pool == name);
        self.refusals.retain(is_due);
        self.plan_services(&mut plan, &inventory, &decisions, now);
        self.plan_notices(&mut plan, &inventory, &decisions);
        let decided = self.services.objects().iter().filter_map(|(name, seen)| {
            let decision = decisions.get(name)?;
            Some((name.clone(), (seen.uid.clone(), decision.addresses.clone())))
        });
        self.decided = decided.collect();
        plan
    }

    fn plan_pools(&self, plan: &mut Plan, inventory: &Inventory, decisions: &Decisions, now: &str) {
        let mut held: Vec<(&ObjectName, IpAddr)> = Vec::new();
        for (name, decision) in decisions {
            // What it still has counts until it is taken back.
            let seen = self.services.objects().get(name);
            let had = seen.into_iter().flat_map(|seen| seen.observed.addresses());
            let addresses = had.chain(decision.addresses.iter().copied());
            held.extend(addresses.map(|address| (name, address)));
        }
        let ours = held.iter().map(|(_, address)| address);
        let foreign = inventory.foreign.keys();
        let taken = ours
            .chain(inventory.machines().into_iter().flatten())
            .chain(foreign)
            .copied()
            .collect();
        let pools = self.pools.objects();
        let guarded = pools
            .iter()
            .filter(|(_, seen)| deletion::is_guarded(&seen.finalizers));
        let guarded = guarded.map(|(name, _)| name.name.as_str()).collect();
        let at_stake = deletion::at_stake(inventory, &guarded, &held);
        let mut counted = counted(inventory, &held);
        // Of two with the same addresses the first counts them, but for one that is about to go.
        let mut in_order: Vec<(&str, &Pool)> = inventory
            .pools
            .iter()
            .map(|(name, pool)| (name.as_str(), pool))
            .collect();
        in_order.sort_by_key(|(_, pool)| pool.terminating);
        for (name, seen) in pools {
            let PoolSource { pool, .. } = &seen.source;
            let is_itself = |(other, _): &&(&str, &Pool)| **other == *name.name;
            let before_it = in_order.iter().take_while(|other| !is_itself(other));
            let before_it: Vec<_> = before_it
                .filter(|(_, pool)| !pool.terminating)
                .copied()
                .collect();
            let ours = counted.remove(name.name.as_str()).unwrap_or_default();
            let users = at_stake
                .iter()
                .filter(|(_, address)| pool.terminating && pool.contains(*address));
            let users = users.map(|(user, _)| *user).collect();
            let status = seen
                .source
                .status(&ours, &taken, &before_it, &users, &seen.status, now);
            let values = PoolValues {
                used: status.used,
                free_ipv4: status.free_ipv4,
                free_ipv6: status.free_ipv6,
            };
            plan.usage.insert(name.name.to_string(), values);
            let write = pool_write(name, seen, &status, &users);
            plan.pools.extend(write.map(|write| (name.clone(), write)));
        }
    }

    fn plan_services(
        &self,
        plan: &mut Plan,
        inventory: &Inventory,
        decisions: &Decisions,
        now: &str,
    ) {
        let pools = self.pools.objects();
        for (name, seen) in self.services.objects() {
            let Some((service, decision)) = inventory.services.get(name).zip(decisions.get(name))
            else {
                if seen.observed.condition.is_some() && !seen.is_of_other_class {
                    let write = status::withdraw(name, &seen.uid);
                    plan.services.push((name.clone(), write));
                }
                continue;
            };
            let observed = &seen.observed;
            let without = (self.refusals).withhold(pools, service, observed, decision);
            let decision = without.as_ref().unwrap_or(decision);
            match decision.problem {
                None => plan.assigned += 1,
                Some(_) => plan.waiting += 1,
            }
            let write = status::service(service, observed, decision, now);
            plan.services
                .extend(write.map(|write| (name.clone(), write)));
        }
    }

    /// Finds what is wrong with Services and was not; of a thousand that come together, some at a time.
    fn plan_notices(&mut self, plan: &mut Plan, inventory: &Inventory, decisions: &Decisions) {
        let mut published = BTreeMap::new();
        for (name, seen) in self.services.objects() {
            let served = seen.served.iter().copied();
            let of_machines = served.filter(|address| inventory.is_machine(*address));
            let mut of_machines = index::problems_of_addresses(name, of_machines);
            let given = decisions.get(name).into_iter();
            let given = given.flat_map(|decision| &decision.addresses).copied();
            let claimed = given.filter(|address| inventory.is_machine(*address));
            let claimed: Vec<IpAddr> = claimed.collect();
            plan.claimed.extend(&claimed);
            of_machines.extend(index::problems_of_claims(name, claimed.into_iter()));
            if seen.problems.is_empty() && of_machines.is_empty() {
                continue;
            }
            let before = self.published.get(name).filter(|(uid, _)| *uid == seen.uid);
            let is_published =
                |problem: &Problem| before.is_some_and(|(_, problems)| problems.contains(problem));
            let mut problems = Vec::new();
            for problem in seen.problems.iter().chain(&of_machines) {
                let is_new = !is_published(problem);
                if is_new && plan.notices.len() == NOTICES_AT_ONCE {
                    plan.has_more = true;
                    continue;
                }
                problems.push(problem.clone());
                if is_new {
                    let notice = Notice {
                        warning: true,
                        reason: problem.rule.name(),
                        text: format!("{}; {}", problem.text, problem.remedy),
                    };
                    plan.notices.push((name.clone(), seen.uid.clone(), notice));
                }
            }
            published.insert(name.clone(), (seen.uid.clone(), problems));
        }
        self.published = published;
    }

    /// Tells whether one of these pools has one of these addresses.
    pub(super) fn has_any(&self, pools: &[ObjectName], addresses: &[IpAddr]) -> bool {
        let pools = pools
            .iter()
            .filter_map(|name| self.pools.objects().get(name));
        let mut pools = pools.map(|seen| &seen.source.pool);
        pools.any(|pool| addresses.iter().any(|address| pool.contains(*address)))
    }

    fn inventory(&self) -> Inventory {
        let services = self.services.objects();
        let ours = services.iter().filter_map(|(name, seen)| {
            let mut service = seen.ours.clone()?;
            if let Some((uid, addresses)) = self.decided.get(name)
                && *uid == seen.uid
            {
                service.held.clone_from(addresses);
            }
            Some((name.clone(), service))
        });
        let foreign = services
            .iter()
            .flat_map(|(name, seen)| seen.foreign.iter().map(|address| (*address, name.clone())));
        let external = services.values().flat_map(|seen| &seen.external);
        let pools = self.pools.objects().iter();
        let namespaces = self.namespaces.objects().iter();
        let api_servers = self.api_servers.objects().values().flatten();
        let edges = self.edges.objects().values().flatten();
        Inventory {
            pools: pools
                .map(|(name, seen)| (name.name.to_string(), seen.source.pool.clone()))
                .collect(),
            namespaces: namespaces
                .map(|(name, labels)| (name.name.to_string(), labels.clone()))
                .collect(),
            nodes: self.nodes.objects().values().flatten().copied().collect(),
            api_servers: api_servers.chain(&self.api_server).copied().collect(),
            edges: edges.copied().collect(),
            foreign: foreign.collect(),
            external: external.copied().collect(),
            services: ours.collect(),
        }
    }
}

/// Says which pool counts which of the addresses that Services hold: each is counted by one, of those that have it the first
/// that gives it to a holder and is not about to go.
fn counted<'a>(
    inventory: &'a Inventory,
    held: &[(&ObjectName, IpAddr)],
) -> BTreeMap<&'a str, BTreeSet<IpAddr>> {
    let mut holders: BTreeMap<IpAddr, Vec<&Service>> = BTreeMap::new();
    for (name, address) in held {
        let holders = holders.entry(*address).or_default();
        holders.extend(inventory.services.get(*name));
    }
    let mut counted: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
    for (address, holders) in holders {
        let having = inventory.pools.iter();
        let having = having.filter(|(_, pool)| pool.contains(address));
        let first = having.min_by_key(|(_, pool)| {
            let admits = |service: &&Service| {
                let namespace = inventory.namespaces.get(service.name.namespace.as_str());
                pool.admits(&service.labels, namespace)
            };
            (pool.terminating, !holders.iter().any(admits))
        });
        if let Some((name, _)) = first {
            counted.entry(name).or_default().insert(address);
        }
    }
    counted
}

/// Compares what a pool has come to with what the API server has of it; nothing if they are equal.
fn pool_write(
    name: &ObjectName,
    seen: &SeenPool,
    status: &PoolStatus,
    users: &BTreeSet<&ObjectName>,
) -> Option<PoolWrite> {
    let terminating = seen.source.pool.terminating;
    let in_use = if terminating {
        !users.is_empty()
    } else {
        status.used > 0
    };
    let finalizers = deletion::finalizers(&seen.finalizers, in_use, terminating);
    let patch = (*status != seen.status).then(|| {
        json!({
            "apiVersion": "guideway.dev/v1alpha1",
            "kind": "LoadBalancerPool",
            // Of the pool that was decided about: a smaller one may not hold what was decided.
            "metadata": {"name": name.name, "resourceVersion": seen.version},
            "status": status,
        })
    });
    let ready = status.ready();
    let notice = ready.and_then(|ready| deletion::notice(seen.status.ready(), ready, users));
    (patch.is_some() || finalizers.is_some()).then(|| PoolWrite {
        version: seen.version.clone(),
        status: patch,
        finalizers,
        notice,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::block::Family;
    use crate::controller::convert::{self, Classes};
    use crate::controller::deletion::FINALIZER;
    use crate::controller::mirror::Event;
    use crate::index::{Object, Rule};
    use crate::kubernetes::schema::{self, name as name_of};

    const NOW: &str = "2026-11-21T12:00:00Z";

    /// A Service, older the smaller the number.
    fn service(name: &str, created: u8) -> (ObjectName, Seen) {
        let service: schema::Service = serde_json::from_value(json!({
            "metadata": {
                "namespace": "test",
                "name": name,
                "uid": format!("uid-{name}"),
                "creationTimestamp": format!("2026-11-21T12:00:{created:02}Z"),
            },
            "spec": {
                "type": "LoadBalancer",
                "loadBalancerClass": "a/b",
                "ipFamilies": ["IPv4"],
                "ports": [{"port": 80}],
            },
        }))
        .unwrap();
        (name_of(&service.metadata), classes().service(&service))
    }

    fn classes() -> Classes {
        Classes {
            class: "a/b".to_owned(),
            default: false,
            external_ips: ["203.0.113.0/24".parse().unwrap()].into(),
        }
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        put_pool(&mut cluster, "a", &[], false);
        cluster
    }

    fn put_pool(cluster: &mut Cluster, name: &str, finalizers: &[&str], terminating: bool) {
        put_pool_of(cluster, name, "192.0.2.0/30", finalizers, terminating);
    }

    fn put_pool_of(
        cluster: &mut Cluster,
        name: &str,
        addresses: &str,
        finalizers: &[&str],
        terminating: bool,
    ) {
        let pool = serde_json::from_value(json!({
            "apiVersion": "guideway.dev/v1alpha1",
            "kind": "LoadBalancerPool",
            "metadata": {
                "name": name,
                "resourceVersion": "7",
                "finalizers": finalizers,
                "deletionTimestamp": terminating.then_some(NOW),
            },
            "spec": {"addresses": [addresses]},
        }));
        let name = ObjectName::new("", name);
        cluster.pools.put(name, convert::pool(&pool.unwrap()));
    }

    fn addresses(plan: &Plan) -> Vec<(&str, String)> {
        let writes = plan.services.iter();
        writes
            .map(|(name, write)| (name.name.as_str(), write.given[0].to_string()))
            .collect()
    }

    #[test]
    fn a_pool_counts_what_is_decided_and_what_is_not_taken_back_yet() {
        let mut cluster = cluster();
        let (name, mut seen) = service("web", 1);
        cluster.services.put(name.clone(), seen.clone());
        let plan = cluster.plan(NOW);
        let (_, write) = &plan.pools[0];
        let patch = write.status.as_ref().unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["status"]["used"], 1);

        // It holds one address, and asks for another one.
        seen.observed.ingress = vec![status::Ingress {
            ip: Some("192.0.2.0".to_owned()),
            ..status::Ingress::default()
        }];
        seen.ours.as_mut().unwrap().request.addresses = Some("192.0.2.3".to_owned());
        cluster.services.put(name, seen);
        let plan = cluster.plan(NOW);
        assert_eq!(addresses(&plan), [("web", "192.0.2.3".to_owned())]);
        let (_, write) = &plan.pools[0];
        assert_eq!(write.status.as_ref().unwrap()["status"]["used"], 2);
    }

    #[test]
    fn a_pool_has_the_finalizer_while_one_of_its_addresses_is_in_use() {
        let mut cluster = cluster();
        assert_eq!(finalizers(&mut cluster, "a"), None);
        let (name, seen) = service("web", 1);
        cluster.services.put(name.clone(), seen);
        assert_eq!(
            finalizers(&mut cluster, "a"),
            Some(vec![FINALIZER.to_owned()])
        );
        put_pool(&mut cluster, "a", &[FINALIZER], false);
        assert_eq!(finalizers(&mut cluster, "a"), None);
        cluster.services.follow(Event::Delete(name));
        assert_eq!(finalizers(&mut cluster, "a"), Some(vec![]));
    }

    #[test]
    fn a_deleted_pool_stays_until_nobody_would_lose_an_address_by_it() {
        let mut cluster = Cluster::default();
        let (name, mut seen) = service("web", 1);
        seen.ours.as_mut().unwrap().held = vec!["192.0.2.0".parse().unwrap()];
        cluster.services.put(name, seen);
        put_pool(&mut cluster, "a", &[FINALIZER], true);
        let plan = cluster.plan(NOW);
        let (_, write) = &plan.pools[0];
        assert_eq!(write.finalizers, None);
        let ready = &write.status.as_ref().unwrap()["status"]["conditions"][0];
        assert_eq!(
            (&ready["status"], &ready["reason"]),
            (&json!("False"), &json!("Terminating"))
        );
        assert!(
            ready["message"].as_str().unwrap().contains("test/web"),
            "{ready}"
        );
        assert_eq!(write.notice.as_ref().unwrap().reason, "PoolInUse");

        // One that might vanish at once, or is deleted as well, cannot take over.
        for (present, terminating) in [(&[][..], false), (&[FINALIZER], true)] {
            put_pool(&mut cluster, "b", present, terminating);
            assert_eq!(finalizers(&mut cluster, "a"), None);
        }
        put_pool(&mut cluster, "b", &[FINALIZER], false);
        assert_eq!(finalizers(&mut cluster, "a"), Some(vec![]));
        assert_eq!(finalizers(&mut cluster, "b"), None);
    }

    #[test]
    fn an_address_of_two_pools_is_counted_by_one_and_the_other_is_not_ready() {
        let mut cluster = Cluster::default();
        put_pool_of(&mut cluster, "a", "192.0.2.0/30", &[], false);
        put_pool_of(&mut cluster, "b", "192.0.2.2-192.0.2.9", &[], false);
        let (name, mut seen) = service("web", 1);
        seen.ours.as_mut().unwrap().held = vec!["192.0.2.3".parse().unwrap()];
        cluster.services.put(name, seen);
        let told = |cluster: &mut Cluster| -> Vec<_> {
            let plan = cluster.plan(NOW);
            let pools = plan.pools.iter().map(|(name, write)| {
                let status = &write.status.as_ref().unwrap()["status"];
                let ready = &status["conditions"][0];
                let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
                let values = plan.usage[name.name.as_str()];
                assert_eq!(status["used"], values.used);
                let about_a = text(&ready["message"]).contains("LoadBalancerPool a has too");
                (
                    values.used,
                    values.free_ipv4,
                    text(&ready["reason"]),
                    about_a,
                )
            });
            pools.collect()
        };
        let overlapping = [
            (1, 3, "Valid".to_owned(), false),
            (0, 6, "Overlap".to_owned(), true),
        ];
        assert_eq!(told(&mut cluster), overlapping);

        // One that is about to go leaves them to the other.
        put_pool_of(&mut cluster, "a", "192.0.2.0/30", &[FINALIZER], true);
        let (used, free, ..) = &told(&mut cluster)[0];
        assert_eq!((*used, *free), (0, 2));
        let (used, free, reason, _) = &told(&mut cluster)[1];
        assert_eq!((*used, *free, reason.as_str()), (1, 7, "Valid"));
    }

    #[test]
    fn a_selector_that_cannot_be_read_takes_no_address_away() {
        let mut cluster = cluster();
        for (name, number) in [("held", 1), ("new", 2)] {
            let (name, seen) = service(name, number);
            cluster.services.put(name, seen);
        }
        let held = ObjectName::new("test", "held");
        let mut seen = cluster.services.objects()[&held].clone();
        seen.ours.as_mut().unwrap().held = vec!["192.0.2.3".parse().unwrap()];
        seen.observed.ingress = vec![status::Ingress {
            ip: Some("192.0.2.3".to_owned()),
            ..status::Ingress::default()
        }];
        cluster.services.put(held, seen);
        for typo in [
            json!([{"key": "app", "operator": "In"}]),
            json!([{"key": "app", "operator": "In", "values": []}]),
            json!([{"key": "a pp", "operator": "Exists"}]),
        ] {
            cluster.forget();
            let pool = serde_json::from_value(json!({
                "apiVersion": "guideway.dev/v1alpha1",
                "kind": "LoadBalancerPool",
                "metadata": {"name": "a", "resourceVersion": "8"},
                "spec": {
                    "addresses": ["192.0.2.0/30"],
                    "serviceSelector": {"matchExpressions": typo},
                },
            }));
            cluster
                .pools
                .put(ObjectName::new("", "a"), convert::pool(&pool.unwrap()));
            let plan = cluster.plan(NOW);
            assert_eq!(told(&plan, "held").unwrap().2, ["192.0.2.3"], "{typo}");
            let (reason, _, addresses) = told(&plan, "new").unwrap();
            assert_eq!((reason.as_str(), addresses), ("PoolUnreadable", vec![]));
            let ready = &plan.pools[0].1.status.as_ref().unwrap()["status"]["conditions"][0];
            assert_eq!(ready["reason"], "InvalidSelector");
            assert_eq!(plan.usage["a"].used, 1);
        }
    }

    /// Tells which finalizers a pool is to get.
    fn finalizers(cluster: &mut Cluster, name: &str) -> Option<Vec<String>> {
        let pools = cluster.plan(NOW).pools;
        let mut writes = pools.into_iter().filter(|(pool, _)| pool.name == *name);
        writes.next()?.1.finalizers
    }

    /// Returns the condition that a Service is to get, and its addresses.
    fn told(plan: &Plan, name: &str) -> Option<(String, String, Vec<String>)> {
        let mut writes = plan.services.iter();
        let (_, write) = writes.find(|(service, _)| service.name == *name)?;
        let status = &write.patch["status"];
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let ingress = status["loadBalancer"]["ingress"].as_array().unwrap();
        let condition = &status["conditions"][0];
        Some((
            text(&condition["reason"]),
            text(&condition["message"]),
            ingress.iter().map(|entry| text(&entry["ip"])).collect(),
        ))
    }

    #[test]
    fn a_pool_that_cannot_be_written_gives_nothing_and_the_services_say_why() {
        let mut cluster = cluster();
        let (old, mut seen) = service("old", 1);
        seen.ours.as_mut().unwrap().held = vec!["192.0.2.0".parse().unwrap()];
        seen.observed.ingress = vec![status::Ingress {
            ip: Some("192.0.2.0".to_owned()),
            ..status::Ingress::default()
        }];
        cluster.services.put(old, seen);
        let (new, seen) = service("new", 2);
        cluster.services.put(new, seen);
        assert_eq!(told(&cluster.plan(NOW), "new").unwrap().2, ["192.0.2.1"]);

        let pool = ObjectName::new("", "a");
        assert!(cluster.refusals.note(pool.clone(), "no right".to_owned()));
        assert!(!cluster.refusals.note(pool.clone(), "no right".to_owned()));
        let plan = cluster.plan(NOW);
        let (reason, message, addresses) = told(&plan, "new").unwrap();
        assert_eq!((reason.as_str(), addresses), ("PoolNotWritable", vec![]));
        let expected = "LoadBalancerPool a cannot be written";
        assert!(
            message.starts_with(expected) && message.contains("no right; see"),
            "{message}"
        );
        assert_eq!((plan.assigned, plan.waiting), (1, 1));
        // Who has an address has it, and its status can be repaired.
        let kept = vec!["192.0.2.0".to_owned()];
        let of_old = told(&plan, "old").unwrap();
        assert_eq!(of_old, ("Assigned".to_owned(), kept[0].clone(), kept));
        // The pool is tried on, with the address that waits.
        let (_, write) = &plan.pools[0];
        assert_eq!(write.status.as_ref().unwrap()["status"]["used"], 2);
        assert!(write.finalizers.is_some());

        // Once nothing is left to be written to it, it was written: in the same plan.
        let status = write.status.as_ref().unwrap()["status"].clone();
        put_pool(&mut cluster, "a", &[FINALIZER], false);
        let mut counted = cluster.pools.objects()[&pool].clone();
        counted.status = serde_json::from_value(status).unwrap();
        cluster.pools.put(pool, counted);
        assert_eq!(told(&cluster.plan(NOW), "new").unwrap().2, ["192.0.2.1"]);
    }

    #[test]
    fn a_service_that_requires_both_families_gets_no_half_from_a_pool_that_can_be_written() {
        for (required, has_one, expected) in [
            (true, false, vec![]),
            (false, false, vec!["192.0.2.0".to_owned()]),
            (true, true, vec!["192.0.2.0".to_owned()]),
        ] {
            let mut cluster = cluster();
            put_pool_of(&mut cluster, "b", "2001:db8::/126", &[], false);
            let (name, mut seen) = service("web", 1);
            let ours = seen.ours.as_mut().unwrap();
            ours.families = Family::ALL.to_vec();
            ours.dual_stack_required = required;
            if has_one {
                seen.observed.ingress = vec![status::Ingress {
                    ip: Some("192.0.2.0".to_owned()),
                    ..status::Ingress::default()
                }];
            }
            cluster.services.put(name, seen);
            cluster
                .refusals
                .note(ObjectName::new("", "b"), String::new());
            let (reason, _, addresses) = told(&cluster.plan(NOW), "web").unwrap();
            assert_eq!((reason.as_str(), addresses), ("PoolNotWritable", expected));
        }
    }

    #[test]
    fn what_is_wrong_with_a_service_is_told_once() {
        let mut cluster = cluster();
        let (name, mut seen) = service("web", 1);
        let problem = |name: &ObjectName, rule: Rule| Problem {
            object: Object::Service(name.clone()),
            rule,
            text: "x is no mode".to_owned(),
            remedy: "use another".to_owned(),
            only_here: false,
        };
        seen.problems = vec![problem(&name, Rule::InvalidAnnotation)];
        cluster.services.put(name.clone(), seen.clone());
        let plan = cluster.plan(NOW);
        let expected = Notice {
            warning: true,
            reason: "InvalidAnnotation",
            text: "x is no mode; use another".to_owned(),
        };
        assert_eq!(plan.notices, [(name.clone(), seen.uid.clone(), expected)]);
        assert_eq!(cluster.plan(NOW).notices, []);

        // Another problem is news, and one that comes back.
        let both = [Rule::InvalidAnnotation, Rule::InvalidPolicy];
        seen.problems = both.map(|rule| problem(&name, rule)).into();
        cluster.services.put(name.clone(), seen.clone());
        assert_eq!(reasons(&mut cluster), ["InvalidPolicy"]);
        seen.problems.remove(0);
        cluster.services.put(name.clone(), seen.clone());
        assert_eq!(reasons(&mut cluster), [""; 0]);
        seen.problems
            .insert(0, problem(&name, Rule::InvalidAnnotation));
        cluster.services.put(name.clone(), seen.clone());
        assert_eq!(reasons(&mut cluster), ["InvalidAnnotation"]);

        // So is all of another Service of the name, and for another leader.
        seen.uid = "another".to_owned();
        cluster.services.put(name, seen);
        assert_eq!(reasons(&mut cluster).len(), 2);
        cluster.forget();
        assert_eq!(reasons(&mut cluster).len(), 2);

        // Many are told bit by bit.
        for number in 0..NOTICES_AT_ONCE * 2 {
            let (name, mut seen) = service(&format!("web{number}"), 1);
            seen.problems = vec![problem(&name, Rule::InvalidPort)];
            cluster.services.put(name, seen);
        }
        for has_more in [true, false] {
            let plan = cluster.plan(NOW);
            assert_eq!(
                (plan.notices.len(), plan.has_more),
                (NOTICES_AT_ONCE, has_more)
            );
        }
        assert_eq!(reasons(&mut cluster), [""; 0]);
    }

    #[test]
    fn an_external_address_that_agents_serve_and_a_machine_has_is_told() {
        let address = |last: u8| IpAddr::from([203, 0, 113, last]);
        let mut cluster = Cluster::new([address(1)].into());
        let own = |name: &str| ObjectName::new("", name);
        cluster.nodes.put(own("node1"), vec![address(2)]);
        cluster.api_servers.put(own("slice"), vec![address(3)]);
        cluster.edges.put(own("edges"), vec![address(4)]);
        let put = |cluster: &mut Cluster, external: &[&str]| {
            let service: schema::Service = serde_json::from_value(json!({
                "metadata": {"namespace": "test", "name": "web", "uid": "7"},
                "spec": {
                    "clusterIPs": ["10.96.0.1"], "externalIPs": external,
                    "ports": [{"port": 80}],
                },
            }))
            .unwrap();
            let seen = classes().service(&service);
            cluster.services.put(name_of(&service.metadata), seen);
        };
        for last in 1..5 {
            put(&mut cluster, &[&address(last).to_string()]);
            let notices = cluster.plan(NOW).notices;
            let [(_, uid, notice)] = &notices[..] else {
                panic!("{last}: {notices:?}");
            };
            assert_eq!((uid.as_str(), notice.reason), ("7", "AddressIsNode"));
            let text = format!("203.0.113.{last} belongs to a machine: ");
            assert!(notice.text.starts_with(&text), "{}", notice.text);
            assert_eq!(cluster.plan(NOW).notices, [], "told once");
        }
        // Nobody's, and one that no agent serves.
        put(&mut cluster, &["203.0.113.9"]);
        assert_eq!(reasons(&mut cluster), [""; 0]);
        cluster.nodes.put(own("node1"), vec![[192, 0, 2, 1].into()]);
        put(&mut cluster, &["192.0.2.1"]);
        assert_eq!(reasons(&mut cluster), ["ExternalAddressNotAllowed"]);
        // A Node comes to have it.
        put(&mut cluster, &["203.0.113.9"]);
        assert_eq!(reasons(&mut cluster), [""; 0]);
        cluster.nodes.put(own("node2"), vec![address(9)]);
        assert_eq!(reasons(&mut cluster), ["AddressIsNode"]);
    }

    fn reasons(cluster: &mut Cluster) -> Vec<&'static str> {
        let notices = cluster.plan(NOW).notices;
        notices.iter().map(|(.., notice)| notice.reason).collect()
    }

    #[test]
    fn what_was_decided_stands_until_another_controller_may_have_decided() {
        let mut cluster = cluster();
        let (young, seen) = service("young", 9);
        cluster.services.put(young, seen);
        assert_eq!(
            addresses(&cluster.plan(NOW)),
            [("young", "192.0.2.0".to_owned())]
        );
        // The watch shows an older one before it shows what was written.
        let (old, seen) = service("old", 1);
        cluster.services.put(old, seen);
        let both = |old: &str, young: &str| [("old", old.to_owned()), ("young", young.to_owned())];
        assert_eq!(
            addresses(&cluster.plan(NOW)),
            both("192.0.2.1", "192.0.2.0")
        );
        cluster.forget();
        assert_eq!(
            addresses(&cluster.plan(NOW)),
            both("192.0.2.0", "192.0.2.1")
        );
    }

    #[test]
    fn a_service_of_the_same_name_is_another_one() {
        let mut cluster = cluster();
        let (name, mut seen) = service("web", 1);
        cluster.services.put(name.clone(), seen.clone());
        cluster.plan(NOW);
        let (other, first) = service("first", 0);
        cluster.services.put(other, first);
        seen.uid = "another".to_owned();
        cluster.services.put(name, seen);
        let expected = [
            ("first", "192.0.2.0".to_owned()),
            ("web", "192.0.2.1".to_owned()),
        ];
        assert_eq!(addresses(&cluster.plan(NOW)), expected);
    }
}
