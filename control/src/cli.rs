//! The command line: what can be typed, and its help.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;

use crate::api::ServiceFilter;
use crate::config::{self, ConfigError, DEFAULT_PIN_DIR, DEFAULT_SERVICE, DEFAULT_SOCKET};
use crate::desired::ServiceKey;
use crate::index::Options;
use crate::reasons::{self, Explanation};

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

/// Where the agent is.
#[derive(Debug, Args)]
pub struct Agent {
    /// The agent's socket [default: that of --config, or $GUIDEWAY_SOCKET, or /run/guideway/guideway.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub socket: Option<PathBuf>,
    /// The agent's configuration file, which says where its socket is
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl Agent {
    /// Returns the agent's socket.
    ///
    /// # Errors
    ///
    /// When the configuration file cannot be read.
    pub fn socket(&self) -> Result<PathBuf, ConfigError> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        if let Some(file) = &self.config {
            return config::socket(file);
        }
        let socket = std::env::var_os("GUIDEWAY_SOCKET").filter(|socket| !socket.is_empty());
        Ok(socket.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from))
    }
}

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A page of 80 columns.
    Table,
    /// A page with more columns.
    Wide,
    /// JSON, with everything there is.
    Json,
    /// The same as YAML.
    Yaml,
}

/// How an answer is written, by either of two options.
#[derive(Clone, Copy, Debug, Args)]
pub struct Format {
    /// How to print it
    #[arg(
        long,
        short,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub output: Output,
    /// Print JSON: the same as -o json
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
}

impl Format {
    /// Returns what is asked for.
    pub const fn output(self) -> Output {
        if self.json { Output::Json } else { self.output }
    }
}

/// Options of the commands that show something.
#[derive(Debug, Args)]
pub struct Show {
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
    /// Show it again every SECONDS (1 if not given), with rates per second
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
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

/// Options of `services` and `backends`.
#[derive(Debug, Args)]
pub struct Rows {
    /// Only this: NAME, NAMESPACE/NAME, either with :PORT behind it, or ADDRESS, ADDRESS:PORT, ADDRESS:PORT/PROTO
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    /// Only the services of this namespace
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Those with the most first
    #[arg(long, value_enum, value_name = "BY")]
    pub sort: Option<Sort>,
    /// Show what was counted: connections, packets, bytes
    ///
    /// Connections are the flows that this machine knows at the moment, those of pods here and those of NAT mode.
    /// An edge remembers no others.
    #[arg(long)]
    pub stats: bool,
    /// Show packets and bytes per second, of two samples a second apart
    #[arg(long, conflicts_with = "watch")]
    pub rate: bool,
    /// How to show it.
    #[command(flatten)]
    pub show: Show,
}

/// Options of `flows`.
#[derive(Debug, Args)]
pub struct Flows {
    /// Only those of this service, by its name or address as for `services`
    #[arg(value_name = "SERVICE")]
    pub service: Option<String>,
    /// Only those of services of this namespace
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Only those of this client
    #[arg(long, value_name = "ADDRESS")]
    pub client: Option<IpAddr>,
    /// Only those of this pod or backend
    #[arg(long, value_name = "ADDRESS")]
    pub backend: Option<IpAddr>,
    /// List so many at most, and say how many more there are
    #[arg(long, value_name = "NUMBER", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Packets per second.
    Rate,
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Flows that are known.
    Connections,
}

impl Rows {
    /// Returns which services are meant.
    pub fn filter(&self) -> ServiceFilter {
        ServiceFilter {
            service: self.service.clone(),
            namespace: self.namespace.clone(),
            connections: self.stats || self.sort == Some(Sort::Connections),
        }
    }

