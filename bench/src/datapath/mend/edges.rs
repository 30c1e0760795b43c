//! Edges, with the thread that mends and without, and what their tables have.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastpath::{
    attach,
    load::{Loaded, Loader},
    mend::{Limits, Mend, MendReader, Outcome, PreparedPair, Queue},
    nexthop::{NextHop, Resolution},
    tables::{BackendSpec, ForwardMode, ServiceKey, ServiceSpec, Settings, Tables},
};

use super::{
    FULL, Family, Protocol, Subject,
    cables::{Cable, Cables, MTU},
};
use crate::datapath::{
    frames,
    pairs::Pair,
    tables::{self, addresses},
};

/// Slots of a service's lookup table as a power of two: enough for one of 1000 to be one.
const LOG2_SLOTS: u8 = 14;
/// Queues of the thread: that of the pair, and the one where pieces come back to XDP.
const QUEUES: usize = 2;
/// Pause between two looks whether its sockets are open, and how long they are waited for.
const LOOK: Duration = Duration::from_millis(20);
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The way to a node, which a backend takes its address from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Back by XDP, in packets of at most 1500 bytes.
    Plain = 0,
    /// The same, with room for a full packet in an outer header.
    Large = 1,
    /// By the bridge.
    Bridge = 2,
    /// To the sink of the pieces, in packets of at most 1500 bytes.
    Pieces = 3,
}

impl Way {
    const ALL: [Self; 4] = [Self::Plain, Self::Large, Self::Bridge, Self::Pieces];

    fn node(self, family: Family) -> IpAddr {
        frames::node(family, self as u8)
    }
}

impl Subject {
    /// Returns the backends, each as its way and weight; `None` for the loop, which has no service.
    const fn ways(self) -> Option<&'static [(Way, u32)]> {
        match self {
            Self::L2Fwd | Self::L2FwdBridge => None,
            Self::Alone | Self::Plain => Some(&[(Way::Plain, 1)]),
            Self::Thousandth => Some(&[(Way::Plain, 999), (Way::Bridge, 1)]),
            Self::Carried => Some(&[(Way::Bridge, 1)]),
            Self::Cut | Self::CutPaced => Some(&[(Way::Pieces, 1)]),
            Self::HalfCut => Some(&[(Way::Pieces, 1), (Way::Large, 1)]),
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
        let begin = Instant::now();
        while reader.queues().open < QUEUES {
            ensure!(
                begin.elapsed() < PATIENCE,
                "the thread opens no sockets: {:?}",
                reader.queues().problems
            );
            thread::sleep(LOOK);
        }
        Ok(Self {
            reader,
            _mend: mend,
            _pair: prepared,
        })
    }
}

/// What became of packets for the thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Packets that XDP has left for it.
    pub(super) punted: u64,
    /// Those that it has taken.
    taken: u64,
    /// Those that the kernel has lost before.
    lost: u64,
    /// Those that it has sent by a device that takes no frames from XDP.
    carried: u64,
}

impl Counts {
    pub(super) fn of(edge: &Edge, thread: &Thread) -> Self {
        let counts = thread.reader.counts();
        Self {
            punted: edge.tables.punted(),
            taken: counts.of(Outcome::Taken),
            lost: counts.losses().map(|(_, lost)| lost).sum(),
            carried: counts.of(Outcome::Carried),
        }
    }

    pub(super) const fn since(self, earlier: Self) -> Self {
        Self {
            punted: self.punted - earlier.punted,
            taken: self.taken - earlier.taken,
            lost: self.lost - earlier.lost,
            carried: self.carried - earlier.carried,
        }
    }

    /// Checks that each packet is somewhere, and that what the thread has carried has come: so many packets came where it sends.
    pub(super) fn check(self, subject: Subject, came: u64) -> Result<()> {
        let Self {
            punted,
            taken,
            lost,
            carried,
        } = self;
        ensure!(
            punted == taken + lost,
            "of {punted} packets for the thread, it has taken {taken} and the kernel has lost {lost}"
        );
        // Others come there, too: pieces, and those of the loop.
        let has_others = subject.is_cut() || subject == Subject::L2FwdBridge;
        ensure!(
            has_others || carried == came,
            "the thread has carried {carried} packets, of which {came} came"
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
        for way in Way::ALL {
            let hop = NextHop {
                ifindex: match way {
                    Way::Plain | Way::Large => pair.far,
                    Way::Bridge => cables.bridge,
                    Way::Pieces => cables.pairs[&Cable::Pieces].far,
                },
                mtu: match way {
                    Way::Large => MTU,
                    _ => FULL.into(),
                },
                is_carried: way == Way::Bridge,
                ..tables::next_hop(family, pair.far)
            };
            tables.set_next_hop(way.node(family), Resolution::Resolved(hop))?;
        }
        for protocol in Protocol::ALL {
            for subject in Subject::ALL {
                let Some(ways) = subject.ways() else { continue };
                let backends = ways.iter();
                let backends =
                    backends.map(|(way, weight)| BackendSpec::node(way.node(family), *weight));
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
