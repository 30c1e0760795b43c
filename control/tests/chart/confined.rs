//! The agent as a container runtime would run the chart's pod, against a real API server.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use lab::kubernetes::ControlPlane;
use lab::{Machine, Namespace, Process, Topology, output, wait_for};
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::{Value, json};

use super::chart::{DETACH, NAMESPACE, Objects, container, manifest, text};

const GUIDEWAY: &str = env!("CARGO_BIN_EXE_guideway");
const TIMEOUT: Duration = Duration::from_secs(180);
/// The default profile of Podman and CRI-O.
const RUNTIME_DEFAULT: &str = "/usr/share/containers/seccomp.json";
/// Where a container finds who it is.
const ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";

#[test]
fn agent_serves_with_the_rights_that_the_chart_gives_it() {
    serves_with(&[]);
}

#[test]
fn agent_serves_under_the_profile_for_runtimes_that_forbid_bpf() {
    serves_with(&[
        "agent.seccompProfile.type=Localhost",
        "agent.seccompProfile.localhostProfile=guideway.json",
    ]);
}

fn serves_with(more: &[&str]) {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let node = &net.nodes()[0];
    let server = ControlPlane::start().unwrap();
    server.connect(node.namespace()).unwrap();
    server.add_node(node).unwrap();
    let host = format!("apiServer.host={}", ControlPlane::ADDRESS);
    let values = [
        "namespace.create=true",
        "agent.extraConfig.announce.interfaces[0]=eth0",
        &host,
    ];
    let values = [&values[..], more].concat();
    server.apply(&manifest(&values)).unwrap();
    server.apply(SEED).unwrap();

    let objects = Objects::render(&values);
    let bundle = Bundle::new(&server, node, &objects);
    let mut agent = bundle.run("agent");

    let health = &container(objects.agent_pod(), "agent")["ports"][1]["containerPort"];
    let url = format!("http://{}:{health}/readyz", node.v4());
    wait_for("the agent is ready", TIMEOUT, || {
        assert!(agent.is_running(), "{}", agent.stderr());
        let ask = output(node.namespace().command("curl").args(["-sSf", &url]));
        ask.map_err(|error| format!("{error}\n{}", agent.stderr()))
    })
    .unwrap();
    let pod = &node.pods()[0];
    server
        .apply(&SERVICE.replace("POD", &pod.v4().to_string()))
        .unwrap();
    let greeter = Greeter::start(pod);
    let at = SocketAddr::new(node.v4(), 30_080);
    wait_for("the pod answers a client at the NodePort", TIMEOUT, || {
        let answer = net.clients()[0].namespace().run(|| greeted(at));
        let answer = answer.map_err(|error| error.to_string())?;
        (answer == GREETING).then_some(()).ok_or(answer)
    })
    .unwrap();
    drop(greeter);
    for (command, said) in IN_THE_POD {
        let words: Vec<&str> = command.split(' ').collect();
        // Packets meet a change before the agent shows it.
        wait_for(command, TIMEOUT, || {
            let output = output(&mut Bundle::exec(node.namespace(), "agent", &words))
                .map_err(|error| error.to_string())?;
            output.contains(said).then_some(()).ok_or(output)
        })
        .unwrap();
    }
    let renewed = || {
        let lease = ["lease", "guideway-edge-node0", "-n", "guideway-edges"];
        let lease = server.get(&lease).map_err(|error| error.to_string())?;
        let time = lease["spec"]["renewTime"].as_str();
        time.map(str::to_owned).ok_or("never".to_owned())
    };
    let first = wait_for("the agent has a Lease", TIMEOUT, renewed).unwrap();
    wait_for("the agent renews its Lease", TIMEOUT, || {
        let time = renewed()?;
        (time != first).then_some(()).ok_or(time)
    })
    .unwrap();

    let status = fs::read_to_string(format!("/proc/{}/status", child(agent.id()))).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    // CAP_NET_ADMIN 12, CAP_NET_RAW 13, CAP_PERFMON 38, CAP_BPF 39.
    let capabilities = format!("{:016x}", 1_u64 << 12 | 1 << 13 | 1 << 38 | 1 << 39);
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        assert_eq!(field(set), capabilities, "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2", "a filter is in force");
    agent.stop(TIMEOUT).unwrap();

    let detaching = Objects::render(&[&values[..], &[DETACH]].concat());
    let bundle = Bundle {
        objects: &detaching,
        ..bundle
    };
    let mut detach = bundle.run("detach");
    assert!(
        detach.wait(TIMEOUT).unwrap().success(),
        "{}",
        detach.stderr()
    );
    assert!(
        detach.stdout().contains("detached from eth0"),
        "{}",
        detach.stdout()
    );
}

