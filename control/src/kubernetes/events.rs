//! Events about what one machine cannot do for a Service, as kube-proxy publishes them.
//!
//! What is wrong with an object as a whole, all agents see alike: the controller says it once, in status
//! and Events, and an agent in `guideway status`. This machine's are a health check port that cannot be had,
//! and a virtual address that one of its interfaces has, as no Node says.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};

use super::request_errors::{Purpose, RequestErrors};
use super::schema::Service;
use crate::chain::chain;
use crate::healthz::Reports;
use crate::index::{Object, Problem, Rule};

/// Who writes the Events.
const REPORTER: &str = "guideway-agent";
/// Events for one change: of a thousand Services that fail together some suffice.
const MOST: usize = 20;

/// Publishes for ever what is wrong on this machine alone, once for each time that it turns up.
///
/// `node_name` is this machine's.
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
            // One that gets lost changes nothing.
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
    // `kubectl describe` finds Events by the uid, which the index does not keep.
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
    // One that has published before takes an Event of the same reason for the same Event, with the first text.
    let recorder = Recorder::new(client.clone(), reporter);
    recorder.publish(event, reference).await
}
