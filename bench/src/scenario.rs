//! Scenarios: what to measure, read from a YAML file.
//!
//! ```yaml
//! name: udp
//! wire: lab
//! systems: [direct, ours-ipip, kube-proxy-nftables]
//! services: 1000
//! loads:
//!   - { generator: sockets, schedule: constant, rate: 1000, flows: 16, frame_bytes: 64 }
//!   - { generator: live, family: ipv6, protocol: tcp, schedule: max, flows: 1000, frame_bytes: imix }
//! seconds: 5
//! rounds: 8
//! seed: 1
//! event: { what: agent-restart, at: 2 }
//! ```
//!
//! Every problem of a file is reported at once, with line and column and what to write instead. Nothing is sent
//! before the whole file is right.

mod load;
mod ports;
mod read;
mod system;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(test)]
pub(crate) use load::tests::load;
pub use load::{
    AddressFamily, Background, Exchange, FlowOrder, FrameSize, GeneratorKind, LARGEST_FRAME, Load,
    ReferenceRate, SMALLEST_FRAME, Schedule, SearchKind, Segment, ShareOfSearch, ShareOfSystem,
    Stamps,
};
pub use ports::{BACKEND_PORT, Commands, Port, Ports, UnderTest, hop_of};
pub use read::{Problem, ScenarioError};
pub use system::{DeviceName, System};

use crate::{datapath::Protocol, result::Stream};

/// Fewest rounds: the 95 % interval of a median lies within the samples from six on.
pub const LEAST_ROUNDS: u32 = 6;
/// Most Services of a load balancer.
pub const MOST_SERVICES: u32 = 10_000;
/// Most Services that flows go to: each is a socket at every backend.
pub const MOST_TRIED: u32 = 16;
/// Most Services with a NodePort each: those of Kubernetes' range.
pub const MOST_NODE_PORTS: u32 = 2_768;

/// What to measure: each system under each load, in so many rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// The network between generator and system.
    pub wire: WireKind,
    /// The systems, in the order of the first round.
    pub systems: Vec<System>,
    /// Services that each load balancer has. The flows of a load go to some of them, at equal distances.
    pub services: u32,
    /// The loads.
    pub loads: Vec<Load>,
    /// Seconds of a trial.
    pub seconds: f64,
    /// Rounds that count. In each, every system has one trial under each load; every other round goes backwards.
    pub rounds: u32,
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// What happens to systems in each trial.
    pub event: Option<Event>,
    /// The network cards of the wires `ports` and `reflector`; `null` with others.
    pub ports: Option<Ports>,
    /// The devices under test of these wires.
    pub under_test: Vec<UnderTest>,
}

impl Scenario {
    /// Returns the quantities that are measured of each request of a load. Another machine has another clock: when it has
    /// read a request is not known here.
    pub fn streams(&self, load: &Load) -> Vec<Stream> {
        let all = load.generator.streams().iter().copied();
        all.filter(|stream| match stream {
            Stream::Forward => self.wire != WireKind::Reflector,
            Stream::RoundTripStamped => load.stamps != Stamps::None,
            Stream::RoundTrip | Stream::RoundTripUncorrected | Stream::Lateness => true,
        })
        .collect()
    }

    /// Returns the rates that must be found before the first trial, each once.
    pub fn reference_rates(&self) -> Vec<ReferenceRate> {
        let mut rates = Vec::new();
        for load in &self.loads {
            let of_load = self.systems.iter();
            for rate in of_load.filter_map(|system| load.reference_rate(*system)) {
                if !rates.contains(&rate) {
                    rates.push(rate);
                }
            }
        }
        rates
    }

    /// Tells whether the client's card is to stamp frames.
    pub fn has_stamps_of_cards(&self) -> bool {
        self.loads.iter().any(|load| load.stamps == Stamps::Card)
    }

    /// Returns the device under test that a system is; `None` for one that a run sets up itself.
    pub fn device_of(&self, system: System) -> Option<&UnderTest> {
        let name = system.to_string();
        self.under_test.iter().find(|one| one.name == name)
    }
}

/// Something that happens to the balancer of a system while a trial runs. After the trial, all is as before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// What happens.
    pub what: EventKind,
    /// Seconds from the begin of the trial.
    pub at: f64,
}

/// What happens to a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The agent of Guideway's edge, or kube-proxy, ends, and another one starts.
    AgentRestart,
    /// The Services that flows go to lose their last backend. Any other may answer its flows.
    BackendChange,
    /// Services that no flow goes to lose their last backend: up to 256 at once.
    OtherServices,
}

impl EventKind {
    /// Tells whether flows may go to another backend from then on.
    pub fn moves_flows(self) -> bool {
        self == Self::BackendChange
    }
}

/// A network between generator and system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WireKind {
    /// Namespaces of this machine, connected by veth and a bridge.
    Lab,
    /// Two network cards of this machine: out by one, through a device under test, in by the other.
    Ports,
    /// A network card of this machine, and another machine that answers.
    Reflector,
    /// A veth pair with the program under test at one end: that of `guideway-bench datapath` alone.
    Pair,
}

impl fmt::Display for WireKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lab => "lab",
            Self::Ports => "ports",
            Self::Reflector => "reflector",
            Self::Pair => "pair",
        })
    }
}

impl Named for WireKind {
    /// Those that a scenario can ask for.
    const NAMES: &'static [(&'static str, Self)] = &[
        ("lab", Self::Lab),
        ("ports", Self::Ports),
        ("reflector", Self::Reflector),
    ];
}

/// A type whose values have names in scenarios.
pub trait Named: Copy + 'static {
    /// All values with their names.
    const NAMES: &'static [(&'static str, Self)];
}

macro_rules! names {
    ($($type:ty { $($name:literal: $value:expr),* })*) => {$(
        impl Named for $type {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, $value)),*];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = Self::NAMES.iter().find(|(_, value)| value == self);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }
    )*};
}

names! {
    EventKind {
        "agent-restart": Self::AgentRestart,
        "backend-change": Self::BackendChange,
        "other-services": Self::OtherServices
    }
    GeneratorKind {
        "sockets": Self::Sockets,
        "live": Self::Live,
        "afxdp": Self::Afxdp,
        "pktgen": Self::Pktgen
    }
    Exchange { "rr": Self::Rr, "crr": Self::Crr, "connect": Self::Connect, "http": Self::Http }
    Segment { "data": Self::Data, "syn": Self::Syn }
    AddressFamily { "ipv4": Self::Ipv4, "ipv6": Self::Ipv6 }
    Protocol { "udp": Self::Udp, "tcp": Self::Tcp }
    Schedule {
        "constant": Self::Constant,
        "poisson": Self::Poisson,
        "burst": Self::Burst,
        "ramp": Self::Ramp,
        "step": Self::Step,
        "max": Self::Max
    }
    SearchKind {
        "none": Self::None,
        "ndr": Self::Ndr,
        "pdr": Self::Pdr,
        "rfc2544": Self::Rfc2544,
        "rfc2544-loss": Self::Rfc2544Loss
    }
    Stamps { "none": Self::None, "kernel": Self::Kernel, "card": Self::Card }
    FlowOrder { "in-turn": Self::InTurn, "uniform": Self::Uniform, "zipf": Self::Zipf }
}
