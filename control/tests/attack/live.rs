//! What sends floods: a BPF program that makes frames in the kernel, as if the router had sent them.
//!
//! These are live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`, Documentation/bpf/bpf_prog_run.rst): without a socket, a copy or
//! a system call each, so that the cores are left to the machines under attack.

use std::{
    collections::BTreeMap,
    iter,
    time::{Duration, Instant},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::Array,
    programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode},
};
use lab::{Link, Topology, output};
use xdp_prog::bench::{LISTED_LENGTH, Listed, Schedule, map, program};

use crate::flood::Stream;

/// Frames that were sent, and how long that took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) frames: u64,
    pub(crate) within: Duration,
}

impl Sent {
    /// Frames per second.
    pub(crate) fn rate(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let frames = self.frames as f64;
        frames / self.within.as_secs_f64()
    }
}

/// Frames that are late by no more than this are made up for: a device has no room for more of them at once.
const PATIENCE: Duration = Duration::from_micros(500);
/// Runs of the generator for each call, of some 50 ns where no frame is due: short, for on a busy machine a call takes many
/// times as long.
const RUNS: u32 = 1 << 18;
/// Runs between two looks at who else wants the core.
const BATCH: u32 = 8;

/// Sends the frames of each stream again and again, a frame of each in turn, for at least so long and no faster than
/// `rate` a second in all.
///
/// Frames that a device had no room for do not count. The sender leaves most of the cores to whoever has work for what it
/// sent: these are the machines under attack, and have cores of their own elsewhere.
pub(crate) fn send(net: &Topology, streams: &[Stream<'_>], rate: u64, duration: Duration) -> Sent {
    let cables: Vec<_> = streams
        .iter()
        .map(|stream| net.far_end(stream.machine).unwrap())
        .collect();
    let mut object = load(&list(streams, &cables), rate);
    let generator: &mut Xdp = object
        .program_mut(program::GENERATE_LIST)
        .unwrap()
        .try_into()
        .unwrap();
    generator.load().unwrap();
    // Each time that a program is run which no device has, the kernel waits for an RCU grace period. This device has no
    // traffic.
    let idle = cables[0].namespace().link("lo").unwrap();
    let attach = || generator.attach_to_if_index(idle.index(), XdpMode::Skb);
    idle.namespace().run(attach).unwrap();
    let run = || {
        let options = TestRunOptions {
            data_in: Some(&[0; LISTED_LENGTH]),
            repeat: RUNS,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::default()
        };
        generator.test_run(options).unwrap();
    };
    let each: BTreeMap<u32, &Link<'_>> =
        cables.iter().map(|cable| (cable.index(), cable)).collect();
    let taken = || each.values().copied().map(frames_taken).sum::<u64>();
    let before = taken();
    let began = Instant::now();
    cables[0].namespace().run(|| {
        lab::run_after_others().unwrap();
        while began.elapsed() < duration {
            run();
        }
    });
    Sent {
        frames: taken() - before,
        within: began.elapsed(),
    }
}

/// The frames in the order in which they are sent.
fn list(streams: &[Stream<'_>], cables: &[Link<'_>]) -> Vec<Listed> {
    let longest = streams.iter().map(|stream| stream.frames.len()).max();
    (0..longest.unwrap())
        .flat_map(|turn| {
            iter::zip(streams, cables).map(move |(stream, cable)| {
                let frame = &stream.frames[turn % stream.frames.len()];
                let mut bytes = [0; LISTED_LENGTH];
                bytes[..frame.len()].copy_from_slice(frame);
                Listed {
                    device: cable.index(),
                    bytes,
                }
            })
        })
        .collect()
}

fn load(list: &[Listed], rate: u64) -> Ebpf {
    let frames = u32::try_from(list.len()).unwrap();
    let mut object = EbpfLoader::new()
        .map_max_entries(map::LIST, frames)
        .load(fastpath::object::bench_bytes())
        .unwrap();
    let mut entries = Array::<_, Listed>::try_from(object.map_mut(map::LIST).unwrap()).unwrap();
    for (place, frame) in (0..).zip(list) {
        entries.set(place, frame, 0).unwrap();
    }
    let schedule = Schedule {
        due: 0,
        interval: 1_000_000_000 / rate,
        patience: PATIENCE.as_nanos().try_into().unwrap(),
        frames,
        next: 0,
        ..Schedule::default()
    };
    let entry = object.map_mut(map::SCHEDULE).unwrap();
    let mut entry = Array::<_, Schedule>::try_from(entry).unwrap();
    entry.set(0, schedule, 0).unwrap();
    object
}

/// Live frames that the other end of a cable has taken so far.
fn frames_taken(cable: &Link<'_>) -> u64 {
    const COUNTER: &str = "tx_queue_0_xdp_xmit:";
    let mut ethtool = cable.namespace().command("ethtool");
    let statistics = output(ethtool.args(["-S", cable.name()])).unwrap();
    let mut counters = statistics.lines().map(str::trim);
    let counter = counters.find_map(|line| line.strip_prefix(COUNTER));
    counter.unwrap().trim().parse().unwrap()
}
