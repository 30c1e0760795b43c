//! Converts decoded API objects into what the controller needs of them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::address_range::Family;
use super::announcements::ANNOUNCED;
use super::crd::{Condition, Pool, PoolStatus};
use super::objects::{Labels, Request, Service};
use super::pool_status::PoolSource;
use super::service_status::{ADDRESS_ASSIGNED, CurrentStatus, Ingress};
use crate::desired::Protocol;
use crate::index::objects::ServicePort;
use crate::index::{self, Options, Problem, Reading};
use crate::kubernetes::machine_tracker;
use crate::kubernetes::schema::{self, EndpointSlice, Node, ServiceSpec, ServiceStatus, name};

const ADDRESSES: &str = "guideway.dev/addresses";
const POOL: &str = "guideway.dev/pool";
const SHARING_KEY: &str = "guideway.dev/sharing-key";

/// Selects the Services that the controller is responsible for.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    /// The `loadBalancerClass`.
    pub(super) class: String,
    /// Whether Services without a class are included.
    pub(super) default: bool,
    /// Networks within which agents serve external addresses.
    pub(super) external_ips: BTreeSet<IpNet>,
}

/// A Service as watched.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedService {
    pub(super) uid: String,
    /// The Service, if this controller assigns its addresses.
    pub(super) ours: Option<Service>,
    /// Addresses that another controller assigned to it.
    pub(super) foreign: Vec<IpAddr>,
    /// External addresses that it lists.
    pub(super) external: Vec<IpAddr>,
    /// Those of its external addresses that agents serve.
    pub(super) served: BTreeSet<IpAddr>,
    pub(super) observed: CurrentStatus,
    /// Whether it has another class, which cannot change. Its status then belongs to another controller.
    pub(super) is_of_other_class: bool,
    /// Which class the Service lacks, if it wants an address that this controller does not give.
    pub(super) lacks: Option<String>,
    /// What is wrong with it; all agents find the same.
    pub(super) problems: Vec<Problem>,
}

/// A pool as watched.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedPool {
    pub(super) version: String,
    pub(super) finalizers: Vec<String>,
    pub(super) source: PoolSource,
    pub(super) status: PoolStatus,
}

impl Classes {
    fn has(&self, spec: &ServiceSpec) -> bool {
        is_load_balancer(spec)
            && match &spec.load_balancer_class {
                Some(class) => **class == self.class,
                None => self.default,
            }
    }

    /// Converts a Service.
    pub(super) fn service(&self, service: &schema::Service) -> ObservedService {
        let nothing = ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&nothing);
        let observed = observed(service.status.as_ref());
        let external = spec.external_ips.iter().flatten();
        let (mut ours, mut foreign) = (None, Vec::new());
        let held: Vec<IpAddr> = observed.addresses().collect();
        if self.has(spec) {
            ours = Some(wanted(&service.metadata, spec, held));
        } else {
            foreign = held;
        }
        let reading = self.read(service);
        let lacks = self.lacks(spec).filter(|_| observed.ingress.is_empty());
        ObservedService {
            lacks,
            uid: service.metadata.uid.clone().unwrap_or_default(),
            ours,
            foreign,
            external: external.filter_map(|text| index::address(text)).collect(),
            observed,
            is_of_other_class: is_load_balancer(spec)
                && spec
                    .load_balancer_class
                    .as_ref()
                    .is_some_and(|class| **class != self.class),
            served: reading.external,
            problems: reading.problems,
        }
    }

    /// Returns the text about the missing class of a Service to which this controller gives no address.
    fn lacks(&self, spec: &ServiceSpec) -> Option<String> {
        if !is_load_balancer(spec) || self.has(spec) {
            return None;
        }
        let ours = &self.class;
        Some(match &spec.load_balancer_class {
            None => format!(
                "nobody gave an address within a minute: the Service has no spec.loadBalancerClass, and Guideway \
                 serves the class {ours} only; create it with that class, or start the controller with --default-class \
                 (chart: defaultClass)"
            ),
            Some(class) => format!(
                "nobody gave an address within a minute: spec.loadBalancerClass is {class}, and Guideway serves \
                 {ours}; start the controller of that class, or create the Service anew with the other class"
            ),
        })
    }

    /// Reads a Service by the same rules as the agents.
    fn read(&self, service: &schema::Service) -> Reading {
        let options = Options {
            load_balancer_class: self.class.clone(),
            serve_unset_class: self.default,
            external_ips: self.external_ips.clone(),
            ..Options::default()
        };
        index::read(&service.clone().into(), &options)
    }
}

