//! The `guideway-bench` command.

mod commands;

use std::{
    env,
    fmt::Display,
    io::{IsTerminal, Write, stderr},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, ensure};
use bench::{
    bars::Outcome,
    consistency, control,
    datapath::{self, Family, Figures, Protocol, against, mend, whole_edge},
    exit::Exit,
    result::Files,
};
use clap::{Parser, Subcommand};
use serde_json::Value;

/// Measures Guideway.
#[derive(Debug, Parser)]
// Lines stay whole: the scenario in the help of `run` is there to be copied.
#[command(name = "guideway-bench", version, term_width = 0)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// What the XDP program costs per packet, against the least that any program could; or how many packets the whole edge
    /// in user space takes, against a bare loop.
    ///
    /// Needs root. Runs for a few minutes in a network namespace of its own: the XDP program on one core, the whole edge on
    /// two.
    #[command(after_help = Exit::help(&OF_DATAPATH))]
    Datapath(Datapath),
    /// What following a large Kubernetes cluster costs: time, memory, CPU.
    ///
    /// Needs root, the programs of `deploy/setup.sh test`, and `guideway` beside this program
    /// (`cargo build --release --package control`). Runs for ten minutes, in network namespaces of its own.
    #[command(after_help = Exit::help(&OF_BARS))]
    Control(Control),
    /// Which connections break while backends and edges change, with Guideway and with other policies: a simulation.
    ///
    /// Guideway's own code decides. Needs no rights, and takes some minutes. The same seed gives the same figures.
    ///
    /// The bar: with Guideway, no connection breaks but of those it says so of: more owners than a list has room for, none
    /// in a day, a half-open socket of the same client port, or an edge that has not known the owner.
    #[command(after_help = Exit::help(&OF_COUNTED_BARS))]
    Consistency(Consistency),
    Preflight(commands::Preflight),
    Plan(commands::Plan),
    Run(commands::Run),
    Reflect(commands::Reflect),
    Environment(commands::Environment),
    Report(commands::Report),
    Verify(commands::Verify),
    Compare(commands::Compare),
    Instructions(commands::Instructions),
    Judgement(commands::JudgementCheck),
    Scale(commands::Scale),
}

/// How a simulation with bars may end.
const OF_COUNTED_BARS: [Exit; 4] = [Exit::Success, Exit::Failed, Exit::Usage, Exit::Worse];
/// How a measurement with bars may end.
const OF_BARS: [Exit; 8] = [
    Exit::Success,
    Exit::Failed,
    Exit::Usage,
    Exit::Worse,
    Exit::Inconclusive,
    Exit::Settings,
    Exit::NoRights,
    Exit::NoNativeXdp,
];

/// How the datapath's measurements may end.
const OF_DATAPATH: [Exit; 10] = [
    Exit::Success,
    Exit::Failed,
    Exit::Usage,
    Exit::Worse,
    Exit::Inconclusive,
    Exit::Noisy,
    Exit::Settings,
    Exit::NoRights,
    Exit::NoNativeXdp,
    Exit::Unable,
];

/// What decides about packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// The XDP programs.
    Xdp,
    /// Threads over AF_XDP sockets, the whole edge of `datapath: afxdp`: its rates, beside a loop that sends frames back.
    Afxdp,
    /// The XDP programs with the thread of `mend: on`: what it takes, and what it costs others.
    Mend,
}

impl Engine {
    /// Returns the seconds of a trial, unless the caller says otherwise.
    const fn seconds(self) -> f64 {
        match self {
            Self::Xdp => 0.02,
            Self::Afxdp | Self::Mend => 0.2,
        }
    }
}

