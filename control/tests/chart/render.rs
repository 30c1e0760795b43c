//! What the chart's objects say.

use std::collections::BTreeSet;

use control::config::{self, Listen, Peers, PeersFound, Source};
use serde_json::{Value, json};

use super::chart::{DETACH, Objects, container, deploy, helm, text};

/// Ports that Kubernetes' own components have on a node.
const TAKEN_PORTS: [u64; 7] = [10248, 10249, 10250, 10255, 10256, 10257, 10259];

#[test]
fn lint_has_nothing_to_object() {
    let chart = deploy("helm/guideway");
    for values in [
        &[][..],
        &super::chart::REQUIRED,
        &[
            "controller.enabled=false",
            "agent.extraConfig.hash_seed=0x7",
            DETACH,
        ],
        &[
            "metrics.serviceMonitor.enabled=true",
            "metrics.prometheusRule.enabled=true",
            "metrics.dashboard.enabled=true",
            "networkPolicy.enabled=true",
            "namespace.create=true",
        ],
    ] {
        let output = helm(&["lint", "--strict", chart.to_str().unwrap()], values);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{values:?}: {said}");
    }
}

#[test]
fn chart_has_the_version_of_the_program() {
    let chart: Value = serde_saphyr::from_str(&text("helm/guideway/Chart.yaml")).unwrap();
    for version in ["version", "appVersion"] {
        assert_eq!(chart[version], env!("CARGO_PKG_VERSION"), "{version}");
    }
}

#[test]
fn agent_has_four_capabilities_and_no_way_to_more() {
    let objects = Objects::render(&[]);
    let pod = objects.agent_pod();
    assert_eq!(
        container(pod, "agent")["securityContext"],
        json!({
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["BPF", "NET_ADMIN", "NET_RAW", "PERFMON"]},
            "seccompProfile": {"type": "RuntimeDefault"},
            "appArmorProfile": {"type": "Unconfined"},
        })
    );
    assert_eq!(pod["spec"]["hostPID"], Value::Null);
    assert_eq!(pod["spec"]["hostIPC"], Value::Null);
    let host_paths = pod["spec"]["volumes"].as_array().unwrap().iter();
    let host_paths: Vec<_> = host_paths
        .filter_map(|volume| volume["hostPath"]["path"].as_str())
        .collect();
    assert_eq!(host_paths, ["/sys/fs/bpf/guideway", "/run/guideway"]);
}

#[test]
fn agent_may_lock_memory_where_it_mends() {
    let may_lock = |values: &[&str]| {
        let objects = Objects::render(values);
        let context = &container(objects.agent_pod(), "agent")["securityContext"];
        let added = context["capabilities"]["add"].as_array().unwrap();
        added.contains(&json!("IPC_LOCK"))
    };
    assert!(may_lock(&["agent.extraConfig.mend=on"]));
    assert!(may_lock(&[
        "agent.nodeConfig[0].nodes[0]=n1",
        "agent.nodeConfig[0].config.mend=on"
    ]));
    for values in [
        &["agent.extraConfig.mend=off"][..],
        &[
            "agent.nodeConfig[0].nodes[0]=n1",
            "agent.nodeConfig[0].config.node_health=off",
        ],
    ] {
        assert!(!may_lock(values), "{values:?}");
    }
}

#[test]
fn of_bpffs_the_directory_of_the_pins_alone_is_mounted() {
    for (values, directory) in [
        (&[][..], "/sys/fs/bpf/guideway"),
        (
            &["agent.extraConfig.pin_dir=/sys/fs/bpf/other"],
            "/sys/fs/bpf/other",
        ),
    ] {
        for (name, more) in [("agent", &[][..]), ("detach", &[DETACH])] {
            let objects = Objects::render(&[values, more].concat());
            let pod = objects.agent_pod();
            let volumes = pod["spec"]["volumes"].as_array().unwrap();
            let mut pins = volumes.iter().filter(|volume| volume["name"] == "pins");
            let made = json!({"path": directory, "type": "DirectoryOrCreate"});
            assert_eq!(pins.next().unwrap()["hostPath"], made, "{name}");
            let mounts = container(pod, name)["volumeMounts"].as_array().unwrap();
            let at = |name: &str| mounts.iter().position(|mount| mount["name"] == name);
            // The directory that it is mounted in comes first.
            assert!(at("bpf").unwrap() < at("pins").unwrap());
            assert_eq!(mounts[at("pins").unwrap()]["mountPath"], directory);
        }
    }
}