fn is_load_balancer(spec: &ServiceSpec) -> bool {
    spec.type_.as_deref() == Some("LoadBalancer")
}

fn wanted(metadata: &ObjectMeta, spec: &ServiceSpec, held: Vec<IpAddr>) -> Service {
    let annotation = |key: &str| {
        let text = metadata.annotations.as_ref()?.get(key)?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let families = spec.ip_families.iter().flatten();
    let created = metadata.creation_timestamp.as_ref();
    Service {
        name: name(metadata),
        uid: metadata.uid.clone().unwrap_or_default(),
        created: created.map_or(i64::MAX, |time| time.0.as_second()),
        labels: labels(metadata),
        families: families.filter_map(|text| family(text)).collect(),
        dual_stack_required: spec.ip_family_policy.as_deref() == Some("RequireDualStack"),
        ports: spec.ports.iter().flatten().filter_map(port).collect(),
        local: spec.external_traffic_policy.as_deref() == Some("Local"),
        selector: spec.selector.clone().unwrap_or_default(),
        request: Request {
            addresses: annotation(ADDRESSES),
            load_balancer_ip: spec
                .load_balancer_ip
                .clone()
                .filter(|text| !text.is_empty()),
            pools: annotation(POOL),
            sharing_key: annotation(SHARING_KEY),
        },
        held,
    }
}

fn observed(status: Option<&ServiceStatus>) -> CurrentStatus {
    let ingress = status
        .and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref())
        .into_iter()
        .flatten()
        .map(|ingress| Ingress {
            ip: ingress.ip.as_ref().map(ToString::to_string),
            mode: ingress.ip_mode.as_ref().map(ToString::to_string),
            more: ingress.hostname.is_some() || ingress.ports.is_some(),
        });
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let find = |kind| {
        let mut conditions = conditions.into_iter().flatten();
        let ours = conditions.find(|condition| condition.type_.as_deref() == Some(kind));
        ours.map(condition)
    };
    CurrentStatus {
        ingress: ingress.collect(),
        condition: find(ADDRESS_ASSIGNED),
        announced: find(ANNOUNCED),
    }
}

fn condition(condition: &schema::Condition) -> Condition {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Condition {
        kind: text(&condition.type_),
        status: text(&condition.status),
        reason: text(&condition.reason),
        message: text(&condition.message),
        last_transition_time: text(&condition.last_transition_time),
    }
}

fn port(port: &ServicePort) -> Option<(Protocol, u16)> {
    let protocol = match port.protocol.as_deref() {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => return None,
    };
    Some((protocol, u16::try_from(port.port).ok()?))
}

fn family(text: &str) -> Option<Family> {
    match text {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    }
}

/// Converts a pool.
pub(super) fn pool(pool: &Pool) -> ObservedPool {
    let mut source = PoolSource::new(&pool.spec);
    source.pool.terminating = pool.metadata.deletion_timestamp.is_some();
    ObservedPool {
        version: pool.metadata.resource_version.clone().unwrap_or_default(),
        finalizers: pool.metadata.finalizers.clone().unwrap_or_default(),
        source,
        status: pool.status.clone().unwrap_or_default(),
    }
}

/// Reads the addresses of a Node.
pub(super) fn node(node: &Node) -> Vec<IpAddr> {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    let texts = addresses
        .into_iter()
        .flatten()
        .map(|address| &address.address);
    texts.filter_map(|text| index::address(text)).collect()
}

