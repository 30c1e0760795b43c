//! Live frames: a BPF program makes numbered frames in the kernel, and another one counts them behind the system.
//!
//! ```text
//! generator --live frames--> out ===cable=== the system's device: system --> sink
//! ```
//!
//! See `BPF_F_TEST_XDP_LIVE_FRAMES` in the kernel's Documentation/bpf/bpf_prog_run.rst: no socket, no copy and no system
//! call for each. Generator, system and sink run on one core, so with the schedule `max` the rate is that of the whole
//! path, and little is lost. Frames have right checksums, and a tag and a number at the start of their payload. The
//! sink hands all frames without the tag on, ARP among them.
//!
//! The generator `afxdp` differs in one thing: this program makes the frames, and a port sends them (module `afxdp`). The
//! generator `pktgen` makes frames of its own, whose numbers the same sink reads (module `pktgen`).

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, MapData, PerCpuArray, PerCpuValues},
    programs::{
        SchedClassifier, TcAttachType, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode,
        tc::SchedClassifierLinkId, xdp::XdpLinkId,
    },
};
use lab::Link;
use xdp_prog::bench::{Counted, NUMBERED_LENGTH, Numbered, Pace, map, program};

use super::{
    Asked, Generator, Trial, afxdp,
    frame::Framing,
    numbered::{frames_in, interval, listed, offsets, templates},
    pktgen::{self, Sending},
    sockets::now_ns,
};
use crate::{
    datapath::frames::context_of,
    host,
    probe::Tally,
    scenario::{GeneratorKind, Load},
    stats::SplitMix64,
};

/// Frames per call of the driver: the kernel's default for live frames.
const BATCH: u32 = 64;
/// Runs of the generator per system call: some milliseconds where no frame is due.
const RUNS: u32 = 1 << 16;
/// Frames that are late by no more than this are made up for. They need no room in a device: system and sink have done
/// with a batch before the next one is made.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long frames are awaited at the sink after the last was sent.
const GRACE: Duration = Duration::from_millis(500);

/// The way of live frames through a system.
#[derive(Clone, Debug)]
pub struct Path<'a> {
    /// The device that they leave by.
    pub out: Link<'a>,
    /// The system's device, if no XDP program is at it: a veth takes live frames only while one is.
    pub entry: Option<Link<'a>>,
    /// The device that they arrive at.
    pub sink: Link<'a>,
    /// Whether the device that they arrive at has a program that passes all frames, which the sink replaces.
    pub replaces_pass: bool,
    /// Whether the system sends from the stack. The sink is then a TC program: XDP takes longer with such frames.
    pub from_stack: bool,
    /// Destination and source MAC address.
    pub macs: [u8; 12],
    /// The Services, which flows go to in turn.
    pub services: Vec<SocketAddr>,
    /// Bytes that the system puts in front of a packet.
    pub outer: usize,
    /// Whether the system sends frames on without their VLAN tag.
    pub untags: bool,
}

/// The generator, on one path.
#[derive(Debug)]
pub struct Live<'a> {
    path: Path<'a>,
    load: Load,
    frames: Vec<Numbered>,
    flows: Vec<u32>,
    object: Ebpf,
    /// State of the generator at the beginning of a trial.
    pace: Pace,
    /// State of the sink at the beginning of a trial.
    nothing: Counted,
    /// Whether the programs stay attached from trial to trial.
    is_kept: bool,
}

/// The programs while they are attached.
struct Attached {
    sink: AttachedSink,
    generator: XdpLinkId,
}

enum AttachedSink {
    Driver(XdpLinkId),
    Stack(SchedClassifierLinkId),
}

