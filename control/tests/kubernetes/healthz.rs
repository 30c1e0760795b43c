//! What load balancers and probes are told, by the agent and by kube-proxy beside it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use control::config::HealthCheckNodePorts;
use control::healthz::ports;
use control::healthz::{HealthCheckPorts, Reports};
use control::index::HealthCheck;
use control::index::objects::ObjectName;
use control::kubernetes::RequestErrors;
use control::kubernetes::events::publish;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use lab::kubernetes::{ControlPlane, ProxyMode};
use lab::{Machine, Topology, wait_for};
use serde_json::{Value, json};

use crate::leases::on;
use crate::world::{PATIENCE, World};

/// The `healthCheckNodePort` of the Service.
const PORT: u16 = 30_085;

#[test]
fn health_check_port_follows_the_pods_and_is_left_to_kube_proxy_where_it_has_it() {
    let net = Topology::builder().nodes(2).pods(1).build().unwrap();
    let [alone, beside] = net.nodes() else {
        panic!("two nodes");
    };
    let mut world = World::new(&net);
    world.write_seed();
    world.show_presence();
    world.control.apply(&service()).unwrap();
    let pods = [alone, beside].map(|node| &node.pods()[0]);
    let ready = json!({"ready": true});
    let everywhere = [(alone, pods[0]), (beside, pods[1])];
    world.control.apply(&slices(&everywhere, &ready)).unwrap();
    let kube_proxy = world
        .control
        .run_kube_proxy(beside.namespace(), beside.label(), ProxyMode::Nftables)
        .unwrap();
    wait_for_owner(beside, "kube-proxy");

    world.launch();
    for agent in &mut world.agents {
        agent.wait_until_in_step();
    }
    wait_for_owner(alone, "guideway");
    // A pod counts once, whatever families it has addresses of.
    for node in [beside, alone] {
        wait_for_answer(&net, node, (200, 1));
    }
    assert_eq!(whole_answer(&net, alone), whole_answer(&net, beside));
    world
        .control
        .apply(&slices(&everywhere[..1], &ready))
        .unwrap();
    wait_for_answer(&net, alone, (200, 1));
    wait_for_answer(&net, beside, (503, 0));

    // The last connections of a pod that ends are served on; a load balancer brings no new ones.
    let terminating = json!({"ready": false, "serving": true, "terminating": true});
    world
        .control
        .apply(&slices(&everywhere[..1], &terminating))
        .unwrap();
    wait_for_answer(&net, alone, (503, 0));
    assert_eq!(whole_answer(&net, alone), whole_answer(&net, beside));

    assert_eq!(owner(beside), "kube-proxy");
    drop(kube_proxy);
    wait_for_owner(beside, "guideway");
    world
        .control
        .apply(&slices(&everywhere[1..], &ready))
        .unwrap();
    wait_for_answer(&net, beside, (200, 1));

    world
        .control
        .kubectl(&["delete", "service", "local"])
        .unwrap();
    wait_for_owner(alone, "");
}

#[test]
fn node_that_the_autoscaler_is_about_to_remove_fails_healthz_and_lives_on() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let node = &net.nodes()[0];
    let world = World::start(&net);
    let told = |path: &str| {
        let answer = ask(node, &format!("http://127.0.0.1:9751/{path}"));
        answer.map(|(status, _)| status).unwrap()
    };
    for path in ["healthz", "livez", "readyz"] {
        assert_eq!(told(path), 200, "{path}");
    }
    let taint = |taint: &str| {
        world
            .control
            .kubectl(&["taint", "node", "node0", taint])
            .unwrap();
    };
    let wait_for_healthz = |status| {
        wait_for(&format!("/healthz answers {status}"), PATIENCE, || {
            let answered = told("healthz");
            (answered == status).then_some(()).ok_or(answered)
        })
        .unwrap();
    };
    taint("ToBeDeletedByClusterAutoscaler=1:NoSchedule");
    wait_for_healthz(503);
    assert_eq!((told("livez"), told("readyz")), (200, 200));
    taint("ToBeDeletedByClusterAutoscaler-");
    wait_for_healthz(200);
}