/// Commands that the pages have run in an agent's pod, and what they say there.
const IN_THE_POD: [(&str, &str); 8] = [
    ("guideway status", "in step"),
    ("guideway services", "default/web"),
    ("guideway backends default/web", ":8080"),
    ("guideway flows default/web", "no flows"),
    ("guideway drops", "delivered"),
    ("guideway config", "interfaces"),
    (
        "guideway trace --service default/web --from 203.0.113.7:40000",
        ":8080",
    ),
    // A section of pcapng.
    ("guideway capture --duration 1 -w -", "\n\r\r\n"),
];

const SEED: &str = "
apiVersion: v1
kind: Secret
metadata: {name: guideway-seed, namespace: guideway-system}
stringData: {seed: '12345'}
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: NodePort, ports: [{name: http, port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [POD], nodeName: node0}]
";

const GREETING: &str = "the pod greets";

/// Greets whoever connects to the target port of a pod, until it is dropped.
struct Greeter(TcpListener);

impl Greeter {
    fn start(pod: &Machine) -> Self {
        let listen = || TcpListener::bind((pod.v4(), 8080));
        let listener = pod.namespace().run(listen).unwrap();
        let accepting = listener.try_clone().unwrap();
        thread::spawn(move || {
            for mut stream in accepting.incoming().map_while(Result::ok) {
                // Who has given up meanwhile comes again.
                let _ = stream.write_all(GREETING.as_bytes());
            }
        });
        Self(listener)
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }
}

/// Connects, and returns what is said.
fn greeted(at: SocketAddr) -> io::Result<String> {
    let patience = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&at, patience)?;
    stream.set_read_timeout(Some(patience))?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// What a container runtime makes of the agents' pod on a machine.
pub(crate) struct Bundle<'test> {
    node: &'test Machine,
    objects: &'test Objects,
    directory: PathBuf,
}

impl<'test> Bundle<'test> {
    /// Makes the root file system: the image, the ConfigMap, and the service account's token.
    pub(crate) fn new(
        server: &ControlPlane,
        node: &'test Machine,
        objects: &'test Objects,
    ) -> Self {
        let directory = directory();
        let root = directory.join("rootfs");
        let account = server.pod_token(NAMESPACE, "guideway-agent", node.label());
        let account = [
            ("token", account.unwrap()),
            ("ca.crt", server.ca().to_owned()),
            ("namespace", NAMESPACE.to_owned()),
        ];
        node.namespace().run(|| {
            for empty in [
                "usr/bin",
                "usr/lib",
                "usr/lib64",
                "etc/guideway",
                "run/guideway",
            ] {
                fs::create_dir_all(root.join(empty)).unwrap();
            }
            for empty in ["sys", "proc", "dev"] {
                fs::create_dir(root.join(empty)).unwrap();
            }
            for library in ["lib", "lib64"] {
                symlink(format!("usr/{library}"), root.join(library)).unwrap();
            }
            // By a process of its own, or what other tests fork meanwhile holds the program open for writing, and it
            // cannot be run.
            output(Command::new("cp").arg(GUIDEWAY).arg(root.join("usr/bin"))).unwrap();
            let config = root.join("etc/guideway/guideway.yaml");
            fs::write(config, objects.agent_config()).unwrap();
            let place = root.join(ACCOUNT);
            fs::create_dir_all(&place).unwrap();
            for (name, content) in account {
                fs::write(place.join(name), content).unwrap();
            }
            fs::create_dir(directory.join("run")).unwrap();
            // As the kubelet does for `DirectoryOrCreate`.
            fs::create_dir_all("/sys/fs/bpf/guideway").unwrap();
        });
        // The machine has no cgroups of its own, and the pod asks for none; the runtime looks all the same.
        let mount = ["-t", "tmpfs", "none", "/sys/fs/cgroup"];
        output(node.namespace().command("mount").args(mount)).unwrap();
        Self {
            node,
            objects,
            directory,
        }
    }

