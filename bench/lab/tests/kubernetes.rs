//! A control plane of the real programs does what tests will rely on. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

use std::time::Duration;

use lab::{
    Topology,
    kubernetes::{self, ControlPlane, ProxyMode},
    output, serve_page, wait_for,
};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(60);

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  loadBalancerClass: guideway.dev/guideway
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

const SLICE: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- addresses: [10.2.0.1]
  nodeName: node0
  conditions: {ready: true}
";

#[test]
fn programs_know_their_version() {
    let control_plane = ControlPlane::start().unwrap();
    let versions = control_plane.kubectl(&["version"]).unwrap();
    for one in ["Client Version: v1.", "Server Version: v1."] {
        assert!(versions.contains(one), "{versions}");
    }
}

#[test]
fn applied_objects_are_stored_and_completed() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let node = &net.nodes()[0];
    let control_plane = ControlPlane::start().unwrap();
    control_plane.add_node(node).unwrap();
    control_plane
        .apply(&format!("{SERVICE}---{SLICE}"))
        .unwrap();

    let stored = control_plane.get(&["node", "node0"]).unwrap();
    assert_eq!(
        stored["spec"]["podCIDRs"],
        json!(["10.2.0.0/24", "fd00:2::/112"])
    );
    assert_eq!(
        stored["status"]["addresses"][0]["address"],
        node.v4().to_string()
    );
    let service = control_plane.get(&["service", "web"]).unwrap();
    let cluster_ips = service["spec"]["clusterIPs"].as_array().unwrap();
    assert!(
        cluster_ips[0].as_str().unwrap().starts_with("10.96."),
        "{service}"
    );
    assert!(
        cluster_ips[1].as_str().unwrap().starts_with("fd00:96::"),
        "{service}"
    );
    let node_port = service["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30_000..32_768).contains(&node_port), "{service}");
    let slices = control_plane.get(&["endpointslices"]).unwrap();
    assert_eq!(
        slices["items"][0]["endpoints"][0]["addresses"][0],
        "10.2.0.1"
    );

    let refused = control_plane.apply("{apiVersion: v1, kind: Service, metadata: {name: Web}}");
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("lower case"), "{message}");
}

#[test]
fn helm_installs_and_uninstalls_the_chart() {
    let control_plane = ControlPlane::start().unwrap();
    control_plane
        .kubectl(&["create", "namespace", "guideway-system"])
        .unwrap();
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/guideway");
    let release = ["guideway", "--namespace", "guideway-system"];
    let values = "image.repository=guideway,agent.interfaces[0].name=eth0";
    let agent = ["daemonset", "guideway-agent", "-n", "guideway-system"];

    let install = [&["install"], &release[..], &[chart, "--set", values]].concat();
    control_plane.helm(&install).unwrap();
    control_plane.get(&agent).unwrap();
    control_plane
        .helm(&[&["uninstall"], &release[..]].concat())
        .unwrap();
    let message = control_plane.get(&agent).unwrap_err().to_string();
    assert!(message.contains("NotFound"), "{message}");
}

#[test]
fn machines_reach_the_api_server_with_the_rights_of_their_token() {
    let net = Topology::builder().edges(2).nodes(0).build().unwrap();
    let control_plane = ControlPlane::start().unwrap();
    control_plane
        .make_service_account(
            "reader",
            "- {apiGroups: [''], resources: [services], verbs: [list]}",
        )
        .unwrap();
    let token = control_plane
        .service_account_token("default", "reader")
        .unwrap();

    for edge in net.edges() {
        control_plane.connect(edge.namespace()).unwrap();
        let list = |resource: &str| {
            let mut kubectl = edge
                .namespace()
                .command(kubernetes::program("kubectl").unwrap());
            kubectl.arg("--kubeconfig").arg(
                control_plane
                    .write_kubeconfig(edge.namespace(), &token)
                    .unwrap(),
            );
            output(kubectl.args(["get", resource, "-o", "name"]))
        };
        assert_eq!(list("services").unwrap(), "service/kubernetes\n");
        let message = list("secrets").unwrap_err().to_string();
        assert!(
            message.contains("system:serviceaccount:default:reader"),
            "{message}"
        );
    }
}

