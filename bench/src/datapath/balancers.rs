//! Counts the instructions per packet of whole load balancers: Guideway's, and those that people run today.
//!
//! It runs on a machine whose clock counts instructions; see [`super::instructions`]. There, the time of everything
//! between two clock readings is known to the instruction, so the kernel's own ways can be counted too:
//!
//! ```text
//! generator --live frames--> near ===veth=== far: the balancer, on a machine of its own
//!                            near: sink <----'
//! ```
//!
//! All get the same frames, with right checksums, from the same generator. They arrive as a NIC's driver hands them
//! over: an XDP program runs before there is a socket buffer, and for the kernel's own ways veth makes one, with GRO as
//! NICs have it. What the generator, one veth and the sink take is measured as the direct wire, and taken off.
//!
//! Before a balancer is counted, frames are sent one by one. Each must come out for one of the backends, intact and with
//! right checksums, later ones for the same as the first one of their flow; all backends must be used. Where answers
//! pass the balancer, they are sent too, and must come out as from the address of the Service. In counted trials no
//! frame may be missing. New flows of TCP are SYNs.
//!
//! kube-proxy's rules are those of a running kube-proxy, see [`rules`].

mod edge;
mod packets;
pub mod rules;
mod table;
mod wire;

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use xdp_prog::bench::client;

pub use self::table::table;
use self::{
    edge::{Edge, Ours},
    wire::{End, Wire},
};
use super::{
    frames::{self, Family, PORT, Protocol},
    tables::{self, plus},
};
use crate::{
    host::{self, Facts},
    stats::median,
};

/// Known flows, which take turns.
const ESTABLISHED: u32 = 1_000;
/// Frames of a trial with known flows.
const FRAMES: u32 = 8_000;
/// Frames of a trial with new flows: one of each. They are few, because kube-proxy goes through thousands of rules for
/// each of them in one of its modes.
const NEW: u32 = 2_000;
/// Trials. Their median is not affected by a single one in which the kernel did other work.
const TRIALS: u32 = 3;
/// Number of backends of a Service.
const BACKENDS: u8 = 3;
/// Most Services that flows go to.
const MOST_TRIED: u32 = 16;

/// What stands between the two ends of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balancer {
    /// An XDP program that sends every frame back.
    Null,
    /// Linux routing, without a rule.
    Routing,
    /// Guideway, by IPIP.
    OursIpip,
    /// Guideway, by NAT.
    OursNat,
    /// The rules of kube-proxy's nftables mode.
    KubeProxyNftables,
    /// The rules of kube-proxy's iptables mode.
    KubeProxyIptables,
    /// IPVS, by IPIP.
    IpvsIpip,
    /// IPVS, by NAT, which it calls masquerading.
    IpvsNat,
}

/// What is counted, with numbers of Services. Of what does not depend on that number, there is one.
const COUNTED: [(Balancer, &[u32]); 8] = [
    (Balancer::Null, &[1]),
    (Balancer::Routing, &[1]),
    (Balancer::OursIpip, &[1, 1_000]),
    (Balancer::OursNat, &[1, 1_000]),
    (Balancer::KubeProxyNftables, &[1, 1_000]),
    (Balancer::KubeProxyIptables, &[1, 1_000]),
    (Balancer::IpvsIpip, &[1]),
    (Balancer::IpvsNat, &[1]),
];

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It goes on as it came.
    Unchanged,
    /// It gets an outer header.
    Encapsulated,
    /// It goes to the address and port of a backend.
    Translated {
        /// Whether the source is the balancer's own.
        is_masqueraded: bool,
    },
}

impl Balancer {
    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Routing => "routing",
            Self::OursIpip => "ours-ipip",
            Self::OursNat => "ours-nat",
            Self::KubeProxyNftables => "kube-proxy-nftables",
            Self::KubeProxyIptables => "kube-proxy-iptables",
            Self::IpvsIpip => "ipvs-ipip",
            Self::IpvsNat => "ipvs-nat",
        }
    }

    const fn way(self) -> Way {
        match self {
            Self::Null | Self::Routing => Way::Unchanged,
            Self::OursIpip | Self::IpvsIpip => Way::Encapsulated,
            Self::OursNat | Self::KubeProxyNftables | Self::KubeProxyIptables => Way::Translated {
                is_masqueraded: true,
            },
            Self::IpvsNat => Way::Translated {
                is_masqueraded: false,
            },
        }
    }
}

/// Whether the balancer has seen a packet's flow before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flows {
    /// A thousand flows, each of which has had packets.
    Established,
    /// Each packet is the first one of its flow.
    New,
}

/// The instructions per packet of one balancer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was counted.
    pub balancer: Balancer,
    /// Number of Services that it has.
    pub services: u32,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Kind of flows.
    pub flows: Flows,
    /// Instructions per packet beyond the direct wire: median of the trials.
    pub instructions: f64,
    /// The lowest and the highest trial.
    pub range: [f64; 2],
    /// Instructions per packet of the direct wire.
    pub direct: f64,
    /// Kernel release of the counting machine.
    pub kernel: String,
    /// Date of the count, as `YYYY-MM-DD`.
    pub date: String,
}

/// The packets of a trial.
#[derive(Clone, Copy, Debug)]
struct Case {
    family: Family,
    protocol: Protocol,
    services: u32,
}