    /// Prepares a command in a container that runs on a machine, as `kubectl exec` does.
    pub(crate) fn exec(machine: &Namespace, name: &str, words: &[impl AsRef<OsStr>]) -> Command {
        let mut runtime = machine.command("crun");
        runtime.arg("--root").arg(directory().join("state"));
        runtime.args(["--cgroup-manager=disabled", "exec", name]);
        runtime.args(words);
        runtime
    }

    /// Runs a container of the pod with the machine's network and bpffs.
    pub(crate) fn run(&self, name: &str) -> Process {
        let pod = self.objects.agent_pod();
        let configuration = configuration(container(pod, name), pod, self.node);
        let machine = self.node.namespace();
        let path = self.directory.join("config.json");
        machine.run(|| fs::write(path, configuration.to_string()).unwrap());
        let mut runtime = machine.command("crun");
        runtime.arg("--root").arg(self.directory.join("state"));
        runtime.args(["--cgroup-manager=disabled", "run", "--bundle"]);
        runtime.arg(&self.directory).arg(name);
        Process::spawn(&mut runtime).unwrap()
    }
}

/// Where a machine has its only bundle.
fn directory() -> PathBuf {
    Path::new(Namespace::FILES).join("bundle")
}

/// What the pod's specification says, in the runtime's words.
fn configuration(agent: &Value, pod: &Value, node: &Machine) -> Value {
    let security = &agent["securityContext"];
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    let added = security["capabilities"]["add"].as_array().unwrap().iter();
    let added: Vec<_> = added
        .map(|name| format!("CAP_{}", name.as_str().unwrap()))
        .collect();
    let profile = &security["seccompProfile"];
    let seccomp = match profile["type"].as_str().unwrap() {
        "Localhost" => {
            let name = profile["localhostProfile"].as_str().unwrap();
            serde_json::from_str(&text(&format!("seccomp/{name}"))).unwrap()
        }
        "RuntimeDefault" => runtime_default(&added),
        other => panic!("{other}"),
    };
    let arguments = agent["args"].as_array().unwrap().iter();
    let arguments: Vec<_> = ["/usr/bin/guideway"]
        .into_iter()
        .chain(arguments.map(|argument| argument.as_str().unwrap()))
        .collect();
    let addresses = format!("{},{}", node.v4(), node.v6());
    // As the kubelet gives them to every container, which may have others.
    let server = [
        format!("KUBERNETES_SERVICE_HOST={}", ControlPlane::ADDRESS),
        format!("KUBERNETES_SERVICE_PORT={}", ControlPlane::PORT),
    ];
    let variables = agent["env"].as_array().into_iter().flatten();
    let variables = variables.map(|variable| {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.namespace") => NAMESPACE,
            Some("metadata.name") => "agent",
            Some("spec.nodeName") => node.label(),
            Some("status.hostIPs") => &addresses,
            Some(other) => panic!("{other}"),
            None => variable["value"].as_str().unwrap(),
        };
        format!("{}={value}", variable["name"].as_str().unwrap())
    });
    let dockerfile = text("Dockerfile");
    let of_the_image = dockerfile.lines();
    let of_the_image = of_the_image.filter_map(|line| line.strip_prefix("ENV "));
    let variables: Vec<_> = server
        .into_iter()
        .chain(of_the_image.map(str::to_owned))
        .chain(variables)
        .collect();
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"]},
            "args": arguments,
            "env": variables,
            "cwd": "/",
            "capabilities": {"bounding": added, "effective": added, "permitted": added},
            "noNewPrivileges": security["allowPrivilegeEscalation"] == false,
        },
        "root": {"path": "rootfs", "readonly": security["readOnlyRootFilesystem"]},
        "mounts": mounts(agent, pod),
        "linux": {
            // The network is the machine's, as `hostNetwork` has it.
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            "seccomp": seccomp,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

/// What a runtime makes of its default profile for a container with these capabilities.
///
/// `CAP_BPF` permits `bpf(2)`, as in containerd since 1.7; the file may be of a version that asks for `CAP_SYS_ADMIN`.
fn runtime_default(capabilities: &[String]) -> Value {
    let profile: Value = serde_json::from_slice(&fs::read(RUNTIME_DEFAULT).unwrap()).unwrap();
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let applies = |rule: &&Value| {
        let listed = |part: &str, kind: &str| -> Vec<String> {
            let names = rule[part][kind].as_array().into_iter().flatten();
            names
                .map(|name| name.as_str().unwrap().to_owned())
                .collect()
        };
        let is_own = |name: &String| capabilities.contains(name) || name == machine;
        let arches = listed("includes", "arches");
        listed("includes", "caps").iter().all(is_own)
            && !listed("excludes", "caps").iter().any(is_own)
            && (arches.is_empty() || arches.iter().any(is_own))
            && !listed("excludes", "arches").iter().any(is_own)
    };
    let rules = profile["syscalls"].as_array().unwrap().iter();
    let mut rules: Vec<Value> = rules.filter(applies).cloned().collect();
    for rule in &mut rules {
        let rule = rule.as_object_mut().unwrap();
        rule.retain(|key, value| {
            ["names", "action", "args", "errnoRet"].contains(&key.as_str()) && !value.is_null()
        });
        rule["names"]
            .as_array_mut()
            .unwrap()
            .retain(|name| name != "bpf");
    }
    assert!(capabilities.contains(&"CAP_BPF".to_owned()));
    rules.push(json!({"names": ["bpf"], "action": "SCMP_ACT_ALLOW"}));
    json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": rules,
    })
}

