//! Random and mutated frames through all three engines.
//!
//! No frame makes the host functions panic, and of every one that goes on the
//! [`invariants`] hold: what passes is untouched, what is forwarded parses and
//! has right checksums. The kernel comes to the same action, bytes and
//! counters, for a fifth as many frames, and so does the whole edge for as many
//! frames, with the tables of those cases that it can meet.
//!
//! `GUIDEWAY_SEED` repeats a run, `GUIDEWAY_FRAMES` sets the number of frames on the host.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold may panic")]

#[path = "random_frames/invariants.rs"]
mod invariants;
#[path = "random_frames/mutate.rs"]
mod mutate;
#[expect(
    dead_code,
    reason = "what a case expects of its own input is the other test's"
)]
mod support;

use std::{
    collections::HashMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use mutate::Random;
use support::{
    cases::{self, Case},
    host::{self, Outcome},
    kernel::{self, HEADROOM, Kernel},
    report,
    tables::{Counts, ModelTables, TableSet},
    whole_edge::{WholeEdge, without_node_role},
};

use xdp_prog::world::Answers as _;

const HOST_FRAMES: u64 = 3_000_000;
/// Frames on the host for each one in the kernel.
const HOST_PER_KERNEL: u64 = 5;
/// Frames that see the same tables.
const ROUND: u64 = 2_000;
/// On a busy machine a round lasts longer, and its first flows come of an age (`HANDSHAKE_NS`) between one engine's
/// look at the clock and the other's. So they are forgotten in time.
const OLDEST_FLOW: Duration = Duration::from_millis(50);
/// Longer inputs of the table would only slow the mutations down.
const LONGEST_INPUT: usize = 2_000;
const DEFAULT_SEED: u64 = 0x6775_6964_6577_6179;

fn main() -> ExitCode {
    if !is_asked_for() {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("random frames: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `cargo test NAME` hands its filter to every test.
fn is_asked_for() -> bool {
    let mut filters = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .peekable();
    filters.peek().is_none() || filters.any(|filter| "random_frames".contains(&filter))
}

fn run() -> anyhow::Result<()> {
    let seed = match std::env::var("GUIDEWAY_SEED") {
        Ok(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16)?,
        Err(_) => DEFAULT_SEED,
    };
    let host_frames = match std::env::var("GUIDEWAY_FRAMES") {
        Ok(text) => text.parse()?,
        Err(_) => HOST_FRAMES,
    };
    println!("random frames: GUIDEWAY_SEED={seed:#x}");
    let mut kernel = Kernel::load()?;
    let cases: Vec<_> = cases::all()
        .filter(|case| case.input.len() <= LONGEST_INPUT)
        .collect();
    let inputs: Vec<_> = cases.iter().map(|case| case.input.as_slice()).collect();

    let for_edge: Vec<_> = cases.iter().filter_map(for_whole_edge).collect();

    let (cases, inputs) = (cases.as_slice(), inputs.as_slice());
    std::thread::scope(|scope| {
        let on_host = scope.spawn(|| host_rounds(seed, host_frames, cases, inputs));
        rounds(
            &mut kernel,
            !seed,
            host_frames / HOST_PER_KERNEL,
            cases,
            inputs,
        )?;
        let edge = WholeEdge::over(&kernel)?;
        let mut edge = InWholeEdge { kernel, edge };
        rounds(&mut edge, seed, host_frames, &for_edge, inputs)?;
        on_host.join().expect("it returns its failures")
    })
}

/// Returns a case with the tables that a whole edge can have, if it can meet the case.
fn for_whole_edge(case: &Case) -> Option<Case> {
    let tables = without_node_role(&case.tables).ok()?;
    let case = case.clone();
    Some(Case { tables, ..case })
}

/// An engine that is compared with the host.
trait Engine {
    const NAME: &str;

    /// Returns the host's tables without what this engine lacks.
    fn model<'t>(&self, tables: &'t TableSet) -> ModelTables<'t>;
    /// Replaces the contents of all tables.
    fn install(&mut self, tables: &TableSet) -> anyhow::Result<()>;
    /// Takes one frame all the way; returns the number of the action, and the frame's bytes.
    fn run(&mut self, input: &[u8]) -> anyhow::Result<(u32, Vec<u8>)>;
    /// Gives every source its allowance of answers back.
    fn forget_answers(&mut self) -> anyhow::Result<()>;
    /// Reads all counters.
    fn counts(&self) -> Counts;
}

impl Engine for Kernel {
    const NAME: &str = "kernel";

    fn model<'t>(&self, tables: &'t TableSet) -> ModelTables<'t> {
        ModelTables::new(tables)
    }

    fn install(&mut self, tables: &TableSet) -> anyhow::Result<()> {
        self.install(tables)
    }

    fn run(&mut self, input: &[u8]) -> anyhow::Result<(u32, Vec<u8>)> {
        Ok(self.run(input)?)
    }

    fn forget_answers(&mut self) -> anyhow::Result<()> {
        Ok(self.set_answers(&HashMap::new(), 0)?)
    }

    fn counts(&self) -> Counts {
        self.counts()
    }
}

/// The third engine, with the maps of the second one.
struct InWholeEdge {
    kernel: Kernel,
    edge: WholeEdge,
}

impl Engine for InWholeEdge {
    const NAME: &str = "whole edge";

    fn model<'t>(&self, tables: &'t TableSet) -> ModelTables<'t> {
        ModelTables::new(tables).without_fib()
    }

    fn install(&mut self, tables: &TableSet) -> anyhow::Result<()> {
        self.kernel.install(tables)?;
        self.edge.follow(tables)
    }

    fn run(&mut self, input: &[u8]) -> anyhow::Result<(u32, Vec<u8>)> {
        let (action, bytes) = self.edge.run(input);
        Ok((kernel::action_code(action), bytes))
    }

    fn forget_answers(&mut self) -> anyhow::Result<()> {
        self.edge.world.set_all_full_at(0);
        Ok(self.kernel.set_answers(&HashMap::new(), 0)?)
    }

    fn counts(&self) -> Counts {
        self.kernel.counts()
    }
}

