//! Measures the cost of the XDP program per packet, compared with the least that any program could cost.
//!
//! Four systems take turns on the plain path, each on a veth pair of its own:
//!
//! | system | program | stands for |
//! |---|---|---|
//! | `floor` | returns `XDP_TX` | an empty program: the cost of everything except the load balancer |
//! | `static` | adds one fixed outer header | the limit of encapsulation without a decision |
//! | `hash_hit` | one lookup in a kernel hash map, with the key of a service | the unit of cost |
//! | `guideway` | the product's object, as shipped | Guideway |
//!
//! **Rate** (`pps`). A generator, run by `BPF_PROG_TEST_RUN` with live frames, sends frames into the pair. It
//! writes every frame again, because live frames are recycled without being restored. The program under test
//! sends the frames back; a sink counts and frees them. Generator, driver, program and sink share one core, so
//! the rate is one over the sum of their costs. A second is a second of core time: wall clock less the time
//! that other processes had the core. A trial in which a hypervisor took the core away is repeated. The sink's
//! counts of frames and bytes and the product's own counters must match the frames sent exactly, or the run is
//! an error.
//!
//! **Cost** (`ns`, `units`). `BPF_PROG_TEST_RUN` cannot repeat one packet for this: from the second repetition
//! on, an encapsulating program would see its own output. So the same path is run again with the kernel's run
//! statistics (`BPF_ENABLE_STATS`), which time only the runs of the program under test. The timing itself costs
//! more than the program, but the same for every system: the *net* cost is the mean of a system minus that of
//! `floor`, and one *unit* is the net cost of `hash_hit`. Units, unlike nanoseconds, can be compared between
//! machines and between noisy minutes. The rate is never measured with statistics on.
//!
//! **Other paths** have empty programs of their own as reference. Only the first of them has a rate too:
//!
//! | system | what it does | its empty program |
//! |---|---|---|
//! | `slots_131072` | the plain path to a service with this many slots | `floor` |
//! | `services_10000` | the plain path to this many services, each with its own address | `floor` |
//! | `node_port` | from a NodePort to a pod on another node | `floor` |
//! | `l2_dsr` | changes MAC addresses, adds no outer header | `floor` |
//! | `miss` | passes a packet that is not ours to the stack | returns `XDP_PASS` |
//! | `node` | removes the outer header, translates to the pod, passes to the stack | returns `XDP_PASS` |
//! | `reply` | the TC egress program translates the pod's reply | returns `TC_ACT_UNSPEC` |
//! | `nat` | NAT mode, from client to backend | `floor` |
//! | `nat_reply` | NAT mode, from backend to client | `floor` |
//! | `other_egress` | the TC egress program leaves a packet alone that is no pod's reply | returns `TC_ACT_UNSPEC` |
//! | `past` | the plain path to pods that are new owners of their slots: the node may return the packet | `floor` |
//! | `pinned` | the same, for connections that are pinned to past owners | `floor` |
//! | `node_tries` | as `node`, with packets that the node may return | returns `XDP_PASS` |
//! | `node_first` | as `node`, with the first packet of each flow in a second | returns `XDP_PASS` |
//! | `node_asked` | as `node_tries`, with the first packet of each flow in a second: the node asks the pod's kernel | returns `XDP_PASS` |
//! | `node_return` | the node does not know the flow, and returns the packet to the edge | `floor` |
//! | `retry` | the edge sends a packet that was returned to the slot's next owner | `floor` |
//!
//! `node`, `reply` and NAT find their flows in the tables. The tables hold 10 000 flows, and each has one
//! packet before its cost is measured. If a program passes frames to the stack, a TC program is the sink. The
//! TC programs run at ingress there, on packets that the driver makes from the frames: `BPF_PROG_TEST_RUN`
//! would run them again and again over one packet, which is their own output.
//!
//! **Noise**. One round runs every system with every number of flows, so that a disturbance affects all of
//! them. The order is rotated and reversed from round to round, and the first round is discarded. Figures are
//! medians over rounds, ratios are formed within a round, and intervals come from a bootstrap over rounds. If
//! the interval of a figure contains its bound, the result is neither "holds" nor "fails": the run is
//! inconclusive.
//!
//! [`whole_edge`] measures the engine in user space that takes the place of these programs on old kernels, and [`mend`] the
//! thread that finishes what they cannot.

pub mod against;
pub mod balancers;
pub(crate) mod frames;
pub mod instructions;
pub mod mend;
mod object;
mod pairs;
mod past;
mod paths;
mod plan;
mod pod_sockets;
mod report;
mod result;
mod rig;
mod tables;
#[cfg(test)]
mod tests;
pub mod two_cores;
pub mod whole_edge;

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::rig::{Rig, RunStatistics};
pub use self::{
    frames::{Family, Protocol},
    plan::{Order, Stream, System},
    report::{Bar, Report, Row},
};
use crate::{
    bars::Outcome,
    host::{self, Facts},
    result::Files,
};

