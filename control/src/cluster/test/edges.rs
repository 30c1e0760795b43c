//! What the edges have of Services.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use kube::Client;

use crate::api::{Service, ServiceFilter};
use crate::check::finding::{Finding, SubjectReport};
use crate::cluster::members::{Member, Members};
use crate::cluster::report;
use crate::desired::ServiceKey;
use crate::render::printable;

/// Most ports that are named of one edge.
const NAMED: usize = 10;

/// An edge that was asked.
#[derive(Debug)]
pub(super) struct Edge {
    name: String,
    /// Its services, or why it does not tell them.
    rows: Result<Vec<Service>, String>,
}

/// A port of a Service.
#[derive(Debug)]
pub(super) struct Port {
    /// Name of the Service and the port.
    pub(super) name: String,
    /// Whether an edge has backends for it.
    pub(super) has_backends: bool,
}

/// Ports of Services by address, port and protocol.
pub(super) type Ports = BTreeMap<ServiceKey, Port>;

/// Asks every edge at once.
pub(super) async fn ask(client: &Client, members: &Members) -> Vec<Edge> {
    let agents = members.members.iter();
    let agents = agents.filter(|member| !member.is_controller);
    let asked = join_all(agents.map(|member| edge(client, member))).await;
    let mut edges: Vec<Edge> = asked.into_iter().flatten().collect();
    edges.sort_by(|one, other| one.name.cmp(&other.name));
    // An edge with an address of each family is asked at both.
    let mut names = BTreeSet::new();
    edges.retain(|edge| edge.rows.is_err() || names.insert(edge.name.clone()));
    edges
}

/// Asks an agent; `None` if it is no edge.
async fn edge(client: &Client, member: &Member) -> Option<Edge> {
    let answered = report::agent(client, member).await;
    let rows = match (&answered.status, answered.error) {
        (Some(status), _) if !status.roles.iter().any(|role| role == "edge") => return None,
        (Some(_), _) => member.place.ask(client, "/services").await,
        (None, error) => Err(error.unwrap_or_default()),
    };
    Some(Edge {
        name: answered.name,
        rows,
    })
}

/// Collects the selected ports that any edge has, except NodePorts.
pub(super) fn ports(edges: &[Edge], filter: &ServiceFilter) -> Ports {
    let mut ports = Ports::new();
    let rows = edges.iter().flat_map(|edge| edge.rows.iter().flatten());
    for row in rows.filter(|row| !row.node_port) {
        let Ok(key) = row.service.parse::<ServiceKey>() else {
            continue;
        };
        if filter.includes(&row.name, &key) {
            let port = ports.entry(key).or_insert_with(|| Port {
                name: printable(&row.name),
                has_backends: false,
            });
            port.has_backends |= row.backends > 0;
        }
    }
    ports
}

/// Judges what an edge has of these ports.
pub(super) fn judge(edge: &Edge, ports: &Ports) -> Vec<Finding> {
    let mut report = SubjectReport::of(&printable(&edge.name));
    let rows = match &edge.rows {
        Ok(rows) => rows.iter(),
        Err(reason) => {
            report.fail(
                "answer",
                printable(reason),
                "look at its pod and its log; an edge outside the cluster listens at metrics.listen (--edge-port)",
            );
            return report.findings;
        }
    };
    let rows: BTreeMap<&str, &Service> = rows.map(|row| (row.service.as_str(), row)).collect();
    let faults: Vec<(String, &str)> = ports
        .iter()
        .filter_map(|(key, port)| {
            let row = rows.get(key.to_string().as_str()).copied();
            let (what, remedy) = fault(row, port)?;
            Some((format!("{} at {key}: {what}", port.name), remedy))
        })
        .collect();
    let more = faults.len().saturating_sub(NAMED);
    if faults.is_empty() && !ports.is_empty() {
        report.ok("services", format!("it serves {} ports", ports.len()));
    }
    for (what, remedy) in faults.into_iter().take(NAMED) {
        report.fail("service", what, remedy);
    }
    if more > 0 {
        report.fail(
            "service",
            format!("{more} more ports fail"),
            "name a Service: `guideway cluster test default/web`",
        );
    }
    report.findings
}

