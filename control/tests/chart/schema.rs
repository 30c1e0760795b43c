//! Values that the chart refuses.

use std::collections::BTreeSet;

use control::config::{self, Source};
use serde_json::Value;

use super::chart::{REQUIRED, deploy, helm, template, text};

#[test]
fn absurd_values_are_refused() {
    for (value, named) in [
        ("agent.interface=eth0", "interface"),
        ("agents.log=debug", "agents"),
        ("agent.defaultMode=dsr", "defaultMode"),
        ("agent.interfaces[0].name=a-name-longer-than-15", "name"),
        ("agent.interfaces[0].mode=fast", "mode"),
        ("agent.interfaces[0].pattern=eth*", "interfaces"),
        ("agent.interfaces[1].pattern=eth0", "pattern"),
        ("agent.interfaces[1].default_route=false", "default_route"),
        ("agent.logFormat=xml", "logFormat"),
        ("controller.logFormat=xml", "logFormat"),
        ("agent.metricsPort=10249", "metricsPort"),
        ("agent.healthPort=10256", "healthPort"),
        ("agent.healthPort=70000", "healthPort"),
        ("agent.peers.port=10250", "port"),
        ("agent.peers.enabled=maybe", "enabled"),
        ("agent.peers.key=secret", "key"),
        ("agent.extraConfig.peers.listen=off", "peers"),
        ("agent.listenAddress=everywhere", "listenAddress"),
        ("agent.nat.ports=all", "ports"),
        ("agent.nat.ipv4=192.0.2.1", "ipv4"),
        ("agent.sources.ipv4=192.0.2.1", "sources"),
        ("agent.seccompProfile.type=Unconfined", "seccompProfile"),
        ("agent.seccompProfile.type=Localhost", "seccompProfile"),
        ("agent.extraConfig.services[0].name=web", "extraConfig"),
        ("agent.extraConfig.vips[0]=192.0.2.1", "extraConfig"),
        ("agent.extraConfig.metrics.listen=off", "extraConfig"),
        ("agent.kubernetes.service=other", "kubernetes"),
        ("agent.kubernetes.topology_hint=ignore", "topology_hint"),
        ("agent.kubernetes.topology_hints=never", "topology_hints"),
        ("agent.kubernetes.external_ips=192.0.2.0/24", "external_ips"),
        ("agent.kubernetes.table_share=120", "table_share"),
        ("agent.extraConfig.tabels.services=4096", "tabels"),
        ("agent.extraConfig.tables.service=4096", "service"),
        ("agent.extraConfig.tables.services=many", "services"),
        ("agent.extraConfig.announce.interface=eth0", "interface"),
        ("agent.extraConfig.health.every=5s", "every"),
        ("agent.extraConfig.roles[0]=router", "roles"),
        ("agent.extraConfig.clamp_mss=maybe", "clamp_mss"),
        ("agent.extraConfig.pin_dir=/run/pins", "pin_dir"),
        (
            "agent.extraConfig.node_config[0].nodes[0]=n1",
            "node_config",
        ),
        ("agent.nodeConfig[0].nodes[0]=n1", "config"),
        ("agent.nodeConfig[0].config.clamp_mss=off", "nodes"),
        (
            "agent.nodeConfig[0].config.pin_dir=/sys/fs/bpf/x",
            "pin_dir",
        ),
        ("agent.nodeConfig[0].config.tables.flows=many", "flows"),
        (
            "agent.nodeConfig[0].config.kubernetes.healthz=off",
            "healthz",
        ),
        ("controller.replicas=0", "replicas"),
        ("image.digest=latest", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("loadBalancerClass=a b", "loadBalancerClass"),
        ("metrics.serviceMonitor.interval=often", "interval"),
        ("networkPolicy.apiServerPorts={}", "apiServerPorts"),
        ("networkPolicy.peersFrom={192.0.2.1}", "peersFrom"),
        ("apiServer.port=0", "port"),
    ] {
        let output = template(&[value]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{value} is taken");
        assert!(
            said.contains("values don't meet the specifications") && said.contains(named),
            "{value}: {said}"
        );
    }
}

/// Else a typo fails the agents and not `helm install`, or the chart refuses what agents know.
#[test]
fn schema_has_exactly_the_fields_of_the_configuration_file() {
    let schema: Value = serde_json::from_str(&text("helm/guideway/values.schema.json")).unwrap();
    let agent = &schema["properties"]["agent"]["properties"];
    let file = &agent["extraConfig"];
    expect_fields(file, "FIELD: x");
    expect_fields(&agent["kubernetes"], "kubernetes: {FIELD: x}");
    let sections = file["properties"].as_object().unwrap().iter();
    let sections: Vec<_> = sections
        .filter(|(_, section)| section["type"] == "object")
        .collect();
    assert!(sections.len() >= 4, "{sections:?}");
    for (name, section) in sections {
        expect_fields(section, &format!("{name}: {{FIELD: x}}"));
    }
    let of_nodes = &agent["nodeConfig"]["items"]["properties"]["config"];
    expect_fields(of_nodes, "node_config: [{config: {FIELD: x}}]");
    for section in ["sources", "nat"] {
        let place = format!("node_config: [{{config: {{{section}: {{FIELD: x}}}}}}]");
        expect_fields(&of_nodes["properties"][section], &place);
    }
    expect_fields(
        &schema["definitions"]["interface"],
        "interfaces: [{FIELD: x}]",
    );
}

/// Compares the properties of an object with the fields that the configuration file has at `FIELD`.
fn expect_fields(object: &Value, place: &str) {
    assert_eq!(object["additionalProperties"], false, "{place}");
    let properties = object["properties"].as_object().unwrap().keys();
    let properties: BTreeSet<_> = properties.map(String::as_str).collect();
    let file = place.replace("FIELD", "no_such_field");
    let problems = config::parse_bytes(file.as_bytes(), Source::Kubernetes).unwrap_err();
    let (_, fields) = problems[0]
        .remedy
        .split_once("the fields here are ")
        .unwrap();
    let fields: BTreeSet<_> = fields.split(", ").collect();
    assert_eq!(properties, fields, "{place}");
}

#[test]
fn what_has_no_default_is_asked_for() {
    let chart = deploy("helm/guideway");
    for (missing, given) in [(REQUIRED[0], REQUIRED[1]), (REQUIRED[1], REQUIRED[0])] {
        let output = helm(&["template", "guideway", chart.to_str().unwrap()], &[given]);
        let said = String::from_utf8_lossy(&output.stderr);
        let name = missing.split(['=', '[']).next().unwrap();
        assert!(!output.status.success(), "{missing} is not asked for");
        assert!(said.contains(name), "{said}");
    }
    let output = template(&["controller.enabled=false"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "no seed is asked for");
    assert!(said.contains("agent.extraConfig.hash_seed"), "{said}");
    let output = template(&[
        "controller.enabled=false",
        "agent.extraConfig.hash_seed=0x7",
    ]);
    assert!(output.status.success(), "{output:?}");
}
