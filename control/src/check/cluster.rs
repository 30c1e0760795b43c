//! Checks the Kubernetes API from this machine: whether it answers, which rights the agent has, and how the
//! cluster knows this machine.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};

use super::finding::{Finding, SubjectReport};
use crate::chain::chain;
use crate::config::Kubernetes;
use crate::config::host::{self, is_routed, source_towards};
use crate::desired::Desired;
use crate::hash::fingerprint;
use crate::index::objects::SERVICE_NAME;
use crate::kubernetes::Identity;
use crate::kubernetes::client;
use crate::kubernetes::schema::{EndpointSlice, Node};
use crate::kubernetes::shared_secret::{PEERS_KEY, SEED, has_peers_key, read_seed};

/// Time limit of each answer.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Slices of our Service read in one page. Each has up to a thousand endpoints.
const PAGE: u32 = 100;

/// Number of Nodes for which the source address of this machine's packets is looked up.
const SOME_NODES: u32 = 100;

/// Asks the API server and judges its answers. Returns the findings, and whether this machine has a Node, or
/// may have one because the server did not tell. `exchanges` tells whether this edge exchanges owners with others.
pub(super) fn look(
    options: &Kubernetes,
    desired: &Desired,
    exchanges: bool,
) -> (Vec<Finding>, bool) {
    let identity = Identity::of(options);
    let mut report = SubjectReport::of("kubernetes");
    let answers = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(ask(options, desired, exchanges, &identity)));
    let may_be_node = match answers {
        Ok(answers) => {
            let sources = sources(desired, &answers);
            answers.add_findings(&mut report, options, &identity, &sources);
            !matches!(answers.node, Ok(None))
        }
        Err(reason) => {
            report.fail(
                "API server",
                reason,
                "give this user a KUBECONFIG or the pod a service account, and a way to the server; until it \
                 answers, what an earlier agent left goes on serving",
            );
            true
        }
    };
    (report.findings, may_be_node)
}

/// A right that the agent needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    within: Within,
    /// Name of the only object that the right is needed for; `None` for all.
    name: Option<&'static str>,
}

/// The namespaces in which a right is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    AllNamespaces,
    /// The namespace of Guideway's own objects.
    Ours,
    /// The namespace of edges' Leases.
    Leases,
}

impl Within {
    fn namespace(self, identity: &Identity) -> Option<String> {
        match self {
            Self::AllNamespaces => None,
            Self::Ours => Some(identity.namespace.clone()),
            Self::Leases => Some(identity.lease_namespace.clone()),
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match self.name {
            Some(name) => write!(f, "/{name}"),
            None => Ok(()),
        }
    }
}

/// Lists the rights that the agent needs with this configuration.
fn rights(options: &Kubernetes, desired: &Desired, exchanges: bool) -> Vec<Right> {
    let all = |verbs: &'static [&'static str], group, resource| {
        verbs.iter().map(move |verb| Right {
            verb,
            group,
            resource,
            within: Within::AllNamespaces,
            name: None,
        })
    };
    let at = |within| move |right| Right { within, ..right };
    let mut rights: Vec<Right> = all(&["list", "watch"], "", "services")
        .chain(all(&["list", "watch"], "", "nodes"))
        .chain(all(
            &["list", "watch"],
            "discovery.k8s.io",
            "endpointslices",
        ))
        .chain(all(&["create", "patch"], "events.k8s.io", "events"))
        .collect();
    let secrets = [
        (&SEED, options.hash_seed.is_none()),
        (&PEERS_KEY, exchanges),
    ];
    for (secret, is_read) in secrets {
        let right = all(&["get"], "", "secrets").filter(|_| is_read);
        rights.extend(right.map(|right| Right {
            name: Some(secret.name),
            ..at(Within::Ours)(right)
        }));
    }
    if desired.announce.is_some() {
        let verbs = &["list", "watch", "create", "patch"];
        let leases = |verbs| all(verbs, "coordination.k8s.io", "leases");
        rights.extend(leases(verbs).map(at(Within::Leases)));
        // To see the Leases of edges of the previous version.
        rights.extend(leases(&["list", "watch"]).map(at(Within::Ours)));
    }
    rights
}

struct Answers {
    server: String,
    version: String,
    /// Rights that the token lacks.
    denied: Result<Vec<Right>, String>,
    /// Addresses of the Node with this machine's name; `None` if there is no such Node.
    node: Result<Option<BTreeSet<IpAddr>>, String>,
    /// The machines listed in the slices of our Service.
    listed: Result<ListedMachines, String>,
    /// The seed of the cluster's Secret, or why there is none.
    seed: Result<u64, String>,
    /// Whether the cluster's Secret has the key of the exchange between edges, or why not; `None` without an exchange.
    peers_key: Option<Result<(), String>>,
    /// Addresses of some other Nodes.
    others: BTreeSet<IpAddr>,
}