#[test]
fn metrics_and_health_are_at_the_nodes_addresses() {
    let objects = Objects::render(&[]);
    let parse = |objects: &Objects| {
        let file = objects.agent_config();
        config::parse_bytes(file.as_bytes(), Source::Kubernetes).unwrap()
    };
    let config = parse(&objects);
    assert_eq!(config.metrics, Some(Listen::Node(10790)));
    let healthz = config.kubernetes.unwrap().healthz;
    assert_eq!(healthz, Some(Listen::Node(10791)));
    let agent = container(objects.agent_pod(), "agent");
    let variables = agent["env"].as_array().unwrap();
    let addresses = json!({
        "name": Listen::NODE_ADDRESSES,
        "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}},
    });
    assert!(variables.contains(&addresses), "{variables:?}");
    // The kubelet asks the pod's address, which is the node's.
    assert_eq!(agent["livenessProbe"]["httpGet"]["host"], Value::Null);
    let all = parse(&Objects::render(&["agent.listenAddress=0.0.0.0"]));
    let everywhere = "0.0.0.0:10790".parse().unwrap();
    assert_eq!(all.metrics, Some(Listen::At(everywhere)));
}

#[test]
fn agents_and_controller_log_in_the_form_that_is_asked_for() {
    let log_of = |values: &[&str]| {
        let objects = Objects::render(values);
        let pods = [
            (objects.agent_pod(), "agent"),
            (objects.controller_pod(), "controller"),
        ];
        pods.map(|(pod, name)| {
            let variables = container(pod, name)["env"].as_array().unwrap();
            ["GUIDEWAY_LOG", "GUIDEWAY_LOG_FORMAT"].map(|name| {
                let mut found = variables.iter().filter(|variable| variable["name"] == name);
                found.next().unwrap()["value"].as_str().unwrap().to_owned()
            })
        })
    };
    assert_eq!(log_of(&[]), [["info", "text"], ["info", "text"]]);
    let asked = ["agent.logFormat=json", "controller.log=debug"];
    assert_eq!(log_of(&asked), [["info", "json"], ["debug", "text"]]);
}

#[test]
fn apparmor_profile_gives_the_capabilities_and_paths_that_the_chart_gives() {
    let profile = text("apparmor/guideway");
    let objects = Objects::render(&[
        "agent.appArmorProfile.type=Localhost",
        "agent.appArmorProfile.localhostProfile=guideway",
        "agent.extraConfig.mend=on",
    ]);
    let agent = container(objects.agent_pod(), "agent");
    let security = &agent["securityContext"];
    let named = security["appArmorProfile"]["localhostProfile"]
        .as_str()
        .unwrap();
    assert!(profile.contains(&format!("\nprofile {named} flags=")));
    let rules = profile.lines().map(str::trim);
    let rules: BTreeSet<_> = rules.filter_map(|line| line.strip_suffix(',')).collect();
    let given = rules
        .iter()
        .filter_map(|rule| rule.strip_prefix("capability "));
    let given: BTreeSet<_> = given.map(str::to_uppercase).collect();
    let added = security["capabilities"]["add"].as_array().unwrap().iter();
    let added: BTreeSet<_> = added
        .map(|name| name.as_str().unwrap().to_owned())
        .collect();
    assert_eq!(given, added);
    for rule in [
        "/usr/bin/guideway mr",
        "/etc/** r",
        "/run/guideway/** rwk",
        "/sys/fs/bpf/*/** rwk",
    ] {
        assert!(rules.contains(rule), "{rule}");
    }
    for all in ["file", "mount", "capability", "network", "ptrace"] {
        assert!(!rules.contains(all), "everything is permitted by {all:?}");
    }
}

