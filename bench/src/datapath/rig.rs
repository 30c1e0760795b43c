//! Devices and programs of the datapath bench, and single trials on them.
//!
//! Each program under test sits on a veth pair of its own, so that no program
//! is replaced during the run:
//!
//! ```text
//! generator --live frames--> near end ===veth=== far end: program under test
//!                            near end: sink <--------------XDP_TX--'
//! ```
//!
//! Where the program hands frames to the stack, a TC program is the sink, right behind the driver; a TC
//! program under test comes before it:
//!
//! ```text
//! generator --live frames--> near end ===veth=== far end: XDP program -> TC program under test -> sink
//! ```
//!
//! At ingress, because no live frame comes by the way out; programs see the same kind of packet on both.
//!
//! All of it runs in the softirq of the core that the generator is pinned to.

use std::{collections::BTreeMap, os::fd::OwnedFd};

use anyhow::{Context, Result, bail, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::ProgramArray,
    programs::{
        ProgramInfo, SchedClassifier, TcAttachType, TestRun, TestRunAttrs, TestRunOptions, Xdp,
        XdpMode,
    },
    sys::{Stats, enable_stats},
};
use lab::{Namespace, Veth};
use xdp_prog::{
    abi::{self, Traffic},
    bench::{Cursor, PATTERN_LENGTH, map, program},
    reason::{PassReason, ReturnReason},
    stage::Stage,
};

use super::{
    Case, System,
    frames::{self, Family},
    paths, tables,
};
use crate::host;

/// Frames per call into the veth driver: the kernel's default for live frames.
const BATCH: u32 = 64;

/// A veth pair with the sink at the near end and a program under test at the far one.
#[derive(Clone, Debug)]
struct Pair {
    near: u32,
    far: u32,
    far_name: String,
}

/// The devices, programs and tables.
pub(super) struct Rig {
    bench: Ebpf,
    product: Ebpf,
    pairs: BTreeMap<&'static str, Pair>,
    frame: Vec<u8>,
    /// Frames sent so far: the next trial goes on with the flow where the last one ended.
    sent: u32,
    /// The core that all of it runs on.
    core: usize,
}

/// What sending frames took.
struct Trial {
    /// Seconds that the core worked for it.
    seconds: f64,
    /// Whether a hypervisor took the core away meanwhile.
    is_stolen: bool,
}

/// How often a trial is made again for a core that was taken away.
const TRIES: u32 = 10;

/// Switches the kernel's run statistics on for as long as it lives.
pub(super) struct RunStatistics {
    _switch: OwnedFd,
}

impl RunStatistics {
    pub(super) fn enable() -> Result<Self> {
        let switch = enable_stats(Stats::RunTime).context("enabling BPF run statistics")?;
        Ok(Self { _switch: switch })
    }
}

/// Makes the pairs; to be called outside of the namespace.
pub(super) fn cable(namespace: &Namespace) -> Result<Cables> {
    // The kernel's own packets would be counted as ours.
    for scope in ["all", "default"] {
        namespace.set_sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1")?;
    }
    let mut pairs = BTreeMap::new();
    for (index, name) in UNDER_TEST.into_iter().enumerate() {
        let (near, far) = (format!("near{index}"), format!("far{index}"));
        let (near, far) = Veth::between((namespace, &near), (namespace, &far)).create()?;
        let pair = Pair {
            near: near.index(),
            far: far.index(),
            far_name: far.name().to_owned(),
        };
        pairs.insert(name, pair);
    }
    Ok(Cables(pairs))
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

/// The TC programs on the far end of a pair, in their order.
fn tc_programs(pair: &str) -> &'static [&'static str] {
    match pair {
        abi::XDP_PROGRAM => &[program::SINK_SKB],
        program::PASS => &[program::PASS_SKB, program::SINK_SKB],
        abi::EGRESS_PROGRAM => &[abi::EGRESS_PROGRAM, program::SINK_SKB],
        _ => &[],
    }
}

/// The pair that a system's frames go by, named after its program.
fn pair_of(system: System, family: Family) -> &'static str {
    match system {
        System::PassSkb => program::PASS,
        _ => program_of(system, family),
    }
}

/// The program that plays a system's part for a family.
fn program_of(system: System, family: Family) -> &'static str {
    match (system, family) {
        (System::Floor, _) => program::FLOOR,
        (System::Static, Family::V4) => program::STATIC_V4,
        (System::Static, Family::V6) => program::STATIC_V6,
        (System::Hit, Family::V4) => program::HIT_V4,
        (System::Hit, Family::V6) => program::HIT_V6,
        (System::Guideway | System::Node | System::Nat | System::NatReply, _) => abi::XDP_PROGRAM,
        (System::Pass, _) => program::PASS,
        (System::PassSkb, _) => program::PASS_SKB,
        (System::Reply, _) => abi::EGRESS_PROGRAM,
    }
}

