//! Publishes Events about Services that this machine alone cannot serve, as kube-proxy does.
//!
//! All agents see alike what is wrong with a Service itself. The controller reports that once, in status and
//! Events; an agent shows it in `guideway status`. Problems of endpoints are published by `object_events`. Two
//! problems belong to one machine: a health check port that cannot be opened, and a virtual address that an interface
//! has although no Node lists it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};

use super::request_errors::{Purpose, RequestErrors};
use super::schema::Service;
use crate::chain::chain;
use crate::healthz::{AnnouncedServices, Reports};
use crate::index::{BrokenRule, Object, Problem};

/// Component that the Events name as their source.
pub(super) const REPORTER: &str = "guideway-agent";
/// Most characters of a text. An Event holds few more.
pub(super) const LONGEST: usize = 900;
/// Most Events for one change. If a thousand Services fail together, a few Events suffice.
const MOST: usize = 20;
/// Most Services for which one change of announcements is published. When a machine is lost, another one takes
/// over all of its addresses.
const MOST_ANNOUNCED: usize = 200;

/// Publishes the problems of this machine alone, for ever. A problem is published once each time it appears.
///
/// `node_name` names this machine in the Events.
pub async fn publish(
    client: Client,
    node_name: String,
    reports: Reports,
    request_errors: RequestErrors,
) {
    let mut of_ports = reports.follow_problems();
    let mut of_objects = reports.follow_problems_here();
    let mut announced = reports.follow_announced();
    let mut told: BTreeSet<Problem> = BTreeSet::new();
    let mut told_announced = AnnouncedServices::new();
    loop {
        let mut current = BTreeSet::new();
        for problems in [&mut of_ports, &mut of_objects] {
            current.extend(problems.borrow_and_update().iter().cloned());
        }
        for problem in current.difference(&told).take(MOST) {
            // An Event that cannot be published is not repeated: nothing depends on it.
            let outcome = tell(&client, &node_name, problem).await;
            request_errors.take(Purpose::Event, outcome.map_err(|error| chain(&error)));
        }
        told = current;
        let here = announced.borrow_and_update().clone();
        let is_new = |(name, addresses): &(&String, &BTreeSet<IpAddr>)| {
            told_announced.get(*name) != Some(*addresses)
        };
        for (name, addresses) in here.iter().filter(is_new).take(MOST_ANNOUNCED) {
            let outcome = tell_announced(&client, &node_name, name, addresses).await;
            request_errors.take(Purpose::Event, outcome.map_err(|error| chain(&error)));
        }
        told_announced = here;
        let changed = tokio::select! {
            changed = of_ports.changed() => changed,
            changed = of_objects.changed() => changed,
            changed = announced.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn tell(client: &Client, node_name: &str, problem: &Problem) -> kube::Result<()> {
    let Object::Service(name) = &problem.object else {
        return Ok(());
    };
    let event = Event {
        type_: EventType::Warning,
        reason: problem.rule.name().to_owned(),
        note: Some(format!(
            "node {node_name}: {}; {}",
            problem.text, problem.remedy
        )),
        action: match problem.rule {
            BrokenRule::FailedToStartServiceHealthcheck => "Listen",
            _ => "Serve",
        }
        .to_owned(),
        secondary: None,
    };
    publish_about(client, node_name, (&name.namespace, &name.name), &event).await
}

/// Publishes that this machine announces the addresses of a Service.
async fn tell_announced(
    client: &Client,
    node_name: &str,
    service: &str,
    addresses: &BTreeSet<IpAddr>,
) -> kube::Result<()> {
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let event = Event {
        type_: EventType::Normal,
        reason: "Announced".to_owned(),
        note: Some(format!(
            "announced by {node_name}: {}",
            addresses.join(", ")
        )),
        action: "Announce".to_owned(),
        secondary: None,
    };
    let name = service.split_once('/').unwrap_or_default();
    publish_about(client, node_name, name, &event).await
}

/// Publishes an Event about a Service, if the Service exists.
async fn publish_about(
    client: &Client,
    node_name: &str,
    (namespace, name): (&str, &str),
    event: &Event,
) -> kube::Result<()> {
    // `kubectl describe` finds Events by the object's uid, which the index does not keep.
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let Some(service) = services.get_opt(name).await? else {
        return Ok(());
    };
    publish_as_agent(client, node_name, event, &service.object_ref(&())).await
}

/// Publishes an Event of the agent on this Node.
pub(super) async fn publish_as_agent(
    client: &Client,
    node_name: &str,
    event: &Event,
    reference: &ObjectReference,
) -> kube::Result<()> {
    let reporter = Reporter {
        controller: REPORTER.to_owned(),
        instance: Some(node_name.to_owned()),
    };
    publish_event(client, reporter, event, reference).await
}

pub(crate) async fn publish_event(
    client: &Client,
    reporter: Reporter,
    event: &Event,
    reference: &ObjectReference,
) -> kube::Result<()> {
    // A recorder that is used again merges Events of the same reason, and keeps the first text.
    let recorder = Recorder::new(client.clone(), reporter);
    recorder.publish(event, reference).await
}
