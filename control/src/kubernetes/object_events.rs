//! Publishes Events about EndpointSlices, and about Services whose endpoints or other Services are in their way.
//!
//! All agents see these problems alike, and the controller, which follows no slices, does not. So all agents publish the
//! same Event by the same name: the API server keeps that of the first.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::events::{LONGEST, REPORTER};
use super::request_errors::{Purpose, RequestErrors};
use super::schema::{EndpointSlice, Service};
use crate::chain::chain;
use crate::hash::fnv_1a;
use crate::healthz::Reports;
use crate::index::objects::ObjectName;
use crate::index::{Object, Problem};

/// Pause after each Event. Whoever may write objects decides how many problems there are.
const PAUSE: Duration = Duration::from_secs(3);

/// Publishes each problem once each time it appears, for ever.
pub(super) async fn publish(
    client: Client,
    node_name: String,
    reports: Reports,
    request_errors: RequestErrors,
) {
    let mut problems = reports.follow_problems_of_all();
    let mut told: BTreeSet<Problem> = BTreeSet::new();
    loop {
        let current: BTreeSet<Problem> = {
            let problems = problems.borrow_and_update();
            problems.iter().cloned().collect()
        };
        told.retain(|problem| current.contains(problem));
        let next = current.difference(&told).next().cloned();
        let Some(problem) = next else {
            if problems.changed().await.is_err() {
                return;
            }
            continue;
        };
        // An Event that cannot be published is not repeated: nothing depends on it.
        let outcome = tell(&client, &node_name, &problem).await;
        request_errors.take(Purpose::Event, outcome.map_err(|error| chain(&error)));
        tracing::debug!(object = %problem.object, rule = problem.rule.name(), "told by an Event");
        told.insert(problem);
        sleep(PAUSE).await;
    }
}

async fn tell(client: &Client, node_name: &str, problem: &Problem) -> kube::Result<()> {
    let about = match &problem.object {
        Object::Service(name) => reference::<Service>(client, name).await?,
        Object::Slice(name) => reference::<EndpointSlice>(client, name).await?,
        Object::Node(_) => None,
    };
    let Some(about) = about else {
        return Ok(());
    };
    let namespace = about.namespace.clone().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let event = event(node_name, about, problem);
    match events.create(&PostParams::default(), &event).await {
        // Another agent was faster.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => created.map(drop),
    }
}

/// Returns a reference to an object, if it exists. Agents may list what an Event is about, and need no right to get it.
async fn reference<K>(client: &Client, name: &ObjectName) -> kube::Result<Option<ObjectReference>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let objects: Api<K> = Api::namespaced(client.clone(), &name.namespace);
    let named = ListParams::default().fields(&format!("metadata.name={}", name.name));
    let found = objects.list_metadata(&named).await?.items.pop();
    Ok(found.map(|object| object.object_ref(&())))
}

fn event(node_name: &str, about: ObjectReference, problem: &Problem) -> Event {
    let reason = problem.rule.name();
    let note = format!("{}; {}", problem.text, problem.remedy);
    let note: String = note.chars().take(LONGEST).collect();
    let uid = about.uid.as_deref().unwrap_or_default();
    let hash = fnv_1a(0, &format!("{uid} {reason} {note}"));
    Event {
        metadata: ObjectMeta {
            name: Some(format!("guideway-{hash:016x}")),
            namespace: about.namespace.clone(),
            ..ObjectMeta::default()
        },
        action: Some("Serve".to_owned()),
        event_time: Some(MicroTime(Timestamp::now())),
        note: Some(note),
        reason: Some(reason.to_owned()),
        regarding: Some(about),
        reporting_controller: Some(REPORTER.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        type_: Some("Warning".to_owned()),
        ..Event::default()
    }
}
