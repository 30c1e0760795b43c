//! A Kubernetes control plane: etcd and kube-apiserver on a machine of their own, and other programs of a
//! cluster on the machines of a topology.
//!
//! ```text
//!   +-- control-plane -----------------+
//!   | etcd  kube-apiserver  kubectl    |
//!   |        br0 10.250.0.1/24         |
//!   +--------+-------------+-----------+
//!            | mgmt .2     | mgmt .3         connected machines;
//!         edge0 eth0    node0 eth0           their services still use `eth0`
//! ```
//!
//! The programs are released ones, built by `deploy/kubernetes/build.sh`. There is no kubelet and no scheduler:
//! a test writes what these would write, which is Nodes, the states of Pods and, without
//! [`ControlPlane::run_controllers`], EndpointSlices.
//!
//! Every test needs a control plane of its own: Nodes, NodePorts and load-balancer addresses belong to the
//! cluster, and all topologies use the same addresses.

mod fake;
mod kubectl;
mod objects;
mod parts;
mod programs;
mod proxy;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU8, AtomicU32, Ordering},
    time::Duration,
};

pub use fake::{FakeApiServer, Fault, OneTimeFault, Verb};
pub use objects::node;
pub use programs::{cache, program, version};
pub use proxy::{CHANGE_TIME, ProxyMode, wait_until_programmed, wait_until_synced};

use crate::{Namespace, Process, Result, Signal, Veth, output, route::cidr, wait_for};

const READY_TIMEOUT: Duration = Duration::from_secs(600);
const END_TIMEOUT: Duration = Duration::from_secs(120);
const BRIDGE: &str = "br0";
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";
/// File name of the API server's certificate in its `--cert-dir`. The file contains the issuer's certificate too.
const CERTIFICATE: &str = "apiserver.crt";

/// A running etcd and kube-apiserver. They end on drop, and their data is deleted.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: programs before the machine they run on.
    api_server: Process,
    etcd: Process,
    ca: String,
    links: AtomicU8,
    files: AtomicU32,
    machine: Namespace,
}