/// What to measure and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address families.
    pub families: Vec<Family>,
    /// Transport protocols.
    pub protocols: Vec<Protocol>,
    /// Number of rounds that count; one more is run first.
    pub rounds: usize,
    /// Duration of one trial, in seconds.
    pub seconds: f64,
    /// The core to run on; `None` for the last one.
    pub core: Option<usize>,
}

impl Options {
    /// Checks that figures can come of it.
    fn check(&self) -> Result<()> {
        ensure!(
            self.rounds >= 3,
            "at least 3 rounds are needed to tell noise from cost"
        );
        ensure!(
            self.seconds > 0.0 && self.seconds <= 10.0,
            "a trial of {} seconds makes no sense: it takes more than 0 and at most 10",
            self.seconds
        );
        Ok(())
    }

    /// Returns each family with each protocol.
    fn traffic(&self) -> impl Iterator<Item = (Family, Protocol)> {
        let families = self.families.iter();
        families.flat_map(|&family| {
            self.protocols
                .iter()
                .map(move |&protocol| (family, protocol))
        })
    }
}

/// What an engine has been measured to do. Its text is a table.
pub trait Figures: Display {
    /// Returns the rows of the table as flat objects.
    fn rows(&self) -> Vec<Value>;

    /// Returns the worst outcome of all bars.
    fn outcome(&self) -> Outcome;

    /// Makes a result of the figures. `started` is the start of the run since the epoch, `command` repeats it.
    ///
    /// # Errors
    ///
    /// When a number has no form in JSON.
    fn files(&self, options: &Options, command: String, started: Duration) -> Result<Files>;
}

/// The packets of a trial.
#[derive(Clone, Copy, Debug)]
struct Case {
    family: Family,
    protocol: Protocol,
    stream: Stream,
}

/// The figures of one family and protocol, by round.
#[derive(Clone, Debug, Default)]
struct Samples {
    /// Frames of a trial.
    frames: u32,
    pps: BTreeMap<(System, Stream), Vec<f64>>,
    ns: BTreeMap<(System, Stream), Vec<f64>>,
}

/// Runs the scenario. `progress` is called with what is being done.
///
/// # Errors
///
/// When the machine is unfit, the kernel refuses something, or frames are lost.
pub fn run(options: &Options, progress: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    options.check()?;
    host::preflight()?;
    let namespace = lab::Namespace::new("bench").context("making a network namespace")?;
    let cables = rig::cable(&namespace)?;
    namespace.run(|| {
        let core = host::occupy_core(options.core)?;
        let mut rig = Rig::new(cables, core)?;
        let mut report = Report::new(Facts::collect(), core, options.rounds);
        for (family, protocol) in options.traffic() {
            let samples = measure(&mut rig, family, protocol, options, progress)?;
            report.add(family, protocol, samples);
        }
        Ok(report)
    })
}

fn measure(
    rig: &mut Rig,
    family: Family,
    protocol: Protocol,
    options: &Options,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Samples> {
    let case = |stream| Case {
        family,
        protocol,
        stream,
    };
    let first = case(Stream::in_turn(1));
    rig.prepare(first)?;
    let frames = frames_per_trial(rig, first, options.seconds)?;
    let mut samples = Samples {
        frames,
        ..Samples::default()
    };
    for round in 0..=options.rounds {
        progress(&format!(
            "{} {}: round {round} of {}",
            report::lower(family),
            report::lower(protocol),
            options.rounds
        ));
        for (stream, system) in plan::rate_trials(protocol, round) {
            let rate = rig.rate(system, case(stream), frames)?;
            if round > 0 {
                samples.pps.entry((system, stream)).or_default().push(rate);
            }
        }
        let _statistics = RunStatistics::enable()?;
        for (stream, system) in plan::cost_trials(protocol, round) {
            let cost = rig.cost(system, case(stream), frames)?;
            if round > 0 {
                samples.ns.entry((system, stream)).or_default().push(cost);
            }
        }
    }
    Ok(samples)
}

/// Returns the number of frames that `floor` sends in the time of a trial.
fn frames_per_trial(rig: &mut Rig, case: Case, seconds: f64) -> Result<u32> {
    const PROBE: u32 = 50_000;
    let rate = rig.rate(System::Floor, case, PROBE)?;
    Ok(frames_in(rate, seconds, PROBE))
}

/// Returns the number of frames that pass at a rate per second in this time, `least` or more.
fn frames_in(rate: f64, seconds: f64, least: u32) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float casts saturate, and any count will do"
    )]
    let frames = (rate * seconds) as u32;
    // A full cycle of all flows would be best, but a wrong probe must not cause a wait of seconds.
    frames.clamp(least, 100_000_000)
}
