//! What the XDP program costs per packet, against the least that any program could.
//!
//! Four systems take turns on the plain way, each on a veth pair of its own:
//!
//! | system | program | stands for |
//! |---|---|---|
//! | `floor` | returns `XDP_TX` | the empty program: all that is not the balancer |
//! | `static` | puts one fixed outer header in front | the limit of encapsulation without a decision |
//! | `hash_hit` | one look-up in a hash of the kernel's, with the key of a service | the unit of cost |
//! | `guideway` | the product's object, as shipped | ours |
//!
//! **Rate** (`pps`). A generator run by `BPF_PROG_TEST_RUN` with live frames writes
//! every frame anew (live frames are recycled without being restored) and sends it
//! into the pair; the program under test sends it back, a sink counts and frees it.
//! Generator, driver, program and sink share one core, so the rate is one over the sum
//! of their costs. Seconds are those of core time that the trial got: by the wall clock, less the time that
//! other processes had the core. A trial in which a hypervisor took the core away is made again. The sink's count and byte count, and the product's own counters,
//! must match the frames sent to the last one, or the run is an error.
//!
//! **Cost** (`ns`, `units`). Repeating one packet in `BPF_PROG_TEST_RUN` cannot be used:
//! from the second repetition on, an encapsulating program would see its own output. So
//! the same path is run again with the kernel's run statistics on
//! (`BPF_ENABLE_STATS`), which time each run of the program under test and nothing else.
//! Timing costs more than the program, equally in every system: the *net* cost is the
//! mean of a system minus that of `floor`, and one *unit* the net cost of `hash_hit`.
//! Units, unlike nanoseconds, carry over between machines and noisy minutes. Throughput
//! is never taken with statistics on.
//!
//! **Other ways** have their own empty programs to be compared with, and a cost only but for the first:
//!
//! | system | what it does | its empty program |
//! |---|---|---|
//! | `slots_131072` | the plain way to a service with so many slots | `floor` |
//! | `services_10000` | the plain way to so many services, by as many addresses | `floor` |
//! | `node_port` | from a NodePort to a pod of another node | `floor` |
//! | `l2_dsr` | other MACs, no outer header | `floor` |
//! | `miss` | hands what is not ours to the stack | returns `XDP_PASS` |
//! | `node` | takes the outer header off, translates to the pod, hands it to the stack | returns `XDP_PASS` |
//! | `reply` | the TC egress program translates the pod's answer back | returns `TC_ACT_UNSPEC` |
//! | `nat` | NAT mode, from client to backend | `floor` |
//! | `nat_reply` | NAT mode, from backend to client | `floor` |
//! | `other_egress` | the TC egress program leaves alone what is no reply of a pod | returns `TC_ACT_UNSPEC` |
//!
//! `node`, `reply` and NAT find their flows in the tables; the tables hold 10 000, and each has one packet before its cost is measured. Behind a program that hands frames to the stack, a TC
//! program is the sink. The TC programs run at ingress there, on packets that the driver made of the frames:
//! `BPF_PROG_TEST_RUN` would repeat them over one packet that is its own output.
//!
//! **Noise**. One round runs every system with every number of flows, so what disturbs a
//! round disturbs all of them; the order rotates and reverses from round to round, and
//! the first round is thrown away. Figures are medians over rounds, ratios are formed
//! within a round, intervals come from a bootstrap over rounds. A bar whose interval
//! contains the bound is neither held nor failed: the run is inconclusive.

pub mod against;
mod frames;
pub mod instructions;
mod paths;
mod plan;
mod report;
mod rig;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use self::rig::{Rig, RunStatistics};
pub use self::{
    frames::{Family, Protocol},
    plan::{Order, Stream, System},
    report::{Bar, Outcome, Report, Row},
};
use crate::host::{self, Facts};

/// What to measure and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address families.
    pub families: Vec<Family>,
    /// Transport protocols.
    pub protocols: Vec<Protocol>,
    /// Rounds that count; one more is run first.
    pub rounds: usize,
    /// Length of one trial.
    pub seconds: f64,
    /// The core to run on.
    pub core: Option<usize>,
}

/// The packets of a trial.
#[derive(Clone, Copy, Debug)]
struct Case {
    family: Family,
    protocol: Protocol,
    stream: Stream,
}

/// What the rounds of one family and protocol gave.
#[derive(Clone, Debug, Default)]
struct Samples {
    pps: BTreeMap<(System, Stream), Vec<f64>>,
    ns: BTreeMap<(System, Stream), Vec<f64>>,
}

/// Runs the scenario; `progress` hears what is being done.
///
/// # Errors
///
/// When the machine is unfit, the kernel refuses something, or frames get lost.
pub fn run(options: &Options, progress: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    ensure!(
        options.rounds >= 3,
        "at least 3 rounds are needed to tell noise from cost"
    );
    ensure!(
        options.seconds > 0.0 && options.seconds <= 10.0,
        "a trial of {} seconds makes no sense: it takes more than 0 and at most 10",
        options.seconds
    );
    host::preflight()?;
    let namespace = lab::Namespace::new("bench").context("making a network namespace")?;
    let cables = rig::cable(&namespace)?;
    namespace.run(|| {
        let core = host::occupy_core(options.core)?;
        let mut rig = Rig::new(cables, core)?;
        let mut report = Report::new(Facts::collect(), core, options.rounds);
        for &family in &options.families {
            for &protocol in &options.protocols {
                let samples = measure(&mut rig, family, protocol, options, progress)?;
                report.add(family, protocol, &samples);
            }
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
    let mut samples = Samples::default();
    for round in 0..=options.rounds {
        progress(&format!(
            "{} {}: round {round} of {}",
            report::lower(family),
            report::lower(protocol),
            options.rounds
        ));
        for (stream, system) in plan::rate_trials(round) {
            let rate = rig.rate(system, case(stream), frames)?;
            if round > 0 {
                samples.pps.entry((system, stream)).or_default().push(rate);
            }
        }
        let _statistics = RunStatistics::enable()?;
        for (stream, system) in plan::cost_trials(round) {
            let cost = rig.cost(system, case(stream), frames)?;
            if round > 0 {
                samples.ns.entry((system, stream)).or_default().push(cost);
            }
        }
    }
    Ok(samples)
}

/// As many frames as the floor sends in the time of a trial.
fn frames_per_trial(rig: &mut Rig, case: Case, seconds: f64) -> Result<u32> {
    const PROBE: u32 = 50_000;
    let rate = rig.rate(System::Floor, case, PROBE)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float casts saturate, and any count will do"
    )]
    let frames = (rate * seconds) as u32;
    // One full cycle of the flows would be best, but a noisy probe must not end in seconds of waiting.
    Ok(frames.clamp(PROBE, 100_000_000))
}