#[test]
fn what_is_stored_survives_the_death_of_api_server_and_etcd() {
    let mut control_plane = ControlPlane::start().unwrap();
    control_plane.apply(SERVICE).unwrap();
    let stored = |control_plane: &ControlPlane| {
        let service = control_plane.get(&["service", "web"]).unwrap();
        (
            service["metadata"]["uid"].clone(),
            service["spec"]["clusterIP"].clone(),
        )
    };
    let before = stored(&control_plane);

    control_plane.kill_api_server().unwrap();
    control_plane.get(&["service", "web"]).unwrap_err();
    control_plane.start_api_server().unwrap();
    control_plane.wait_until_ready().unwrap();
    assert_eq!(stored(&control_plane), before);

    control_plane.kill_etcd().unwrap();
    control_plane.start_etcd().unwrap();
    control_plane.wait_until_ready().unwrap();
    assert_eq!(stored(&control_plane), before);
}

#[test]
fn controllers_make_slices_from_pods() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let control_plane = ControlPlane::start().unwrap();
    // Pods of a node that is not known are left out.
    control_plane.add_node(&net.nodes()[0]).unwrap();
    let _manager = control_plane
        .run_controllers(&["endpointslice-controller"])
        .unwrap();
    control_plane.apply(SERVICE).unwrap();
    control_plane
        .apply(
            "
apiVersion: v1
kind: Pod
metadata: {name: web-0, labels: {app: web}}
spec:
  nodeName: node0
  containers: [{name: web, image: web}]
",
        )
        .unwrap();
    let status = json!({"status": {
        "phase": "Running",
        "podIP": "10.2.0.1",
        "podIPs": [{"ip": "10.2.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    control_plane
        .kubectl(&[
            "patch",
            "pod",
            "web-0",
            "--subresource=status",
            "-p",
            &status.to_string(),
        ])
        .unwrap();

    let endpoint = wait_for("a slice with the pod", TIMEOUT, || {
        let slices = control_plane.get(&["endpointslices", "-l", "kubernetes.io/service-name=web"]);
        let slices = slices.map_err(|error| error.to_string())?;
        let items = slices["items"].as_array().into_iter().flatten();
        let mut endpoints = items.map(|slice| &slice["endpoints"][0]);
        let endpoint = endpoints.find(|endpoint| endpoint.is_object());
        endpoint.cloned().ok_or_else(|| slices.to_string())
    })
    .unwrap();
    assert_eq!(endpoint["addresses"], json!(["10.2.0.1"]));
    assert_eq!(endpoint["nodeName"], "node0");
    assert_eq!(endpoint["conditions"]["ready"], true);
}

/// Serves the slice's pod through the kube-proxy of its node, to a client outside.
fn kube_proxy_serves(mode: ProxyMode, ruleset: &[&str]) {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let node = &net.nodes()[0];
    let control_plane = ControlPlane::start().unwrap();
    control_plane.add_node(node).unwrap();
    control_plane
        .apply(&format!("{SERVICE}---{SLICE}"))
        .unwrap();
    let service = control_plane.get(&["service", "web"]).unwrap();
    let node_port = service["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    control_plane.connect(node.namespace()).unwrap();
    let _proxy = control_plane
        .run_kube_proxy(node.namespace(), node.label(), mode)
        .unwrap();
    let (program, arguments) = ruleset.split_first().unwrap();
    let rules = output(node.namespace().command(program).args(arguments)).unwrap();
    assert!(rules.contains("default/web"), "{rules}");

    let pod = &node.pods()[0];
    let _server = serve_page(pod, &[(pod.v4(), 8080).into()], "pod").unwrap();
    let url = format!("http://{}:{node_port}/", node.v4());
    let mut curl = net.clients()[0].namespace().command("curl");
    let page = output(curl.args(["-sS", "--max-time", "60", &url])).unwrap();
    assert_eq!(page.trim_end(), "pod");
}

#[test]
fn kube_proxy_serves_a_node_by_nftables() {
    kube_proxy_serves(
        ProxyMode::Nftables,
        &["nft", "list", "table", "ip", "kube-proxy"],
    );
}

#[test]
fn kube_proxy_serves_a_node_by_iptables() {
    kube_proxy_serves(ProxyMode::Iptables, &["iptables-save", "-t", "nat"]);
}