/// Runs so many frames through the host functions.
fn host_rounds(seed: u64, wanted: u64, cases: &[Case], inputs: &[&[u8]]) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut random = Random::new(seed);
    let mut tally = Counts::default();
    let mut frames = 0;
    while frames < wanted {
        let case = random.choose(cases);
        frames += host_round(&mut random, case, inputs, &mut tally)?;
    }
    println!(
        "host: {frames} frames in {:.1} s, invariants hold;{}",
        started.elapsed().as_secs_f64(),
        report::counters(&tally)
    );
    Ok(())
}

/// Runs so many frames through the host and another engine.
fn rounds<E: Engine>(
    engine: &mut E,
    seed: u64,
    wanted: u64,
    cases: &[Case],
    inputs: &[&[u8]],
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut random = Random::new(seed);
    let mut frames = 0;
    while frames < wanted {
        let case = random.choose(cases);
        frames += round(engine, &mut random, case, inputs)?;
    }
    println!(
        "{}: {frames} frames in {:.1} s, all as on the host",
        E::NAME,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Runs frames through the host functions with the tables of a case.
fn host_round(
    random: &mut Random,
    case: &Case,
    inputs: &[&[u8]],
    tally: &mut Counts,
) -> anyhow::Result<u64> {
    let model = ModelTables::new(&case.tables);
    for _ in 0..ROUND {
        let input = next_input(random, case, inputs);
        let outcome = host::run(&model, &input, HEADROOM);
        invariants::check(&case.tables, &input, &outcome)
            .map_err(|broken| story(&broken, case, &input, &outcome))?;
        tally.add(&outcome.events);
        forget_answers(&model);
    }
    Ok(ROUND)
}

/// Runs frames through the host and another engine, and returns how many that took.
fn round<E: Engine>(
    engine: &mut E,
    random: &mut Random,
    case: &Case,
    inputs: &[&[u8]],
) -> anyhow::Result<u64> {
    let before = engine.counts();
    let mut model = lay_out(engine, case)?;
    let mut begun = Instant::now();
    let mut expected = Counts::default();
    let mut frames = 0;
    for _ in 0..ROUND {
        let input = next_input(random, case, inputs);
        // A test run takes no frame without a whole Ethernet header.
        if input.len() < 14 {
            continue;
        }
        if begun.elapsed() > OLDEST_FLOW {
            model = lay_out(engine, case)?;
            begun = Instant::now();
        }
        let outcome = host::run(&model, &input, HEADROOM);
        let (action, bytes) = engine.run(&input)?;
        if action != kernel::action_code(outcome.action) || bytes != outcome.bytes {
            // The machine stood still between the engines, so what they know is not of the same age.
            if begun.elapsed() > OLDEST_FLOW {
                return Ok(frames);
            }
            let broken = format!(
                "{}: action {action}\n{}",
                E::NAME,
                report::difference(&outcome.bytes, &bytes)
            );
            return Err(story(&broken, case, &input, &outcome));
        }
        expected.add(&outcome.events);
        // The engines' clocks differ by a tick, and would differ about who is answered.
        if forget_answers(&model) {
            engine.forget_answers()?;
        }
        frames += 1;
    }
    let counted = engine.counts().since(&before);
    if counted != expected {
        anyhow::bail!(
            "counters with the tables of {} differ\n  {}:{}\n  host:{}",
            case.name,
            E::NAME,
            report::counters(&counted),
            report::counters(&expected)
        );
    }
    Ok(frames)
}

/// Gives the host and the other engine the tables of a case, and nothing that they have noted before.
fn lay_out<'c, E: Engine>(engine: &mut E, case: &'c Case) -> anyhow::Result<ModelTables<'c>> {
    engine.install(&case.tables)?;
    let model = engine.model(&case.tables);
    forget_answers(&model);
    engine.forget_answers()?;
    Ok(model)
}

/// Gives every source its allowance of answers back and tells whether there was anything to give.
fn forget_answers(model: &ModelTables<'_>) -> bool {
    model.answers_of_all.set(0);
    let mut answers = model.answers.borrow_mut();
    let is_used = !answers.is_empty();
    answers.clear();
    is_used
}

/// One frame in four comes of the case whose tables are in place.
fn next_input(random: &mut Random, case: &Case, inputs: &[&[u8]]) -> Vec<u8> {
    match random.below(4) {
        0 => mutate::frame(random, &[&case.input]),
        _ => mutate::frame(random, inputs),
    }
}

fn story(broken: &str, case: &Case, input: &[u8], outcome: &Outcome) -> anyhow::Error {
    anyhow::anyhow!(
        "{broken}\n  tables of {}\n  input {input:02x?}\n  host  {outcome:02x?}",
        case.name
    )
}
