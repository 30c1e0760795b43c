//! The devices and programs of the datapath bench, and single trials with them.
//!
//! Each program under test has a veth pair of its own, so that no program is replaced during the run:
//!
//! ```text
//! generator --live frames--> near end ===veth=== far end: program under test
//!                            near end: sink <--------------XDP_TX--'
//! ```
//!
//! If the program passes frames to the stack, a TC program right behind the driver is the sink. A TC program
//! under test runs before it:
//!
//! ```text
//! generator --live frames--> near end ===veth=== far end: XDP program -> TC program under test -> sink
//! ```
//!
//! The TC programs run at ingress, because live frames cannot be made to arrive at egress. Programs see the
//! same kind of packet on both.
//!
//! Everything runs in the softirq of the core that the generator is bound to.

use std::{collections::BTreeMap, os::fd::OwnedFd};

use anyhow::{Context, Result, bail, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData},
    programs::{ProgramInfo, TcAttachType},
    sys::{Stats, enable_stats},
};
use fastpath::{
    attach, cpus,
    load::Loaded,
    tables::{TableReader, Tables},
};
use lab::Namespace;
use socket2::Socket;
use xdp_prog::{
    abi::{self, ServiceKeyV4, ServiceKeyV6, Traffic},
    bench::{map, program},
    reason::{PassReason, ReplyReason, ToClientReason, ToNodeReason},
};

use super::{
    Case, Stream, System,
    frames::{self, Family, PORT, Protocol, VIP_V4, VIP_V6},
    object::{
        array, attach, classifier, classifier_mut, generate, map_mut, send_live, set_stream, xdp,
        xdp_mut,
    },
    pairs::{self, Pair},
    past, paths, pod_sockets,
    tables::{self, KNOWN_FLOWS},
};
use crate::host;

/// The devices, programs and tables.
pub(super) struct Rig {
    bench: Ebpf,
    product: Loaded,
    tables: Tables,
    counters: TableReader,
    pairs: BTreeMap<&'static str, Pair>,
    /// Number of frames sent so far. The next trial continues with the flow after the last one.
    sent: u32,
    /// The core that everything runs on.
    core: usize,
    /// The ends of connections at the pod of the present case.
    connections: Vec<Socket>,
    /// Id of the backend that flows of the present case are pinned to.
    pinned_backend: u32,
}

/// The duration of sending frames.
struct Trial {
    /// Core time in seconds.
    seconds: f64,
    /// Whether a hypervisor took the core away meanwhile.
    is_stolen: bool,
}

/// Keeps the kernel's run statistics on while it exists.
pub(super) struct RunStatistics {
    _switch: OwnedFd,
}

impl RunStatistics {
    pub(super) fn enable() -> Result<Self> {
        let switch = enable_stats(Stats::RunTime).context("enabling BPF run statistics")?;
        Ok(Self { _switch: switch })
    }
}

/// Creates the veth pairs, and the addresses of a pod's connections. Must be called outside the namespace.
pub(super) fn cable(namespace: &Namespace) -> Result<Cables> {
    let cables = Cables(pairs::create(namespace, UNDER_TEST, pairs::MTU)?);
    pod_sockets::add_addresses(namespace)?;
    Ok(cables)
}

/// The device indices of each program's pair.
pub(super) struct Cables(BTreeMap<&'static str, Pair>);

const UNDER_TEST: [&str; 8] = [
    program::FLOOR,
    program::STATIC_V4,
    program::STATIC_V6,
    program::HIT_V4,
    program::HIT_V6,
    abi::XDP_PROGRAM,
    program::PASS,
    abi::EGRESS_PROGRAM,
];

/// Returns the TC programs on the far end of a pair, in their order.
fn tc_programs(pair: &str) -> &'static [&'static str] {
    match pair {
        abi::XDP_PROGRAM => &[program::SINK_SKB],
        program::PASS => &[program::PASS_SKB, program::SINK_SKB],
        abi::EGRESS_PROGRAM => &[abi::EGRESS_PROGRAM, program::SINK_SKB],
        _ => &[],
    }
}