#[derive(Debug, clap::Args)]
struct Datapath {
    /// What decides about packets.
    #[arg(long, value_enum, default_value_t = Engine::Xdp)]
    engine: Engine,
    /// Print one JSON object per row and line, instead of the table.
    #[arg(long)]
    json: bool,
    /// Rounds to measure; one more is run first and thrown away.
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// Seconds per trial [default: 0.02, of which a round has some 80 per family and protocol; with `--engine afxdp` and
    /// `mend` 0.2, of which it has 3, and 6 to 9].
    #[arg(long)]
    seconds: Option<f64>,
    /// The core to run on [default: the last one]. With `--engine afxdp` and `mend` the generator has another
    /// one.
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Address family [default: both].
    #[arg(long)]
    family: Option<Family>,
    /// Transport protocol [default: both].
    #[arg(long)]
    protocol: Option<Protocol>,
    /// Compare with the `guideway-bench` of another revision: both are run in turn, on the same core, and each row's net
    /// cost is set against the other's. The bar is then that no row is slower. For the XDP programs alone.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "out")]
    against: Option<PathBuf>,
    /// Write rates and costs into this directory, too: as a result for `report` and `compare`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Control {
    /// Print one JSON object per figure and line, instead of the table.
    #[arg(long)]
    json: bool,
    /// Run only the scenario of so many services [default: all].
    #[arg(long, value_name = "NUMBER")]
    services: Option<u32>,
    /// Have so many Nodes in each scenario [default: as many as it says].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(65..))]
    nodes: Option<u32>,
    /// Have so many heartbeats of Nodes a second in each scenario [default: as many as it says].
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u32).range(1..))]
    heartbeats: Option<u32>,
    /// The `guideway` program [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    guideway: Option<PathBuf>,
    /// Write the figures into this directory, too: as a result for `report` and `compare`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Consistency {
    /// Print one JSON object per policy and line, instead of the table.
    #[arg(long)]
    json: bool,
    /// Edges, each with a history of its own; at most 64.
    #[arg(long, default_value_t = SCENARIO.edges)]
    edges: u32,
    /// Backends that take new connections at a time; at most 1000.
    #[arg(long, default_value_t = SCENARIO.backends)]
    backends: u32,
    /// Connections that begin in all; at most 10 000 000.
    #[arg(long, default_value_t = SCENARIO.flows)]
    flows: u32,
    /// Minutes of simulated time.
    #[arg(long, default_value_t = SCENARIO.minutes)]
    minutes: u32,
    /// Percent of the backends that are replaced each minute.
    #[arg(long, value_name = "PERCENT", default_value_t = SCENARIO.churn_percent)]
    churn_percent: f64,
    /// Minutes between two rolling updates of all backends; 0 for none.
    #[arg(long, value_name = "MINUTES", default_value_t = SCENARIO.roll_minutes)]
    roll_minutes: u32,
    /// Backends that a rolling update replaces at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = SCENARIO.roll_batch)]
    roll_batch: u32,
    /// Minutes after which the number of backends changes to that of --scale-to, or back; 0 for never.
    #[arg(long, value_name = "MINUTES", default_value_t = SCENARIO.scale_minutes)]
    scale_minutes: u32,
    /// The other number of backends. The length of the lookup table follows it.
    #[arg(long, value_name = "NUMBER", default_value_t = SCENARIO.scale_to)]
    scale_to: u32,
    /// Minutes for which a backend that was replaced keeps its connections.
    #[arg(long, value_name = "MINUTES", default_value_t = SCENARIO.drain_minutes)]
    drain_minutes: u32,
    /// Minutes after which routers spread connections over the edges anew; 0 for never.
    #[arg(long, value_name = "MINUTES", default_value_t = SCENARIO.reshuffle_minutes)]
    reshuffle_minutes: u32,
    /// The most that an edge learns of a change too late, in ms.
    #[arg(long, value_name = "MS", default_value_t = SCENARIO.late_ms)]
    late_ms: u32,
    /// Edges that learn of changes in intervals alone, and only of what they add up to.
    #[arg(long, value_name = "EDGES", default_value_t = SCENARIO.coalescing)]
    coalescing: u32,
    /// Those intervals.
    #[arg(long, value_name = "SECONDS", default_value_t = SCENARIO.coalesce_seconds)]
    coalesce_seconds: u32,
    /// Times that an edge is rebooted and begins without a past.
    #[arg(long, value_name = "NUMBER", default_value_t = SCENARIO.reboots)]
    reboots: u32,
    /// Percent of the connections whose client goes without a word.
    #[arg(long, value_name = "PERCENT", default_value_t = SCENARIO.vanish_percent)]
    vanish_percent: f64,
    /// Percent of the connections that have the address and port of a client's connection which ended shortly before.
    #[arg(long, value_name = "PERCENT", default_value_t = SCENARIO.reuse_percent)]
    reuse_percent: f64,
    /// Connections that an edge of the policy maglev-lru remembers.
    #[arg(long, value_name = "NUMBER", default_value_t = SCENARIO.lru)]
    lru: u32,
    /// Whatever is drawn follows from it.
    #[arg(long, default_value_t = SCENARIO.seed)]
    seed: u64,
    /// Write the figures into this directory, too: as a result for `report`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const SCENARIO: consistency::Scenario = consistency::Scenario::DEFAULT;

