//! Edges, with the thread that mends and without, and what their tables have.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use anyhow::{Result, ensure};
use fastpath::{
    attach,
    load::{Loaded, Loader},
    mend::{Limits, Mend, MendReader, Outcome, PreparedPair, Queue},
    nexthop::{NextHop, Resolution},
    tables::{BackendSpec, ForwardMode, ServiceKey, ServiceSpec, Settings, Tables},
};
use lab::wait_for;

use super::{
    FULL, Family, Protocol, Subject,
    cables::{Cable, Cables, MTU},
};
use crate::datapath::{
    frames,
    pairs::Pair,
    tables::{self, addresses},
};

/// Slots of a service's lookup table as a power of two: enough for a share of 1/1000 to have some.
const LOG2_SLOTS: u8 = 14;
/// Queues of the thread: that of the pair, and the one where pieces come back to XDP.
const QUEUES: usize = 2;
/// How long sockets of the thread, and packets that it has got, are waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The route to a node, by whose address a backend has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeRoute {
    /// Back by XDP, in packets of at most 1500 bytes.
    Plain = 0,
    /// The same, with room for a full packet in an outer header.
    Large = 1,
    /// By the bridge.
    Bridge = 2,
    /// To the sink of the pieces, in packets of at most 1500 bytes.
    Pieces = 3,
}

impl NodeRoute {
    const ALL: [Self; 4] = [Self::Plain, Self::Large, Self::Bridge, Self::Pieces];

    fn node(self, family: Family) -> IpAddr {
        frames::node(family, self as u8)
    }
}

impl Subject {
    /// Returns the backends, each as its route and weight; `None` for the loop, which has no service.
    const fn routes(self) -> Option<&'static [(NodeRoute, u32)]> {
        match self {
            Self::L2Fwd | Self::L2FwdBridge => None,
            Self::Alone | Self::Plain => Some(&[(NodeRoute::Plain, 1)]),
            Self::Thousandth => Some(&[(NodeRoute::Plain, 999), (NodeRoute::Bridge, 1)]),
            Self::Carried => Some(&[(NodeRoute::Bridge, 1)]),
            Self::Cut | Self::CutPaced => Some(&[(NodeRoute::Pieces, 1)]),
            Self::HalfCut => Some(&[(NodeRoute::Pieces, 1), (NodeRoute::Large, 1)]),
        }
    }

    /// Returns the port of its service.
    pub(super) const fn port(self) -> u16 {
        8000 + self as u16
    }
}

/// An edge with its tables.
pub(super) struct Edge {
    pub(super) product: Loaded,
    tables: Tables,
}

/// The thread that mends.
pub(super) struct Thread {
    reader: MendReader,
    _mend: Mend,
    _pair: PreparedPair,
}

impl Edge {
    /// Serves what comes by the far end of a pair. `mend` tells whether there will be the thread.
    pub(super) fn serve(pair: &Pair, cables: &Cables, mend: bool) -> Result<Self> {
        let mut product = Loader::unpinned().load()?;
        let mut tables = Tables::open(&product)?;
        fill(&mut tables, pair, cables, mend)?;
        product.attach(&pair.far_name, &attach::Options::default())?;
        Ok(Self { product, tables })
    }
}

impl Thread {
    /// Starts it for what comes by the far end of a pair. It has the core and the priority of the calling thread.
    pub(super) fn start(product: &mut Loaded, pair: &Pair) -> Result<Self> {
        let prepared = PreparedPair::prepare(product)?;
        let mend = Mend::start(product, &prepared, Limits::default())?;
        mend.follow(BTreeSet::from([Queue {
            interface: pair.far_name.clone(),
            device: pair.far,
            queue: 0,
        }]));
        let reader = mend.reader();
        wait_for("the thread has its sockets", PATIENCE, || {
            let queues = reader.queues();
            let is_open = queues.open == QUEUES;
            is_open
                .then_some(())
                .ok_or(format!("{:?}", queues.problems))
        })?;
        Ok(Self {
            reader,
            _mend: mend,
            _pair: prepared,
        })
    }
}

/// What became of packets for the thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    /// Packets that XDP has left for it.
    pub(super) punted: u64,
    /// Those that it has taken.
    taken: u64,
    /// Those that the kernel has lost before.
    pub(super) lost: u64,
    /// Those that it has sent by a device that takes no frames from XDP.
    carried: u64,
    /// Those that it has cut.
    cut: u64,
}

impl Ledger {
    pub(super) fn of(edge: &Edge, thread: &Thread) -> Self {
        let counts = thread.reader.counts();
        Self {
            punted: edge.tables.punted(),
            taken: counts.of(Outcome::Taken),
            lost: counts.losses().map(|(_, lost)| lost).sum(),
            carried: counts.of(Outcome::Carried),
            cut: counts.of(Outcome::Cut),
        }
    }

    pub(super) const fn since(self, earlier: Self) -> Self {
        Self {
            punted: self.punted - earlier.punted,
            taken: self.taken - earlier.taken,
            lost: self.lost - earlier.lost,
            carried: self.carried - earlier.carried,
            cut: self.cut - earlier.cut,
        }
    }

    /// Checks that no packet is missing, where `came` is the number of those that the thread's sink has got.
    pub(super) fn check(self, subject: Subject, came: u64) -> Result<()> {
        let Self {
            punted,
            taken,
            lost,
            carried,
            cut,
        } = self;
        ensure!(
            punted == taken + lost && taken == carried + cut,
            "of {punted} packets for the thread, the kernel has lost {lost}, and it has taken {taken}, carried {carried} and cut {cut}"
        );
        let is_right = match subject {
            // The sink is the loop's as well.
            Subject::L2FwdBridge => carried + cut == 0,
            _ if subject.is_cut() => came <= 2 * cut,
            _ => came == carried,
        };
        ensure!(
            is_right,
            "of {carried} packets that the thread has carried and {cut} that it has cut, {came} came"
        );
        Ok(())
    }
}

/// Fills what an edge has for all subjects.
fn fill(tables: &mut Tables, pair: &Pair, cables: &Cables, mend: bool) -> Result<()> {
    let settings = Settings {
        mend,
        ..Settings::default()
    };
    tables::fill_vips(tables, settings)?;
    for family in Family::ALL {
        for route in NodeRoute::ALL {
            let hop = NextHop {
                ifindex: match route {
                    NodeRoute::Plain | NodeRoute::Large => pair.far,
                    NodeRoute::Bridge => cables.bridge,
                    NodeRoute::Pieces => cables.pairs[&Cable::Pieces].far,
                },
                mtu: match route {
                    NodeRoute::Large => MTU,
                    _ => FULL.into(),
                },
                is_carried: route == NodeRoute::Bridge,
                ..tables::next_hop(family, pair.far)
            };
            tables.set_next_hop(route.node(family), Resolution::Resolved(hop))?;
        }
        for protocol in Protocol::ALL {
            for subject in Subject::ALL {
                let Some(routes) = subject.routes() else {
                    continue;
                };
                let backends = routes.iter();
                let backends =
                    backends.map(|(route, weight)| BackendSpec::node(route.node(family), *weight));
                let key = ServiceKey {
                    address: addresses(family).vip,
                    port: subject.port(),
                    protocol: protocol.into(),
                };
                let spec = ServiceSpec {
                    mode: ForwardMode::Ipip,
                    log2_slots: Some(LOG2_SLOTS),
                    backends: backends.collect(),
                    ..ServiceSpec::default()
                };
                tables.put_service(key, &spec)?;
            }
        }
    }
    Ok(())
}
