//! Knows the state of the cluster, and computes what the controller must write.

mod pools;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::allocate::{self, Decision, Inventory};
use super::announcements::Announcements;
use super::convert::{ObservedPool, ObservedService};
use super::metrics::PoolValues;
use super::object_cache::ObjectCache;
use super::objects::Labels;
use super::pending_event::PendingEvent;
use super::pool_status::PoolWrite;
use super::refusal::Refusals;
use super::service_status::{self, Write};
use crate::index::objects::ObjectName;
use crate::index::{self, Problem};

/// Most Events about problems of Services in one plan.
const MOST_EVENTS: usize = 20;

/// The objects that the controller watches, and its latest decisions.
#[derive(Debug, Default)]
pub(super) struct Planner {
    pub(super) services: ObjectCache<ObservedService>,
    pub(super) pools: ObjectCache<ObservedPool>,
    pub(super) nodes: ObjectCache<Vec<IpAddr>>,
    /// Addresses at which this process reaches the API server. `api_servers` has those in the slice of the API
    /// server's own Service.
    api_server: BTreeSet<IpAddr>,
    pub(super) api_servers: ObjectCache<Vec<IpAddr>>,
    /// Edges outside the cluster, from the slices of Guideway's own Service.
    pub(super) edges: ObjectCache<Vec<IpAddr>>,
    pub(super) namespaces: ObjectCache<Labels>,
    pub(super) announcements: Announcements,
    /// Addresses decided last in this term, by Service, with the Service's uid. The watch may not show them yet.
    decided: BTreeMap<ObjectName, (String, Vec<IpAddr>)>,
    /// Problems of Services that this term has published as Events, by Service, with its uid.
    published: BTreeMap<ObjectName, (String, Vec<Problem>)>,
    /// Pools whose last write the API server refused.
    pub(super) refusals: Refusals,
}

type Decisions = BTreeMap<ObjectName, Decision>;

/// What to write.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Writes to pools. They come first: a pool has to count an address before a Service gets it.
    pub(super) pools: Vec<(ObjectName, PoolWrite)>,
    /// Writes to the status of Services.
    pub(super) services: Vec<(ObjectName, Write)>,
    /// Events about Services, by name and uid, that come without a write.
    pub(super) events: Vec<(ObjectName, String, PendingEvent)>,
    /// Whether more Events are due than the plan contains.
    pub(super) has_more: bool,
    /// Number of Services that have all their addresses, and of those that wait.
    pub(super) assigned: u64,
    pub(super) waiting: u64,
    /// Assigned addresses that a machine has claimed.
    pub(super) claimed: BTreeSet<IpAddr>,
    /// Used and free addresses, by pool.
    pub(super) usage: BTreeMap<String, PoolValues>,
}

impl Planner {
    /// Creates a planner that knows only the addresses of the API server.
    pub(super) fn new(api_server: BTreeSet<IpAddr>) -> Self {
        Self {
            api_server,
            ..Self::default()
        }
    }

    /// Lists the kinds that have not been listed completely.
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

    /// Forgets decisions and published problems. Another controller may have decided since.
    pub(super) fn forget(&mut self) {
        self.decided.clear();
        self.refusals = Refusals::default();
        self.published.clear();
    }

    /// Decides about all Services, and returns what to write. `now` is the time in RFC 3339.
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
                if seen.observed.has_conditions() && !seen.is_of_other_class {
                    let write = service_status::withdraw(name, &seen.uid);
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
            let before = observed.announced.as_ref();
            let announced = (self.announcements).condition(&decision.addresses, before, now);
            let write = service_status::service(service, observed, decision, announced, now);
            plan.services
                .extend(write.map(|write| (name.clone(), write)));
        }
    }

    /// Adds Events for new problems of Services, up to a limit; the rest follows in later plans.
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
                if is_new && plan.events.len() == MOST_EVENTS {
                    plan.has_more = true;
                    continue;
                }
                problems.push(problem.clone());
                if is_new {
                    let text = format!("{}; {}", problem.text, problem.remedy);
                    let event = PendingEvent::warning(problem.rule.name(), text);
                    plan.events.push((name.clone(), seen.uid.clone(), event));
                }
            }
            published.insert(name.clone(), (seen.uid.clone(), problems));
        }
        self.published = published;
    }

    /// Lists the Services that want an address from another controller and have none, each with its uid and
    /// what it lacks.
    pub(super) fn unclaimed(&self) -> impl Iterator<Item = (ObjectName, String, String)> {
        let services = self.services.objects().iter();
        services
            .filter_map(|(name, seen)| Some((name.clone(), seen.uid.clone(), seen.lacks.clone()?)))
    }

    /// Returns whether one of these pools contains one of these addresses.
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
