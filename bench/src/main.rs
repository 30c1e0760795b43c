//! The `guideway-bench` command.

use std::{
    io::{IsTerminal, Write, stderr},
    process::ExitCode,
};

use anyhow::Result;
use bench::datapath::{self, Family, Outcome, Protocol};
use clap::{Parser, Subcommand};

/// Measures Guideway.
#[derive(Debug, Parser)]
#[command(name = "guideway-bench", version)]
struct Cli {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, Subcommand)]
enum Scenario {
    /// What the XDP program costs per packet, against the least that any program could.
    ///
    /// Needs root. Runs on one core for a few minutes, in a network namespace of its own.
    #[command(after_help = EXIT_CODES)]
    Datapath(Datapath),
}

const EXIT_CODES: &str = "\
Exit codes: 0 all bars hold, 1 the run failed, 2 wrong usage, 3 a bar fails,
4 inconclusive: a 95 % interval contains the bar, so use more rounds or a quieter machine.";

#[derive(Debug, clap::Args)]
struct Datapath {
    /// Print one JSON object per row and line, instead of the table.
    #[arg(long)]
    json: bool,
    /// Rounds to measure; one more is run first and thrown away.
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// Seconds per trial; a round has 41 of them per family and protocol.
    #[arg(long, default_value_t = 0.02)]
    seconds: f64,
    /// The core to run on [default: the last one].
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Address family [default: both].
    #[arg(long)]
    family: Option<Family>,
    /// Transport protocol [default: both].
    #[arg(long)]
    protocol: Option<Protocol>,
}

fn main() -> ExitCode {
    let Scenario::Datapath(arguments) = Cli::parse().scenario;
    match run(&arguments) {
        Ok(Outcome::Holds) => ExitCode::SUCCESS,
        Ok(Outcome::Fails) => ExitCode::from(3),
        Ok(Outcome::Inconclusive) => ExitCode::from(4),
        Err(error) => {
            eprintln!("guideway-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Datapath) -> Result<Outcome> {
    let options = datapath::Options {
        families: arguments
            .family
            .map_or(Family::ALL.to_vec(), |one| vec![one]),
        protocols: arguments
            .protocol
            .map_or(Protocol::ALL.to_vec(), |one| vec![one]),
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        core: arguments.core,
    };
    let report = datapath::run(&options, &show_progress)?;
    show_progress("");
    if arguments.json {
        for row in &report.rows {
            println!("{}", row.to_json());
        }
        for way in &report.ways {
            println!("{}", way.to_json());
        }
    } else {
        print!("{report}");
    }
    Ok(report.outcome())
}

/// Keeps one line of a terminal up to date.
fn show_progress(text: &str) {
    if stderr().is_terminal() {
        // Progress that cannot be shown is no reason to stop.
        let _ = write!(stderr(), "\r\x1b[K{text}");
    }
}
