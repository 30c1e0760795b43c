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
mod judgement;
mod packets;
mod proof;
pub mod rules;
mod table;
mod wire;

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use xdp_prog::bench::client;

use self::{
    edge::{Edge, Ours},
    wire::{LISTED, Sink, Wire},
};
pub use self::{judgement::check_counted, table::table};
use super::{
    frames::{self, Family, PORT, Protocol},
    report::lower,
    tables::{self, plus},
};
use crate::{
    host::{self, Facts},
    stats::median,
};

/// Known flows, which take turns.
const ESTABLISHED: u16 = 1_000;
/// Frames of a trial with known flows.
const FRAMES: u32 = 8_000;
/// Frames of a trial with new flows: one of each. They are few, because kube-proxy goes through thousands of rules for
/// each of them in one of its modes.
const NEW: u16 = 4_000;
/// Trials. Their median is not affected by a single one in which the kernel did other work.
const TRIALS: u16 = 3;
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

/// Numbers of Services.
const SIZES: &[u32] = &[1, 1_000, 10_000];

/// What is counted, with numbers of Services. Of what does not depend on that number, there is one.
const COUNTED: [(Balancer, &[u32]); 8] = [
    (Balancer::Null, &[1]),
    (Balancer::Routing, &[1]),
    (Balancer::OursIpip, SIZES),
    (Balancer::OursNat, SIZES),
    (Balancer::KubeProxyNftables, SIZES),
    (Balancer::KubeProxyIptables, SIZES),
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

    /// Returns where frames that it lets through are counted.
    const fn sink(self) -> Sink {
        match self {
            Self::IpvsIpip => Sink::NearOfStack,
            _ => Sink::Near,
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

/// The instructions per packet of one balancer, as one machine counted them.
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
    /// Instructions per packet of each trial.
    pub trials: Vec<f64>,
    /// Those of the same packets on the direct wire.
    pub direct: Vec<f64>,
    /// Kernel release of the counting machine.
    pub kernel: String,
    /// Date of the count, as `YYYY-MM-DD`.
    pub date: String,
}

impl Row {
    /// Returns the instructions per packet beyond the direct wire.
    fn instructions(&self) -> f64 {
        median(&self.trials) - median(&self.direct)
    }
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
    fn ends_of(self, flow: u16) -> [SocketAddr; 2] {
        let (bits, port) = client(flow.into());
        let tried = self.services.min(MOST_TRIED);
        let service = service(self.family, u32::from(flow) % tried * self.services / tried);
        let client = plus(tables::addresses(self.family).client, bits + self.services);
        [(client, port).into(), (service, PORT).into()]
    }
}

/// Returns the address of a Service: each has its own.
fn service(family: Family, number: u32) -> IpAddr {
    plus(tables::addresses(family).vip, number)
}

/// Returns the addresses of the backends.
fn backends(family: Family) -> [IpAddr; BACKENDS as usize] {
    std::array::from_fn(|index| {
        let index = u8::try_from(index).expect("there are few backends");
        frames::node(family, index)
    })
}

/// Counts all balancers, kube-proxy with those numbers of Services whose rules a directory has. Each row is passed to `found` at
/// once, because counting takes minutes.
///
/// # Errors
///
/// When the kernel refuses something, a program is missing, or a balancer does not balance or loses frames.
pub fn count(rules: &Path, found: impl Fn(&Row)) -> Result<()> {
    // With no priority over others: the last frames of a trial may be the kernel's thread's (ksoftirqd).
    host::preflight()?;
    let facts = Facts::collect();
    let mut ours = Ours::load()?;
    for protocol in Protocol::ALL {
        let direct = count_direct(protocol).context("the direct wire")?;
        let edge = |(balancer, services)| Edge {
            balancer,
            services,
            protocol,
            rules,
        };
        for edge in each_size().map(edge).filter(|edge| edge.has_rules()) {
            let Edge {
                balancer, services, ..
            } = edge;
            let counted = count_edge(edge, &mut ours);
            let counted = counted.with_context(|| format!("{} x {services}", balancer.name()))?;
            for (counted, direct) in counted.into_iter().zip(&direct) {
                found(&Row {
                    balancer,
                    services,
                    family: counted.family,
                    protocol,
                    flows: counted.flows,
                    trials: counted.trials,
                    direct: direct.trials.clone(),
                    kernel: facts.kernel.clone(),
                    date: facts.date.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Returns each balancer with each number of Services.
fn each_size() -> impl Iterator<Item = (Balancer, u32)> {
    let each = |(balancer, sizes): (Balancer, &'static [u32])| {
        sizes.iter().map(move |services| (balancer, *services))
    };
    COUNTED.into_iter().flat_map(each)
}

/// Instructions per packet of the trials of one kind.
struct Counted {
    family: Family,
    flows: Flows,
    trials: Vec<f64>,
}

/// Counts generator, one veth and sink.
fn count_direct(protocol: Protocol) -> Result<Vec<Counted>> {
    let mut wire = Wire::lay()?;
    wire.attach_sink(Sink::Far)?;
    let mut counted = Vec::new();
    for family in Family::ALL {
        let case = Case {
            family,
            protocol,
            services: 1,
        };
        counted.extend(count_case(&mut wire, case, Way::Unchanged)?);
    }
    Ok(counted)
}

/// Brings a balancer up, has it prove itself, and counts.
fn count_edge(edge: Edge<'_>, ours: &mut Ours) -> Result<Vec<Counted>> {
    let mut wire = Wire::lay()?;
    let way = edge.balancer.way();
    let cases = Family::ALL.map(|family| Case {
        family,
        protocol: edge.protocol,
        services: edge.services,
    });
    edge.bring_up(&mut wire, ours)?;
    for case in cases {
        proof::prove(&wire, case, way)
            .with_context(|| format!("IP{} does not get through", lower(case.family)))?;
    }
    wire.attach_sink(edge.balancer.sink())?;
    let mut counted = Vec::new();
    for case in cases {
        counted.extend(count_case(&mut wire, case, way)?);
    }
    Ok(counted)
}

/// Counts packets of known flows, after each has had two, and of new flows.
fn count_case(wire: &mut Wire, case: Case, way: Way) -> Result<[Counted; 2]> {
    let family = case.family;
    wire.set_frames(case, way)?;
    wire.settle()?;
    wire.send(0, ESTABLISHED, 2 * u32::from(ESTABLISHED))?;
    let known = trials(|_| wire.send(0, ESTABLISHED, FRAMES))?;
    let new = trials(|trial| wire.send(ESTABLISHED + trial * NEW, LISTED, NEW.into()))?;
    let of = |(flows, trials)| Counted {
        family,
        flows,
        trials,
    };
    Ok([(Flows::Established, known), (Flows::New, new)].map(of))
}

/// Returns the instructions per packet of each trial, to a tenth.
fn trials(trial: impl FnMut(u16) -> Result<f64>) -> Result<Vec<f64>> {
    let trials = (0..TRIALS).map(trial);
    let rounded = trials.map(|trial| Ok((trial? * 10.0).round() / 10.0));
    rounded.collect()
}
