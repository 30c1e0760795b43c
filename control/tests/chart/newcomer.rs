//! A newcomer's first Service, typed as the README and the page about installation say: real helm, kubectl, API server
//! and controllers, and a client outside. What a kubelet and a scheduler do for a Node is done here.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lab::kubernetes::{ControlPlane, program};
use lab::{Machine, Namespace, Process, Topology, output, serve_page, wait_for};
use serde_json::{Value, json};

use super::chart::{NAMESPACE, Objects, container, deploy};
use super::confined::Bundle;
use super::in_pod::{asking, executed};
use super::page::manual;

const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");
/// How long a busy machine may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often the Node looks for pods.
const PAUSE: Duration = Duration::from_millis(200);
/// The router's address on the segment that the README's addresses are of.
const GATEWAY: &str = "192.0.2.1/24";
const PAGE: &str = "a page of the first Service\n";

/// What stands for the newcomer's registry and for kubelets that run something in a pod.
const STAND_INS: &str = r#"
docker() { :; }
kubectl() { case " $* " in *" exec "*) ;; *) command kubectl "$@" ;; esac; }
"#;

#[test]
fn first_service_of_the_readme_answers_and_so_do_the_agents() {
    let mut session = Session::of("README.md");
    let asking = asking();
    assert!(asking.len() > 20, "{asking:?}");
    session.in_pods.extend(asking);
    answers(&session);
}

#[test]
fn installation_by_the_page_ends_with_an_answer() {
    answers(&Session::of("deploy/docs/install-kubernetes.md"));
}

/// Types what a page says in a new cluster, until a client outside gets the page that the Service's pods serve.
fn answers(session: &Session) {
    let net = Topology::builder()
        .edges(0)
        .nodes(1)
        .pods(3)
        .build()
        .unwrap();
    let gateway = ["address", "add", GATEWAY, "dev", "fabric"];
    output(net.router().command("ip").args(gateway)).unwrap();
    let node = &net.nodes()[0];
    let server = ControlPlane::start().unwrap();
    server.connect(node.namespace()).unwrap();
    server.add_node(node).unwrap();
    // As the kubelet says of itself.
    let label = ["label", "node", node.label(), "kubernetes.io/os=linux"];
    server.kubectl(&label).unwrap();
    let controllers = [
        "daemonset-controller",
        "deployment-controller",
        "endpointslice-controller",
        "replicaset-controller",
    ];
    let _controllers = server.run_controllers(&controllers).unwrap();

    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = EndOnDrop(&is_over);
        scope.spawn(|| Kubelet::new(&server, node).run(&is_over));
        let said = session.type_in(&server);
        println!("{said}");
        let pods = server.kubectl(&["get", "pods", "-n", NAMESPACE]).unwrap();
        assert!(pods.contains("guideway-agent-"), "{pods}\n{said}");
        let words = shlex::split(&session.curl).unwrap();
        wait_for(&session.curl, PATIENCE, || {
            let client = net.clients()[0].namespace();
            let mut asked = client.command(&words[0]);
            asked.args(["-sS", "--max-time", "5"]).args(&words[1..]);
            let answer = output(&mut asked).map_err(|error| {
                let events = server.kubectl(&["get", "events,services", "--all-namespaces"]);
                format!("{error}\n{}", events.unwrap_or_default())
            })?;
            (answer == PAGE).then_some(()).ok_or(answer)
        })
        .unwrap();
        for words in &session.in_pods {
            let said = output(&mut Bundle::exec(node.namespace(), "agent", words));
            println!("{}:\n{}", words.join(" "), said.unwrap());
        }
    });
}

/// What a page has typed.
struct Session {
    /// Where kubectl is.
    operator: String,
    /// In the agent's pod.
    in_pods: Vec<Vec<String>>,
    /// Where a client is, in the end.
    curl: String,
}

impl Session {
    /// Reads the blocks of shell of a page, from the one that makes the image.
    fn of(path: &str) -> Self {
        let pages = manual();
        let page = pages.iter().find(|page| page.path == Path::new(path));
        let blocks = page.unwrap().blocks.iter().filter(|block| block.is("sh"));
        let blocks = blocks.skip_while(|block| !block.text.contains("docker"));
        let text: String = blocks.map(|block| block.text.as_str()).collect();
        let (operator, rest) = text.split_once("\ncurl ").unwrap();
        let curl = rest.lines().next().unwrap();
        let in_pods = executed(page.unwrap());
        assert!(!in_pods.is_empty(), "{path}");
        Self {
            in_pods,
            operator: operator.to_owned(),
            curl: format!("curl {curl}"),
        }
    }

    /// Types it in the repository, on the machine of the API server.
    fn type_in(&self, server: &ControlPlane) -> String {
        let files = Path::new(Namespace::FILES);
        let root = deploy("..");
        let script = format!("cd {}\n{STAND_INS}{}\n", root.display(), self.operator);
        let mut path = std::env::var("PATH").unwrap();
        for name in ["helm", "kubectl"] {
            let program = program(name).unwrap();
            path = format!("{}:{path}", program.parent().unwrap().display());
        }
        let mut shell = server.machine().command("timeout");
        shell
            .arg(PATIENCE.as_secs().to_string())
            .args(["sh", "-euxc", &script])
            .env("PATH", path)
            .env("KUBECONFIG", files.join("kubeconfig"))
            .env("KUBECACHEDIR", files.join("kubectl-cache"));
        for kind in ["CACHE", "CONFIG", "DATA"] {
            shell.env(format!("HELM_{kind}_HOME"), files.join("helm-home"));
        }
        output(&mut shell).unwrap()
    }
}

