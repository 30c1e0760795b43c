//! What deserves a look: who does not answer or has problems, and what differs between edges that should be alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::report::{Answered, Report};
use crate::api::{Status, unattached};
use crate::cli::ClusterScope;
use crate::first_few::first_few;

pub(super) fn findings(
    report: &Report,
    leases: &BTreeSet<String>,
    scope: &ClusterScope,
) -> Vec<String> {
    let mut findings = Vec::new();
    if report.agents.is_empty() {
        findings.push(format!(
            "no agent: the namespace {} has no pods with the chart's labels; name another one with -n",
            scope.namespace
        ));
    }
    findings.extend(report.agents.iter().filter_map(silence));
    findings.extend(report.controllers.iter().filter_map(silence));
    let known: Vec<(&str, &Status)> = report
        .agents
        .iter()
        .filter_map(|one| Some((one.name.as_str(), one.status.as_ref()?)))
        .collect();
    findings.extend(
        known
            .iter()
            .flat_map(|(name, status)| of_agent(name, status)),
    );
    findings.extend(of_controllers(report));
    findings.extend(versions(report));
    findings.extend(differences(&known));
    findings.extend(announced_twice(&known));
    findings.extend(strange_leases(report, leases, &scope.service));
    findings
}

pub(super) fn silence<T>(one: &Answered<T>) -> Option<String> {
    let reason = one.error.as_ref()?;
    Some(format!(
        "{}: no answer of {}: {reason}",
        one.name, one.place
    ))
}

/// Lists what an agent says is wrong.
fn of_agent(name: &str, status: &Status) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(kubernetes) = &status.kubernetes {
        if kubernetes.synced_seconds.is_none() {
            let missing = kubernetes.missing.join("; ");
            found.push(format!("not in step with the API yet: {missing}"));
        }
        found.extend(kubernetes.broken.iter().cloned());
    }
    if status.config.error.is_some() {
        found.push("its file as it is was refused, the last good state serves".to_owned());
    }
    let restart = &status.config.needs_restart;
    if !restart.is_empty() {
        found.push(format!(
            "waits for a restart to take up {}",
            restart.join(", ")
        ));
    }
    found.extend(unattached(&status.interfaces, &status.egress));
    if let [first, more @ ..] = status.problems.as_slice() {
        let more = match more.len() {
            0 => String::new(),
            more => format!(" (and {more} more problems: guideway status there)"),
        };
        found.push(format!("{first}{more}"));
    }
    found
        .into_iter()
        .map(|text| format!("{name}: {text}"))
        .collect()
}

fn of_controllers(report: &Report) -> Option<String> {
    let known = report
        .controllers
        .iter()
        .filter_map(|one| one.status.as_ref());
    let leading = known.filter(|status| status.leads).count();
    let is_wrong = !report.controllers.is_empty() && leading != 1;
    is_wrong.then(|| {
        format!("{leading} controllers act, and one should: for a moment while they change only")
    })
}

fn versions(report: &Report) -> Option<String> {
    let agents = report.agents.iter();
    let agents = agents.filter_map(|one| Some((&*one.name, one.status.as_ref()?.version.clone())));
    let controllers = report.controllers.iter();
    let controllers =
        controllers.filter_map(|one| Some((&*one.name, one.status.as_ref()?.version.clone())));
    differ("versions", agents.chain(controllers))
}

/// Says what differs between agents that should be alike.
fn differences(known: &[(&str, &Status)]) -> Vec<String> {
    let each = |value: fn(&Status) -> Option<String>| {
        known
            .iter()
            .filter_map(move |(name, status)| Some((*name, value(status)?)))
    };
    let seeds = differ(
        "hash seeds (their fingerprints)",
        each(|status| status.hash_seed.fingerprint.clone()),
    );
    let seeds = seeds.map(|text| format!("{text}: they send one flow to different pods"));
    let services = differ(
        "numbers of services",
        each(|status| {
            let is_synced =
                |kubernetes: &crate::api::Kubernetes| kubernetes.synced_seconds.is_some();
            let kubernetes = status.kubernetes.as_ref();
            kubernetes
                .is_none_or(is_synced)
                .then(|| status.services.to_string())
        }),
    );
    let tables: BTreeSet<&str> = known
        .iter()
        .flat_map(|(_, status)| status.tables.iter().map(|table| table.name.as_str()))
        .collect();
    let tables = tables.into_iter().filter_map(|name| {
        let sizes = known.iter().filter_map(|(agent, status)| {
            let table = status.tables.iter().find(|table| table.name == name)?;
            Some((*agent, table.capacity.to_string()))
        });
        differ(&format!("sizes of the table {name}"), sizes)
    });
    [seeds, services]
        .into_iter()
        .flatten()
        .chain(tables)
        .collect()
}

/// Says who has which value, if not all have the same.
fn differ<'n>(what: &str, values: impl Iterator<Item = (&'n str, String)>) -> Option<String> {
    let mut holders: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in values {
        holders.entry(value).or_default().push(name);
    }
    let is_one = holders.len() < 2;
    let mut parts: Vec<(String, Vec<&str>)> = holders.into_iter().collect();
    // What most have comes first.
    parts.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    let parts = parts.into_iter();
    let parts: Vec<String> = parts
        .map(|(value, names)| format!("{value} on {}", first_few(names)))
        .collect();
    (!is_one).then(|| format!("{what} differ: {}", parts.join("; ")))
}

fn announced_twice(known: &[(&str, &Status)]) -> Vec<String> {
    let mut announcers: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for (name, status) in known {
        for address in &status.announced.addresses {
            announcers.entry(*address).or_default().push(name);
        }
    }
    let several = announcers.into_iter().filter(|(_, names)| names.len() > 1);
    let line = |(address, names): (IpAddr, Vec<&str>)| {
        format!(
            "{address} is announced by {}: for seconds only while it moves; else one of them cannot hear the others",
            names.join(" and ")
        )
    };
    several.map(line).collect()
}

