//! `guideway cluster bundle`, run by an operator in a cluster of which a part is dead.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use lab::{Machine, Namespace, Topology};
use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::cluster::{METRICS, OF_CONTROLLER, Operator, RIGHTS, run_controller, show_pod};
use crate::controller::cluster::install_crd;
use crate::objects::{self, SYSTEM};
use crate::world::World;

/// What a bundle takes beside what `cluster status` does.
const MORE_RIGHTS: &str = "
- {apiGroups: [''], resources: [pods/log], verbs: [get]}
- {apiGroups: [''], resources: [services, nodes], verbs: [list]}
- {apiGroups: [guideway.dev], resources: [loadbalancerpools], verbs: [list]}
";
const KUBELET: u16 = 10_250;
/// Longest file in a bundle.
const LONGEST: usize = 4 << 20;
/// The seed of the cluster, one that somebody mistyped, and what else must be in no bundle.
const SEED: &str = "1234567890abcdef";
const MISTYPED_SEED: &str = "0xfeedf00dcafe1234x";
const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJsYWIifQ.bm90LWZvci15b3U";
const KEY: &str = "bm90LWEta2V5LWF0LWFsbA";

/// A kubelet that gives out logs, and nothing else.
struct Kubelet<'net> {
    machine: &'net Namespace,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl<'net> Kubelet<'net> {
    fn serve(machine: &'net Namespace) -> Self {
        let own = rcgen::generate_simple_self_signed(["kubelet".to_owned()]).unwrap();
        let key = own.signing_key.serialize_der().try_into().unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.into()], key)
            .unwrap();
        let config = Arc::new(config);
        let listener = machine.run(|| TcpListener::bind(("0.0.0.0", KUBELET)).unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let server = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept()
                && !over.load(Ordering::Relaxed)
            {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                // The API server may go away while it is answered.
                let _ = answer(StreamOwned::new(connection, stream));
            }
        });
        Self {
            machine,
            is_over,
            server: Some(server),
        }
    }
}

impl Drop for Kubelet<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Ends the wait for the next connection.
        let _ = self
            .machine
            .run(|| TcpStream::connect(("127.0.0.1", KUBELET)));
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn answer(mut stream: impl Read + Write) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&buffer[..length]),
        }
    }
    let request = String::from_utf8_lossy(&request);
    let log = if request.contains("previous=true") {
        "the one before\n".repeat(LONGEST / 10)
    } else {
        format!(
            "INFO serving\nDEBUG Authorization: Bearer {TOKEN}\nclient-key-data: {KEY}\n\
             WARN hash_seed \"{MISTYPED_SEED}\": not a number\n\
             -----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\nINFO going on\n"
        )
    };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{log}",
        log.len()
    )?;
    stream.flush()
}

/// Has the API server find the kubelet of a Node, and tells that the container of a pod there was started again.
fn show_kubelet(world: &World<'_>, node: &Machine, pod: &str) {
    let address = world.reached_at[node.label()];
    let addresses = json!([
        {"type": "Hostname", "address": address},
        {"type": "InternalIP", "address": node.v4()}, {"type": "InternalIP", "address": node.v6()},
    ]);
    let of_node = json!({"status": {
        "addresses": addresses, "nodeInfo": {"kernelVersion": "6.12.0-of-the-lab"},
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET}},
    }});
    let of_pod = json!({"status": {"containerStatuses": [{
        "name": "agent", "ready": true, "restartCount": 1, "image": "guideway", "imageID": "",
    }]}});
    for (kind, name, patch) in [("node", node.label(), of_node), ("pod", pod, of_pod)] {
        let patch = patch.to_string();
        let arguments = ["-n", SYSTEM, "patch", kind, name, "--subresource=status"];
        let arguments = [&arguments[..], &["--type=merge", "-p", &patch]].concat();
        world.control.kubectl(&arguments).unwrap();
    }
}

/// A bundle that was written.
struct Bundle {
    code: i32,
    bytes: Vec<u8>,
    files: BTreeMap<String, String>,
}

impl Bundle {
    fn write(operator: &Operator<'_>, name: &str) -> Self {
        let path = Path::new(Namespace::FILES).join(name);
        let (code, told) = operator.run(&["bundle", "--output", path.to_str().unwrap()]);
        assert!(told.contains(name) && told.contains("errors.txt"), "{told}");
        let bytes = operator.machine.run(|| std::fs::read(&path).unwrap());
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(&*bytes).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().into_owned();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let (_, name) = path.to_str().unwrap().split_once('/').unwrap();
            files.insert(name.to_owned(), text);
        }
        Self { code, bytes, files }
    }

    fn file(&self, name: &str) -> &str {
        let names: Vec<&String> = self.files.keys().collect();
        let file = self.files.get(name);
        file.unwrap_or_else(|| panic!("no {name} in {names:?}; {}", self.files["errors.txt"]))
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(self.file(name)).unwrap()
    }

    /// Asserts that one line about a missing file has all these words.
    fn assert_missing(&self, words: &[&str]) {
        let errors = self.file("errors.txt");
        let mut lines = errors.lines();
        assert!(
            lines.any(|line| words.iter().all(|word| line.contains(word))),
            "{words:?} in {errors}"
        );
    }

    fn assert_without(&self, secret: &str) {
        let found = self
            .bytes
            .windows(secret.len())
            .position(|at| at == secret.as_bytes());
        assert_eq!(found, None, "{secret} is in the bundle");
    }
}

