//! Finds the agents and controllers: pods by the chart's labels, edges outside the cluster by the EndpointSlices
//! that make nodes trust them, and edges that announce by their Leases.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::ask::Place;
use crate::chain::chain;
use crate::cli::ClusterScope;
use crate::index::objects::SERVICE_NAME;
use crate::kubernetes::leases::{LABEL, LABEL_VALUE};
use crate::kubernetes::schema::{EndpointSlice, Lease};

/// Labels of the chart's pods.
const PODS: &str =
    "app.kubernetes.io/part-of=guideway,app.kubernetes.io/component in (agent,controller)";
const COMPONENT: &str = "app.kubernetes.io/component";
/// Name of the container port with the pages.
const PORT: &str = "metrics";
/// How long after its last renewal an edge with a Lease may still run. The clocks of machines differ.
const RENEWED: SignedDuration = SignedDuration::from_secs(60);

/// A process that is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Name of its Node; else of its pod, or its address.
    pub(super) name: String,
    pub(super) is_controller: bool,
    pub(super) place: Place,
    /// Why its pod does not run.
    pub(super) waits: Option<String>,
    /// The containers of its pod.
    pub(super) containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Container {
    pub(super) name: String,
    /// Whether there was one before it, whose log may still be there.
    pub(super) has_restarted: bool,
}

/// Everybody who should answer.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) members: Vec<Member>,
    /// Names of the edges that renew a Lease.
    pub(super) leases: BTreeSet<String>,
    /// What could not be found out, one line each.
    pub(super) unknown: Vec<String>,
}

impl Members {
    /// Asks the API server for them.
    ///
    /// # Errors
    ///
    /// When it does not list the pods.
    pub(super) async fn find(client: &Client, scope: &ClusterScope) -> Result<Self> {
        let namespace = &scope.namespace;
        let pods = ApiResource::erase::<Pod>(&());
        let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pods);
        let pods = pods.list(&ListParams::default().labels(PODS)).await;
        let pods = pods.with_context(|| format!("cannot list the pods of {namespace}"))?;
        let mut found = Self {
            members: pods.iter().map(member).collect(),
            ..Self::default()
        };
        let own: BTreeSet<IpAddr> = pods.iter().flat_map(addresses).collect();

        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        let of_service = ListParams::default().labels(&format!("{SERVICE_NAME}={}", scope.service));
        match slices.list(&of_service).await {
            Ok(slices) => found.members.extend(outside(&slices.items, &own, scope)),
            Err(error) => found.unknown.push(format!(
                "which edges are outside the cluster: {}",
                chain(&error)
            )),
        }

        let leases: Api<Lease> = Api::namespaced(client.clone(), &scope.lease_namespace());
        let of_edges = ListParams::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
        match leases.list(&of_edges).await {
            Ok(leases) => found.leases = leases.iter().filter_map(renewed).collect(),
            Err(error) => found
                .unknown
                .push(format!("which edges have a Lease: {}", chain(&error))),
        }
        Ok(found)
    }
}

fn member(pod: &DynamicObject) -> Member {
    let (spec, status) = (&pod.data["spec"], &pod.data["status"]);
    let is_controller = pod
        .labels()
        .get(COMPONENT)
        .is_some_and(|it| it == "controller");
    let node = spec["nodeName"].as_str().filter(|_| !is_controller);
    let ports = list(&spec["containers"]).flat_map(|container| list(&container["ports"]));
    let port = { ports }.find(|port| port["name"] == PORT);
    let port = port.and_then(|port| port["containerPort"].as_u64());
    let containers = list(&status["containerStatuses"]);
    let mut reasons = containers.filter_map(|one| one["state"]["waiting"]["reason"].as_str());
    let phase = status["phase"].as_str().filter(|phase| *phase != "Running");
    Member {
        name: node.map_or_else(|| pod.name_any(), str::to_owned),
        is_controller,
        place: Place::Pod {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            port: port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0),
        },
        waits: reasons.next().or(phase).map(str::to_owned),
        containers: list(&spec["containers"])
            .map(|one| container(one, status))
            .collect(),
    }
}

fn container(container: &Value, status: &Value) -> Container {
    let name = &container["name"];
    let known = list(&status["containerStatuses"]).find(|one| one["name"] == *name);
    let restarts = known.and_then(|one| one["restartCount"].as_u64());
    Container {
        name: name.as_str().unwrap_or_default().to_owned(),
        has_restarted: restarts.is_some_and(|restarts| restarts > 0),
    }
}

fn addresses(pod: &DynamicObject) -> impl Iterator<Item = IpAddr> {
    let addresses = list(&pod.data["status"]["podIPs"]);
    addresses.filter_map(|one| one["ip"].as_str()?.parse().ok())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the edges of the slices that are no pods: `own` has the addresses of these.
fn outside(slices: &[EndpointSlice], own: &BTreeSet<IpAddr>, scope: &ClusterScope) -> Vec<Member> {
    let endpoints = slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten());
    let edges = endpoints.filter(|endpoint| endpoint.node_name.is_none());
    let addresses = edges.flat_map(|edge| edge.addresses.iter().flatten());
    let addresses = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
    let addresses: BTreeSet<IpAddr> = addresses.filter(|address| !own.contains(address)).collect();
    let edge = |address: IpAddr| Member {
        name: address.to_string(),
        is_controller: false,
        place: Place::Outside(SocketAddr::new(address, scope.edge_port)),
        waits: None,
        containers: Vec::new(),
    };
    addresses.into_iter().map(edge).collect()
}

/// Returns the edge that renews a Lease.
fn renewed(lease: &Lease) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let renewed: Timestamp = spec.renew_time.as_ref()?.parse().ok()?;
    let is_fresh = Timestamp::now().duration_since(renewed) < RENEWED;
    spec.holder_identity.clone().filter(|_| is_fresh)
}