impl<'a> Live<'a> {
    /// Loads the programs and lists the flows of a load.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the programs.
    pub fn new(path: Path<'a>, load: &Load, seed: u64) -> Result<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "any 16 bits serve")]
        let drawn = SplitMix64::new(now_ns()).next() as u16;
        // A probe beside the frames begins with the first bytes of its flow's number, which is small.
        let tag = drawn | 0x8000;
        let frames = templates(&path.services, path.macs, load, tag);
        let listed = listed(load);
        let flows = load.flows_of(listed as usize, seed);
        let at = offsets(&path.services, path.macs, load);
        let (tag_at, tag) = match load.generator {
            GeneratorKind::Pktgen => pktgen::TAG,
            _ => (0, tag),
        };
        let untagged = if path.untags {
            Framing::of(path.macs, load).tag_length()
        } else {
            0
        };
        let mut object = EbpfLoader::new()
            .map_max_entries(map::NUMBERED, u32::try_from(frames.len())?)
            .map_max_entries(map::FLOWS, listed)
            // Of other programs in the object: large ones take long to make.
            .map_max_entries(map::SERVICES_V4, 1)
            .map_max_entries(map::SERVICES_V6, 1)
            .load(fastpath::object::bench_bytes())
            .context("loading the generator")?;
        fill(&mut object, map::NUMBERED, &frames)?;
        fill(&mut object, map::FLOWS, &flows)?;
        xdp(&mut object, program::GENERATE_NUMBERED)?.load()?;
        if path.from_stack {
            classifier(&mut object)?.load()?;
        } else {
            xdp(&mut object, program::SINK_NUMBERED)?.load()?;
        }
        let services = u32::try_from(path.services.len())?;
        Ok(Self {
            pace: Pace {
                patience: u64::try_from(PATIENCE.as_nanos())?,
                sizes: u32::try_from(frames.len())? / services,
                flows: listed,
                new_flow: load.flows,
                services,
                ..Pace::default()
            },
            nothing: Counted {
                tag_at: u32::try_from(at.payload + tag_at + path.outer - untagged)?,
                tag: tag.into(),
                ..Counted::default()
            },
            path,
            load: load.clone(),
            frames,
            flows,
            object,
            is_kept: false,
        })
    }

    /// Has each frame take longer from now on: by so many eighths of a step of [`work`](xdp_prog::bench::work).
    pub fn set_work(&mut self, eighths: u32) {
        self.pace.work = eighths;
    }

