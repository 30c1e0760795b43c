//! Live frames: a BPF program makes numbered frames in the kernel, and another one counts them behind the system.
//!
//! ```text
//! generator --live frames--> out ===cable=== the system's device: system --> sink
//! ```
//!
//! See `BPF_F_TEST_XDP_LIVE_FRAMES` in the kernel's Documentation/bpf/bpf_prog_run.rst: no socket, no copy and no system
//! call for each. Generator, system and sink run on one core, so with the schedule `max` the rate is that of the whole
//! path, and little is lost. With several threads there is a core for each, and their rates add up (module `threads`).
//! Frames have right checksums, and a tag and a number at the start of their payload. The
//! sink hands all frames without the tag on, ARP among them.
//!
//! The generator `afxdp` differs in one thing: this program makes the frames, and a port sends them (module `afxdp`). The
//! generator `pktgen` makes frames of its own, whose numbers the same sink reads (module `pktgen`).

mod maps;
mod programs;
mod threads;

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use aya::Ebpf;
use lab::{Link, wait_for};
use xdp_prog::bench::{Counted, NUMBERED_LENGTH, Numbered, Pace};

use self::programs::Attached;
use super::{
    Asked, Generator, Trial, afxdp,
    frame::Framing,
    numbered::{Dealt, deal, frames_in, offsets, set_schedule, templates},
    pktgen::{self, Sending},
    sockets::now_ns,
};
use crate::{
    probe::Tally,
    scenario::{GeneratorKind, Load, System},
    stats::SplitMix64,
};

/// How long a system may take until every frame of a proof passes it.
const PROOF_TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds of a proof, and frames a second: what any system takes.
const PROOF: (f64, f64) = (0.05, 2_000.0);
/// Seconds of a short trial.
const MOMENT: f64 = 0.02;
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
    /// State of the generator at the beginning of a trial, for each thread.
    paces: Vec<Pace>,
    /// State of the sink at the beginning of a trial.
    nothing: Counted,
    /// Whether the programs stay attached from trial to trial.
    is_kept: bool,
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
        let services = u32::try_from(path.services.len())?;
        let Dealt { flows, mut paces } = deal(load, services, seed);
        for pace in &mut paces {
            pace.patience = u64::try_from(PATIENCE.as_nanos())?;
        }
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
        Ok(Self {
            object: programs::load(&path, &frames, &flows)?,
            nothing: Counted {
                tag_at: u32::try_from(at.payload + tag_at + path.outer - untagged)?,
                tag: tag.into(),
                threads: u32::try_from(paces.len())?,
                ..Counted::default()
            },
            paces,
            path,
            load: load.clone(),
            frames,
            flows,
            is_kept: false,
        })
    }

    /// Has each frame take longer from now on: by so many eighths of a step of [`work`](xdp_prog::bench::work).
    pub fn set_work(&mut self, eighths: u32) {
        for pace in &mut self.paces {
            pace.work = eighths;
        }
    }

    /// Returns the rate of a trial that is short: other work changes the machine's speed from one tenth of a second to the
    /// next, and trials that are compared are to have the same.
    ///
    /// # Errors
    ///
    /// As for a trial.
    pub fn rate_of_a_moment(&mut self) -> Result<f64> {
        let asked = Asked {
            rate: None,
            seconds: MOMENT,
            seed: 1,
        };
        let trial = self.run(asked).context("a trial of live frames")?;
        Ok(trial.tally.received as f64 / trial.seconds)
    }

    /// Has all of a few frames pass the system, which may still come up.
    ///
    /// # Errors
    ///
    /// When some are lost after 30 s too.
    pub(crate) fn prove(&mut self, system: System, seed: u64) -> Result<()> {
        let asked = Asked {
            rate: Some(PROOF.1),
            seconds: PROOF.0,
            seed,
        };
        let awaited = format!(
            "{system} passes all of a few frames of the load {}",
            self.load
        );
        Ok(wait_for(&awaited, PROOF_TIMEOUT, || {
            let trial = self.run(asked).map_err(|error| format!("{error:#}"))?;
            let tally = trial.tally;
            if tally.sent == 0 || tally.received < tally.sent {
                return Err(format!("{tally:?}"));
            }
            Ok(())
        })?)
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
        programs::attach(&self.path, &mut self.object)
    }

    fn detach(&mut self, attached: Attached) -> Result<()> {
        programs::detach(&self.path, &mut self.object, attached)
    }

    /// Sends frames. Returns when that began, how long it took, with a rate by the clock and else in core time, and how many
    /// frames have left.
    fn send(&mut self, asked: Asked) -> Result<(u64, f64, u64)> {
        let Asked { rate, seconds, .. } = asked;
        let start = now_ns();
        set_schedule(&mut self.paces, start, rate, seconds);
        let (out, namespace) = (&self.path.out, self.path.out.namespace());
        let (took, paces) = match self.load.generator {
            GeneratorKind::Afxdp => {
                let frames = (self.frames.as_slice(), self.flows.as_slice());
                let send = || afxdp::send(out.name(), frames, self.paces[0], seconds);
                let (took, pace) = namespace.run(send)?;
                (took, vec![pace])
            }
            GeneratorKind::Pktgen => {
                let sending = Sending {
                    interface: out.name(),
                    macs: self.path.macs,
                    services: &self.path.services,
                    load: &self.load,
                };
                let root = std::path::Path::new(pktgen::ROOT);
                let send = || pktgen::send(root, &sending, asked, self.paces[0]);
                let (took, pace) = namespace.run(send)?;
                (took, vec![pace])
            }
            GeneratorKind::Sockets | GeneratorKind::Live => {
                let longest = self.load.sizes().into_iter().max().unwrap_or(0) as usize;
                let form = (longest.max(NUMBERED_LENGTH), out.index());
                let (object, paces) = (&mut self.object, self.paces.as_slice());
                namespace.run(|| threads::send(object, paces, form, seconds))?
            }
        };
        // Flows that were new in this trial are not new in the next.
        for (own, after) in self.paces.iter_mut().zip(&paces) {
            own.new_flow = after.new_flow;
        }
        let sent = paces.iter().map(|pace| u64::from(pace.sent)).sum();
        Ok((start, took, sent))
    }

    /// Tells whether the numbers of each thread's frames rise. Those of several devices of pktgen have no order among each other,
    /// and nothing tells the device.
    fn has_one_sequence(&self) -> bool {
        self.load.generator != GeneratorKind::Pktgen
            || pktgen::has_one_sequence(&self.load, self.path.services.len())
    }

    /// Returns what the sink has counted, when nothing more comes.
    fn await_count(&self, sent: u64) -> Result<Counted> {
        let deadline = Instant::now() + GRACE;
        loop {
            let counted = maps::counted(&self.object)?;
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
        maps::set_counted(&mut self.object, self.nothing)?;
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
        let sent = outcome.as_ref().map_or(0, |(_, _, sent)| *sent);
        let counted = self.await_count(sent);
        attached.map_or(Ok(()), |attached| self.detach(attached))?;
        let ((start, seconds, sent), counted) = (outcome?, counted?);
        ensure!(sent > 0, "the generator has sent nothing");
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
                    .map_or(sent, |rate| sent.max(frames_in(asked.seconds, rate).into())),
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
            losses: Vec::new(),
        };
        Ok((trial, done))
    }
}

impl Generator for Live<'_> {
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        Ok(self.run_beside(asked, || ())?.0)
    }
}