    /// Tells whether one answer alone does not do.
    pub fn needs_rates(&self) -> bool {
        self.rate || self.sort == Some(Sort::Rate)
    }
}

/// Options of `drops`.
#[derive(Debug, Args)]
pub struct Drops {
    /// How to show it.
    #[command(flatten)]
    pub show: Show,
    /// Show reasons without packets too
    #[arg(long, short)]
    pub all: bool,
    /// Tell what a reason means, how it comes about and what to do; this needs no agent
    #[arg(long, value_name = "REASON", value_parser = reasons::parse)]
    pub explain: Option<Explanation>,
}

/// Options of `trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// The service, such as 192.0.2.10:80/tcp or default/web:http
    #[arg(long, short, value_name = "SERVICE", required_unless_present = "hex", value_parser = one_service)]
    pub service: Option<String>,
    /// The client's address and port.
    #[arg(
        long,
        short,
        value_name = "IP:PORT",
        required_unless_present = "hex",
        help = "The client, such as 198.51.100.7:40000 or [2001:db8::7]:40000"
    )]
    pub from: Option<SocketAddr>,
    /// A frame in place of the flow's first one: hexadecimal digits from the Ethernet header on
    #[arg(long, value_name = "FRAME")]
    pub hex: Option<String>,
    /// The interface that the frame comes in by [default: the first one with the program]
    #[arg(long, short, value_name = "NAME")]
    pub interface: Option<String>,
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

const CAPTURE_FILTER: &str = "\
Filter: all of these that are given must hold
  host ADDRESS, net PREFIX   source or destination; up to two of them
  port NUMBER                source or destination; up to two of them
  tcp, udp, sctp, icmp
  service VIP:PORT/PROTO     the same as host, port and protocol of a service
  forward, pass, drop, reply, to_client
                             what became of it; one of them if several are given
  reason NAME                why, as `guideway drops` names it, but none of `fail`; likewise
It looks into IP-in-IP and at the packet that an ICMP error quotes.

Examples:
  guideway capture service 192.0.2.10:80/tcp -w web.pcapng
  guideway capture host 198.51.100.7 drop -w - | tshark -r - -V
  guideway capture --sample 1000 --duration 10 -w all.pcapng";

/// Options of `capture`.
#[derive(Debug, Args)]
pub struct Capture {
    /// Which packets; all without it
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// The file; - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: PathBuf,
    /// Only what comes in on this interface; may be given several times
    #[arg(long, short, value_name = "NAME")]
    pub interface: Vec<String>,
    /// End after so many packets
    #[arg(long, short, value_name = "NUMBER")]
    pub count: Option<u64>,
    /// End after so many seconds
    #[arg(long, short, value_name = "SECONDS")]
    pub duration: Option<u32>,
    /// Take one packet out of NUMBER, chosen at random
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,
    /// Keep so many bytes of each packet
    #[arg(long, short, value_name = "BYTES", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(64..=2048))]
    pub snaplen: u32,
    /// Where the agent is, for the names of services and backends.
    #[command(flatten)]
    pub agent: Agent,
    /// Where the agent's pins are
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
    pub pin_dir: PathBuf,
}

/// Options of `which`.
#[derive(Debug, Args)]
pub struct Which {
    /// The service, such as 192.0.2.10:80/tcp or default/web:http
    #[arg(long, short, value_name = "SERVICE", required_unless_present = "address", value_parser = one_service)]
    pub service: Option<String>,
    /// Tell in place of this what this machine has at an address, and whether it announces it
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["service", "from"])]
    pub address: Option<IpAddr>,
    /// The client's address and port.
    #[arg(
        long,
        short,
        value_name = "IP:PORT",
        required_unless_present = "address",
        help = "The client, such as 198.51.100.7:40000 or [2001:db8::7]:40000"
    )]
    pub from: Option<SocketAddr>,
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