impl Consistency {
    const fn scenario(&self) -> consistency::Scenario {
        consistency::Scenario {
            edges: self.edges,
            backends: self.backends,
            flows: self.flows,
            minutes: self.minutes,
            churn_percent: self.churn_percent,
            roll_minutes: self.roll_minutes,
            roll_batch: self.roll_batch,
            scale_minutes: self.scale_minutes,
            scale_to: self.scale_to,
            drain_minutes: self.drain_minutes,
            reshuffle_minutes: self.reshuffle_minutes,
            late_ms: self.late_ms,
            coalescing: self.coalescing,
            coalesce_seconds: self.coalesce_seconds,
            reboots: self.reboots,
            vanish_percent: self.vanish_percent,
            reuse_percent: self.reuse_percent,
            lru: self.lru,
            seed: self.seed,
        }
    }
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().scenario {
        Scenario::Datapath(arguments) => run_datapath(&arguments),
        Scenario::Control(arguments) => run_control(&arguments).map(exit_code),
        Scenario::Consistency(arguments) => run_consistency(&arguments),
        Scenario::Preflight(arguments) => arguments.run(),
        Scenario::Plan(arguments) => arguments.run(),
        Scenario::Run(arguments) => arguments.run(),
        Scenario::Reflect(arguments) => arguments.run(),
        Scenario::Environment(arguments) => arguments.run(),
        Scenario::Report(arguments) => arguments.run(),
        Scenario::Verify(arguments) => arguments.run(),
        Scenario::Compare(arguments) => arguments.run(),
        Scenario::Instructions(arguments) => arguments.run(),
        Scenario::Judgement(arguments) => arguments.run(),
        Scenario::Scale(arguments) => arguments.run(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("guideway-bench: {error:#}");
        Exit::of_error(&error).into()
    })
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Outcome::Holds => ExitCode::SUCCESS,
        Outcome::Fails => Exit::Worse.into(),
        Outcome::Inconclusive => Exit::Inconclusive.into(),
    }
}

fn run_datapath(arguments: &Datapath) -> Result<ExitCode> {
    let engine = arguments.engine;
    if engine != Engine::Xdp && arguments.against.is_some() {
        eprintln!("guideway-bench: --against compares the XDP programs: use it with --engine xdp");
        return Ok(Exit::Usage.into());
    }
    let options = datapath::Options {
        families: arguments
            .family
            .map_or(Family::ALL.to_vec(), |one| vec![one]),
        protocols: arguments
            .protocol
            .map_or(Protocol::ALL.to_vec(), |one| vec![one]),
        rounds: arguments.rounds,
        seconds: arguments.seconds.unwrap_or(engine.seconds()),
        core: arguments.core,
    };
    if let Some(other) = &arguments.against {
        let comparison = against::compare(other, &options, &show_progress)?;
        show_progress("");
        if arguments.json {
            for row in &comparison.rows {
                println!("{}", serde_json::to_string(row)?);
            }
        } else {
            print!("{comparison}");
        }
        return Ok(exit_code(comparison.outcome()));
    }
    expect_free(arguments.out.as_deref())?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let figures: Box<dyn Figures> = match engine {
        Engine::Xdp => Box::new(datapath::run(&options, &show_progress)?),
        Engine::Afxdp => Box::new(whole_edge::run(&options, &show_progress)?),
        Engine::Mend => Box::new(mend::run(&options, &show_progress)?),
    };
    show_progress("");
    if let Some(out) = &arguments.out {
        figures
            .files(&options, own_command(), started)?
            .write(out)?;
    }
    print_report(arguments.json, &figures, figures.rows());
    Ok(exit_code(figures.outcome()))
}