    /// Does `work`, with many short trials, and attaches the programs once for all of them.
    ///
    /// # Errors
    ///
    /// When they cannot be attached or detached, and those of `work`.
    pub fn keep_attached<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let attached = self.attach()?;
        self.is_kept = true;
        let outcome = work(self);
        self.is_kept = false;
        self.detach(attached)?;
        outcome
    }

    fn attach(&mut self) -> Result<Attached> {
        let Path { entry, sink, .. } = &self.path;
        if let Some(entry) = entry {
            entry.attach_pass()?;
        }
        if self.path.replaces_pass {
            sink.detach_xdp()?;
        }
        let (object, is_stack) = (&mut self.object, self.path.from_stack);
        let attached = sink.namespace().run(|| -> Result<AttachedSink> {
            Ok(if is_stack {
                let id = classifier(object)?.attach(sink.name(), TcAttachType::Ingress)?;
                AttachedSink::Stack(id)
            } else {
                let program = xdp(object, program::SINK_NUMBERED)?;
                let id = program.attach_to_if_index(sink.index(), XdpMode::Driver)?;
                AttachedSink::Driver(id)
            })
        });
        let sink = attached.context("attaching the sink")?;
        // Each time that a program is run which no device has, the kernel waits for an RCU grace period: for milliseconds,
        // which would count as time of the frames. This device has no traffic.
        let idle = self.path.out.namespace().link("lo")?;
        let generator = xdp(&mut self.object, program::GENERATE_NUMBERED)?;
        let attach = || generator.attach_to_if_index(idle.index(), XdpMode::Skb);
        let generator = (idle.namespace().run(attach))
            .context("attaching the generator to a device without traffic")?;
        Ok(Attached { sink, generator })
    }

    /// Leaves the devices as they were before.
    fn detach(&mut self, attached: Attached) -> Result<()> {
        let object = &mut self.object;
        let generator = xdp(object, program::GENERATE_NUMBERED)?;
        (generator.detach(attached.generator)).context("detaching the generator")?;
        let detached = match attached.sink {
            AttachedSink::Driver(id) => xdp(object, program::SINK_NUMBERED)?.detach(id),
            AttachedSink::Stack(id) => classifier(object)?.detach(id),
        };
        detached.context("detaching the sink")?;
        if self.path.replaces_pass {
            self.path.sink.attach_pass()?;
        }
        if let Some(entry) = &self.path.entry {
            entry.detach_xdp()?;
        }
        Ok(())
    }

    /// Sends frames. Returns when that began, how long it took, with a rate by the clock and else in core time, and the
    /// state of the generator at the end.
    fn send(&mut self, asked: Asked) -> Result<(u64, f64, Pace)> {
        let Asked { rate, seconds, .. } = asked;
        let start = now_ns();
        self.pace.due = start;
        self.pace.interval = rate.map_or(0, interval);
        self.pace.limit = rate.map_or(u32::MAX, |rate| frames_in(seconds, rate));
        let (out, pace) = (&self.path.out, self.pace);
        let (took, pace) = match self.load.generator {
            GeneratorKind::Afxdp => out
                .namespace()
                .run(|| afxdp::send(out.name(), (&self.frames, &self.flows), pace, seconds))?,
            GeneratorKind::Pktgen => {
                let sending = Sending {
                    interface: out.name(),
                    macs: self.path.macs,
                    services: &self.path.services,
                    load: &self.load,
                };
                let root = std::path::Path::new(pktgen::ROOT);
                out.namespace()
                    .run(|| pktgen::send(root, &sending, asked, pace))?
            }
            GeneratorKind::Sockets | GeneratorKind::Live => self.send_from_kernel(seconds)?,
        };
        Ok((start, took, pace))
    }

    fn send_from_kernel(&mut self, seconds: f64) -> Result<(f64, Pace)> {
        fill(&mut self.object, map::PACE, &[self.pace])?;
        let object = &self.object;
        let generator: &Xdp = object
            .program(program::GENERATE_NUMBERED)
            .context("the object has no generator")?
            .try_into()?;
        let length =
            (self.load.sizes().into_iter().max().unwrap_or(0) as usize).max(NUMBERED_LENGTH);
        let (frame, context) = (vec![0; length], context_of(length, self.path.out.index())?);
        let run = || {
            let options = TestRunOptions {
                data_in: Some(&frame),
                ctx_in: Some(&context),
                repeat: RUNS,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::default()
            };
            generator.test_run(options).map(drop)
        };
        let send = || -> Result<(f64, Pace)> {
            let core = host::occupy_core(None)?;
            let (before, began) = (host::core_clock(core)?, Instant::now());
            loop {
                run().context("sending live frames")?;
                let pace: Pace = entry(object, map::PACE)?;
                let elapsed = began.elapsed().as_secs_f64();
                if pace.sent == pace.limit || elapsed >= seconds {
                    let core_time = host::core_clock(core)?.since(before);
                    let is_paced = pace.interval > 0;
                    return Ok((if is_paced { elapsed } else { core_time }, pace));
                }
            }
        };
        self.path.out.namespace().run(send)
    }

    /// Tells whether the numbers of the frames rise: those of several devices of pktgen have no order among each other.
    fn has_one_sequence(&self) -> bool {
        self.load.generator != GeneratorKind::Pktgen
            || pktgen::has_one_sequence(&self.load, self.path.services.len())
    }

    /// Returns what the sink has counted, when nothing more comes.
    fn await_count(&self, sent: u64) -> Result<Counted> {
        let deadline = Instant::now() + GRACE;
        loop {
            let counted = counted(&self.object)?;
            if counted.received >= sent || Instant::now() >= deadline {
                return Ok(counted);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs a trial, and `work` beside it, which begins with it.
    ///
    /// # Errors
    ///
    /// As for [`Generator::run`].
    ///
    /// # Panics
    ///
    /// When `work` does.
    pub fn run_beside<T: Send>(
        &mut self,
        asked: Asked,
        work: impl FnOnce() -> T + Send,
    ) -> Result<(Trial, T)> {
        set_counted(&mut self.object, self.nothing)?;
        let attached = if self.is_kept {
            None
        } else {
            Some(self.attach()?)
        };
        let (outcome, done) = thread::scope(|scope| {
            let beside = scope.spawn(work);
            let outcome = self.send(asked);
            (outcome, beside.join().expect("it does not panic"))
        });
        let sent = outcome.as_ref().map_or(0, |(_, _, pace)| pace.sent);
        let counted = self.await_count(sent.into());
        attached.map_or(Ok(()), |attached| self.detach(attached))?;
        let ((start, seconds, pace), counted) = (outcome?, counted?);
        ensure!(pace.sent > 0, "the generator has sent nothing");
        // Flows that were new in this trial are not new in the next.
        self.pace.new_flow = pace.new_flow;
        let sent = u64::from(pace.sent);
        let received = counted.received.min(sent);
        let trial = Trial {
            start,
            seconds,
            requests: Vec::new(),
            under_way_ns: None,
            tally: Tally {
                // Each device of pktgen sends a frame at least.
                offered: asked
                    .rate
                    .map_or(sent, |_| sent.max(self.pace.limit.into())),
                sent,
                received,
                lost: sent - received,
                duplicates: counted.received - received,
                reordered: if self.has_one_sequence() {
                    counted.reordered
                } else {
                    0
                },
                ..Tally::default()
            },
            shares: Vec::new(),
            background: None,
        };
        Ok((trial, done))
    }
}

impl Generator for Live<'_> {
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        Ok(self.run_beside(asked, || ())?.0)
    }
}