#[test]
fn controller_has_no_rights_on_its_node() {
    let objects = Objects::render(&[]);
    let pod = objects.controller_pod();
    assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["spec"]["hostNetwork"], Value::Null);
    assert_eq!(pod["spec"]["volumes"], Value::Null);
    assert_eq!(
        container(pod, "controller")["securityContext"],
        json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        })
    );
}

#[test]
fn a_node_that_is_about_to_go_restarts_no_agent() {
    let objects = Objects::render(&[]);
    let agent = container(objects.agent_pod(), "agent");
    let path = |probe: &str| agent[probe]["httpGet"]["path"].clone();
    assert_eq!(path("startupProbe"), "/livez");
    assert_eq!(path("livenessProbe"), "/livez");
    assert_eq!(path("readinessProbe"), "/readyz");
}

#[test]
fn agents_are_replaced_for_what_only_a_start_reads() {
    let checksum = |values: &[&str]| {
        let objects = Objects::render(values);
        objects.agent_pod()["metadata"]["annotations"]["checksum/start-config"].clone()
    };
    let without = checksum(&[]);
    let announces = checksum(&["agent.extraConfig.announce.interfaces[0]=eth0"]);
    assert_ne!(without, announces, "the election begins with the agent");
    assert_eq!(
        announces,
        checksum(&["agent.extraConfig.announce.interfaces[0]=eth1"])
    );
    assert_ne!(
        without,
        checksum(&["agent.kubernetes.topology_hints=ignore"])
    );
}

#[test]
fn agents_are_on_every_node_and_are_replaced_one_by_one() {
    let objects = Objects::render(&[]);
    let spec = &objects.get("DaemonSet", "guideway-agent")["spec"];
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}})
    );
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["hostNetwork"], true);
}

#[test]
fn headless_service_selects_agents_ready_or_not() {
    let objects = Objects::render(&[]);
    let service = &objects.get("Service", "guideway")["spec"];
    let detached = &objects.get("Service", "guideway-detached")["spec"];
    for service in [service, detached] {
        assert_eq!(service["clusterIP"], "None");
        assert_eq!(service["publishNotReadyAddresses"], true);
    }
    assert!(!selects(detached, objects.agent_pod()));
    assert!(selects(service, objects.agent_pod()));
    assert!(!selects(service, objects.controller_pod()));
}

