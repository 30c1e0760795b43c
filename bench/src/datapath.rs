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
//! **Other ways**. What is not the plain way has a cost only, with its own empty program to be compared with:
//!
//! | system | what it does | its empty program |
//! |---|---|---|
//! | `node` | takes the outer header off, translates to the pod, hands it to the stack | returns `XDP_PASS` |
//! | `reply` | the TC egress program translates the pod's answer back | returns `TC_ACT_UNSPEC` |
//! | `nat` | NAT mode, from client to backend | `floor` |
//! | `nat_reply` | NAT mode, from backend to client | `floor` |
//!
//! Each finds its flow in the tables; the tables hold 10 000, and each has one packet before its cost is measured. Behind a program that hands frames to the stack, a TC
//! program is the sink. The TC programs run at ingress there, on packets that the driver made of the frames:
//! `BPF_PROG_TEST_RUN` would repeat them over one packet that is its own output.
//!
//! **Noise**. One round runs every system with every number of flows, so what disturbs a
//! round disturbs all of them; the order rotates and reverses from round to round, and
//! the first round is thrown away. Figures are medians over rounds, ratios are formed
//! within a round, intervals come from a bootstrap over rounds. A bar whose interval
//! contains the bound is neither held nor failed: the run is inconclusive.

mod frames;
pub mod instructions;
mod paths;
mod report;
mod rig;
mod tables;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::rig::{Rig, RunStatistics};
pub use self::{
    frames::{Family, Protocol},
    report::{Bar, Outcome, Report, Row, Way},
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

/// Numbers of flows that the generator cycles through.
pub const FLOWS: [u32; 3] = [1, 10_000, 1_000_000];
/// The same on the ways whose flows lie in tables: what a packet touches there stays in a core's caches for a
/// thousand flows, and for ten thousand it does not.
pub const KNOWN_FLOWS: [u32; 3] = [1, 1_000, paths::MOST_FLOWS];

/// A program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Returns `XDP_TX`.
    Floor,
    /// Adds a fixed outer header.
    Static,
    /// Makes one hash look-up.
    #[serde(rename = "hash_hit")]
    Hit,
    /// The product.
    Guideway,
    /// Returns `XDP_PASS`.
    Pass,
    /// The product, from an edge to a pod.
    Node,
    /// Hands packets on to the next TC program.
    PassSkb,
    /// The product, from a pod to a client.
    Reply,
    /// The product, from a client to a backend of NAT mode.
    Nat,
    /// The product, from a backend of NAT mode to a client.
    NatReply,
}

impl System {
    /// Those whose rate is measured.
    const WITH_RATE: [Self; 3] = [Self::Floor, Self::Static, Self::Guideway];
    /// Those whose cost is measured.
    const WITH_COST: [Self; 4] = [Self::Floor, Self::Static, Self::Hit, Self::Guideway];

    /// Those beside the plain way whose cost is measured.
    const BESIDE: [Self; 6] = [
        Self::Pass,
        Self::Node,
        Self::PassSkb,
        Self::Reply,
        Self::Nat,
        Self::NatReply,
    ];
    /// The ways beside the plain one, and the system that each is compared with.
    const WAYS: [(Self, Self); 4] = [
        (Self::Node, Self::Pass),
        (Self::Reply, Self::PassSkb),
        (Self::Nat, Self::Floor),
        (Self::NatReply, Self::Floor),
    ];

    /// Returns the name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Static => "static",
            Self::Hit => "hash_hit",
            Self::Guideway => "guideway",
            Self::Pass => "pass",
            Self::Node => "node",
            Self::PassSkb => "pass_skb",
            Self::Reply => "reply",
            Self::Nat => "nat",
            Self::NatReply => "nat_reply",
        }
    }
}

/// The traffic of a trial.
#[derive(Clone, Copy, Debug)]
struct Case {
    family: Family,
    protocol: Protocol,
    flows: u32,
}

/// What the rounds of one family and protocol gave, by system and number of flows.
#[derive(Clone, Debug, Default)]
struct Samples {
    pps: BTreeMap<(System, u32), Vec<f64>>,
    ns: BTreeMap<(System, u32), Vec<f64>>,
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
    let case = |flows| Case {
        family,
        protocol,
        flows,
    };
    rig.prepare(case(1))?;
    let frames = frames_per_trial(rig, case(1), options.seconds)?;
    let mut samples = Samples::default();
    for round in 0..=options.rounds {
        progress(&format!(
            "{} {}: round {round} of {}",
            report::lower(family),
            report::lower(protocol),
            options.rounds
        ));
        for (system, flows) in rate_trials(round) {
            let rate = rig.rate(system, case(flows), frames)?;
            if round > 0 {
                samples.pps.entry((system, flows)).or_default().push(rate);
            }
        }
        let _statistics = RunStatistics::enable()?;
        for (system, flows) in cost_trials(round) {
            let cost = rig.cost(system, case(flows), frames)?;
            if round > 0 {
                samples.ns.entry((system, flows)).or_default().push(cost);
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

/// The rate trials of a round: what is compared, systems under the same flows, lies side by side.
fn rate_trials(round: usize) -> Vec<(System, u32)> {
    let trials = FLOWS
        .iter()
        .flat_map(|&flows| System::WITH_RATE.map(|system| (system, flows)));
    in_turn(trials.collect(), round)
}

/// The cost trials of a round: what is compared most finely, a system's growth with the flows, lies side by side.
fn cost_trials(round: usize) -> Vec<(System, u32)> {
    let trials = System::WITH_COST
        .iter()
        .flat_map(|&system| FLOWS.map(|flows| (system, flows)));
    let beside = System::BESIDE
        .iter()
        .flat_map(|&system| KNOWN_FLOWS.map(|flows| (system, flows)));
    let yardsticks = [System::Floor, System::Hit]
        .into_iter()
        .flat_map(|system| KNOWN_FLOWS.map(|flows| (system, flows)))
        .filter(|(_, flows)| !FLOWS.contains(flows));
    in_turn(trials.chain(beside).chain(yardsticks).collect(), round)
}

/// Rotates the trials by one every second round and reverses them in between.
fn in_turn<T>(mut trials: Vec<T>, round: usize) -> Vec<T> {
    let length = trials.len();
    trials.rotate_left(round / 2 % length);
    if round % 2 == 1 {
        trials.reverse();
    }
    trials
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_runs_every_trial_once() {
        for round in 0..30 {
            let plain = |systems: &[System]| systems.len() * FLOWS.len();
            let beside = System::BESIDE.len() * KNOWN_FLOWS.len();
            let yardsticks = 2;
            for (mut trials, expected) in [
                (rate_trials(round), plain(&System::WITH_RATE)),
                (
                    cost_trials(round),
                    plain(&System::WITH_COST) + beside + yardsticks,
                ),
            ] {
                trials.sort();
                trials.dedup();
                assert_eq!(trials.len(), expected);
            }
        }
    }

    #[test]
    fn consecutive_rounds_mirror_each_other() {
        let mut even = cost_trials(4);
        even.reverse();
        assert_eq!(even, cost_trials(5));
        assert_ne!(cost_trials(4), cost_trials(6));
    }
}