impl Case {
    /// Returns the client and the Service of a flow. Flows use Services at equal distances, from the first on. Cases with
    /// other numbers of Services have other clients.
    fn ends_of(self, flow: u32) -> (SocketAddr, SocketAddr) {
        let (bits, port) = client(flow);
        let tried = self.services.min(MOST_TRIED);
        let service = service(self.family, flow % tried * self.services / tried);
        let client = plus(tables::addresses(self.family).client, bits + self.services);
        ((client, port).into(), (service, PORT).into())
    }
}

/// Returns the address of a Service: each has its own.
fn service(family: Family, number: u32) -> IpAddr {
    plus(tables::addresses(family).vip, number)
}

/// Returns the address of a backend.
fn backends(family: Family) -> [IpAddr; BACKENDS as usize] {
    std::array::from_fn(|index| {
        let index = u8::try_from(index).expect("there are few backends");
        frames::node(family, index)
    })
}

/// Counts all balancers with UDP, with kube-proxy's rules from a directory; sizes whose rules it lacks are left out. Each row is
/// passed to `found` at once, because counting takes minutes.
///
/// # Errors
///
/// When the kernel refuses something, a program is missing, or a balancer does not balance or loses frames.
pub fn count(rules: &Path, found: &(dyn Fn(&Row) + Sync)) -> Result<()> {
    // With no priority over others: the last frames of a trial may be the kernel's thread's (ksoftirqd).
    host::preflight()?;
    let facts = Facts::collect();
    let mut ours = Ours::load()?;
    count_protocol(Protocol::Udp, rules, &mut ours, &facts, found)
}

fn count_protocol(
    protocol: Protocol,
    rules: &Path,
    ours: &mut Ours,
    facts: &Facts,
    found: &(dyn Fn(&Row) + Sync),
) -> Result<()> {
    let direct = count_direct(protocol).context("the direct wire")?;
    for (balancer, sizes) in COUNTED {
        for &services in sizes {
            let edge = Edge {
                balancer,
                services,
                protocol,
                rules,
            };
            if edge.has_rules() {
                let trials = count_edge(edge, ours);
                let trials = trials.with_context(|| format!("{} x {services}", balancer.name()))?;
                for (family, flows, trials) in trials {
                    let direct = direct[usize::from(family == Family::V6)];
                    found(&Row::new(edge, family, flows, &trials, direct, facts));
                }
            }
        }
    }
    Ok(())
}

impl Row {
    fn new(
        edge: Edge<'_>,
        family: Family,
        flows: Flows,
        trials: &[f64],
        direct: f64,
        facts: &Facts,
    ) -> Self {
        let beyond = |cost: f64| ((cost - direct) * 10.0).round() / 10.0;
        let lowest = trials.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = trials.iter().copied().fold(0.0, f64::max);
        Self {
            balancer: edge.balancer,
            services: edge.services,
            family,
            protocol: edge.protocol,
            flows,
            instructions: beyond(median(trials)),
            range: [beyond(lowest), beyond(highest)],
            direct: (direct * 10.0).round() / 10.0,
            kernel: facts.kernel.clone(),
            date: facts.date.clone(),
        }
    }
}

/// Returns the instructions per packet of generator, one veth and sink, for each family.
fn count_direct(protocol: Protocol) -> Result<[f64; 2]> {
    let mut wire = Wire::lay()?;
    wire.attach_sink(End::Far)?;
    let mut of_family = |family| {
        let case = Case {
            family,
            protocol,
            services: 1,
        };
        wire.set_frames(case, Way::Unchanged)?;
        let trials = established(&mut wire)?;
        ensure!(
            trials.iter().all(|cost| *cost > 1.0),
            "{trials:?} ns for a frame: does this machine's clock count instructions?"
        );
        anyhow::Ok(median(&trials))
    };
    Ok([of_family(Family::V4)?, of_family(Family::V6)?])
}

type Trials = Vec<(Family, Flows, Vec<f64>)>;

/// Brings a balancer up, has it prove itself, and counts.
fn count_edge(edge: Edge<'_>, ours: &mut Ours) -> Result<Trials> {
    let mut wire = Wire::lay()?;
    let way = edge.balancer.way();
    let case = |family| Case {
        family,
        protocol: edge.protocol,
        services: edge.services,
    };
    edge.bring_up(&mut wire, ours)?;
    for family in Family::ALL {
        wire.prove(case(family), way)
            .with_context(|| format!("IP{} does not get through", super::report::lower(family)))?;
    }
    wire.attach_sink(End::Near)?;
    let mut found = Vec::new();
    for family in Family::ALL {
        wire.set_frames(case(family), way)?;
        found.push((family, Flows::Established, established(&mut wire)?));
        let trial = |trial| wire.send(ESTABLISHED + trial * NEW, wire::LISTED, NEW);
        let new = (0..TRIALS).map(trial).collect::<Result<_>>()?;
        found.push((family, Flows::New, new));
    }
    Ok(found)
}

/// Counts packets of known flows, after each has had two.
fn established(wire: &mut Wire) -> Result<Vec<f64>> {
    wire.settle()?;
    wire.send(0, ESTABLISHED, 2 * ESTABLISHED)?;
    let trial = |_| wire.send(0, ESTABLISHED, FRAMES);
    (0..TRIALS).map(trial).collect()
}
