//! Measures the rate of the whole edge in user space, compared with the least that any loop over AF_XDP could do.
//!
//! Three forwarders take turns, each with one queue of a veth pair:
//!
//! | system | does | stands for |
//! |---|---|---|
//! | `l2fwd` | `xsk-rs` alone: swaps the MAC addresses of each frame and sends it back | everything except the load balancer |
//! | `ipip` | a thread of `datapath: afxdp`, as shipped: adds an outer header | Guideway |
//! | `l2_dsr` | the same thread, for a service by L2 DSR: changes MAC addresses | Guideway |
//!
//! ```text
//! one core:   generator --live frames--> near end ===veth=== far end: XDP program --> socket
//! the other:  near end: sink <===veth=== far end <-- socket: forwarder
//! ```
//!
//! **Rate** (`pps`): frames that the sink counts while the generator sends, per second of wall clock. The generator sends
//! more than a forwarder takes. The kernel drops the rest before the forwarder sees it. If a generator sends hardly more
//! than comes back, the rate is the generator's: no bar is judged by it. Forwarder, its driver and the sink share a core.
//! All frames that come back must have the length that the forwarder gives them, and the threads must have sent all that
//! they have taken, or the run is an error.
//!
//! Rounds go back and forth as those of the XDP programs do, and intervals come from the same bootstrap over rounds.
//!
//! [`Packets`] has the part of a packet's way that is between the rings: what the thread computes.

mod packets;
mod report;
mod result;
mod rig;

use anyhow::Result;

use self::rig::Rig;
pub use self::{packets::Packets, report::Row};
use super::{
    Family, Options, Protocol, Stream, System,
    two_cores::{self, Progress, Traffic},
};

/// The flows of all trials.
const STREAM: Stream = Stream::random(10_000);

/// What sends frames back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forwarder {
    /// A loop that swaps the MAC addresses.
    L2Fwd,
    /// The whole edge, for a service by IPIP.
    Ipip,
    /// The whole edge, for a service by L2 DSR.
    L2Dsr,
}

impl Forwarder {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::L2Fwd, Self::Ipip, Self::L2Dsr];

    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L2Fwd => "l2fwd",
            Self::Ipip => "ipip",
            Self::L2Dsr => "l2_dsr",
        }
    }

    /// Returns the system of the XDP programs whose service the frames are for; `None` for a loop without services.
    const fn system(self) -> Option<System> {
        match self {
            Self::L2Fwd => None,
            Self::Ipip => Some(System::Guideway),
            Self::L2Dsr => Some(System::L2Dsr),
        }
    }

    /// Returns by how many bytes a frame is longer once it is sent back.
    const fn outer(self, family: Family) -> usize {
        match self {
            Self::L2Fwd | Self::L2Dsr => 0,
            Self::Ipip => family.header_length(),
        }
    }
}

/// The outcome of sending frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Frames that the generator has sent.
    sent: u32,
    /// Those that had come back by then.
    returned: u64,
    /// How long the generator took, in seconds.
    seconds: f64,
}

impl Trial {
    /// Returns the frames per second that came back.
    fn rate(&self) -> f64 {
        self.returned as f64 / self.seconds
    }

    /// Returns the frames per second that the generator has sent.
    fn offered(&self) -> f64 {
        f64::from(self.sent) / self.seconds
    }
}

type Samples = two_cores::Samples<Forwarder, Trial>;

/// Everything that was measured.
pub type Report = two_cores::Report<Row, Forwarder, Trial>;

/// Runs the scenario. `progress` is called with what is being done.
///
/// # Errors
///
/// When the machine is unfit, the kernel refuses something, or frames go another way than they should.
pub fn run(options: &Options, progress: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    two_cores::run(options, progress, rig::cable, Rig::new, measure, Row::new)
}

fn measure(
    rig: &mut Rig,
    traffic: Traffic,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Samples> {
    /// Frames that tell how many a trial has.
    const PROBE: u32 = 50_000;
    let (family, protocol) = traffic;
    let probe = rig.trial(Forwarder::L2Fwd, family, protocol, PROBE)?;
    let frames = super::frames_in(probe.offered(), options.seconds, PROBE);
    two_cores::measure(&Forwarder::ALL, options, traffic, progress, |forwarder| {
        rig.trial(forwarder, family, protocol, frames)
    })
}
