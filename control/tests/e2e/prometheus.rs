//! A real Prometheus scrapes an agent, and evaluates the chart's rules and the queries of its dashboard.

use std::path::Path;

use lab::{Machine, Namespace, Process, Topology, wait_for};
use serde_json::{Value, json};

use crate::support::{Cluster, Flow, Mode, PodService, Service, TIMEOUT, serve_on_pods};

const RULES: &str = include_str!("../../../deploy/helm/guideway/files/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../deploy/helm/guideway/files/dashboard.json");
const CONFIG: &str = "
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - {job_name: guideway, honor_labels: true, static_configs: [{targets: ['127.0.0.1:9750']}]}
";

#[test]
fn prometheus_scrapes_agents_and_evaluates_rules_and_dashboard() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let edge = &net.edges()[0];
    let all = Service::all(&[Mode::IpipV4]);
    let services: Vec<PodService<'_>> = all.iter().copied().map(PodService::over_all).collect();
    let _echoes = serve_on_pods(&net, &services);
    let _agents = Cluster::start(&net, &services);
    Flow::open_many(&net.clients()[0], &all, 1);
    let _prometheus = start(edge);

    wait_for("its target is up", TIMEOUT, || {
        let targets = get(edge, "targets", "")?;
        let target = &targets["activeTargets"][0];
        match target["health"] == "up" && target["lastError"] == "" {
            true => Ok(()),
            false => Err(targets.to_string()),
        }
    })
    .unwrap();
    let expected = all.len().to_string();
    wait_for("every service's packets are there", TIMEOUT, || {
        let counted = get(edge, "query", "count(guideway_service_packets_total > 0)")?;
        match counted["result"][0]["value"][1] == expected {
            true => Ok(()),
            false => Err(counted.to_string()),
        }
    })
    .unwrap();

    wait_for("every rule was evaluated", TIMEOUT, || {
        let groups = get(edge, "rules", "")?;
        let rules = groups["groups"].as_array().into_iter().flatten();
        let mut rules = rules.flat_map(|group| group["rules"].as_array().unwrap());
        match rules.clone().count() > 0 && rules.all(|rule| rule["health"] == "ok") {
            true => Ok(()),
            false => Err(groups.to_string()),
        }
    })
    .unwrap();

    every_panel_shows_something(edge);
}

/// Panels and rows without anything to show while all is well, and without Kubernetes.
const EMPTY: [&str; 7] = [
    "Addresses",
    "Answered and sent on to clients, by reason",
    "Dropped, by reason",
    "Duration of checks, p99",
    "Failing backends",
    "Kubernetes",
    "Pods left out",
];

fn every_panel_shows_something(prometheus: &Machine) {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut row = "";
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        if panel["type"] == "row" {
            row = title;
        }
        let may_be_empty = EMPTY.contains(&title) || EMPTY.contains(&row);
        for target in panel["targets"].as_array().into_iter().flatten() {
            // As Grafana would put the choices of its user in.
            let query = target["expr"].as_str().unwrap();
            let query = query
                .replace("$instance", ".*")
                .replace("$__rate_interval", "1m");
            assert!(!query.contains('$'), "{query}");
            wait_for(&format!("{title} has {query}"), TIMEOUT, || {
                let data = get(prometheus, "query", &query)?;
                match may_be_empty || data["result"] != json!([]) {
                    true => Ok(()),
                    false => Err(data.to_string()),
                }
            })
            .unwrap();
        }
    }
}

fn start(machine: &Machine) -> Process {
    machine
        .namespace()
        .write_file("prometheus.yaml", CONFIG)
        .unwrap();
    machine.namespace().write_file("rules.yaml", RULES).unwrap();
    let files = Path::new(Namespace::FILES);
    let mut command = machine.namespace().command("prometheus");
    command
        .arg("--config.file")
        .arg(files.join("prometheus.yaml"))
        .arg("--storage.tsdb.path")
        .arg(files.join("prometheus"))
        .arg("--web.listen-address=127.0.0.1:9090");
    Process::spawn(&mut command).unwrap()
}

/// Asks Prometheus, and returns the data of its answer.
fn get(machine: &Machine, path: &str, query: &str) -> Result<Value, String> {
    let mut curl = machine.namespace().command("curl");
    let url = format!("http://127.0.0.1:9090/api/v1/{path}");
    curl.args([
        "-sS",
        "--get",
        "--data-urlencode",
        &format!("query={query}"),
        &url,
    ]);
    let answer = lab::output(&mut curl).map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
    match answer["status"] == "success" {
        true => Ok(answer["data"].clone()),
        false => Err(answer.to_string()),
    }
}