/// Names edges that announce addresses, and from which nodes accept nothing.
fn strange_leases(report: &Report, leases: &BTreeSet<String>, service: &str) -> Vec<String> {
    // One that does not answer may be an edge with a Lease.
    if report.agents.iter().any(|one| one.status.is_none()) {
        return Vec::new();
    }
    let names: BTreeSet<&str> = report.agents.iter().map(|one| one.name.as_str()).collect();
    let strange = leases.iter().filter(|name| !names.contains(name.as_str()));
    let line = |name: &String| {
        format!(
            "{name} renews an edge's Lease, and is neither a pod here nor in an EndpointSlice of the Service \
             {service}: nodes accept nothing from it"
        )
    };
    strange.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Announced, ControllerStatus, HashSeed, Kubernetes, Table};

    fn scope() -> ClusterScope {
        ClusterScope {
            context: None,
            namespace: "lb".to_owned(),
            service: "guideway".to_owned(),
            lease_namespace: None,
            edge_port: 1,
        }
    }

    fn agent(name: &str, change: impl FnOnce(&mut Status)) -> Answered<Status> {
        let mut status = Status {
            version: "1.0.0".to_owned(),
            hash_seed: HashSeed {
                fingerprint: Some("0123".to_owned()),
                ..HashSeed::default()
            },
            services: 3,
            kubernetes: Some(Kubernetes {
                synced_seconds: Some(1),
                ..Kubernetes::default()
            }),
            tables: vec![Table {
                name: "services".to_owned(),
                capacity: 512,
                ..Table::default()
            }],
            ..Status::default()
        };
        change(&mut status);
        Answered {
            name: name.to_owned(),
            place: format!("pod of {name}"),
            status: Some(status),
            error: None,
        }
    }

    fn found(agents: impl IntoIterator<Item = Answered<Status>>) -> Vec<String> {
        let report = Report {
            agents: agents.into_iter().collect(),
            ..Report::default()
        };
        findings(&report, &BTreeSet::new(), &scope())
    }

    #[test]
    fn cluster_that_is_in_order_has_no_findings() {
        assert_eq!(found(["a", "b"].map(|name| agent(name, |_| {}))), [""; 0]);
    }

    #[test]
    fn differences_are_named_with_who_has_what() {
        let other = agent("c", |status| {
            status.version = "1.1.0".to_owned();
            status.hash_seed.fingerprint = Some("89ab".to_owned());
            status.services = 2;
            status.tables[0].capacity = 1024;
        });
        let equal = ["a", "b"].map(|name| agent(name, |_| {}));
        assert_eq!(
            found(equal.into_iter().chain([other])),
            [
                "versions differ: 1.0.0 on a, b; 1.1.0 on c",
                "hash seeds (their fingerprints) differ: 0123 on a, b; 89ab on c: they send one flow to \
                 different pods",
                "numbers of services differ: 3 on a, b; 2 on c",
                "sizes of the table services differ: 512 on a, b; 1024 on c",
            ]
        );
    }

    #[test]
    fn who_does_not_answer_or_has_problems_is_named() {
        let silent = Answered {
            status: None,
            error: Some("CrashLoopBackOff".to_owned()),
            ..agent("a", |_| {})
        };
        let ill = agent("b", |status| {
            status.problems = ["x is full", "y", "z"].map(str::to_owned).into();
        });
        let late = agent("c", |status| {
            status.kubernetes = Some(Kubernetes {
                missing: vec!["no seed".to_owned()],
                ..Kubernetes::default()
            });
            status.services = 0;
        });
        assert_eq!(
            found([silent, ill, late]),
            [
                "a: no answer of pod of a: CrashLoopBackOff",
                "b: x is full (and 2 more problems: guideway status there)",
                "c: not in step with the API yet: no seed",
            ]
        );
        assert!(found([])[0].starts_with("no agent: the namespace lb has no pods"));
    }

    #[test]
    fn address_that_two_announce_and_edge_that_nobody_trusts_are_named() {
        let announcing = |name: &str| {
            agent(name, |status| {
                status.announced = Announced {
                    addresses: vec!["192.0.2.10".parse().unwrap()],
                    ..Announced::default()
                };
            })
        };
        let twice = found(["a", "b"].map(announcing));
        assert!(
            twice[0].starts_with("192.0.2.10 is announced by a and b: "),
            "{twice:?}"
        );
        let report = Report {
            agents: vec![announcing("a")],
            ..Report::default()
        };
        let leases = ["a", "edge9"].map(str::to_owned).into();
        let strange = findings(&report, &leases, &scope());
        assert!(
            strange[0].starts_with("edge9 renews an edge's Lease, "),
            "{strange:?}"
        );
        assert_eq!(strange.len(), 1);
    }

    #[test]
    fn one_controller_acts() {
        let controllers = |leads: [bool; 2]| {
            let one = |leads| Answered {
                name: "x".to_owned(),
                place: String::new(),
                status: Some(ControllerStatus {
                    version: "1.0.0".to_owned(),
                    leads,
                    ..ControllerStatus::default()
                }),
                error: None,
            };
            let report = Report {
                agents: vec![agent("a", |_| {})],
                controllers: leads.map(one).into(),
                findings: Vec::new(),
            };
            findings(&report, &BTreeSet::new(), &scope()).len()
        };
        assert_eq!(controllers([true, false]), 0);
        assert_eq!(controllers([false, false]), 1);
        assert_eq!(controllers([true, true]), 1);
    }
}
