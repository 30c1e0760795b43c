//! The command line: what can be typed, and its help.

mod packets;
mod show;

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;

use self::packets::CAPTURE_FILTER;
pub use self::packets::{Capture, Trace, Which, one_service};
pub use self::show::{Agent, Drops, Flows, Format, Output, Rows, Show, Sort};
use crate::config::{self, DEFAULT_PIN_DIR, DEFAULT_SERVICE};
use crate::index::Options;
use crate::kubernetes::client::{DEFAULT_NAMESPACE, lease_namespace};

/// Layer-4 load balancer in XDP: the agent, and the commands that show what it does
#[derive(Debug, Parser)]
#[command(name = "guideway", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done; for `check` and `cluster test`: nothing fails; for `upgrade`: connections go on; for `cluster status`: no findings; for `cluster which`: one edge announces the address
  1  it failed: no agent answers, the dataplane cannot be set up, `check` or `cluster test` found a FAIL, `upgrade` would lose connections, `cluster status` has findings, `cluster which` found no edge or several, `cluster bundle` got nothing
  2  the command line or the configuration is wrong

Environment:
  GUIDEWAY_LOG         what `run` and `controller` log, such as `info` (default) or `debug,control::file_watch=trace`
  GUIDEWAY_LOG_FORMAT  `text` (default), or `json`: an object on each line
  GUIDEWAY_SOCKET      the agent's socket, where neither --socket nor --config names it";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: program the dataplane and keep it equal to the configuration
    ///
    /// The agent reads the file again on SIGHUP and whenever the file changes. If the file has an error,
    /// the agent reports it and keeps the last good state. SIGTERM and SIGINT end the agent and leave
    /// everything attached: traffic goes on, and the next start takes over. `guideway detach`
    /// removes everything.
    Run(Run),
    /// Hand out load-balancer addresses to the Services of a Kubernetes cluster
    ///
    /// Only the controller that holds the Lease guideway-controller acts. When it ends, another one takes over.
    /// The addresses come from LoadBalancerPools. The controller writes them to the status of Services of type
    /// LoadBalancer. It finds the API server as kubectl does: by KUBECONFIG, ~/.kube/config, or the service
    /// account of the pod.
    Controller(Controller),
    /// Check whether this machine can run Guideway, and what to do if not
    Check(Check),
    /// Show the state of the agent: configuration, interfaces, tables
    Status(Show),
    /// Show the services with their traffic
    Services(Rows),
    /// Show the backends of each service with their shares, next hops and traffic
    Backends(Rows),
    /// List the flows that this machine knows: those of its pods, and those of NAT mode
    ///
    /// An edge keeps no record of a flow in the other modes.
    Flows(Flows),
    /// Show why packets were dropped, passed on to the kernel, or failed to leave
    Drops(Drops),
    /// Show which backend a flow gets, and why
    Which(Which),
    /// Follow one packet through the datapath's code, step by step
    ///
    /// The packet is the first one of the flow, or the frame given. The command changes no table and no counter.
    /// Where the datapath asks the kernel's FIB, the command asks it by netlink. The answer is the same, except
    /// for routing rules of an interface. Of several equal paths, it may take another one.
    Trace(Trace),
    /// Write packets, as they come in and as they leave, to a file for Wireshark or tshark
    ///
    /// tcpdump sees no packet that XDP forwards or drops. The file is pcapng. It has each packet as it came in
    /// and, unless it was dropped, as it left. The comment of a packet gives the verdict, the service and the
    /// backend. Replies of pods are not in the file: tcpdump sees those.
    ///
    /// A capture slows the datapath while it runs. Sample and filter if there is much traffic.
    ///
    /// Where threads of the agent take the packets (`datapath: afxdp`), the command asks the agent for them.
    #[command(after_help = CAPTURE_FILTER)]
    Capture(Capture),
    /// Change what a running agent or controller logs
    ///
    /// The command sends a signal: SIGUSR1 for `debug`, SIGUSR2 for the level of GUIDEWAY_LOG.
    Log(Log),
    /// Hand the addresses that this edge announces over to the others, before the machine goes
    ///
    /// The edge goes on answering for each address until it hears another edge announce it, and forwards what still
    /// comes: no packet is lost. It stays drained, also when the agent or the machine starts again, until
    /// `guideway undrain-edge`. Its Lease says so.
    DrainEdge(DrainEdge),
    /// Give a drained edge its share of the addresses again
    UndrainEdge(UndrainEdge),
    /// Take the program off every interface and remove everything pinned
    ///
    /// A running agent does this and ends.
    Detach(Detach),
    /// Tell what becomes of the tables in the kernel when the agent of this program takes over
    ///
    /// Run it with the new program, before the upgrade. Of each table it says whether it goes on, is converted or is made
    /// anew, and what that loses. It changes nothing.
    Upgrade(Upgrade),
    /// Show the settings in force, with the defaults of those that the file leaves out
    ///
    /// Services and nodes are not shown, nor the seed of the flow hash, which is a secret.
    Config(Settings),
    /// Show the version of this program and of the running agent
    Version(Settings),
    /// Look at all agents and controllers of a Kubernetes cluster
    ///
    /// A link to this program by the name kubectl-guideway makes it a plugin of kubectl: then `kubectl guideway status`
    /// is `guideway cluster status`. The API server is found as kubectl finds it: by KUBECONFIG, ~/.kube/config, or
    /// the service account of the pod.
    #[command(subcommand)]
    Cluster(Cluster),
    /// Print completions for a shell
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands to a directory
    Man {
        /// Write guideway.1 and a page for each command here
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// The commands about a whole cluster.
#[derive(Debug, Subcommand)]
pub enum Cluster {
    /// Show how every agent and controller is, and what differs between them
    ///
    /// Agents and controllers are asked for their page `/status`: pods by way of the API server's proxy, edges outside
    /// the cluster straight from here. The exit code is 1 if there is anything to tell below FINDINGS.
    Status(ClusterStatus),
    /// Try whether Services work, edge by edge
    ///
    /// Each edge is asked whether it serves each port of each Service, or of the one named, and connections are opened from
    /// here to the TCP ports. Run it where clients are. Each FAIL has its remedy, and the exit code is 1 if there is one.
    ///
    /// If the cluster has a Ready Node and no SERVICE is named, a Deployment and a Service named guideway-test-NUMBER are
    /// made, tried and removed; no other Service is tried. They are removed after SIGINT and SIGTERM too.
    Test(ClusterTest),
    /// Say which edge announces an address
    ///
    /// Every agent is asked, as by `cluster status`. The exit code is 1 unless exactly one announces it. While an address
    /// moves, none or two do for a moment.
    Which(ClusterWhich),
    /// Write a tar file to attach to a bug report: status, settings, metrics, tables, logs and objects
    ///
    /// It has what `cluster status` shows, the pages and logs of each agent and controller, and the Services,
    /// EndpointSlices, Nodes, Leases and LoadBalancerPools, each file at most 4 MiB. Secrets are neither read nor written:
    /// what looks like a token, key, password or hash seed is taken out. Names and addresses stay. The file errors.txt in
    /// it says what could not be had, such as what you have no right to read. The exit code is 1 if nothing could be had.
    Bundle(ClusterBundle),
}

/// Options of `cluster status`.
#[derive(Debug, Args)]
pub struct ClusterStatus {
    /// Where the agents and controllers are.
    #[command(flatten)]
    pub at: ClusterScope,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

/// Options of `cluster test`.
#[derive(Debug, Args)]
pub struct ClusterTest {
    /// Only this Service, by its name or address as for `services`
    #[arg(value_name = "SERVICE")]
    pub tried: Option<String>,
    /// Make nothing: try all Services that there are
    #[arg(long)]
    pub existing: bool,
    /// Open no connections from here
    #[arg(long)]
    pub no_requests: bool,
    /// Namespace of the Deployment and the Service that are made
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub test_namespace: String,
    /// Image of a web server that listens at port 80
    #[arg(long, value_name = "IMAGE", default_value = "nginx")]
    pub image: String,
    /// The spec.loadBalancerClass of the Service that is made
    #[arg(long, value_name = "CLASS", default_value = Options::DEFAULT_CLASS)]
    pub load_balancer_class: String,
    /// How long the Service that is made may take to work
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
    /// Where the agents and controllers are.
    #[command(flatten)]
    pub at: ClusterScope,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

/// Options of `cluster which`.
#[derive(Debug, Args)]
pub struct ClusterWhich {
    /// The address
    #[arg(long, value_name = "ADDRESS")]
    pub address: IpAddr,
    /// Where the agents and controllers are.
    #[command(flatten)]
    pub at: ClusterScope,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

/// Options of `cluster bundle`.
#[derive(Debug, Args)]
pub struct ClusterBundle {
    /// Where the agents and controllers are.
    #[command(flatten)]
    pub at: ClusterScope,
    /// The file, which must not exist yet [default: guideway-bundle-TIME.tar]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Where the agents and controllers of a cluster are.
#[derive(Debug, Args)]
pub struct ClusterScope {
    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of the agents and controllers
    #[arg(long, short, value_name = "NAME", default_value = DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// The headless Service whose EndpointSlices have the edges outside the cluster
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SERVICE)]
    pub service: String,
    /// Namespace of the edges' Leases [default: the Service's name with -edges behind it]
    #[arg(long, value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Port of an edge outside the cluster in its metrics.listen
    #[arg(long, value_name = "PORT", default_value_t = 10_790)]
    pub edge_port: u16,
}

impl ClusterScope {
    /// Returns the namespace of the edges' Leases.
    pub(crate) fn lease_namespace(&self) -> String {
        lease_namespace(self.lease_namespace.clone(), &self.service)
    }
}

/// Returns the arguments of `guideway` for those of a process: a plugin of kubectl has the commands of `cluster`.
pub fn arguments(mut given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let program = given.next().unwrap_or_default();
    let is_plugin = Path::new(&program).file_name() == Some(OsStr::new("kubectl-guideway"));
    let inserted = is_plugin.then(|| OsString::from("cluster"));
    [program].into_iter().chain(inserted).chain(given).collect()
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Take services and nodes from the Kubernetes API, and only the machine's settings from the file
    ///
    /// The agent finds the API server as kubectl does: by KUBECONFIG, ~/.kube/config, or the service
    /// account of the pod.
    #[arg(long)]
    pub kubernetes: bool,
}

/// Options of `controller`.
#[derive(Debug, Args)]
pub struct Controller {
    /// Namespace of the Lease and of the Secret with the seed [default: $POD_NAMESPACE, or guideway-system]
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The spec.loadBalancerClass of the Services that get addresses
    #[arg(long, value_name = "CLASS", default_value = Options::DEFAULT_CLASS)]
    pub load_balancer_class: String,
    /// Give addresses to Services without a class too. No other implementation may do so
    #[arg(long)]
    pub default_class: bool,
    /// Headless Service whose EndpointSlices list the edges outside the cluster. Same as the agents' kubernetes.service
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SERVICE)]
    pub service: String,
    /// Namespace of the edges' Leases, which say who announces which address [default: the Service's name with -edges behind it]
    #[arg(long, value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Networks in which agents serve spec.externalIPs. Same as the agents' kubernetes.external_ips
    #[arg(long, value_name = "NET", value_delimiter = ',', value_parser = network)]
    pub external_ips: Vec<IpNet>,
    /// Serve /metrics, /livez and /readyz here
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Time after which another controller takes over from one that is lost
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub lease_duration: u32,
    /// Print the custom resource definition of LoadBalancerPool and end
    #[arg(long)]
    pub print_crds: bool,
}

/// Options of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Check this configuration too, and the interfaces it names
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check this interface; may be given several times
    #[arg(long, short, value_name = "NAME")]
    pub interface: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `config` and `version`.
#[derive(Debug, Args)]
pub struct Settings {
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

/// Options of `log`.
#[derive(Debug, Args)]
pub struct Log {
    /// What to log
    #[arg(value_enum, value_name = "LEVEL")]
    pub level: LogLevel,
    /// The process, such as 1 in the container of a controller [default: the agent at the socket]
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
}

/// What `log` can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// `debug` of Guideway's own code.
    Debug,
    /// What GUIDEWAY_LOG says.
    Default,
}

/// Options of `drain-edge`.
#[derive(Debug, Args)]
pub struct DrainEdge {
    /// Wait so long for the others to take over
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
}

/// Options of `undrain-edge`.
#[derive(Debug, Args)]
pub struct UndrainEdge {
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
}

/// Options of `detach`.
#[derive(Debug, Args)]
pub struct Detach {
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// Where the pins are, if no agent runs
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
    pub pin_dir: PathBuf,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

/// Options of `upgrade`.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// Only tell: the upgrade itself is a restart with the new program
    #[arg(long, required = true)]
    pub check: bool,
    /// The agent's configuration, which says where the pins are and how large the tables
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the pins are, without a configuration
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR, conflicts_with = "config")]
    pub pin_dir: PathBuf,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

fn network(text: &str) -> Result<IpNet, String> {
    let network = config::parse_network(text);
    network.ok_or_else(|| "write it like 192.0.2.0/24, 192.0.2.7 or 2001:db8::/64".to_owned())
}

#[cfg(test)]
mod tests;
