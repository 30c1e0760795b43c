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
//! All of it runs in the softirq of the core that the generator is pinned to.

use std::{collections::BTreeMap, os::fd::OwnedFd};

use anyhow::{Context, Result, bail, ensure};
use aya::{
    Ebpf, EbpfLoader,
    programs::{ProgramInfo, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode},
    sys::{Stats, enable_stats},
};
use lab::{Namespace, Veth};
use xdp_prog::{
    abi::{self, Traffic},
    bench::{Cursor, map, program},
};

use super::{
    Case, System,
    frames::{self, Family},
    tables,
};
use crate::host;

/// Frames per call into the veth driver: the kernel's default for live frames.
const BATCH: u32 = 64;

/// A veth pair with the sink at the near end and a program under test at the far one.
#[derive(Clone, Copy, Debug)]
struct Pair {
    near: u32,
    far: u32,
}

/// The devices, programs and tables.
pub(super) struct Rig {
    bench: Ebpf,
    product: Ebpf,
    pairs: BTreeMap<&'static str, Pair>,
    frame: Vec<u8>,
    /// Frames sent so far: the next trial goes on with the flow where the last one ended.
    sent: u32,
}

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
        };
        pairs.insert(name, pair);
    }
    Ok(Cables(pairs))
}

/// The device indices of each program's pair.
pub(super) struct Cables(BTreeMap<&'static str, Pair>);

const UNDER_TEST: [&str; 6] = [
    program::FLOOR,
    program::STATIC_V4,
    program::STATIC_V6,
    program::HIT_V4,
    program::HIT_V6,
    abi::XDP_PROGRAM,
];

/// The program that plays a system's part for a family.
fn program_of(system: System, family: Family) -> &'static str {
    match (system, family) {
        (System::Floor, _) => program::FLOOR,
        (System::Static, Family::V4) => program::STATIC_V4,
        (System::Static, Family::V6) => program::STATIC_V6,
        (System::Hit, Family::V4) => program::HIT_V4,
        (System::Hit, Family::V6) => program::HIT_V6,
        (System::Guideway, _) => abi::XDP_PROGRAM,
    }
}

impl Rig {
    /// Loads and attaches everything; to be called inside of the namespace.
    pub(super) fn new(Cables(pairs): Cables) -> Result<Self> {
        let mut bench = load(fastpath::object::bench_bytes())?;
        let mut product = load(fastpath::object::bytes())?;
        tables::register_services(&mut bench)?;
        tables::fill(&mut product, pairs[abi::XDP_PROGRAM].far)?;
        for name in [program::GENERATE_V4, program::GENERATE_V6, program::SINK] {
            xdp_mut(&mut bench, name)?.load()?;
        }
        for (name, pair) in &pairs {
            attach(&mut bench, program::SINK, pair.near)?;
            let object = match *name {
                abi::XDP_PROGRAM => &mut product,
                _ => &mut bench,
            };
            xdp_mut(object, name)?.load()?;
            attach(object, name, pair.far)?;
        }
        Ok(Self {
            bench,
            product,
            pairs,
            frame: Vec::new(),
            sent: 0,
        })
    }

    /// Sets up the frames of the trials that follow.
    pub(super) fn prepare(&mut self, case: Case) -> Result<()> {
        self.frame = frames::frame(case.family, case.protocol);
        let template = frames::template(&self.frame);
        tables::array(&mut self.bench, map::TEMPLATE)?.set(0, template, 0)?;
        let outer = frames::outer(case.family, &self.frame);
        tables::array(&mut self.bench, map::OUTER)?.set(0, outer, 0)?;
        Ok(())
    }

    /// Measures the frames per second of core time of the whole path with a system in it.
    pub(super) fn rate(&mut self, system: System, case: Case, frames: u32) -> Result<f64> {
        let service = tables::service_id(case.family, case.protocol);
        let before = tables::forwarded(&self.product, service)?;
        let seconds = self.send(system, case, frames)?;
        if system == System::Guideway {
            let forwarded = tables::forwarded(&self.product, service)? - before;
            ensure!(
                forwarded == u64::from(frames),
                "the program forwarded {forwarded} of {frames} frames: the rate would be of something else"
            );
        }
        Ok(f64::from(frames) / seconds)
    }

    /// Measures the mean nanoseconds per run of a system's program, the overhead of measuring included.
    pub(super) fn cost(&mut self, system: System, case: Case, frames: u32) -> Result<f64> {
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
            System::Guideway => &self.product,
            System::Floor | System::Static | System::Hit => &self.bench,
        };
        Ok(xdp(object, name)?.info()?)
    }

    /// Sends frames through a system and checks that the sink got each of them, as long as it should be.
    ///
    /// Returns the seconds that the core worked for it.
    fn send(&mut self, system: System, case: Case, frames: u32) -> Result<f64> {
        let cursor = Cursor {
            flows: case.flows,
            next: self.sent % case.flows,
        };
        self.sent = self.sent.wrapping_add(frames);
        tables::array(&mut self.bench, map::CURSOR)?.set(0, cursor, 0)?;
        tables::array(&mut self.bench, map::RECEIVED)?.set(0, Traffic::default(), 0)?;

        let generator = match case.family {
            Family::V4 => program::GENERATE_V4,
            Family::V6 => program::GENERATE_V6,
        };
        let generator = xdp(&self.bench, generator)?;
        let pair = self.pairs[program_of(system, case.family)];
        let context = context_of(self.frame.len(), pair.near)?;
        let options = TestRunOptions {
            data_in: Some(&self.frame),
            ctx_in: Some(&context),
            repeat: frames,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::default()
        };
        let start = host::thread_seconds();
        generator.test_run(options).context("sending live frames")?;
        let seconds = host::thread_seconds() - start;
        self.check_received(system, case, frames)?;
        Ok(seconds)
    }

    fn check_received(&mut self, system: System, case: Case, frames: u32) -> Result<()> {
        let received: Traffic = tables::array(&mut self.bench, map::RECEIVED)?.get(&0, 0)?;
        let length = self.frame.len()
            + match system {
                System::Floor | System::Hit => 0,
                System::Static | System::Guideway => case.family.header_length(),
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

fn missing(name: &str) -> String {
    format!("the object has no program {name}")
}
