//! `guideway-bench environment`: the facts of a machine, for the results of another one.

use std::process::ExitCode;

use anyhow::Result;
use bench::{environment::collect, exit::Exit};

use super::beside;

/// Prints the facts of this machine as results have them, one a line: for the commands `facts` of a scenario, by which other
/// machines tell theirs.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&[Exit::Success, Exit::Failed]))]
pub(crate) struct Environment {}

impl Environment {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        for (name, value) in collect(&beside()?) {
            println!("{name}: {value}");
        }
        Ok(ExitCode::SUCCESS)
    }
}
