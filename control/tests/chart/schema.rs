//! Values that the chart refuses.

use super::chart::{REQUIRED, deploy, helm, template};

#[test]
fn absurd_values_are_refused() {
    for (value, named) in [
        ("agent.interface=eth0", "interface"),
        ("agents.log=debug", "agents"),
        ("agent.defaultMode=dsr", "defaultMode"),
        ("agent.interfaces[0].name=a-name-longer-than-15", "name"),
        ("agent.interfaces[0].mode=fast", "mode"),
        ("agent.metricsPort=10249", "metricsPort"),
        ("agent.healthPort=10256", "healthPort"),
        ("agent.healthPort=70000", "healthPort"),
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
        ("controller.replicas=0", "replicas"),
        ("image.digest=latest", "digest"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("loadBalancerClass=a b", "loadBalancerClass"),
        ("metrics.serviceMonitor.interval=often", "interval"),
        ("networkPolicy.apiServerPorts={}", "apiServerPorts"),
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
