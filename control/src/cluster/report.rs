//! What every agent and controller says of itself.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use kube::Client;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ask::Place;
use super::findings::findings;
use super::members::{Member, Members};
use crate::api::{ControllerStatus, Status};
use crate::cli::ClusterScope;

/// The document of `guideway cluster status`.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) agents: Vec<Answered<Status>>,
    pub(super) controllers: Vec<Answered<ControllerStatus>>,
    /// What deserves a look, one line each.
    pub(super) findings: Vec<String>,
}

/// What one process says of itself.
#[derive(Debug, Serialize)]
pub(super) struct Answered<T> {
    /// Name of its Node; of an edge outside the cluster the name that it has for itself, or its address.
    pub(super) name: String,
    /// Its pod, or the address that it was asked at.
    pub(super) place: String,
    /// Its status; `None` if it does not answer.
    pub(super) status: Option<T>,
    /// Why it does not answer.
    pub(super) error: Option<String>,
}

impl Report {
    /// Asks everybody at once.
    pub(super) async fn of(client: &Client, members: &Members, scope: &ClusterScope) -> Self {
        let all = members.members.iter();
        let (controllers, agents): (Vec<&Member>, Vec<&Member>) =
            all.partition(|member| member.is_controller);
        let mut report = Self {
            agents: join_all(agents.into_iter().map(|one| agent(client, one))).await,
            controllers: join_all(controllers.into_iter().map(|one| ask(client, one))).await,
            findings: Vec::new(),
        };
        report
            .agents
            .sort_by(|one, other| one.name.cmp(&other.name));
        // An edge with an address of each family is asked at both.
        let mut names = BTreeSet::new();
        report
            .agents
            .retain(|one| one.status.is_none() || names.insert(one.name.clone()));
        report.findings = findings(&report, &members.leases, scope);
        let unknown = members.unknown.iter();
        report
            .findings
            .extend(unknown.map(|what| format!("it is not known {what}")));
        report
    }
}

/// Asks an agent.
pub(super) async fn agent(client: &Client, member: &Member) -> Answered<Status> {
    let is_outside = matches!(member.place, Place::Outside(_));
    let mut answered: Answered<Status> = ask(client, member).await;
    let status = answered.status.as_ref().filter(|_| is_outside);
    if let Some(kubernetes) = status.and_then(|status| status.kubernetes.as_ref()) {
        answered.name.clone_from(&kubernetes.node_name);
    }
    answered
}

async fn ask<T: DeserializeOwned>(client: &Client, member: &Member) -> Answered<T> {
    let (status, error) = match member.place.ask(client, "/status").await {
        Ok(status) => (Some(status), None),
        // Its pod tells more than the proxy.
        Err(reason) => (None, Some(member.waits.clone().unwrap_or(reason))),
    };
    Answered {
        name: member.name.clone(),
        place: member.place.to_string(),
        status,
        error,
    }
}