impl ControlPlane {
    /// The API server's address, which all connected machines use.
    pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 250, 0, 1);
    /// The API server's port.
    pub const PORT: u16 = 6443;
    /// The interface that [`ControlPlane::connect`] gives to a machine.
    pub const INTERFACE: &str = "mgmt";
    /// The bearer token of an administrator (group `system:masters`).
    pub const ADMIN: &str = "admin";
    /// The ranges of ClusterIPs, IPv4 and IPv6.
    pub const SERVICE_RANGE: &str = "10.96.0.0/16,fd00:96::/112";

    /// Starts a control plane and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Start`] when the programs have not been built, [`crate::Error::Ended`]
    /// or [`crate::Error::Timeout`], with the log, when they do not serve.
    pub fn start() -> Result<Self> {
        let machine = Namespace::new("control-plane")?;
        let bridge = machine.add_bridge(BRIDGE)?;
        bridge.add_address(cidr(Self::ADDRESS, 24))?;
        bridge.set_up()?;
        machine.write_file(
            "tokens.csv",
            format!("{0},{0},{0},\"system:masters\"\n", Self::ADMIN),
        )?;
        let key = Path::new(Namespace::FILES).join("service-accounts.key");
        output(
            machine
                .command("openssl")
                .args([
                    "ecparam",
                    "-genkey",
                    "-noout",
                    "-name",
                    "prime256v1",
                    "-out",
                ])
                .arg(key),
        )?;

        let etcd = Process::spawn(&mut etcd(&machine)?)?;
        let api_server = Process::spawn(&mut api_server(&machine, Self::PORT)?)?;
        let mut control_plane = Self {
            api_server,
            etcd,
            ca: String::new(),
            links: AtomicU8::new(2),
            files: AtomicU32::new(0),
            machine,
        };
        control_plane.wait_until_ready()?;
        Ok(control_plane)
    }

    /// Returns the control plane's machine. The API server can be reached from it without [`ControlPlane::connect`].
    pub fn machine(&self) -> &Namespace {
        &self.machine
    }

    /// Returns the API server's URL.
    pub fn url(&self) -> String {
        format!("https://{}:{}", Self::ADDRESS, Self::PORT)
    }

    /// Returns the certificates by which to verify the API server, in PEM.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// Gives a machine an interface [`ControlPlane::INTERFACE`], which leads to the API server only. Returns
    /// the machine's address there.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`], for example when the machine is connected already.
    pub fn connect(&self, machine: &Namespace) -> Result<IpAddr> {
        let number = self.links.fetch_add(1, Ordering::Relaxed);
        let port = format!("port{number}");
        let (link, port) =
            Veth::between((machine, Self::INTERFACE), (&self.machine, &port)).lay()?;
        port.set_bridge(&self.machine.link(BRIDGE)?)?;
        let [a, b, c, _] = Self::ADDRESS.octets();
        let address = cidr(Ipv4Addr::new(a, b, c, number), 24);
        link.add_address(address)?;
        for link in [&link, &port] {
            link.wait_until_ready()?;
        }
        Ok(address.address)
    }

    /// Waits until the API server is ready and has created the namespace `default`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Ended`] or [`crate::Error::Timeout`], with the log.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.api_server
            .wait_for_line("Serving securely", READY_TIMEOUT)?;
        let certificate = Path::new(Namespace::FILES).join(CERTIFICATE);
        let read = self.machine.run(|| fs::read_to_string(certificate));
        self.ca = read.map_err(|source| {
            self.machine
                .error("read the certificate".to_owned(), source)
        })?;
        self.write_kubeconfig(&self.machine, Self::ADMIN)?;
        for path in ["/readyz", "/api/v1/namespaces/default"] {
            let awaited = format!("the API server answers {path}");
            wait_for(&awaited, READY_TIMEOUT, || {
                if let Err(ended) = self.api_server.expect_running("being ready") {
                    return Ok(Err(ended));
                }
                match output(&mut self.request(path)) {
                    Ok(_) => Ok(Ok(())),
                    Err(error) => Err(format!("{error}\nIts log:\n{}", self.log())),
                }
            })??;
        }
        Ok(())
    }

    /// Returns what the API server and etcd have logged since they were last started.
    pub fn log(&self) -> String {
        format!(
            "{}\netcd:\n{}",
            self.api_server.stderr(),
            self.etcd.stderr()
        )
    }

    /// Returns the API server's process, for example to send it a signal.
    pub fn api_server(&mut self) -> &mut Process {
        &mut self.api_server
    }

    /// Returns the processes of the API server and of etcd.
    pub fn programs(&mut self) -> [&mut Process; 2] {
        [&mut self.api_server, &mut self.etcd]
    }

    /// Kills the API server and with it all its connections.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Signal`] when it has ended already.
    pub fn kill_api_server(&mut self) -> Result<()> {
        kill(&mut self.api_server)
    }

    /// Starts the API server again with the stored data. Does not wait for it; see
    /// [`ControlPlane::wait_until_ready`].
    ///
    /// # Errors
    ///
    /// [`crate::Error::Start`] when the program cannot be started.
    pub fn start_api_server(&mut self) -> Result<()> {
        self.api_server = Process::spawn(&mut api_server(&self.machine, Self::PORT)?)?;
        Ok(())
    }

    /// Starts a second API server over the same etcd. Until the first one is started again, only `kubectl` and
    /// similar commands use it.
    ///
    /// # Errors
    ///
    /// As for [`ControlPlane::start`].
    pub fn start_other_api_server(&self) -> Result<Process> {
        let mut command = api_server(&self.machine, Self::PORT + 1)?;
        let mut other = Process::spawn(&mut command)?;
        other.wait_for_line("Serving securely", READY_TIMEOUT)?;
        let url = format!("https://{}:{}", Self::ADDRESS, Self::PORT + 1);
        self.write_kubeconfig_for(&url, &self.machine, Self::ADMIN)?;
        let awaited = "the other API server is ready";
        wait_for(awaited, READY_TIMEOUT, || {
            if let Err(ended) = other.expect_running("being ready") {
                return Ok(Err(ended));
            }
            self.kubectl(&["get", "--raw", "/readyz"]).map(|_| Ok(()))
        })??;
        Ok(other)
    }

    /// Kills etcd.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Signal`] when it has ended already.
    pub fn kill_etcd(&mut self) -> Result<()> {
        kill(&mut self.etcd)
    }

    /// Starts etcd again with its stored data.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Start`] when the program cannot be started.
    pub fn start_etcd(&mut self) -> Result<()> {
        self.etcd = Process::spawn(&mut etcd(&self.machine)?)?;
        Ok(())
    }

    /// Copies etcd's data, for [`ControlPlane::restore_etcd`]. Meanwhile etcd is stopped.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Timeout`] when etcd does not stop, [`crate::Error::Failed`] when it has no data.
    pub fn back_up_etcd(&mut self) -> Result<()> {
        self.etcd.stop(END_TIMEOUT)?;
        let data = etcd_data().join("member/snap/db");
        output(self.machine.command("cp").arg(data).arg(etcd_backup()))?;
        self.start_etcd()
    }

    /// Makes etcd's data what it was, by a command of `etcdutl` that lacks only addresses and files, and starts both
    /// programs again.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Failed`] when the command fails; otherwise as for [`ControlPlane::start`].
    pub fn restore_etcd(&mut self, command: &str) -> Result<()> {
        self.kill_api_server()?;
        self.kill_etcd()?;
        output(self.machine.command("rm").arg("-r").arg(etcd_data()))?;
        let mut words = command.split_whitespace();
        let restorer = program(words.next().unwrap_or_default())?;
        let mut restore = self.machine.command(restorer);
        restore
            .args(words)
            // A copy of the data has no hash, a snapshot that etcd sends has.
            .arg("--skip-hash-check")
            .args(["--initial-cluster", &format!("default={ETCD_PEER}")])
            .args(["--initial-advertise-peer-urls", ETCD_PEER])
            .arg("--data-dir")
            .arg(etcd_data())
            .arg(etcd_backup());
        output(&mut restore)?;
        self.start_etcd()?;
        self.start_api_server()?;
        self.wait_until_ready()
    }

    /// Writes a kubeconfig with this bearer token into a machine's files. Returns its path.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`] when the file cannot be written.
    pub fn write_kubeconfig(&self, machine: &Namespace, token: &str) -> Result<PathBuf> {
        self.write_kubeconfig_for(&self.url(), machine, token)
    }

    fn write_kubeconfig_for(&self, url: &str, machine: &Namespace, token: &str) -> Result<PathBuf> {
        let ca = machine.write_file("ca.crt", &self.ca)?;
        let kubeconfig = format!(
            "apiVersion: v1
kind: Config
current-context: lab
contexts:
- name: lab
  context: {{cluster: lab, user: lab}}
clusters:
- name: lab
  cluster: {{server: '{url}', certificate-authority: '{}'}}
users:
- name: lab
  user: {{token: '{token}'}}
",
            ca.display()
        );
        machine.write_file(KUBECONFIG, kubeconfig)
    }

    fn request(&self, path: &str) -> Command {
        let mut command = self.machine.command("curl");
        command
            .args(["-sS", "--fail-with-body", "--max-time", "10", "-H"])
            .arg(format!("Authorization: Bearer {}", Self::ADMIN))
            .arg("--cacert")
            .arg(Path::new(Namespace::FILES).join(CERTIFICATE))
            .arg(format!("{}{path}", self.url()));
        command
    }
}