/// Returns what is wrong with a port on an edge, and what to do.
fn fault(row: Option<&Service>, port: &Port) -> Option<(String, &'static str)> {
    let Some(row) = row else {
        return Some((
            "it does not have the port".to_owned(),
            "`guideway status` there says why under PROBLEMS, or that it is not in step with the API",
        ));
    };
    // With the policy Local, an edge that is a Node counts its own pods alone.
    let is_elsewhere = row.traffic_policy == "local" && port.has_backends;
    if let Some(problem) = &row.problem {
        let remedy = "`guideway status` there has it under PROBLEMS, with more";
        return Some((printable(problem), remedy));
    }
    if row.backends == 0 && !is_elsewhere {
        return Some((
            "no endpoint takes new connections".to_owned(),
            "`kubectl get endpointslices -l kubernetes.io/service-name=NAME` lists the endpoints: one must be ready",
        ));
    }
    if row.all_fail {
        return Some((
            "all backends fail their checks".to_owned(),
            "`guideway backends` there says why, under HEALTH",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: &str = "192.0.2.1:80/tcp";

    fn row(change: impl FnOnce(&mut Service)) -> Service {
        let mut row = Service {
            name: "default/web:http".to_owned(),
            service: PORT.to_owned(),
            backends: 2,
            ..Service::default()
        };
        change(&mut row);
        row
    }

    fn edge(name: &str, rows: impl IntoIterator<Item = Service>) -> Edge {
        Edge {
            name: name.to_owned(),
            rows: Ok(rows.into_iter().collect()),
        }
    }

    /// Returns what fails on each of these edges.
    fn fails(edges: &[Edge]) -> Vec<Vec<String>> {
        let ports = ports(edges, &ServiceFilter::default());
        let fails = |edge| {
            let findings = judge(edge, &ports).into_iter();
            let fails = findings.filter(|finding| !finding.remedy.is_empty());
            fails.map(|finding| finding.detail).collect()
        };
        edges.iter().map(fails).collect()
    }

    #[test]
    fn edge_that_lacks_what_another_has_fails() {
        let silent = Edge {
            name: "c".to_owned(),
            rows: Err("refused".to_owned()),
        };
        let edges = [edge("a", [row(|_| {})]), edge("b", []), silent];
        assert_eq!(
            fails(&edges),
            [
                vec![],
                vec!["default/web:http at 192.0.2.1:80/tcp: it does not have the port"],
                vec!["refused"],
            ]
        );
    }

    #[test]
    fn port_without_backends_fails_unless_its_pods_are_at_another_node() {
        let none = |policy: &str| {
            row(|row| {
                row.backends = 0;
                row.traffic_policy = policy.to_owned();
            })
        };
        let with = || row(|_| {});
        let number = |edges: [Edge; 2]| fails(&edges).concat().len();
        assert_eq!(
            number([edge("a", [with()]), edge("b", [none("cluster")])]),
            1
        );
        assert_eq!(number([edge("a", [with()]), edge("b", [none("local")])]), 0);
        let nowhere = [edge("a", [none("local")]), edge("b", [none("local")])];
        assert_eq!(number(nowhere), 2);
    }

    #[test]
    fn many_faults_are_named_in_part() {
        let all = (0..30_u8).map(|number| {
            row(|row| {
                row.service = format!("192.0.2.{number}:80/tcp");
                row.problem = Some("full".to_owned());
            })
        });
        let fails = fails(&[edge("a", all)]).concat();
        assert_eq!(fails.len(), NAMED + 1);
        assert_eq!(fails[NAMED], "20 more ports fail");
    }
}
