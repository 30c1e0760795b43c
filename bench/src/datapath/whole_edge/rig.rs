//! The devices, programs and forwarders, and single trials with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use aya::{Ebpf, EbpfLoader};
use fastpath::{
    attach,
    load::{Loaded, Loader},
    mend::Queue,
    tables::Tables,
    whole_edge::{EdgeOutcome, EdgeReader, WholeEdge},
};
use lab::Namespace;
use xdp_prog::{
    abi::Traffic,
    bench::{map, program},
};

use super::{Family, Forwarder, Protocol, STREAM, System, Trial};
use crate::{
    bare::{Bare, Redirect},
    datapath::{
        frames::{self, PORT},
        object,
        pairs::{self, Pair},
        tables,
        two_cores::beside,
    },
    host,
};

/// What a veth pair leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cable {
    Bare,
    Edge,
}

/// Creates the veth pairs. Must be called outside the namespace.
pub(super) fn cable(namespace: &Namespace) -> Result<BTreeMap<Cable, Pair>> {
    pairs::create(namespace, [Cable::Bare, Cable::Edge], pairs::MTU)
}

/// A whole edge with its tables.
struct Edge {
    _threads: WholeEdge,
    _tables: Tables,
    _product: Loaded,
    reader: EdgeReader,
}

impl Edge {
    /// Serves what comes by the far end of a pair. The thread has the core and the priority of the calling one.
    fn start(pair: &Pair) -> Result<Self> {
        let mut product = Loader::unpinned().whole_edge().load()?;
        let mut tables = Tables::open(&product)?;
        tables::fill_edge(&mut tables, pair.far)?;
        product.attach(&pair.far_name, &attach::Options::default())?;
        let mut threads = WholeEdge::start(&product, &mut tables)?;
        threads.follow(&BTreeSet::from([Queue {
            interface: pair.far_name.clone(),
            device: pair.far,
            queue: 0,
        }]))?;
        Ok(Self {
            reader: threads.reader(),
            _threads: threads,
            _tables: tables,
            _product: product,
        })
    }

    /// Returns how many frames its thread has taken, and sent.
    fn counts(&self) -> [u64; 2] {
        [EdgeOutcome::Taken, EdgeOutcome::Sent].map(|outcome| self.reader.of(outcome))
    }
}

pub(super) struct Rig {
    bench: Ebpf,
    cables: BTreeMap<Cable, Pair>,
    bare: Bare,
    _redirect: Redirect,
    edge: Edge,
    /// The core that forwarders run on.
    core: usize,
    /// Number of frames sent so far.
    sent: u32,
}

impl Rig {
    /// Loads, attaches and starts everything, and has the calling thread send from the second core. Must be called inside
    /// the namespace.
    pub(super) fn new(
        namespace: &Namespace,
        cables: BTreeMap<Cable, Pair>,
        [core, sender]: [usize; 2],
    ) -> Result<Self> {
        let mut bench = EbpfLoader::new()
            .load(fastpath::object::bench_bytes())
            .context("loading the bench's BPF object")?;
        for name in [program::GENERATE_V4, program::GENERATE_V6, program::SINK] {
            object::xdp_mut(&mut bench, name)?.load()?;
        }
        for pair in cables.values() {
            object::attach(&mut bench, program::SINK, pair.near)?;
        }
        let at_bare = namespace.link(&cables[&Cable::Bare].far_name)?;
        let bare = Bare::open(at_bare.name())?;
        let redirect = Redirect::attach(&at_bare, bare.socket())?;
        host::move_to_core(core)?;
        let edge = Edge::start(&cables[&Cable::Edge])?;
        host::move_to_core(sender)?;
        Ok(Self {
            bench,
            cables,
            bare,
            _redirect: redirect,
            edge,
            core,
            sent: 0,
        })
    }

    /// Sends frames through a forwarder.
    pub(super) fn trial(
        &mut self,
        forwarder: Forwarder,
        family: Family,
        protocol: Protocol,
        frames: u32,
    ) -> Result<Trial> {
        let service = |system: System| tables::service(system, family, protocol);
        let service = forwarder.system().and_then(service);
        let port = service.map_or(PORT, |service| service.port);
        let frame = frames::frame(family, protocol, port);
        object::set_stream(&mut self.bench, STREAM, self.sent)?;
        self.sent = self.sent.wrapping_add(frames);
        let generator = object::generate(&mut self.bench, family, &frame)?;
        let (bench, core) = (&mut self.bench, self.core);
        let mut send = |cable| {
            let device = self.cables[&cable].near;
            let length = frame.len() + forwarder.outer(family);
            send(bench, generator, &frame, device, frames, length).with_context(|| forwarder.name())
        };
        if service.is_none() {
            return beside(&mut self.bare, core, || send(Cable::Bare));
        }
        let before = self.edge.counts();
        let trial = send(Cable::Edge)?;
        let [taken, sent] = self.edge.counts();
        let [taken, sent] = [taken - before[0], sent - before[1]];
        ensure!(
            taken == sent,
            "{}: the thread has sent {sent} of {taken} frames that it has taken: the figures would be of something else",
            forwarder.name()
        );
        Ok(trial)
    }
}

/// Sends live frames into a device, and waits until nothing more comes back. Each frame must come back with this length.
fn send(
    bench: &mut Ebpf,
    generator: &str,
    frame: &[u8],
    device: u32,
    frames: u32,
    length: usize,
) -> Result<Trial> {
    object::array(bench, map::RECEIVED)?.set(0, Traffic::default(), 0)?;
    let begin = Instant::now();
    object::send_live(bench, generator, frame, device, frames)?;
    let seconds = begin.elapsed().as_secs_f64();
    let returned = object::received(bench)?.packets;
    object::settle(|| Ok(object::received(bench)?.packets))?;
    let all = object::received(bench)?;
    let expected = all.packets * length as u64;
    ensure!(
        all.packets > 0 && all.bytes == expected,
        "the sink got {} frames of {} bytes in all, expected some, of {length} bytes each",
        all.packets,
        all.bytes
    );
    Ok(Trial {
        sent: frames,
        returned,
        seconds,
    })
}