/// Prints a report: its rows as JSON, one a line, or the table.
fn print_report(is_json: bool, report: &impl Display, rows: impl IntoIterator<Item = Value>) {
    if is_json {
        for row in rows {
            println!("{row}");
        }
    } else {
        print!("{report}");
    }
}

fn run_control(arguments: &Control) -> Result<Outcome> {
    let wanted = |scenario: &control::Scenario| {
        let services = arguments.services;
        services.is_none_or(|services| services == scenario.cluster.services)
    };
    let scenarios = control::Scenario::ALL.into_iter().filter(wanted);
    let scenarios = scenarios.map(|scenario| {
        let nodes = arguments.nodes.unwrap_or(scenario.cluster.nodes);
        let scenario = scenario.with_nodes(nodes);
        (arguments.heartbeats).map_or(scenario, |rate| scenario.with_heartbeats(rate))
    });
    let options = control::Options {
        scenarios: scenarios.collect(),
        guideway: arguments
            .guideway
            .clone()
            .map_or_else(commands::beside, Ok)?,
    };
    ensure!(
        !options.scenarios.is_empty(),
        "no scenario has so many services"
    );
    expect_free(arguments.out.as_deref())?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let report = control::run(&options, &show_progress)?;
    show_progress("");
    if let Some(out) = &arguments.out {
        control::result::of(&report, own_command(), started)?.write(out)?;
    }
    print_report(arguments.json, &report, report.to_json());
    Ok(report.outcome())
}

fn run_consistency(arguments: &Consistency) -> Result<ExitCode> {
    let scenario = arguments.scenario();
    if let Err(error) = scenario.check() {
        eprintln!("guideway-bench: {error:#}");
        return Ok(Exit::Usage.into());
    }
    expect_free(arguments.out.as_deref())?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let report = consistency::run(&scenario, &show_progress)?;
    show_progress("");
    if let Some(out) = &arguments.out {
        consistency::result::of(&report, own_command(), started)?.write(out)?;
    }
    if arguments.json {
        for row in &report.rows {
            println!("{}", serde_json::to_string(row)?);
        }
    } else {
        print!("{report}");
    }
    Ok(exit_code(report.outcome()))
}

/// Checks that a directory can take a result, before anything is measured.
fn expect_free(out: Option<&Path>) -> Result<()> {
    if let Some(out) = out {
        let is_free = Files::find(out).is_ok_and(|found| found.is_none());
        ensure!(
            is_free,
            "{} is in use: name another directory",
            out.display()
        );
    }
    Ok(())
}

/// Returns the command that repeats the run.
fn own_command() -> String {
    let words: Vec<String> = env::args().skip(1).collect();
    format!("guideway-bench {}", words.join(" "))
}

/// Rewrites the progress line of a terminal.
fn show_progress(text: &str) {
    if stderr().is_terminal() {
        // The run goes on even if progress cannot be shown.
        let _ = write!(stderr(), "\r\x1b[K{text}");
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn unknown_engine_is_refused_with_those_that_there_are() {
        let parse =
            |engine| Cli::try_parse_from(["guideway-bench", "datapath", "--engine", engine]);
        for engine in ["xdp", "afxdp", "mend"] {
            parse(engine).unwrap();
        }
        let error = parse("dpdk").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        let text = error.to_string();
        assert!(
            text.contains("[possible values: xdp, afxdp, mend]"),
            "{text}"
        );
    }

    #[test]
    fn commands_of_the_page_are_known() {
        let page = include_str!("../README.md").replace(" N`", " 1`");
        let texts = page.lines().flat_map(|line| line.split('`'));
        let commands = texts.filter_map(|text| Some(&text[text.find("guideway-bench ")?..]));
        let mut count = 0;
        for command in commands {
            count += 1;
            match Cli::try_parse_from(command.split_whitespace()) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::DisplayHelp => {}
                Err(error) => panic!("{command}: {error}"),
            }
        }
        assert!(count > 10, "{count}");
    }
}
