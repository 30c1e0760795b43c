//! Publishes Events about Services that this machine alone cannot serve, as kube-proxy does.
//!
//! All agents see alike what is wrong with an object itself. The controller reports that once, in status and
//! Events; an agent shows it in `guideway status`. Two problems belong to one machine: a health check port that
//! cannot be opened, and a virtual address that an interface has although no Node lists it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};

use super::request_errors::{Purpose, RequestErrors};
use super::schema::Service;
use crate::chain::chain;
use crate::healthz::Reports;
use crate::index::{Object, Problem, Rule};

/// Component that the Events name as their source.
const REPORTER: &str = "guideway-agent";
/// Most Events for one change. If a thousand Services fail together, a few Events suffice.
const MOST: usize = 20;

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
    let mut told: BTreeSet<Problem> = BTreeSet::new();
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
        let changed = tokio::select! {
            changed = of_ports.changed() => changed,
            changed = of_objects.changed() => changed,
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
    // `kubectl describe` finds Events by the object's uid, which the index does not keep.
    let services: Api<Service> = Api::namespaced(client.clone(), &name.namespace);
    let Some(service) = services.get_opt(&name.name).await? else {
        return Ok(());
    };
    let reporter = Reporter {
        controller: REPORTER.to_owned(),
        instance: Some(node_name.to_owned()),
    };
    let event = Event {
        type_: EventType::Warning,
        reason: problem.rule.name().to_owned(),
        note: Some(format!(
            "node {node_name}: {}; {}",
            problem.text, problem.remedy
        )),
        action: match problem.rule {
            Rule::FailedToStartServiceHealthcheck => "Listen",
            _ => "Serve",
        }
        .to_owned(),
        secondary: None,
    };
    publish_event(client, reporter, &event, &service.object_ref(&())).await
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