/// What every container has, and the pod's host paths; the image and its volumes are the root file system.
fn mounts(agent: &Value, pod: &Value) -> Vec<Value> {
    let bind = |from: &str, to: &str, mode: &str| json!({"type": "bind", "source": from, "destination": to, "options": ["rbind", mode]});
    let mut mounts = vec![
        json!({"type": "proc", "source": "proc", "destination": "/proc"}),
        json!({"type": "tmpfs", "source": "tmpfs", "destination": "/dev", "options": ["nosuid", "mode=755"]}),
        json!({"type": "sysfs", "source": "sysfs", "destination": "/sys", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        bind("/usr/lib", "/usr/lib", "ro"),
        bind("/usr/lib64", "/usr/lib64", "ro"),
    ];
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    for mount in agent["volumeMounts"].as_array().unwrap() {
        let mut named = volumes
            .iter()
            .filter(|volume| volume["name"] == mount["name"]);
        let volume = named.next().unwrap();
        let inside = mount["mountPath"].as_str().unwrap();
        match volume["hostPath"]["path"].as_str() {
            Some(pins @ "/sys/fs/bpf/guideway") => mounts.push(bind(pins, inside, "rw")),
            // The machine's own, not that of the host the test runs on.
            Some("/run/guideway") => mounts.push(bind("run", inside, "rw")),
            Some(other) => panic!("the pod mounts {other}"),
            None if volume["emptyDir"].is_object() => {
                mounts.push(json!({"type": "tmpfs", "source": "tmpfs", "destination": inside}));
            }
            None => assert_eq!(mount["readOnly"], true),
        }
    }
    mounts
}

/// The process that the container runtime started.
fn child(runtime: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{runtime}/task/{runtime}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}