/// Returns the pair that a system's frames use. A pair has the name of its XDP program.
fn pair_of(system: System, family: Family) -> &'static str {
    match system {
        System::PassSkb => program::PASS,
        _ => program_of(system, family),
    }
}

/// Returns the program of a system for a family.
fn program_of(system: System, family: Family) -> &'static str {
    match (system, family) {
        (System::Floor, _) => program::FLOOR,
        (System::Static, Family::V4) => program::STATIC_V4,
        (System::Static, Family::V6) => program::STATIC_V6,
        (System::Hit, Family::V4) => program::HIT_V4,
        (System::Hit, Family::V6) => program::HIT_V6,
        (System::Pass, _) => program::PASS,
        (System::PassSkb, _) => program::PASS_SKB,
        (System::Reply | System::OtherEgress, _) => abi::EGRESS_PROGRAM,
        _ => abi::XDP_PROGRAM,
    }
}

impl Rig {
    /// Loads and attaches everything. Must be called inside the namespace.
    pub(super) fn new(Cables(pairs): Cables, core: usize) -> Result<Self> {
        let mut bench = EbpfLoader::new()
            .load(fastpath::object::bench_bytes())
            .context("loading the bench's BPF object")?;
        let mut product = tables::load()?;
        let mut tables = Tables::open(&product)?;
        register_service(&mut bench)?;
        tables::fill(&mut tables, pairs[abi::XDP_PROGRAM].far)?;
        for name in [
            program::GENERATE_V4,
            program::GENERATE_V6,
            program::GENERATE_PATTERN,
            program::SINK,
            program::FLOOR,
            program::STATIC_V4,
            program::STATIC_V6,
            program::HIT_V4,
            program::HIT_V6,
            program::PASS,
        ] {
            xdp_mut(&mut bench, name)?.load()?;
        }
        for name in [program::PASS_SKB, program::SINK_SKB] {
            classifier_mut(&mut bench, name)?.load()?;
        }
        for (name, pair) in &pairs {
            attach(&mut bench, program::SINK, pair.near)?;
            match *name {
                abi::XDP_PROGRAM => {
                    product.attach(&pair.far_name, &attach::Options::default())?;
                }
                abi::EGRESS_PROGRAM => attach(&mut bench, program::PASS, pair.far)?,
                _ => attach(&mut bench, name, pair.far)?,
            }
            for program in tc_programs(name) {
                let classifier = match *program {
                    abi::EGRESS_PROGRAM => product.egress_program_mut(),
                    _ => classifier_mut(&mut bench, program)?,
                };
                classifier
                    .attach(&pair.far_name, TcAttachType::Ingress)
                    .with_context(|| format!("attaching {program}"))?;
            }
        }
        Ok(Self {
            counters: tables.reader(&product)?,
            bench,
            product,
            tables,
            pairs,
            sent: 0,
            core,
            connections: Vec::new(),
            pinned_backend: 0,
        })
    }

    /// Sets up templates and flows for the following trials.
    pub(super) fn prepare(&mut self, case: Case) -> Result<()> {
        let outer = frames::outer(
            case.family,
            &frames::frame(case.family, case.protocol, PORT),
        );
        array(&mut self.bench, map::OUTER)?.set(0, outer, 0)?;
        let device = self.pairs[abi::XDP_PROGRAM].far;
        self.pinned_backend = past::pinned_backend(&self.tables, case.family)?;
        self.connections.clear();
        if case.protocol == Protocol::Tcp {
            self.connections = pod_sockets::open(case.family).context("opening a pod's sockets")?;
        }
        tables::fill_flows(&self.product, &self.tables, case, device)
    }