/// Reads the addresses of the API servers from a slice.
pub(super) fn api_servers(slice: &EndpointSlice) -> Vec<IpAddr> {
    let endpoints = slice.endpoints.iter().flatten();
    let texts = endpoints.flat_map(|endpoint| endpoint.addresses.iter().flatten());
    texts.filter_map(|text| index::address(text)).collect()
}

/// Reads the addresses of edges outside the cluster from a slice of Guideway's own Service.
pub(super) fn edges(slice: &EndpointSlice) -> Vec<IpAddr> {
    let endpoints = slice.endpoints.iter().flatten();
    let outside = endpoints.filter(|endpoint| endpoint.node_name.is_none());
    let texts = outside.filter_map(|endpoint| endpoint.addresses.as_ref()?.first());
    texts
        .filter_map(|text| machine_tracker::edge(text))
        .collect()
}

/// Reads the labels of an object.
pub(super) fn labels(metadata: &ObjectMeta) -> Labels {
    metadata.labels.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::index::BrokenRule;

    #[test]
    fn what_agents_cannot_read_of_a_service_is_a_problem_here_too() {
        let rules = |class: &str, node_port: i32, table_size: &str| {
            let service = serde_json::from_value(json!({
                "metadata": {"namespace": "test", "name": "web", "annotations": {
                    "guideway.dev/table-size": table_size,
                }},
                "spec": {
                    "type": "LoadBalancer", "loadBalancerClass": class, "clusterIPs": ["10.96.0.1"],
                    "loadBalancerSourceRanges": ["192.0.2.0"], "sessionAffinity": "Cookie",
                    "ports": [{"port": 80, "nodePort": node_port}],
                },
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
            }));
            let problems = classes().service(&service.unwrap()).problems;
            problems
                .iter()
                .map(|problem| problem.rule)
                .collect::<Vec<_>>()
        };
        let anywhere = [BrokenRule::InvalidAnnotation, BrokenRule::InvalidPolicy];
        let ours = [&[BrokenRule::InvalidSourceRange][..], &anywhere].concat();
        for table_size in ["7", "131072"] {
            assert_eq!(rules("a/b", 30080, table_size), ours, "{table_size}");
        }
        // Of another class only the node port is served, and without one nothing.
        assert_eq!(rules("c/d", 30080, "7"), anywhere);
        assert_eq!(rules("c/d", 0, "7"), []);
    }

    #[test]
    fn addresses_are_read_as_agents_read_them() {
        let service: schema::Service = serde_json::from_value(json!({
            "spec": {"type": "ClusterIP", "externalIPs": ["192.000.2.07"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.02.8"}]}},
        }))
        .unwrap();
        let seen = classes().service(&service);
        assert_eq!(seen.external, ["192.0.2.7".parse::<IpAddr>().unwrap()]);
        assert_eq!(seen.foreign, ["192.0.2.8".parse::<IpAddr>().unwrap()]);
        let of_node = serde_json::from_value(json!({
            "status": {"addresses": [{"type": "InternalIP", "address": "010.0.0.01"}]},
        }));
        assert_eq!(
            node(&of_node.unwrap()),
            ["10.0.0.1".parse::<IpAddr>().unwrap()]
        );
    }

    #[test]
    fn edges_are_the_endpoints_without_a_node() {
        let of_ours: EndpointSlice = serde_json::from_value(json!({
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["198.51.100.07"]},
                {"addresses": ["10.0.0.1"], "nodeName": "node1"},
            ],
        }))
        .unwrap();
        let edge: IpAddr = "198.51.100.7".parse().unwrap();
        assert_eq!(edges(&of_ours), [edge]);
        assert_eq!(api_servers(&of_ours).len(), 2);
    }

    fn classes() -> Classes {
        Classes {
            class: "a/b".to_owned(),
            default: false,
            external_ips: BTreeSet::new(),
        }
    }
}