impl Rig {
    /// Loads and attaches everything; to be called inside of the namespace.
    pub(super) fn new(Cables(pairs): Cables, core: usize) -> Result<Self> {
        let mut bench = load(fastpath::object::bench_bytes())?;
        let mut product = load(fastpath::object::bytes())?;
        tables::register_services(&mut bench)?;
        tables::fill(&mut product, pairs[abi::XDP_PROGRAM].far)?;
        paths::fill(&mut product)?;
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
        load_product(&mut product)?;
        for (name, pair) in &pairs {
            attach(&mut bench, program::SINK, pair.near)?;
            match *name {
                abi::XDP_PROGRAM => attach(&mut product, name, pair.far)?,
                abi::EGRESS_PROGRAM => attach(&mut bench, program::PASS, pair.far)?,
                _ => attach(&mut bench, name, pair.far)?,
            }
            for program in tc_programs(name) {
                let object = match *program {
                    abi::EGRESS_PROGRAM => &mut product,
                    _ => &mut bench,
                };
                classifier_mut(object, program)?
                    .attach(&pair.far_name, TcAttachType::Ingress)
                    .with_context(|| format!("attaching {program}"))?;
            }
        }
        Ok(Self {
            bench,
            product,
            pairs,
            frame: Vec::new(),
            sent: 0,
            core,
        })
    }

    /// Sets up the frames of the trials that follow.
    pub(super) fn prepare(&mut self, case: Case) -> Result<()> {
        self.frame = frames::frame(case.family, case.protocol);
        let template = frames::template(&self.frame);
        tables::array(&mut self.bench, map::TEMPLATE)?.set(0, template, 0)?;
        let outer = frames::outer(case.family, &self.frame);
        tables::array(&mut self.bench, map::OUTER)?.set(0, outer, 0)?;
        let device = self.pairs[abi::XDP_PROGRAM].far;
        paths::fill_flows(&mut self.product, case, device)
    }

    /// Measures the frames per second of core time of the whole path with a system in it.
    pub(super) fn rate(&mut self, system: System, case: Case, frames: u32) -> Result<f64> {
        for _ in 0..TRIES {
            let trial = self.send(system, case, frames)?;
            if !trial.is_stolen {
                return Ok(f64::from(frames) / trial.seconds);
            }
        }
        bail!(
            "a hypervisor took CPU {} away in each of {TRIES} trials: rates need a core of their own",
            self.core
        )
    }

    /// Measures the mean nanoseconds per run of a system's program, the overhead of measuring included.
    ///
    /// Known flows have had a packet each before: at any rate worth measuring, a flow's packets are less than a second apart.
    pub(super) fn cost(&mut self, system: System, case: Case, frames: u32) -> Result<f64> {
        if case.flows <= paths::MOST_FLOWS {
            self.send(system, case, case.flows)?;
        }
        let before = self.statistics(system, case.family)?;
        self.send(system, case, frames)?;
        let after = self.statistics(system, case.family)?;
        let runs = after.run_count() - before.run_count();
        ensure!(
            runs == u64::from(frames),
            "{} ran {runs} times for {frames} frames",
            program_of(system, case.family)
        );
        Ok((after.run_time() - before.run_time()).as_secs_f64() * 1e9 / runs as f64)
    }

    fn statistics(&self, system: System, family: Family) -> Result<ProgramInfo> {
        let name = program_of(system, family);
        let object = match system {
            System::Guideway | System::Node | System::Reply | System::Nat | System::NatReply => {
                &self.product
            }
            System::Floor | System::Static | System::Hit | System::Pass | System::PassSkb => {
                &self.bench
            }
        };
        match system {
            System::PassSkb | System::Reply => Ok(classifier(object, name)?.info()?),
            _ => Ok(xdp(object, name)?.info()?),
        }
    }

    /// Returns how many packets a system has taken the way that is measured, by its own counters.
    fn done(&self, system: System, case: Case) -> Result<Option<u64>> {
        let Case {
            family, protocol, ..
        } = case;
        let product = &self.product;
        Ok(Some(match system {
            System::Guideway => tables::forwarded(product, tables::service_id(family, protocol))?,
            System::Node | System::Nat => {
                tables::forwarded(product, paths::service_id(system, family, protocol))?
            }
            System::Reply => tables::counted(product, PassReason::Translated.index())?,
            System::NatReply => tables::counted(product, ReturnReason::NatReply.index())?,
            System::Floor | System::Static | System::Hit | System::Pass | System::PassSkb => {
                return Ok(None);
            }
        }))
    }

