//! The command line: what can be typed, and its help.

mod packets;
mod show;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;

use self::packets::CAPTURE_FILTER;
pub use self::packets::{Capture, Trace, Which};
pub use self::show::{Agent, Drops, Flows, Format, Output, Rows, Show, Sort};
use crate::config::{self, DEFAULT_PIN_DIR, DEFAULT_SERVICE};
use crate::index::Options;

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
  0  done; for `check`: nothing fails
  1  it failed: no agent answers, the dataplane cannot be set up, `check` found a FAIL
  2  the command line or the configuration is wrong

Environment:
  GUIDEWAY_LOG         what `run` and `controller` log, such as `info` (default) or `debug,control::watch=trace`
  GUIDEWAY_LOG_FORMAT  `text` (default), or `json`: an object on each line
  GUIDEWAY_SOCKET      the agent's socket, where neither --socket nor --config names it";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: program the dataplane and keep it equal to the configuration
    ///
    /// The file is read again on SIGHUP and whenever it changes; a file with an error is reported
    /// and the last good state stays in force. SIGTERM and SIGINT end the agent and leave
    /// everything attached: traffic goes on, and the next start takes over. `guideway detach`
    /// removes everything.
    Run(Run),
    /// Hand out load-balancer addresses to the Services of a Kubernetes cluster
    ///
    /// One of the controllers that run acts, by the Lease guideway-controller; the others take over when it ends.
    /// Addresses come from LoadBalancerPools, and are written to the status of Services of type LoadBalancer.
    /// The API server is found as kubectl finds it: by KUBECONFIG, ~/.kube/config, or the service
    /// account of the pod.
    Controller(Controller),
    /// Tell whether this machine can run Guideway, and what to do if not
    Check(Check),
    /// Show how the agent is: configuration, interfaces, tables
    Status(Show),
    /// Show the services with their traffic
    Services(Rows),
    /// Show the backends of each service with their shares, next hops and traffic
    Backends(Rows),
    /// List the flows that this machine knows: those of its pods, and those of NAT mode
    ///
    /// An edge remembers no others: in the other modes nothing is noted of a flow on its way.
    Flows(Flows),
    /// Show why packets were dropped, passed on to the kernel, or failed to leave
    Drops(Drops),
    /// Tell which backend a flow gets, and why
    Which(Which),
    /// Follow one packet through the datapath's code, step by step
    ///
    /// The packet is the first one of the flow, or the frame given. Nothing is remembered and nothing
    /// counted. Where the datapath asks the kernel's FIB, so does this, by netlink: rules for an interface
    /// apart, it answers the same, but of several equal paths it may take another.
    Trace(Trace),
    /// Write packets as they come and as they leave to a file for Wireshark or tshark
    ///
    /// tcpdump sees no packet that XDP forwards or drops. The file is pcapng: each packet as it came in and,
    /// unless it was dropped, as it left, with the verdict, the service and the backend as its comment.
    /// Replies that pods send are not among them: those tcpdump sees.
    ///
    /// The datapath pays for it while it lasts only; sample and filter where there is much traffic.
    #[command(after_help = CAPTURE_FILTER)]
    Capture(Capture),
    /// Change what a running agent or controller logs
    ///
    /// It is sent a signal: SIGUSR1 for `debug`, SIGUSR2 for what its GUIDEWAY_LOG says.
    Log(Log),
    /// Take the program off every interface and remove everything pinned
    ///
    /// A running agent is told to do it and ends.
    Detach(Detach),
    /// Show the settings in force: the file's, and the defaults of those that it leaves out
    ///
    /// Services and nodes are not among them, and neither is the seed of the flow hash, which is a secret.
    Config(Settings),
    /// Tell the version of this program, and of the agent that runs
    Version(Settings),
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

/// Options of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Take services and nodes from the Kubernetes API, and only the machine's settings from the file
    ///
    /// The API server is found as kubectl finds it: by KUBECONFIG, ~/.kube/config, or the service
    /// account of the pod.
    #[arg(long)]
    pub kubernetes: bool,
}

/// Options of `controller`.
#[derive(Debug, Args)]
pub struct Controller {
    /// Where the Lease and the Secret with the seed are [default: $POD_NAMESPACE, or guideway-system]
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The spec.loadBalancerClass of the Services that get addresses
    #[arg(long, value_name = "CLASS", default_value = Options::DEFAULT_CLASS)]
    pub load_balancer_class: String,
    /// Give addresses to Services without a class too: no other implementation may do so
    #[arg(long)]
    pub default_class: bool,
    /// The headless Service whose EndpointSlices have the edges outside the cluster; agents: kubernetes.service
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SERVICE)]
    pub service: String,
    /// Networks and addresses within which agents serve spec.externalIPs; agents: kubernetes.external_ips
    #[arg(long, value_name = "NET", value_delimiter = ',', value_parser = network)]
    pub external_ips: Vec<IpNet>,
    /// Serve /metrics, /livez and /readyz here
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// How long a controller that is gone without a word keeps others from acting
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub lease_duration: u32,
    /// Print the definition of LoadBalancerPool and end
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
    /// The process, such as 1 within the container of a controller [default: the agent at the socket]
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

fn network(text: &str) -> Result<IpNet, String> {
    let network = config::parse_network(text);
    network.ok_or_else(|| "write it like 192.0.2.0/24, 192.0.2.7 or 2001:db8::/64".to_owned())
}

#[cfg(test)]
mod tests;