    /// Measures the rate of the whole path with a system, in frames per second of core time.
    pub(super) fn rate(&mut self, system: System, case: Case, frames: u32) -> Result<f64> {
        host::undisturbed(self.core, || {
            let send = |rig: &mut Self| rig.send(system, case, frames);
            let trial = self.checked(system, case, frames, send)?;
            Ok((!trial.is_stolen).then(|| f64::from(frames) / trial.seconds))
        })
    }

    /// Measures the mean time per run of a system's program in nanoseconds, with the overhead of timing.
    ///
    /// Each flow that the tables know gets one packet before. At any rate worth measuring, the packets of a
    /// flow are less than a second apart. Nothing slow may happen between those packets and the measured ones: where
    /// the clock counts instructions, it counts those of this program too.
    ///
    /// Of systems whose first packets count, each flow gets no packet but one. As many other flows get theirs before.
    pub(super) fn cost(&mut self, system: System, case: Case, frames: u32) -> Result<f64> {
        let is_of_first_packets = system.is_of_first_packets();
        let flows = case.stream.flows;
        let (before_flows, first, frames) = if is_of_first_packets {
            tables::forget_notes(&self.product)?;
            // Behind the flows that are measured.
            self.sent = flows;
            (2 * flows, flows, flows)
        } else if flows <= KNOWN_FLOWS {
            (flows, flows, frames)
        } else {
            (flows, 0, frames)
        };
        let (before, after) = self.checked(system, case, first + frames, |rig| {
            if first > 0 {
                let stream = Stream::in_turn(before_flows);
                rig.send(system, Case { stream, ..case }, first)?;
            }
            let before = rig.statistics(system, case.family)?;
            rig.send(system, case, frames)?;
            Ok((before, rig.statistics(system, case.family)?))
        })?;
        if system == System::NodeAsked && case.protocol == Protocol::Tcp {
            let are_known = pod_sockets::are_known(&self.product, case)?;
            ensure!(
                are_known,
                "the pod's kernel has not told of all connections"
            );
        }
        let runs = after.run_count() - before.run_count();
        ensure!(
            runs == u64::from(frames),
            "{} ran {runs} times for {frames} frames",
            program_of(system, case.family)
        );
        Ok((after.run_time() - before.run_time()).as_secs_f64() * 1e9 / runs as f64)
    }

    /// Checks that all frames that `send` sends through a system have taken its path.
    fn checked<R>(
        &mut self,
        system: System,
        case: Case,
        frames: u32,
        send: impl FnOnce(&mut Self) -> Result<R>,
    ) -> Result<R> {
        let before = self.done(system, case)?;
        let sent = send(self)?;
        if let (Some(before), Some(after)) = (before, self.done(system, case)?) {
            let done = after - before;
            ensure!(
                done == u64::from(frames),
                "{} took {done} of {frames} frames its way: the figures would be of something else",
                system.name()
            );
        }
        Ok(sent)
    }

    fn statistics(&self, system: System, family: Family) -> Result<ProgramInfo> {
        let name = program_of(system, family);
        Ok(match name {
            abi::XDP_PROGRAM => self.product.program().info(),
            abi::EGRESS_PROGRAM => self.product.egress_program().info(),
            program::PASS_SKB => classifier(&self.bench, name)?.info(),
            _ => xdp(&self.bench, name)?.info(),
        }?)
    }

    /// Returns how many packets have taken the measured path of a system, by the product's own counters; `None`
    /// for a yardstick, and if the sink's count suffices.
    fn done(&self, system: System, case: Case) -> Result<Option<u64>> {
        let reason = match system {
            System::Reply => PassReason::Translated.index(),
            System::NatReply => ToClientReason::NatReply.index(),
            System::Miss => PassReason::NoService.index(),
            System::NodeReturn => ReplyReason::Returned.index(),
            System::Retry => ToNodeReason::Retried.index(),
            System::Pass | System::Services => return Ok(None),
            System::Pinned => {
                let table = abi::map::BACKEND_TRAFFIC;
                return self.packets_of(table, self.pinned_backend).map(Some);
            }
            _ => {
                let service = tables::service(system, case.family, case.protocol);
                let service = service.and_then(|key| self.tables.service(&key));
                return service
                    .map(|service| self.packets_of(abi::map::SERVICE_TRAFFIC, service.id))
                    .transpose();
            }
        };
        Ok(Some(self.counters.reasons()[reason as usize].packets))
    }

