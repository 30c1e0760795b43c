//! `guideway-bench instructions`: what packets take where the clock counts instructions.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use bench::{
    datapath::{
        Protocol,
        balancers::{self, rules},
        instructions::{self, MEANING},
    },
    exit::Exit,
    judgement,
};
use clap::Subcommand;
use serde::Serialize;

use super::judgement::{conclude, print};
use crate::show_progress;

/// Counts the instructions of a packet, on a machine whose clock counts them: `make instructions` runs it on one.
///
/// Counts are free of the host's noise, and blind to caches and branches.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&OF_COUNTS))]
pub(crate) struct Instructions {
    #[command(subcommand)]
    what: Counted,
}

/// How a count, or a check of the judgement, may end.
pub(super) const OF_COUNTS: [Exit; 6] = [
    Exit::Success,
    Exit::Failed,
    Exit::Usage,
    Exit::Worse,
    Exit::Settings,
    Exit::NoRights,
];

#[derive(Debug, Subcommand)]
enum Counted {
    /// Guideway's own programs, on each way of a packet.
    Ways {
        /// Print one JSON object per way and line, instead of the table.
        #[arg(long)]
        json: bool,
    },
    /// Whole ways of a packet, at Guideway, kube-proxy and IPVS: one JSON row each.
    Balancers {
        /// The directory with the rules of kube-proxy.
        rules: PathBuf,
    },
    /// Checks the judgement by instructions: of Guideway against itself, at least 19 of 20 comparisons must find no
    /// difference, and all of 10 must find 1 % more.
    Judgement,
    /// Takes the rules of a kube-proxy that runs, for `balancers`. Counts nothing.
    Rules {
        /// The directory to write them to. Rules that are there are kept.
        directory: PathBuf,
        /// Numbers of Services.
        #[arg(required = true)]
        services: Vec<u32>,
    },
}

impl Instructions {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match &self.what {
            Counted::Ways { json: true } => {
                tell_beside_rows();
                instructions::count(print_row)?;
            }
            Counted::Ways { json: false } => {
                println!("{MEANING}\n\nway            ip  l4   flows  instructions");
                instructions::count(|found| println!("{}", found.line()))?;
            }
            Counted::Balancers { rules } => {
                tell_beside_rows();
                balancers::count(rules, print_row)?;
            }
            Counted::Judgement => {
                println!("{MEANING}\n");
                let outcome = balancers::check_counted(&judgement::COUNTED, &print)?;
                return Ok(conclude(&outcome, "instructions"));
            }
            Counted::Rules {
                directory,
                services,
            } => {
                fs::create_dir_all(directory)
                    .with_context(|| format!("creating {}", directory.display()))?;
                for &number in services {
                    for protocol in Protocol::ALL {
                        rules::take(directory, protocol, number, &show_progress)?;
                    }
                }
                show_progress("");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Says what the counts mean, beside JSON rows on standard output.
fn tell_beside_rows() {
    eprintln!("{MEANING}");
}

fn print_row(row: &impl Serialize) {
    let row = serde_json::to_string(row).expect("a row has plain fields");
    println!("{row}");
}
