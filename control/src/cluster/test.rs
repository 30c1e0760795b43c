//! `guideway cluster test`: whether Services work, by what each edge has of them, and by connections from here.
//!
//! ```text
//! a Ready Node? --yes--> throw_away: a Deployment and a Service --+
//!      | no, or a Service is named                                v
//!      +------------------------------------> edges: has each edge the ports? --> requests: do they answer?
//! ```

mod edges;
mod requests;
mod throw_away;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};

use self::edges::Edge;
use super::members::Members;
use crate::api::ServiceFilter;
use crate::check::finding::{Finding, SubjectReport};
use crate::cli::ClusterTest;

/// Tries Services, and returns what was found.
///
/// # Errors
///
/// When the API server does not list the pods, or a signal ends the test.
pub(super) async fn run(client: &Client, options: &ClusterTest) -> Result<Vec<Finding>> {
    let members = Members::find(client, &options.at).await?;
    let is_existing = options.existing || options.tried.is_some();
    if !is_existing && has_ready_node(client).await {
        return throw_away::test(client, &members, options).await;
    }
    let filter = ServiceFilter {
        service: options.tried.clone(),
        ..ServiceFilter::default()
    };
    Ok(existing(client, &members, &filter, !options.no_requests).await)
}

/// Tries the Services that there are.
async fn existing(
    client: &Client,
    members: &Members,
    filter: &ServiceFilter,
    sends: bool,
) -> Vec<Finding> {
    let edges = edges::ask(client, members).await;
    let ports = edges::ports(&edges, filter);
    let mut findings: Vec<Finding> = edges
        .iter()
        .flat_map(|edge| edges::judge(edge, &ports))
        .collect();
    findings.extend(without(&edges, ports.is_empty(), filter));
    if sends && !ports.is_empty() {
        findings.extend(requests::send(&ports).await);
    }
    findings
}

/// Says what is missing if nothing can be tried.
fn without(edges: &[Edge], is_empty: bool, filter: &ServiceFilter) -> Vec<Finding> {
    let mut report = SubjectReport::of("cluster");
    if edges.is_empty() {
        report.fail(
            "edges",
            "no agent is an edge",
            "`guideway cluster status` lists the agents; name their namespace with -n",
        );
    } else if is_empty && let Some(service) = &filter.service {
        report.fail(
            "services",
            format!("no edge has a Service {service}"),
            "`kubectl describe service` says why it has no address; `guideway services` lists what an edge has",
        );
    } else if is_empty {
        report.warn(
            "services",
            "no edge has a Service with an address: nothing was tried",
            "create one of type LoadBalancer",
        );
    }
    report.findings
}

/// Returns whether pods can be started. Who may not list Nodes starts none.
async fn has_ready_node(client: &Client) -> bool {
    let nodes = ApiResource::erase::<Node>(&());
    let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &nodes);
    let listed = nodes.list(&ListParams::default()).await;
    listed.is_ok_and(|nodes| nodes.iter().any(is_ready))
}

fn is_ready(node: &DynamicObject) -> bool {
    let conditions = node.data["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let is_ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True");
    is_ready && node.data["spec"]["unschedulable"] != true
}