#[test]
fn health_check_port_that_cannot_be_had_is_an_event_of_the_service() {
    let control_plane = ControlPlane::start().unwrap();
    control_plane.apply(&service()).unwrap();
    on(control_plane.machine(), async |client: kube::Client| {
        let other = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
        let reports = Reports::new(Instant::now());
        let check = HealthCheck {
            port: PORT,
            local_endpoints: 1,
        };
        reports.set_check_ports(HealthCheckPorts {
            services: [(ObjectName::new("default", "local"), check)]
                .into_iter()
                .collect(),
            addresses: [Ipv4Addr::UNSPECIFIED.into()].into(),
        });
        tokio::spawn(ports::serve(HealthCheckNodePorts::On, reports.clone()));
        let name = "node0".to_owned();
        tokio::spawn(publish(
            client.clone(),
            name,
            reports,
            RequestErrors::of_agent(),
        ));
        let events: Api<Event> = Api::namespaced(client, "default");
        let deadline = Instant::now() + PATIENCE;
        let event = loop {
            let listed = events.list(&ListParams::default()).await.unwrap();
            let mut listed = listed.items.into_iter();
            let reason = "FailedToStartServiceHealthcheck";
            if let Some(event) = listed.find(|event| event.reason.as_deref() == Some(reason)) {
                break event;
            }
            assert!(Instant::now() < deadline, "no Event");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let regarding = event.regarding.unwrap();
        assert_eq!(regarding.name.as_deref(), Some("local"));
        assert!(regarding.uid.is_some_and(|uid| !uid.is_empty()));
        assert_eq!(event.reporting_instance.as_deref(), Some("node0"));
        let note = event.note.unwrap();
        assert!(
            note.starts_with("node node0: cannot listen at the health check port"),
            "{note}"
        );
        drop(other);
    });
}

/// A Service of which a load balancer asks each node.
fn service() -> String {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "local"},
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "guideway.dev/guideway",
            "externalTrafficPolicy": "Local", "healthCheckNodePort": PORT,
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"port": 80, "nodePort": 30_080, "targetPort": 8080}],
        },
    })
    .to_string()
}

/// Its slices of both families, with one pod on each of these nodes.
fn slices(pods: &[(&Machine, &Machine)], conditions: &Value) -> String {
    let slice = |(kind, address): (&str, fn(&Machine) -> IpAddr)| {
        let endpoint = |(node, pod): &(&Machine, &Machine)| {
            json!({
                "addresses": [address(pod).to_string()], "nodeName": node.label(),
                "conditions": conditions,
            })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("local-{}", kind.to_lowercase()),
                "labels": {"kubernetes.io/service-name": "local"},
            },
            "addressType": kind, "ports": [{"name": "", "port": 8080}],
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
        })
        .to_string()
    };
    [
        ("IPv4", Machine::v4 as fn(&Machine) -> IpAddr),
        ("IPv6", Machine::v6),
    ]
    .map(slice)
    .join("\n---\n")
}

/// Asks a URL; returns status and body.
pub(crate) fn ask(from: &Machine, url: &str) -> Result<(u16, String), String> {
    let mut curl = from.namespace().command("curl");
    curl.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", url]);
    let answer = lab::output(&mut curl).map_err(|error| error.to_string())?;
    let (body, status) = answer.rsplit_once('\n').unwrap();
    Ok((status.parse().unwrap(), body.to_owned()))
}

/// Returns status line, headers and body, but for the time and for whether the connection stays open.
fn whole_answer(net: &Topology, node: &Machine) -> (String, BTreeSet<String>, String) {
    let mut curl = net.clients()[0].namespace().command("curl");
    let url = format!("http://{}:{PORT}/any?x=1", node.v4());
    let answer = lab::output(curl.args(["-sSi", "--max-time", "20", &url])).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let head = head.to_lowercase();
    let mut lines = head.split("\r\n").map(str::to_owned);
    let status = lines.next().unwrap();
    let may_differ = ["date:", "connection:"];
    let headers = lines.filter(|line| !may_differ.iter().any(|name| line.starts_with(name)));
    (status, headers.collect(), body.to_owned())
}

/// Waits until a node answers a client with this status and number of pods, at its addresses of both families.
fn wait_for_answer(net: &Topology, node: &Machine, expected: (u16, u64)) {
    for own in [node.v4(), node.v6()] {
        let url = format!("http://{}/", SocketAddr::new(own, PORT));
        let awaited = format!("{} answers {expected:?} at {own}", node.label());
        wait_for(&awaited, PATIENCE, || {
            let (status, body) = ask(&net.clients()[0], &url)?;
            let told: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
            let answer = (status, told["localEndpoints"].as_u64().unwrap_or(u64::MAX));
            (answer == expected)
                .then_some(())
                .ok_or(format!("{status} {body}"))
        })
        .unwrap();
    }
}

/// Returns the program that listens at the health check port of a node.
fn owner(node: &Machine) -> String {
    let mut ss = node.namespace().command("ss");
    let sockets = lab::output(ss.args(["-Hltnp", &format!("sport = :{PORT}")])).unwrap();
    let name = sockets.split('"').nth(1);
    name.unwrap_or_default().to_owned()
}

fn wait_for_owner(node: &Machine, program: &str) {
    let awaited = format!("{:?} listens on {}", program, node.label());
    wait_for(&awaited, PATIENCE, || {
        let owner = owner(node);
        (owner == program).then_some(()).ok_or(owner)
    })
    .unwrap();
}
