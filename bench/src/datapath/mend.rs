//! Measures the thread that mends and carries what XDP cannot finish: how much it takes, and what it costs all others.
//!
//! These take turns, each with one queue of a veth pair:
//!
//! | subject | frames | go |
//! |---|---|---|
//! | `l2fwd` | shortest | back by a loop of `xsk-rs` alone, which swaps the MAC addresses |
//! | `l2fwd_bridge` | shortest | to a bridge by such a loop, whose two sockets share their memory |
//! | `alone` | shortest | back by XDP, at an edge without the thread |
//! | `plain` | shortest | the same, at an edge with it: it has nothing to do |
//! | `thousandth` | shortest | the same, but 1 of 1000 through the thread to a bridge |
//! | `carried` | shortest | all of them through the thread to a bridge |
//! | `cut` | IPv4, 1500 bytes, without DF | all of them through the thread, which cuts them in two |
//! | `cut_100000` | the same | the same, 100 000 a second |
//! | `half_cut` | the same | half of them so, the other half by XDP to where larger packets fit |
//!
//! ```text
//! one core:   generator --live frames--> near end ===veth=== far end: XDP program --> back: sink
//!                                                                         '--> socket
//! the other:                                                                     '--> thread --> bridge or pair --> sink
//! ```
//!
//! **Rate** (`pps`): frames that have arrived while the generator sends, per second of the clock, or of the generator's core
//! where XDP sends them back on it ([`datapath`](super)). A frame that was cut arrives in two pieces, and counts once. Of
//! `half_cut`, only the frames that XDP sends count. **Lost** is the share of
//! these that never arrives; where the generator sends more than the thread takes, the kernel drops the rest before the
//! thread sees it, and counts it. **Thread** is the share of a core that the thread takes.
//!
//! Rounds go back and forth as those of the XDP programs do, and intervals come from the same bootstrap over rounds.

mod arrived;
mod cables;
mod edges;
mod report;
mod result;
mod rig;

use std::collections::BTreeMap;

use anyhow::Result;

pub use self::report::Row;
use self::rig::Rig;
use super::{
    Family, Options, Protocol, Stream,
    two_cores::{self, Progress, Traffic},
};

/// The flows of all trials.
const STREAM: Stream = Stream::random(10_000);
/// Bytes of the packets that are cut: they fill the MTU of the way to the nodes.
const FULL: u16 = 1500;
/// Frames per second of [`Subject::CutPaced`].
const PACE: u32 = 100_000;

/// What happens to the frames of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A bare loop sends them back.
    L2Fwd,
    /// A bare loop sends them to a bridge.
    L2FwdBridge,
    /// XDP sends them back, at an edge without the thread.
    Alone,
    /// XDP does, at an edge with it.
    Plain,
    /// XDP does with 999 of 1000. The thread carries the last one.
    Thousandth,
    /// The thread carries them.
    Carried,
    /// The thread cuts them.
    Cut,
    /// The thread cuts them, 100 000 a second.
    CutPaced,
    /// The thread cuts half of them. XDP sends the others, which are counted.
    HalfCut,
}

impl Subject {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::L2Fwd,
        Self::L2FwdBridge,
        Self::Alone,
        Self::Plain,
        Self::Thousandth,
        Self::Carried,
        Self::Cut,
        Self::CutPaced,
        Self::HalfCut,
    ];

    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L2Fwd => "l2fwd",
            Self::L2FwdBridge => "l2fwd_bridge",
            Self::Alone => "alone",
            Self::Plain => "plain",
            Self::Thousandth => "thousandth",
            Self::Carried => "carried",
            Self::Cut => "cut",
            Self::CutPaced => "cut_100000",
            Self::HalfCut => "half_cut",
        }
    }

    /// Lists those of a family. Nobody on its way may cut an IPv6 packet (RFC 8200 section 4.5).
    fn of(family: Family) -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter();
        all.filter(move |subject| family == Family::V4 || !subject.is_cut())
    }

    /// Tells whether frames are cut.
    const fn is_cut(self) -> bool {
        matches!(self, Self::Cut | Self::CutPaced | Self::HalfCut)
    }

    /// Tells whether XDP finishes the frames that count, on the generator's core: their rate is that core's.
    const fn is_finished_by_xdp(self) -> bool {
        matches!(
            self,
            Self::Alone | Self::Plain | Self::Thousandth | Self::HalfCut
        )
    }

    /// Returns the subject whose rate this one's is held against.
    const fn reference(self) -> Option<Self> {
        match self {
            Self::Plain => Some(Self::Alone),
            Self::Thousandth => Some(Self::Plain),
            Self::Carried => Some(Self::L2FwdBridge),
            Self::L2FwdBridge => Some(Self::L2Fwd),
            _ => None,
        }
    }
}

/// The outcome of sending frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Frames that the generator has sent.
    sent: u32,
    /// Those of them that count.
    counted: u64,
    /// Those of the counted ones that had arrived when the generator was done.
    in_time: u64,
    /// All of the counted ones that arrived.
    arrived: u64,
    /// Frames that XDP left for the thread, and those of them that the kernel lost before the thread could take them.
    punted: u64,
    dropped: u64,
    /// How long the generator took, in seconds: of its core, or of the clock.
    seconds: f64,
    /// The share of a core that the thread took while the generator sent.
    thread: f64,
}

impl Trial {
    /// Returns the frames per second that arrived.
    fn rate(&self) -> f64 {
        self.in_time as f64 / self.seconds
    }

    /// Returns the frames per second that the generator has sent.
    fn offered(&self) -> f64 {
        f64::from(self.sent) / self.seconds
    }
}

type Samples = two_cores::Samples<Subject, Trial>;

/// Everything that was measured.
pub type Report = two_cores::Report<Row, Subject, Trial>;

/// Runs the scenario. `progress` is called with what is being done.
///
/// # Errors
///
/// When the machine is unfit, the kernel refuses something, or frames go another way than they should.
pub fn run(options: &Options, progress: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    two_cores::run(
        options,
        progress,
        cables::cable,
        Rig::new,
        measure,
        Row::new,
    )
}

fn measure(
    rig: &mut Rig,
    traffic: Traffic,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Samples> {
    /// Frames that tell how many a trial has, and for which the thread opens its sockets.
    const PROBE: u32 = 10_000;
    let subjects: Vec<Subject> = Subject::of(traffic.0).collect();
    let mut frames = BTreeMap::new();
    for subject in &subjects {
        let offered = rig.trial(*subject, traffic, PROBE)?.offered();
        frames.insert(*subject, super::frames_in(offered, options.seconds, PROBE));
    }
    two_cores::measure(&subjects, options, traffic, progress, |subject| {
        rig.trial(subject, traffic, frames[&subject])
    })
}
