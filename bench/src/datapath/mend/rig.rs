//! Single trials with the devices, edges and sinks.

use std::{
    hint,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use aya::{Ebpf, EbpfLoader};
use fastpath::mend;
use lab::{Link, Namespace, wait_for};
use xdp_prog::{
    abi,
    bench::{map, program},
};

use super::{
    FULL, Family, PACE, Protocol, STREAM, Subject, Trial,
    arrived::Arrived,
    cables::{BARE_BRIDGE, Cable, Cables},
    edges::{Edge, Ledger, PATIENCE, Thread},
};
use crate::{
    bare::{Bare, Redirect},
    datapath::{
        frames, object,
        two_cores::{Traffic, beside},
    },
    host::{self, CoreClock},
    usage,
};

/// Frames that are sent at once at a pace: a small part of what a queue holds.
const BURST: u32 = 32;

impl Subject {
    const fn cable(self) -> Cable {
        match self {
            Self::L2Fwd => Cable::Bare,
            Self::L2FwdBridge => Cable::BareToBridge,
            Self::Alone => Cable::Alone,
            _ => Cable::Mending,
        }
    }

    /// Returns the frame of flow 0.
    fn frame(self, family: Family, protocol: Protocol) -> Vec<u8> {
        if self.is_cut() {
            frames::fragmentable_frame(protocol, self.port(), FULL.into())
        } else {
            frames::frame(family, protocol, self.port())
        }
    }
}

/// A bare loop with the program that leads frames to it.
struct Loop {
    bare: Bare,
    _redirect: Redirect,
}

impl Loop {
    /// Has the frames of an interface come to the loop. It sends them back, or to an interface.
    fn start(from: &Link<'_>, to: Option<&str>) -> Result<Self> {
        let bare = Bare::between(from.name(), to.unwrap_or(from.name()))?;
        let redirect = Redirect::attach(from, bare.socket())?;
        Ok(Self {
            bare,
            _redirect: redirect,
        })
    }
}

pub(super) struct Rig {
    /// The generator, and the sink of what comes back.
    bench: Ebpf,
    /// The sink of what the thread sends: it counts on another core.
    by_thread: Ebpf,
    cables: Cables,
    bare: Loop,
    bare_to_bridge: Loop,
    _alone: Edge,
    mending: Edge,
    thread: Thread,
    /// The core of the loop and of the thread.
    core: usize,
    /// That of the generator.
    sender: usize,
    /// Number of frames sent so far.
    sent: u32,
}

impl Rig {
    /// Loads, attaches and starts everything, and has the calling thread send from the second core. Must be called inside
    /// the namespace.
    pub(super) fn new(
        namespace: &Namespace,
        cables: Cables,
        [core, sender]: [usize; 2],
    ) -> Result<Self> {
        let load = |programs: &[&str]| {
            let mut object = EbpfLoader::new()
                .load(fastpath::object::bench_bytes())
                .context("loading the bench's BPF object")?;
            for name in programs {
                object::xdp_mut(&mut object, name)?.load()?;
            }
            anyhow::Ok(object)
        };
        let mut bench = load(&[program::GENERATE_V4, program::GENERATE_V6, program::SINK])?;
        let mut by_thread = load(&[program::SINK])?;
        for (cable, pair) in &cables.pairs {
            let sink = match cable {
                Cable::Pieces | Cable::Bridged | Cable::BareBridged => &mut by_thread,
                _ => &mut bench,
            };
            object::attach(sink, program::SINK, pair.near)?;
        }
        // Nothing comes to these devices.
        let idle = [
            namespace.link("lo")?.index(),
            cables.pairs[&Cable::Pieces].far,
        ];
        for (name, device) in [program::GENERATE_V4, program::GENERATE_V6]
            .into_iter()
            .zip(idle)
        {
            object::keep_ready(&mut bench, name, device)?;
        }
        let bare_at = |cable| namespace.link(&cables.pairs[&cable].far_name);
        let bare = Loop::start(&bare_at(Cable::Bare)?, None)?;
        let bare_to_bridge = Loop::start(&bare_at(Cable::BareToBridge)?, Some(BARE_BRIDGE))?;
        let alone = Edge::serve(&cables.pairs[&Cable::Alone], &cables, false)?;
        host::move_to_core(core)?;
        let pair = &cables.pairs[&Cable::Mending];
        let mut mending = Edge::serve(pair, &cables, true)?;
        let thread = Thread::start(&mut mending.product, pair)?;
        host::move_to_core(sender)?;
        Ok(Self {
            bench,
            by_thread,
            cables,
            bare,
            bare_to_bridge,
            _alone: alone,
            mending,
            thread,
            core,
            sender,
            sent: 0,
        })
    }

    /// Sends frames. The trial is repeated if a hypervisor took one of the cores.
    pub(super) fn trial(
        &mut self,
        subject: Subject,
        traffic: Traffic,
        frames: u32,
    ) -> Result<Trial> {
        host::undisturbed(self.core, || {
            let trial = self.try_once(subject, traffic, frames);
            trial.with_context(|| subject.name())
        })
    }

    /// Returns `None` if a hypervisor took one of the cores meanwhile.
    fn try_once(
        &mut self,
        subject: Subject,
        (family, protocol): Traffic,
        frames: u32,
    ) -> Result<Option<Trial>> {
        let frame = subject.frame(family, protocol);
        object::set_stream(&mut self.bench, STREAM, self.sent)?;
        self.sent = self.sent.wrapping_add(frames);
        let generator = object::generate(&mut self.bench, family, &frame)?;
        let device = self.cables.pairs[&subject.cable()].near;
        let [bench, by_thread] = [&mut self.bench, &mut self.by_thread];
        for sink in [&mut *bench, &mut *by_thread] {
            object::array(sink, map::RECEIVED)?.set(0, abi::Traffic::default(), 0)?;
        }
        let (mending, thread, cores) = (&self.mending, &self.thread, [self.sender, self.core]);
        let before = Ledger::of(mending, thread);
        let mut work = || {
            let (begin, used) = (Instant::now(), usage::of_threads(mend::THREAD)?);
            let clocks = read_clocks(cores)?;
            let send = |frames| object::send_live(bench, generator, &frame, device, frames);
            match subject {
                Subject::CutPaced => at_pace(frames, send)?,
                _ => send(frames)?,
            }
            let now = read_clocks(cores)?;
            let wall = begin.elapsed().as_secs_f64();
            let used = usage::of_threads(mend::THREAD)?.saturating_sub(used);
            let mut arrived = || Arrived::read(bench, by_thread);
            let in_time = arrived()?;
            // A busy machine may keep the thread from what it has got.
            let (arrived, ledger) = wait_for("no packet is missing", PATIENCE, || {
                object::settle(|| Ok(arrived()?.packets()))?;
                let (arrived, ledger) = (arrived()?, Ledger::of(mending, thread).since(before));
                ledger.check(subject, arrived.by_thread.packets)?;
                anyhow::Ok((arrived, ledger))
            })?;
            let is_stolen = now
                .iter()
                .zip(clocks)
                .any(|(now, before)| now.is_stolen_since(before));
            let all = arrived.whole_frames(subject, family, frame.len())?;
            let trial = Trial {
                sent: frames,
                counted: match subject {
                    Subject::HalfCut => u64::from(frames) - ledger.punted,
                    _ => frames.into(),
                },
                // Two pieces that had come may be of two frames.
                in_time: in_time.frames(subject).min(all),
                arrived: all,
                punted: ledger.punted,
                dropped: ledger.lost,
                seconds: if subject.is_finished_by_xdp() {
                    now[0].since(clocks[0])
                } else {
                    wall
                },
                thread: used.as_secs_f64() / wall,
            };
            ensure!(
                all <= trial.counted,
                "of {} frames, {all} came",
                trial.counted
            );
            Ok((!is_stolen).then_some(trial))
        };
        match subject {
            Subject::L2Fwd => beside(&mut self.bare.bare, self.core, work),
            Subject::L2FwdBridge => beside(&mut self.bare_to_bridge.bare, self.core, work),
            _ => work(),
        }
    }
}

/// Reads the core time of the calling thread, and what a hypervisor took from these cores.
fn read_clocks([one, other]: [usize; 2]) -> Result<[CoreClock; 2]> {
    Ok([host::core_clock(one)?, host::core_clock(other)?])
}

/// Sends frames at [`PACE`], in bursts. Time that is lost is not made up for.
fn at_pace(frames: u32, mut send: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let interval = Duration::from_secs(1) * BURST / PACE;
    let mut due = Instant::now();
    let mut left = frames;
    while left > 0 {
        while Instant::now() < due {
            hint::spin_loop();
        }
        let burst = left.min(BURST);
        send(burst)?;
        left -= burst;
        due = (due + interval).max(Instant::now());
    }
    Ok(())
}