fn fill<T: Pod>(object: &mut Ebpf, name: &str, entries: &[T]) -> Result<()> {
    let map = object.map_mut(name);
    let map = map.with_context(|| format!("the object has no map {name}"))?;
    let mut array: Array<&mut MapData, T> = Array::try_from(map)?;
    for (place, entry) in (0..).zip(entries) {
        array.set(place, entry, 0)?;
    }
    Ok(())
}

fn entry<T: Pod>(object: &Ebpf, name: &str) -> Result<T> {
    let map = object.map(name);
    let map = map.with_context(|| format!("the object has no map {name}"))?;
    let array: Array<&MapData, T> = Array::try_from(map)?;
    Ok(array.get(&0, 0)?)
}

/// Has each CPU of the sink begin with the same.
fn set_counted(object: &mut Ebpf, counted: Counted) -> Result<()> {
    let map = object
        .map_mut(map::COUNTED)
        .context("the sink has no counter")?;
    let mut array: PerCpuArray<&mut MapData, Counted> = PerCpuArray::try_from(map)?;
    let cpus =
        aya::util::nr_cpus().map_err(|(file, error)| anyhow::Error::new(error).context(file))?;
    Ok(array.set(0, PerCpuValues::try_from(vec![counted; cpus])?, 0)?)
}

/// Returns what all CPUs of the sink have counted.
fn counted(object: &Ebpf) -> Result<Counted> {
    let map = object
        .map(map::COUNTED)
        .context("the sink has no counter")?;
    let array: PerCpuArray<&MapData, Counted> = PerCpuArray::try_from(map)?;
    let values = array.get(&0, 0)?;
    let sum = |of: fn(&Counted) -> u64| values.iter().map(of).sum();
    Ok(Counted {
        received: sum(|one| one.received),
        bytes: sum(|one| one.bytes),
        reordered: sum(|one| one.reordered),
        ..Counted::default()
    })
}

fn xdp<'a>(object: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp> {
    let program = object.program_mut(name);
    let program = program.with_context(|| format!("the object has no program {name}"))?;
    Ok(program.try_into()?)
}

fn classifier(object: &mut Ebpf) -> Result<&mut SchedClassifier> {
    let program = object.program_mut(program::SINK_NUMBERED_SKB);
    let program = program.context("the object has no sink for the stack")?;
    Ok(program.try_into()?)
}