#[test]
fn detaching_pods_run_detach_once_and_are_no_longer_present() {
    let objects = Objects::render(&[DETACH]);
    let pod = objects.agent_pod();
    let present = &objects.get("Service", "guideway")["spec"];
    let detached = &objects.get("Service", "guideway-detached")["spec"];
    assert!(!selects(present, pod) && selects(detached, pod));
    let detach = container(pod, "detach");
    assert_eq!(detach["args"], json!(["detach"]));
    let agent = Objects::render(&[]);
    let agent = container(agent.agent_pod(), "agent").clone();
    for same in ["image", "securityContext", "volumeMounts"] {
        assert_eq!(detach[same], agent[same], "{same}");
    }
    let containers = pod["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0]["name"], "detached");
    let selector = |objects: &Objects| {
        let daemon_set = objects.get("DaemonSet", "guideway-agent");
        daemon_set["spec"]["selector"].clone()
    };
    assert_eq!(selector(&objects), selector(&Objects::render(&[])));
}

#[test]
fn ports_are_our_own() {
    let objects = Objects::render(&[]);
    let pods = [objects.agent_pod(), objects.controller_pod()];
    let ports = pods.iter().flat_map(|pod| {
        let containers = pod["spec"]["containers"].as_array().unwrap().iter();
        containers.flat_map(|container| container["ports"].as_array().unwrap())
    });
    let ports: Vec<_> = ports
        .map(|port| port["containerPort"].as_u64().unwrap())
        .collect();
    let distinct: BTreeSet<_> = ports.iter().collect();
    assert_eq!(ports.len(), 4);
    assert_eq!(distinct.len(), 4, "{ports:?}");
    for port in ports {
        assert!(!TAKEN_PORTS.contains(&port), "{port}");
        assert!(!(30000..=32767).contains(&port), "{port} may be a NodePort");
    }
}

#[test]
fn edges_exchange_owners_unless_that_is_switched_off() {
    let of_agents = |values: &[&str]| {
        let objects = Objects::render(values);
        let file = objects.agent_config();
        let config = config::parse_bytes(file.as_bytes(), Source::Kubernetes).unwrap();
        let named = |ports: &Value| {
            let mut ports = ports.as_array().unwrap().iter();
            let port = ports.find(|port| port["name"] == "peers");
            port.map(|port| (port["containerPort"].clone(), port["port"].clone()))
        };
        let ports = named(&container(objects.agent_pod(), "agent")["ports"]);
        let listed = named(&objects.get("Service", "guideway")["spec"]["ports"]);
        let secrets = &objects.get("Role", "guideway-agent")["rules"][0]["resourceNames"];
        (config.peers, ports, listed, secrets.clone())
    };
    let (peers, ports, listed, secrets) = of_agents(&[]);
    let expected = Peers {
        listen: Some(Listen::Node(10793)),
        found: PeersFound::InCluster { port: 10793 },
    };
    assert_eq!(peers, Some(expected));
    assert_eq!(ports, Some((json!(10793), Value::Null)));
    assert_eq!(listed, Some((Value::Null, json!(10793))));
    assert_eq!(secrets, json!(["guideway-seed", "guideway-peers"]));
    let off = of_agents(&["agent.peers.enabled=false"]);
    assert_eq!(off, (None, None, None, json!(["guideway-seed"])));
}

#[test]
fn policies_admit_edges_alone_to_the_exchange() {
    let enabled = "networkPolicy.enabled=true";
    let rules = |values: &[&str]| {
        let objects = Objects::render(values);
        let policy = objects.find("NetworkPolicy", "guideway-agent");
        policy.map(|policy| {
            assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
            assert!(selects(
                &json!({"selector": policy["spec"]["podSelector"]["matchLabels"]}),
                objects.agent_pod()
            ));
            policy["spec"]["ingress"].clone()
        })
    };
    assert_eq!(rules(&[]), None);
    let outside = "networkPolicy.peersFrom[0].ipBlock.cidr=198.51.100.0/29";
    let ingress = rules(&[enabled, outside]).unwrap();
    let ports = |from: u16, to: u16| json!({"port": from, "endPort": to, "protocol": "TCP"});
    let others = [
        ports(1, 10792),
        ports(10794, 65535),
        json!({"protocol": "UDP"}),
    ];
    assert_eq!(ingress[0], json!({"ports": others}));
    assert_eq!(
        ingress[1]["ports"],
        json!([{"port": 10793, "protocol": "TCP"}])
    );
    let from = ingress[1]["from"].as_array().unwrap();
    assert_eq!(from[1..], [json!({"ipBlock": {"cidr": "198.51.100.0/29"}})]);
    let agents = &from[0]["podSelector"]["matchLabels"];
    assert_eq!(agents["app.kubernetes.io/component"], "agent");
    assert_eq!(rules(&[enabled, "agent.peers.enabled=false"]), None);
}

#[test]
fn exchange_is_open_to_other_machines_where_the_pages_are_not() {
    let listen = |address: &str| {
        let values = format!("agent.listenAddress={address}");
        let objects = Objects::render(&[&values]);
        let file: Value = serde_saphyr::from_str(objects.agent_config()).unwrap();
        file["peers"]["listen"].clone()
    };
    let anywhere = listen("");
    assert_eq!(listen("127.0.0.1"), anywhere);
    assert_eq!(listen("::1"), anywhere);
    assert_eq!(listen("192.0.2.1"), "192.0.2.1:10793");
}

#[test]
fn agent_takes_the_configuration_that_the_chart_makes() {
    for values in [
        &[][..],
        &[
            "agent.listenAddress=::",
            "agent.kubernetes.table_share=10",
            "agent.kubernetes.namespace_table_share=50",
            "agent.extraConfig.roles={edge,node}",
            "agent.extraConfig.clamp_mss=off",
            "agent.extraConfig.node_port_range=30000-31000",
            "agent.extraConfig.health.status[0]=200",
            "agent.defaultMode=l2dsr",
            "agent.nat.ports=61001-61999",
            "agent.kubernetes.topology_hints=ignore",
            "agent.kubernetes.external_ips[0]=192.0.2.0/24",
            "agent.extraConfig.tables.services=4096",
            "agent.extraConfig.node_port_addresses[0]=all",
            "defaultClass=true",
            "loadBalancerClass=example.com/lb",
        ],
    ] {
        let objects = Objects::render(values);
        let file = objects.agent_config();
        if let Err(problems) = config::parse_bytes(file.as_bytes(), Source::Kubernetes) {
            panic!("{problems:?} in\n{file}");
        }
    }
}

#[test]
fn agent_gets_the_settings_of_single_nodes() {
    let objects = Objects::render(&[
        "agent.nodeConfig[0].nodes={n1,edge-*}",
        "agent.nodeConfig[0].config.interfaces[0].name=bond0",
        "agent.nodeConfig[0].config.sources.ipv4=192.0.2.1",
        "agent.nodeConfig[0].config.tables.flows=4096",
    ]);
    let file = objects.agent_config();
    let parsed = config::parse_bytes(file.as_bytes(), Source::Kubernetes);
    assert!(parsed.is_ok(), "{parsed:?} in\n{file}");
    let file: Value = serde_saphyr::from_str(file).unwrap();
    let config = json!({
        "interfaces": [{"name": "bond0"}],
        "sources": {"ipv4": "192.0.2.1"},
        "tables": {"flows": 4096},
    });
    assert_eq!(
        file["node_config"],
        json!([{"nodes": ["n1", "edge-*"], "config": config}])
    );
}

#[test]
fn controller_is_told_what_agents_are_told() {
    let arguments = |name: &str, values: &[&str]| -> Vec<String> {
        let objects = Objects::render(values);
        let pod = &objects.get("Deployment", name)["spec"]["template"];
        let arguments = container(pod, "controller")["args"].as_array().unwrap();
        let texts = arguments.iter().map(|text| text.as_str().unwrap());
        texts.map(str::to_owned).collect()
    };
    let plain = arguments("guideway-controller", &[]);
    assert!(
        plain.contains(&"--service=guideway".to_owned()),
        "{plain:?}"
    );
    let mut options = plain.iter();
    assert!(!options.any(|text| text.starts_with("--external-ips")));
    let values = [
        "fullnameOverride=other",
        "agent.kubernetes.external_ips={192.0.2.0/24,2001:db8::7}",
    ];
    let set = arguments("other-controller", &values);
    for expected in ["--service=other", "--external-ips=192.0.2.0/24,2001:db8::7"] {
        assert!(set.iter().any(|text| text == expected), "{set:?}");
    }
}

#[test]
fn only_what_a_start_reads_replaces_agents() {
    let pod = |values: &[&str]| Objects::render(values).agent_pod().clone();
    let before = pod(&[]);
    for value in [
        "agent.interfaces[1].name=eth1",
        "agent.interfaces[1].pattern=enp*s0f?",
        "agent.interfaces[1].default_route=true",
        "agent.nat.ports=61001-61999",
        "agent.extraConfig.clamp_mss=off",
    ] {
        assert_eq!(pod(&[value]), before, "{value}");
    }
    let of_node = |field: &str| {
        let config = format!("agent.nodeConfig[0].config.{field}");
        pod(&["agent.nodeConfig[0].nodes[0]=n1", &config])
    };
    assert_eq!(of_node("clamp_mss=off"), before);
    assert_ne!(of_node("tables.flows=4096"), before);
    assert_ne!(of_node("announce.interfaces[0]=eth0"), before);
    for value in [
        "agent.defaultMode=nat",
        "agent.kubernetes.topology_hints=ignore",
        "agent.extraConfig.tables.services=4096",
        "agent.extraConfig.api.socket=/run/guideway/other.sock",
        "agent.metricsPort=10780",
        "agent.healthPort=10781",
        "agent.peers.port=10783",
        "agent.peers.enabled=false",
    ] {
        assert_ne!(pod(&[value]), before, "{value}");
    }
}

#[test]
fn api_server_may_be_named() {
    let environment = |values: &[&str], name: &str| {
        let objects = Objects::render(values);
        let pods = [
            container(objects.agent_pod(), "agent"),
            container(objects.controller_pod(), "controller"),
        ];
        pods.map(|container| {
            let mut variables = container["env"].as_array().unwrap().iter();
            let variable = variables.find(|variable| variable["name"] == name);
            variable.map(|variable| variable["value"].clone())
        })
    };
    assert_eq!(
        environment(&[], "KUBERNETES_SERVICE_HOST"),
        [None, None],
        "the kubelet's own variable holds"
    );
    let named = ["apiServer.host=198.51.100.10"];
    let host = Some(json!("198.51.100.10"));
    assert_eq!(
        environment(&named, "KUBERNETES_SERVICE_HOST"),
        [host.clone(), host]
    );
    let port = Some(json!("6443"));
    assert_eq!(
        environment(&named, "KUBERNETES_SERVICE_PORT"),
        [port.clone(), port]
    );
}

#[test]
fn two_releases_share_nothing() {
    let first = Objects::render(&[]).names();
    let second = Objects::render(&["fullnameOverride=other"]).names();
    for object in first {
        let shared = object.0 == "CustomResourceDefinition";
        assert_eq!(second.contains(&object), shared, "{object:?}");
    }
}

#[test]
fn leases_are_guarded_where_agents_announce() {
    let announces = "agent.extraConfig.announce.interfaces[0]=eth0";
    let is_guarded = |values: &[&str]| {
        let objects = Objects::render(values);
        let kind = "ValidatingAdmissionPolicyBinding";
        objects.find(kind, "guideway-agent-leases").is_some()
    };
    assert!(is_guarded(&[announces]));
    assert!(!is_guarded(&[]));
    assert!(!is_guarded(&[announces, "rbac.leasePolicy=false"]));
    assert!(!is_guarded(&[announces, "rbac.create=false"]));
}

#[test]
fn rights_on_leases_are_bound_where_agents_announce() {
    let bound = |values: &[&str]| {
        let names = Objects::render(values).names();
        let expected = (
            "RoleBinding".to_owned(),
            "guideway-agent-announcing".to_owned(),
        );
        names
            .into_iter()
            .filter(|object| *object == expected)
            .count()
    };
    assert_eq!(bound(&[]), 0);
    assert_eq!(bound(&["agent.extraConfig.announce.interfaces[0]=eth0"]), 2);
    let of_node = [
        "agent.nodeConfig[0].nodes[0]=n1",
        "agent.nodeConfig[0].config.announce.interfaces[0]=eth0",
    ];
    assert_eq!(bound(&of_node), 2);
}

#[test]
fn operators_that_are_named_may_read_the_pages_and_write_nothing() {
    let group = "rbac.operators[0].kind=Group";
    for (values, bindings) in [
        (&[][..], 0),
        (&[group], 2),
        (&[group, "rbac.create=false"], 0),
    ] {
        let objects = Objects::render(values);
        let names = objects.names().into_iter();
        let expected = ("RoleBinding".to_owned(), "guideway-operator".to_owned());
        assert_eq!(names.filter(|object| *object == expected).count(), bindings);
    }
    let objects = Objects::render(&[]);
    let role = objects.find("Role", "guideway-operator").unwrap();
    for rule in role["rules"].as_array().unwrap() {
        for verb in rule["verbs"].as_array().unwrap() {
            assert!(["get", "list"].contains(&verb.as_str().unwrap()));
        }
    }
}

#[test]
fn a_single_controller_can_be_evicted() {
    let budget = |objects: &Objects| {
        objects
            .find("PodDisruptionBudget", "guideway-controller")
            .is_some()
    };
    assert!(budget(&Objects::render(&[])));
    assert!(!budget(&Objects::render(&["controller.replicas=1"])));
}

/// Tells whether a Service selects the pods of a template.
fn selects(service: &Value, pod: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    let selector = service["selector"].as_object().unwrap();
    selector.iter().all(|(key, value)| labels[key] == *value)
}
