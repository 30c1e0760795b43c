//! Options of the commands about single packets and flows: `which`, `trace` and `capture`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use super::{Agent, Format};
use crate::config::DEFAULT_PIN_DIR;
use crate::desired::ServiceKey;

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
    /// The namespace of the service
    #[arg(long, short, value_name = "NAMESPACE", requires = "service")]
    pub namespace: Option<String>,
    /// A frame to follow in place of the flow's first packet: hexadecimal digits from the Ethernet header on
    #[arg(long, value_name = "FRAME")]
    pub hex: Option<String>,
    /// The interface that the frame comes in on [default: the first one with the program]
    #[arg(long, short, value_name = "NAME")]
    pub interface: Option<String>,
    /// Where the agent is.
    #[command(flatten)]
    pub agent: Agent,
    /// How to print it.
    #[command(flatten)]
    pub format: Format,
}

pub(super) const CAPTURE_FILTER: &str = "\
Filter: a packet must meet all parts that are given
  host ADDRESS, net PREFIX   source or destination; up to two of them
  port NUMBER                source or destination; up to two of them
  tcp, udp, sctp, icmp
  service SERVICE            host, port and protocol of a service, by its address or its name. A
                             name of several ports means host and protocols alone
  forward, pass, drop, reply, to_client, to_node, punt
                             the verdict; any of them if several are given
  reason NAME                the reason, as `guideway drops` names it, except those of `fail`;
                             likewise
It looks into IP-in-IP and at the packet that an ICMP error quotes.

Examples:
  guideway capture service 192.0.2.10:80/tcp -w web.pcapng
  guideway capture service default/web:http -w web.pcapng
  guideway capture host 198.51.100.7 drop -w - | tshark -r - -V
  guideway capture --sample 1000 --duration 10 -w all.pcapng";

/// Options of `capture`.
#[derive(Debug, Args)]
pub struct Capture {
    /// Which packets [default: all]
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// The file; - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: PathBuf,
    /// Only packets that come in on this interface; may be given several times
    #[arg(long, short, value_name = "NAME")]
    pub interface: Vec<String>,
    /// End after NUMBER packets
    #[arg(long, short, value_name = "NUMBER")]
    pub count: Option<u64>,
    /// End after SECONDS
    #[arg(long, short, value_name = "SECONDS")]
    pub duration: Option<u32>,
    /// Take one packet out of NUMBER, chosen at random
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,
    /// Keep at most BYTES of each packet
    #[arg(long, short, value_name = "BYTES", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(64..=2048))]
    pub snaplen: u32,
    /// Where the agent is, for the names of services and backends, and for the packets that its threads take.
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
    /// The namespace of the service
    #[arg(long, short, value_name = "NAMESPACE", requires = "service")]
    pub namespace: Option<String>,
    /// Show instead what this machine serves at an address, and whether it announces the address
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

/// Reads what can mean one service: an address with port and protocol, or a name.
///
/// # Errors
///
/// When the text is neither.
pub fn one_service(text: &str) -> Result<String, String> {
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