#[test]
fn bundle_has_what_can_be_had_and_names_the_rest_and_no_secret() {
    let net = Topology::builder()
        .edges(2)
        .nodes(2)
        .pods(1)
        .build()
        .unwrap();
    let [node, dead] = net.nodes() else {
        panic!("two nodes");
    };
    let mut world = World::without_servers(&net);
    let operator = Operator::of(&world, &net);
    world.write_seed();
    world.show_presence();
    world.launch_on([&net.edges()[0], node], "");
    for agent in &mut world.agents {
        agent.wait_until_in_step();
    }
    let mut service = objects::service("web", 30_080);
    service["metadata"]["annotations"] = json!({"example.com/token": KEY});
    world.apply(&service);
    let mistyped = format!("hash_seed: \"{MISTYPED_SEED}\"\n");
    node.namespace()
        .write_file("guideway.yaml", mistyped)
        .unwrap();
    let agent = world.agents.last_mut().unwrap();
    agent.wait_for_status("it refuses the seed", |status| {
        assert!(!status.to_string().contains(MISTYPED_SEED), "{status}");
        status["config"]["error"].to_string().contains("hash_seed")
    });
    let _controller = run_controller(node);
    show_pod(&world, "controller", node, OF_CONTROLLER);
    for node in net.nodes() {
        show_pod(&world, "agent", node, METRICS);
    }
    let pod = format!("guideway-agent-{}", node.label());
    let _kubelet = Kubelet::serve(node.namespace());
    show_kubelet(&world, node, &pod);

    // With the rights of `cluster status` alone.
    let few = Bundle::write(&operator, "few.tar");
    assert_eq!(few.code, 0);
    assert!(few.file("status.txt").contains("node0"));
    few.assert_missing(&[&format!("pods/{pod}/agent.log"), "forbidden"]);
    few.assert_missing(&["objects/services.json", "forbidden"]);
    few.assert_missing(&["objects/nodes.json", "forbidden"]);

    install_crd(&world.control);
    world.apply(&json!({
        "apiVersion": "guideway.dev/v1alpha1", "kind": "LoadBalancerPool",
        "metadata": {"name": "all"}, "spec": {"addresses": ["192.0.2.0/28"]},
    }));
    let rights = format!("{RIGHTS}{MORE_RIGHTS}");
    world
        .control
        .make_service_account("operator", &rights)
        .unwrap();
    let all = Bundle::write(&operator, "all.tar");
    assert_eq!(all.code, 0);
    let status = all.json("status.json");
    let agents = status["agents"].as_array().unwrap().iter();
    let answering: Vec<&Value> = agents
        .filter(|agent| !agent["status"].is_null())
        .map(|agent| &agent["name"])
        .collect();
    assert_eq!(answering, ["edge0", "node0"]);
    let edge = format!("edges/{}", net.edges()[0].v4());
    for directory in [&format!("pods/{pod}"), &edge] {
        let page = |name: &str| all.file(&format!("{directory}/{name}")).to_owned();
        for name in ["status", "config", "services", "backends", "drops"] {
            let document: Value = serde_json::from_str(&page(&format!("{name}.json"))).unwrap();
            assert!(!document["ok"].is_null(), "{name}: {document}");
        }
        assert!(page("metrics.txt").contains("guideway_services"));
        assert_eq!(page("healthz.txt"), "ok\n");
    }
    let controller = format!("pods/guideway-controller-{}", node.label());
    let leads = all.json(&format!("{controller}/status.json"));
    assert_eq!(leads["ok"]["version"], env!("CARGO_PKG_VERSION"));
    let log = all.file(&format!("pods/{pod}/agent.log"));
    assert!(
        log.starts_with("INFO serving\n") && log.ends_with("INFO going on\n"),
        "{log}"
    );
    let previous = format!("pods/{pod}/agent.previous.log");
    assert_eq!(all.file(&previous).len(), LONGEST);
    all.assert_missing(&[&previous, "cut after"]);
    assert_eq!(
        all.json("objects/loadbalancerpools.json")[0]["metadata"]["name"],
        "all"
    );
    let services = all.json("objects/services.json");
    let is_web = |one: &&Value| one["metadata"]["name"] == "web";
    let web = services.as_array().unwrap().iter().find(is_web).unwrap();
    assert_eq!(web["spec"]["ports"][0]["nodePort"], 30_080);
    assert!(all.file("objects/nodes.json").contains("6.12.0-of-the-lab"));
    assert!(all.file("objects/endpointslices.json").contains("guideway"));
    all.assert_missing(&[&format!("pods/guideway-agent-{}/status.json", dead.label())]);
    all.assert_missing(&[&format!("pods/guideway-agent-{}/agent.log", dead.label())]);
    all.assert_missing(&[&format!("edges/{}/status.json", net.edges()[1].v4())]);

    let token = operator.machine.run(|| {
        let path = Path::new(Namespace::FILES).join("kubeconfig");
        let text = std::fs::read_to_string(path).unwrap();
        text.split("token: '")
            .nth(1)
            .unwrap()
            .split('\'')
            .next()
            .unwrap()
            .to_owned()
    });
    for bundle in [&few, &all] {
        for secret in [SEED, &MISTYPED_SEED[2..], TOKEN, KEY, &token] {
            bundle.assert_without(secret);
        }
    }

    let (code, told) = operator.run(&[
        "bundle",
        "--output",
        &format!("{}/all.tar", Namespace::FILES),
    ]);
    assert_eq!(code, 1);
    assert!(told.contains("cannot create"), "{told}");
    world.control.kill_api_server().unwrap();
    let nothing = Bundle::write(&operator, "nothing.tar");
    assert_eq!(nothing.code, 1);
    nothing.assert_missing(&["status.txt", "cannot list the pods"]);
    nothing.assert_missing(&["objects/nodes.json"]);
}