/// Reads what can mean one service: an address with port and protocol, or a name.
fn one_service(text: &str) -> Result<String, String> {
    let is_name = || {
        let is_address = text.parse::<SocketAddr>().is_ok() || text.parse::<IpAddr>().is_ok();
        !is_address && !text.is_empty() && text.matches(':').count() <= 1
    };
    if text.parse::<ServiceKey>().is_ok() || is_name() {
        return Ok(text.to_owned());
    }
    Err(
        "write it like 192.0.2.10:80/tcp, [2001:db8::1]:53/udp, or by its name: default/web:http"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn watch_takes_an_optional_number_of_seconds() {
        let watch = |arguments: &[&str]| {
            let cli = Cli::try_parse_from(["guideway", "status"].iter().chain(arguments));
            cli.map(|cli| match cli.command {
                Command::Status(show) => show.watch,
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(watch(&[]).unwrap(), None);
        assert_eq!(watch(&["--watch"]).unwrap(), Some(1));
        assert_eq!(watch(&["--watch", "5"]).unwrap(), Some(5));
        assert_eq!(watch(&["--watch", "0"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn agent_is_found_by_its_socket_and_by_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("edge.yaml");
        // Whatever else is wrong with it: an agent may go on with an earlier one.
        std::fs::write(&file, "hash_seed: x\napi: {socket: /a.sock}\n").unwrap();
        let socket = |socket: Option<&str>, config: Option<&PathBuf>| {
            let agent = Agent {
                socket: socket.map(PathBuf::from),
                config: config.cloned(),
            };
            agent.socket().map_err(|error| error.to_string())
        };
        assert_eq!(socket(Some("/b.sock"), None), Ok("/b.sock".into()));
        assert_eq!(socket(None, Some(&file)), Ok("/a.sock".into()));
        assert!(socket(None, Some(&directory.path().join("none"))).is_err());
        let both = ["guideway", "status", "--socket", "/b.sock", "--config", "x"];
        assert_eq!(Cli::try_parse_from(both).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn json_is_an_output_by_either_name() {
        let output = |words: &[&str]| {
            let words = ["guideway", "services"].iter().chain(words);
            Cli::try_parse_from(words).map(|cli| match cli.command {
                Command::Services(rows) => rows.show.format.output(),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(output(&[]).unwrap(), Output::Table);
        assert_eq!(output(&["--json"]).unwrap(), Output::Json);
        assert_eq!(output(&["-o", "json"]).unwrap(), Output::Json);
        assert_eq!(output(&["-o", "wide"]).unwrap(), Output::Wide);
        assert_eq!(
            output(&["--json", "-o", "yaml"]).unwrap_err().exit_code(),
            2
        );
    }

    #[test]
    fn controller_takes_networks_as_the_agents_file_does() {
        let controller = |networks: &str| {
            let option = format!("--external-ips={networks}");
            let cli = Cli::try_parse_from(["guideway", "controller", &option]);
            cli.map(|cli| match cli.command {
                Command::Controller(controller) => controller.external_ips,
                other => panic!("{other:?}"),
            })
        };
        let expected = ["192.0.2.0/24", "2001:db8::7/128"].map(|text| text.parse().unwrap());
        assert_eq!(controller("192.0.2.0/24,2001:db8::7").unwrap(), expected);
        for wrong in ["192.0.2.1/24", "web"] {
            assert_eq!(controller(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn which_takes_both_families() {
        let which = |service: &str, from: &str| {
            Cli::try_parse_from(["guideway", "which", "--service", service, "--from", from])
        };
        assert!(which("192.0.2.10:80/tcp", "198.51.100.7:40000").is_ok());
        assert!(which("[2001:db8::1]:53/udp", "[2001:db8::7]:40000").is_ok());
        for name in ["web", "default/web", "default/web:http", "web:80"] {
            assert!(which(name, "198.51.100.7:40000").is_ok(), "{name}");
        }
        assert_eq!(
            which("2001:db8::1:53/udp", "[::1]:1")
                .unwrap_err()
                .exit_code(),
            2
        );
        assert_eq!(
            which("192.0.2.10:80", "198.51.100.7:1")
                .unwrap_err()
                .exit_code(),
            2
        );
        assert_eq!(
            which("192.0.2.10:80/tcp", "198.51.100.7")
                .unwrap_err()
                .exit_code(),
            2
        );
    }
}