/// The machines that run Guideway, from the slices of its Service.
#[derive(Debug, Default, PartialEq, Eq)]
struct ListedMachines {
    nodes: BTreeSet<String>,
    /// Addresses of edges outside the cluster.
    edges: BTreeSet<IpAddr>,
}

async fn ask(
    options: &Kubernetes,
    desired: &Desired,
    exchanges: bool,
    identity: &Identity,
) -> Result<Answers, String> {
    let mut config = client::infer().await.map_err(|error| chain(&error))?;
    config.connect_timeout = Some(TIMEOUT);
    config.read_timeout = Some(TIMEOUT);
    let server = config.cluster_url.to_string();
    let client = client::client(config).map_err(|error| chain(&error))?;
    let version = client.apiserver_version().await;
    let version = version.map_err(|error| format!("{server}: {}", chain(&error)))?;
    let own = ListParams::default().fields(&format!("metadata.name={}", identity.node_name));
    let some = ListParams::default().limit(SOME_NODES);
    Ok(Answers {
        server,
        version: version.git_version,
        denied: denied(&client, identity, rights(options, desired, exchanges)).await,
        node: nodes(&client, &own)
            .await
            .map(|nodes| nodes.into_iter().next()),
        others: nodes(&client, &some)
            .await
            .unwrap_or_default()
            .into_iter()
            .flatten()
            .collect(),
        listed: listed_machines(&client, identity, &options.service).await,
        seed: read_seed(&client, &identity.namespace).await,
        peers_key: match exchanges {
            true => Some(has_peers_key(&client, &identity.namespace).await),
            false => None,
        },
    })
}

async fn denied(
    client: &Client,
    identity: &Identity,
    rights: Vec<Right>,
) -> Result<Vec<Right>, String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut denied = Vec::new();
    for right in rights {
        let attributes = ResourceAttributes {
            verb: Some(right.verb.to_owned()),
            group: Some(right.group.to_owned()),
            resource: Some(right.resource.to_owned()),
            namespace: right.within.namespace(identity),
            name: right.name.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| chain(&error))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            denied.push(right);
        }
    }
    Ok(denied)
}

async fn nodes(client: &Client, which: &ListParams) -> Result<Vec<BTreeSet<IpAddr>>, String> {
    let api: Api<Node> = Api::all(client.clone());
    let nodes = api.list(which).await;
    let nodes = nodes.map_err(|error| chain(&error))?;
    let read = |node: Node| {
        let addresses = node.status.and_then(|status| status.addresses);
        let addresses = addresses.unwrap_or_default().into_iter();
        let addresses = addresses.filter_map(|address| address.address.parse().ok());
        addresses.collect()
    };
    Ok(nodes.items.into_iter().map(read).collect())
}

async fn listed_machines(
    client: &Client,
    identity: &Identity,
    service: &str,
) -> Result<ListedMachines, String> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &identity.namespace);
    let mut page = ListParams::default()
        .labels(&format!("{SERVICE_NAME}={service}"))
        .limit(PAGE);
    let mut listed = ListedMachines::default();
    loop {
        let slices = api.list(&page).await.map_err(|error| chain(&error))?;
        for endpoint in slices
            .items
            .into_iter()
            .flat_map(|slice| slice.endpoints.unwrap_or_default())
        {
            match endpoint.node_name {
                Some(node) => drop(listed.nodes.insert(node)),
                None => {
                    let address = endpoint.addresses.iter().flatten().next();
                    let address = address.and_then(|address| address.parse::<IpAddr>().ok());
                    listed.edges.extend(address);
                }
            }
        }
        match slices.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => page = page.continue_token(&more),
            None => return Ok(listed),
        }
    }
}

/// Returns the outer source addresses that this machine would use towards other Nodes.
fn sources(desired: &Desired, answers: &Answers) -> BTreeSet<IpAddr> {
    let own = host::facts().unwrap_or_default().addresses;
    let given = desired.sources;
    let towards = |node: &IpAddr| {
        let given = given.towards(*node);
        given.or_else(|| source_towards(*node).filter(is_routed))
    };
    let others = answers.others.iter().filter(|node| !own.contains_key(node));
    // Nodes trust the prefix of their own configuration, which is not known here.
    let listed = others.filter(|node| !given.is_spread(**node));
    listed.filter_map(towards).collect()
}