    /// Sends frames through a system and checks that the sink got each of them, as long as it should be.
    ///
    fn send(&mut self, system: System, case: Case, frames: u32) -> Result<Trial> {
        let cursor = Cursor {
            flows: case.flows,
            next: self.sent % case.flows,
        };
        self.sent = self.sent.wrapping_add(frames);
        tables::array(&mut self.bench, map::CURSOR)?.set(0, cursor, 0)?;
        tables::array(&mut self.bench, map::RECEIVED)?.set(0, Traffic::default(), 0)?;

        let pattern = paths::pattern(system, case.family, case.protocol);
        let (generator, frame) = match &pattern {
            Some(pattern) => {
                tables::array(&mut self.bench, map::PATTERN)?.set(0, *pattern, 0)?;
                (program::GENERATE_PATTERN, pattern.bytes.as_slice())
            }
            None => match case.family {
                Family::V4 => (program::GENERATE_V4, self.frame.as_slice()),
                Family::V6 => (program::GENERATE_V6, self.frame.as_slice()),
            },
        };
        let before = self.done(system, case)?;
        let generator = xdp(&self.bench, generator)?;
        let pair = &self.pairs[pair_of(system, case.family)];
        let context = context_of(frame.len(), pair.near)?;
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            repeat: frames,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::default()
        };
        let start = host::core_clock(self.core)?;
        generator.test_run(options).context("sending live frames")?;
        let end = host::core_clock(self.core)?;
        self.check_received(system, case, frames)?;
        if let (Some(before), Some(after)) = (before, self.done(system, case)?) {
            let done = after - before;
            ensure!(
                done == u64::from(frames),
                "{} took {done} of {frames} frames its way: the figures would be of something else",
                system.name()
            );
        }
        Ok(Trial {
            seconds: end.since(start),
            is_stolen: end.is_stolen_since(start),
        })
    }

    fn check_received(&mut self, system: System, case: Case, frames: u32) -> Result<()> {
        let received: Traffic = tables::array(&mut self.bench, map::RECEIVED)?.get(&0, 0)?;
        let outer = case.family.header_length();
        let length = match system {
            System::Floor | System::Hit => self.frame.len(),
            System::Static | System::Guideway => self.frame.len() + outer,
            System::Node => PATTERN_LENGTH - outer,
            System::Pass | System::PassSkb | System::Reply | System::Nat | System::NatReply => {
                PATTERN_LENGTH
            }
        };
        let expected = u64::from(frames) * length as u64;
        if received.packets != u64::from(frames) || received.bytes != expected {
            bail!(
                "the sink got {} frames of {} bytes in all behind {}, expected {frames} of {expected}",
                received.packets,
                received.bytes,
                program_of(system, case.family)
            );
        }
        Ok(())
    }
}

/// The kernel's `xdp_md`: where the frame lies, and the device it seems to have come from.
fn context_of(length: usize, ingress: u32) -> Result<Vec<u8>> {
    let (data, end, meta, queue, egress) = (0, u32::try_from(length)?, 0, 0, 0);
    Ok([data, end, meta, ingress, queue, egress]
        .iter()
        .flat_map(|field: &u32| field.to_ne_bytes())
        .collect())
}

fn load(bytes: &[u8]) -> Result<Ebpf> {
    EbpfLoader::new()
        .load(bytes)
        .context("loading the BPF object")
}

/// Loads the product's programs and makes its stages reachable.
fn load_product(product: &mut Ebpf) -> Result<()> {
    let mut stages = Vec::new();
    for stage in Stage::ALL {
        let program = xdp_mut(product, stage.program())?;
        program.load()?;
        stages.push((stage, program.fd()?.try_clone()?));
    }
    xdp_mut(product, abi::XDP_PROGRAM)?.load()?;
    classifier_mut(product, abi::EGRESS_PROGRAM)?.load()?;
    let mut array = ProgramArray::try_from(tables::map_mut(product, abi::map::STAGES)?)?;
    for (stage, program) in &stages {
        array.set(stage.index(), program, 0)?;
    }
    Ok(())
}

fn attach(object: &mut Ebpf, name: &str, device: u32) -> Result<()> {
    xdp_mut(object, name)?
        .attach_to_if_index(device, XdpMode::Driver)
        .with_context(|| format!("attaching {name}"))?;
    Ok(())
}

fn xdp<'a>(object: &'a Ebpf, name: &str) -> Result<&'a Xdp> {
    let program = object.program(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

fn xdp_mut<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = object.program_mut(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

fn classifier<'a>(object: &'a Ebpf, name: &str) -> Result<&'a SchedClassifier> {
    let program = object.program(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

fn classifier_mut<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier> {
    let program = object.program_mut(name).with_context(|| missing(name))?;
    Ok(program.try_into()?)
}

fn missing(name: &str) -> String {
    format!("the object has no program {name}")
}