    /// Returns how many packets to a service, or a backend, all CPUs have forwarded. It reads no other counters: all of
    /// them would take longer than a trial.
    fn packets_of(&self, table: &str, id: u32) -> Result<u64> {
        let map = self.product.map(table)?;
        let traffic: Array<MapData, Traffic> = Array::try_from(Map::Array(map))?;
        let cpus = cpus::possible()?;
        let of_cpu = traffic.len() / cpus;
        let of = |cpu| traffic.get(&(cpu * of_cpu + id), 0);
        let each = (0..cpus).map(|cpu| Ok(of(cpu)?.packets));
        each.sum()
    }

    /// Sends frames through a system. Checks that the sink received each of them, with the right length.
    fn send(&mut self, system: System, case: Case, frames: u32) -> Result<Trial> {
        let Case {
            family,
            protocol,
            stream,
        } = case;
        set_stream(&mut self.bench, stream, self.sent)?;
        self.sent = self.sent.wrapping_add(frames);
        array(&mut self.bench, map::RECEIVED)?.set(0, Traffic::default(), 0)?;

        let (generator, frame) = if let Some(pattern) = paths::pattern(system, family, protocol) {
            array(&mut self.bench, map::PATTERN)?.set(0, pattern, 0)?;
            (program::GENERATE_PATTERN, pattern.bytes.to_vec())
        } else {
            let service = tables::service(system, family, protocol);
            let port = service.map_or(PORT, |service| service.port);
            let frame = frames::frame(family, protocol, port);
            (generate(&mut self.bench, family, &frame)?, frame)
        };
        let pair = &self.pairs[pair_of(system, family)];
        let start = host::core_clock(self.core)?;
        send_live(&self.bench, generator, &frame, pair.near, frames)?;
        let end = host::core_clock(self.core)?;
        self.check_received(system, family, frame.len(), frames)?;
        Ok(Trial {
            seconds: end.since(start),
            is_stolen: end.is_stolen_since(start),
        })
    }

    fn check_received(
        &mut self,
        system: System,
        family: Family,
        length: usize,
        frames: u32,
    ) -> Result<()> {
        let received: Traffic = array(&mut self.bench, map::RECEIVED)?.get(&0, 0)?;
        let outer = family.header_length();
        let length = match system {
            System::Static
            | System::Guideway
            | System::Slots
            | System::Services
            | System::NodePort
            | System::Past
            | System::Pinned => length + outer,
            System::Node | System::NodeTries | System::NodeFirst | System::NodeAsked => {
                length - outer
            }
            _ => length,
        };
        let expected = u64::from(frames) * length as u64;
        if received.packets != u64::from(frames) || received.bytes != expected {
            bail!(
                "the sink got {} frames of {} bytes in all behind {}, expected {frames} of {expected}",
                received.packets,
                received.bytes,
                program_of(system, family)
            );
        }
        Ok(())
    }
}

/// Adds the service of the plain path to the yardstick's hash maps.
fn register_service(object: &mut Ebpf) -> Result<()> {
    for protocol in Protocol::ALL {
        let port = PORT.to_be_bytes();
        let mut services: HashMap<_, ServiceKeyV4, u32> =
            HashMap::try_from(map_mut(object, map::SERVICES_V4)?)?;
        let key = ServiceKeyV4::new(VIP_V4.octets(), port, protocol.number());
        services.insert(key, 1, 0)?;
        let mut services: HashMap<_, ServiceKeyV6, u32> =
            HashMap::try_from(map_mut(object, map::SERVICES_V6)?)?;
        let key = ServiceKeyV6::new(VIP_V6.octets(), port, protocol.number());
        services.insert(key, 1, 0)?;
    }
    Ok(())
}