impl Answers {
    fn add_findings(
        &self,
        report: &mut SubjectReport,
        options: &Kubernetes,
        identity: &Identity,
        sources: &BTreeSet<IpAddr>,
    ) {
        let Identity {
            node_name,
            namespace,
            ..
        } = identity;
        let service = format!("{namespace}/{}", options.service);
        report.ok(
            "API server",
            format!("{} answers, {}", self.server, self.version),
        );
        match &self.denied {
            Ok(denied) => {
                // Edges outside the cluster publish no Events.
                let is_needed =
                    |right: &&Right| right.resource != "events" || self.node != Ok(None);
                let denied = denied.iter().filter(is_needed).map(Right::to_string);
                let denied: Vec<String> = denied.collect();
                if denied.is_empty() {
                    report.ok("rights", "all that an agent needs");
                } else {
                    report.fail(
                        "rights",
                        format!("this token may not: {}", denied.join(", ")),
                        "bind the ClusterRole and the Role of the chart's agent to its user or service account",
                    );
                }
            }
            Err(reason) => report.warn(
                "rights",
                format!("the API server does not tell: {reason}"),
                "kubectl auth can-i --list, as this user",
            ),
        }
        self.add_seed(report, options.hash_seed, namespace);
        match &self.peers_key {
            Some(Ok(())) => {
                report.ok(
                    "key of edges",
                    format!("of the Secret {namespace}/{}", PEERS_KEY.name),
                );
            }
            Some(Err(reason)) => report.warn(
                "key of edges",
                format!("nothing is exchanged with other edges: {reason}"),
                "start `guideway controller`, or make the Secret; mend the rights",
            ),
            None => {}
        }
        match &self.node {
            Ok(Some(_)) => report.ok("Node", format!("{node_name} is there")),
            Ok(None) => report.warn(
                "Node",
                format!(
                    "no Node is named {node_name}: this machine becomes an edge outside the cluster"
                ),
                "set kubernetes.node_name or NODE_NAME to the name of its Node, if it has one",
            ),
            Err(reason) => {
                let detail = format!("Nodes cannot be listed: {reason}");
                return report.fail("Node", detail, "mend the rights");
            }
        }
        let node = self.node.as_ref().ok().and_then(Option::as_ref);
        let listed = match &self.listed {
            Ok(listed) => listed,
            Err(reason) => {
                let detail = format!("the EndpointSlices of {service} cannot be listed: {reason}");
                return report.fail("presence", detail, "mend the rights");
            }
        };
        if node.is_some() && !listed.nodes.contains(node_name) {
            return report.warn(
                "presence",
                format!(
                    "no EndpointSlice of {service} has Node {node_name}: others take no packets from its edge, \
                     and reach its pods by NAT"
                ),
                "run the agent in a pod that this Service selects, as the chart does",
            );
        }
        let is_known = |source: &&IpAddr| {
            listed.edges.contains(*source) || node.is_some_and(|node| node.contains(*source))
        };
        let mut is_trusted = true;
        for source in sources.iter().filter(|source| !is_known(source)) {
            is_trusted = false;
            let node_name = node.map(|_| node_name.as_str());
            let detail = untrusted_source(source, &service, node_name);
            report.warn("presence", detail, UNTRUSTED_REMEDY);
        }
        if is_trusted {
            report.ok(
                "presence",
                format!("nodes take what this machine sends, by the EndpointSlices of {service}"),
            );
        }
    }

    /// Compares the seed of the file, if it has one, with that of the cluster's Secret.
    fn add_seed(&self, report: &mut SubjectReport, of_file: Option<u64>, namespace: &str) {
        const CHECK: &str = "hash seed";
        let secret = format!("Secret {namespace}/{}", SEED.name);
        match (of_file, &self.seed) {
            (Some(own), Ok(shared)) if own != *shared => report.warn(
                CHECK,
                format!(
                    "hash_seed of the file (fingerprint {}) is not the seed of the {secret} ({}): edges with two \
                     seeds send one flow to different backends",
                    fingerprint(own),
                    fingerprint(*shared)
                ),
                "leave hash_seed out of the file, or set it equal on every edge",
            ),
            (Some(own), _) => report.ok(
                CHECK,
                format!("of the file, fingerprint {}", fingerprint(own)),
            ),
            (None, Ok(shared)) => report.ok(
                CHECK,
                format!("of the {secret}, fingerprint {}", fingerprint(*shared)),
            ),
            (None, Err(reason)) => report.fail(
                CHECK,
                reason,
                "start `guideway controller`, or set hash_seed, equal on every edge; mend the rights",
            ),
        }
    }
}

/// What to do if nodes do not trust an outer source.
pub(crate) const UNTRUSTED_REMEDY: &str = "set sources to an address of the Node, or list it as an endpoint without \
                                           nodeName in an EndpointSlice of that Service";

/// Returns the text about an outer source that nodes do not trust. `node` is this machine's Node, if it has one.
pub(crate) fn untrusted_source(source: &IpAddr, service: &str, node: Option<&str>) -> String {
    let of_node = node.map(|node| format!(" and is no address of Node {node}"));
    format!(
        "our outer source {source} is in no EndpointSlice of {service}{}: nodes drop what this machine sends them",
        of_node.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests;