/// Tells the kubelet that the test is over, also when it panics.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The only Node.
struct Kubelet<'net> {
    server: &'net ControlPlane,
    node: &'net Machine,
    /// Machines of pods that are not taken.
    free: Vec<&'net Machine>,
    /// The pods by name.
    running: BTreeMap<String, Running>,
}

struct Running {
    process: Process,
    /// The page that says whether it is ready; empty if it is.
    readiness: String,
    address: String,
    is_told_ready: bool,
}

impl<'net> Kubelet<'net> {
    fn new(server: &'net ControlPlane, node: &'net Machine) -> Self {
        Self {
            server,
            node,
            free: node.pods().iter().collect(),
            running: BTreeMap::new(),
        }
    }

    /// Runs pods until the test is over.
    fn run(mut self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            // A server that is busy is asked again.
            let listed = self.server.get(&["pods", "--all-namespaces"]);
            for pod in listed.iter().flat_map(|pods| pods["items"].as_array()) {
                pod.iter().for_each(|pod| self.look_at(pod));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Starts a pod that is new, and tells when it is ready.
    fn look_at(&mut self, pod: &Value) {
        let text = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        if pod["metadata"]["deletionTimestamp"].is_string() {
            self.end(&namespace, &name);
            return;
        }
        if !self.running.contains_key(&name) {
            let Some(started) = self.start(pod) else {
                return;
            };
            self.bind(&namespace, &name);
            self.running.insert(name.clone(), started);
        }
        let node = self.node;
        let running = self.running.get_mut(&name).unwrap();
        assert!(running.process.is_running(), "{}", running.process.stderr());
        if !running.is_told_ready && is_ready(node, &running.readiness) {
            running.is_told_ready = true;
            let address = running.address.clone();
            self.tell_ready(&namespace, &name, &address);
        }
    }

    fn end(&mut self, namespace: &str, name: &str) {
        if let Some(mut pod) = self.running.remove(name) {
            pod.process.stop(PATIENCE).unwrap();
        }
        let delete = ["delete", "pod", name, "-n", namespace, "--ignore-not-found"];
        let now = ["--grace-period=0", "--force", "--wait=false"];
        self.server.kubectl(&[&delete[..], &now].concat()).unwrap();
    }

    /// Starts what we know how to run.
    fn start(&mut self, pod: &Value) -> Option<Running> {
        let labels = &pod["metadata"]["labels"];
        let own = self.node.v4();
        Some(match labels["app.kubernetes.io/component"].as_str() {
            Some("agent") => Running {
                process: self.agent(),
                readiness: format!("http://{own}:10791/readyz"),
                address: own.to_string(),
                is_told_ready: false,
            },
            Some("controller") => Running {
                process: self.controller(pod),
                readiness: String::new(),
                address: own.to_string(),
                is_told_ready: false,
            },
            _ if labels["app"] == "web" => {
                let machine = self.free.pop().unwrap();
                let at = SocketAddr::new(machine.v4(), 80);
                Running {
                    process: serve_page(machine, &[at], PAGE).unwrap(),
                    readiness: String::new(),
                    address: machine.v4().to_string(),
                    is_told_ready: false,
                }
            }
            _ => return None,
        })
    }

    /// Runs the agent in its container, as helm has installed it.
    fn agent(&self) -> Process {
        // Of the pod before.
        let former = Path::new(Namespace::FILES).join("bundle");
        self.node.namespace().run(|| {
            if former.exists() {
                fs::remove_dir_all(former).unwrap();
            }
        });
        let installed = ["get", "manifest", "guideway", "-n", NAMESPACE];
        let objects = Objects::parse(&self.server.helm(&installed).unwrap());
        Bundle::new(self.server, self.node, &objects).run("agent")
    }

    fn controller(&self, pod: &Value) -> Process {
        let machine = self.node.namespace();
        let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
        let token = self.server.pod_token(NAMESPACE, account, self.node.label());
        let kubeconfig = self.server.write_kubeconfig(machine, &token.unwrap());
        let arguments = container(pod, "controller")["args"].as_array().unwrap();
        let arguments = arguments.iter().map(|argument| argument.as_str().unwrap());
        let mut command = machine.command(GUIDEWAY);
        command
            // Both share the Node's addresses here, and a port would be the other one's.
            .args(arguments.filter(|argument| !argument.starts_with("--metrics=")))
            .env("KUBECONFIG", kubeconfig.unwrap())
            .env("POD_NAMESPACE", NAMESPACE)
            .env("POD_NAME", pod["metadata"]["name"].as_str().unwrap());
        Process::spawn(&mut command).unwrap()
    }

    /// Puts a pod on the Node, as a scheduler would.
    fn bind(&self, namespace: &str, name: &str) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node.label()},
        });
        let file = self
            .server
            .machine()
            .write_file("binding.json", binding.to_string());
        let file = file.unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        let create = ["create", "--raw", &path, "-f", file.to_str().unwrap()];
        self.server.kubectl(&create).unwrap();
    }

    fn tell_ready(&self, namespace: &str, name: &str, address: &str) {
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        let status = status.to_string();
        let patch = [
            "patch",
            "pod",
            name,
            "-n",
            namespace,
            "--subresource=status",
            "-p",
            &status,
        ];
        self.server.kubectl(&patch).unwrap();
    }
}

fn is_ready(node: &Machine, page: &str) -> bool {
    let mut curl = node.namespace().command("curl");
    page.is_empty() || output(curl.args(["-sSf", "--max-time", "5", page])).is_ok()
}
