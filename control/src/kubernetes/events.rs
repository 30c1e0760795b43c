//! Events about what one machine cannot do for a Service, as kube-proxy publishes them.
//!
//! What is wrong with an object as a whole, all agents see alike: the controller says it once, in status
//! and Events, and an agent in `guideway status`. A health check port that cannot be had is this machine's.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};

use crate::chain::chain;
use crate::healthz::Reports;
use crate::index::{Object, Problem};

/// Who writes the Events.
const REPORTER: &str = "guideway-agent";
/// Events for one change: of a thousand ports that fail together some suffice.
const MOST: usize = 20;

/// Publishes for ever what is wrong with health check ports, once for each time that it turns up.
///
/// `node_name` is this machine's.
pub async fn publish(client: Client, node_name: String, reports: Reports) {
    let mut problems = reports.follow_problems();
    let mut told: BTreeSet<Problem> = BTreeSet::new();
    loop {
        let current: BTreeSet<Problem> = problems.borrow_and_update().iter().cloned().collect();
        for problem in current.difference(&told).take(MOST) {
            // One that gets lost changes nothing.
            if let Err(error) = tell(&client, &node_name, problem).await {
                tracing::debug!(error = chain(&error), %problem, "cannot publish an Event");
            }
        }
        told = current;
        if problems.changed().await.is_err() {
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
    let service = services.get(&name.name).await?;
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
        action: "Listen".to_owned(),
        secondary: None,
    };
    publish_event(client, reporter, &event, &service.object_ref(&())).await
}

/// Publishes an Event about an object.
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