/// File name of a machine's kubeconfig in [`Namespace::FILES`].
const KUBECONFIG: &str = "kubeconfig";

fn etcd_data() -> PathBuf {
    Path::new(Namespace::FILES).join("etcd")
}

fn etcd_backup() -> PathBuf {
    Path::new(Namespace::FILES).join("etcd.backup")
}

fn etcd(machine: &Namespace) -> Result<Command> {
    let mut command = machine.command(program("etcd")?);
    command
        .arg("--data-dir")
        .arg(etcd_data())
        .args([
            "--listen-client-urls",
            ETCD,
            "--advertise-client-urls",
            ETCD,
        ])
        .args([
            "--listen-peer-urls",
            ETCD_PEER,
            "--initial-advertise-peer-urls",
            ETCD_PEER,
        ])
        .args(["--initial-cluster", &format!("default={ETCD_PEER}")])
        .args(["--unsafe-no-fsync", "--log-level=warn"]);
    Ok(command)
}

fn api_server(machine: &Namespace, port: u16) -> Result<Command> {
    let files = Path::new(Namespace::FILES);
    let key = files.join("service-accounts.key");
    let mut command = machine.command(program("kube-apiserver")?);
    command
        .args(["--etcd-servers", ETCD])
        .arg("--cert-dir")
        .arg(files)
        .args(["--bind-address", &ControlPlane::ADDRESS.to_string()])
        .args(["--secure-port", &port.to_string()])
        .args(["--service-cluster-ip-range", ControlPlane::SERVICE_RANGE])
        .args(["--service-account-issuer", "https://kubernetes.default.svc"])
        .arg("--service-account-key-file")
        .arg(&key)
        .arg("--service-account-signing-key-file")
        .arg(&key)
        .arg("--token-auth-file")
        .arg(files.join("tokens.csv"))
        .args(["--authorization-mode=RBAC", "--allow-privileged=true"])
        // The plugin would refuse pods, because no controller creates the default service accounts.
        .arg("--disable-admission-plugins=ServiceAccount")
        // Off by default, but on in some distributions.
        .arg("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
        // The Service `kubernetes` gets no endpoint, so no proxy forwards to it.
        .arg("--endpoint-reconciler-type=none");
    Ok(command)
}

fn kill(process: &mut Process) -> Result<()> {
    process.signal(Signal::SIGKILL)?;
    process.wait(END_TIMEOUT).map(drop)
}
