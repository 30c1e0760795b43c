//! `guideway-bench judgement`: whether what is the same is told apart on this machine, and what is not is.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use bench::{
    exit::Exit,
    host,
    judgement::{self, Compared, Outcome},
};

use super::{beside, instructions::OF_COUNTS};
use crate::show_progress;

/// Checks the judgement on this machine: of Guideway against itself by its rate of live frames, at least 19 of 20
/// comparisons must find no difference, and at least 9 of 10 must find 5 % of extra work.
///
/// Needs root, and `guideway` beside this program. Takes some four minutes.
#[derive(Debug, clap::Args)]
#[command(after_help = Exit::help(&OF_COUNTS))]
pub(crate) struct JudgementCheck {
    /// The `guideway` program [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    guideway: Option<PathBuf>,
}

impl JudgementCheck {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        host::preflight()?;
        let guideway = self.guideway.clone().map_or_else(beside, Ok)?;
        let outcome = judgement::check_live(&judgement::LIVE, &guideway, &show_progress, &print)?;
        Ok(conclude(&outcome, "ns"))
    }
}

pub(super) fn print(compared: &Compared) {
    println!("{compared}");
}

/// Prints how the bars were kept.
pub(super) fn conclude(Outcome { plain, kept }: &Outcome, unit: &str) -> ExitCode {
    println!("\nA frame takes {plain:.1} {unit} without extra work.");
    for one in kept {
        println!("{one}");
    }
    let passed = (kept.iter()).filter(|one| one.holds()).count();
    println!("{passed} passed, {} failed", kept.len() - passed);
    let exit = if passed == kept.len() {
        Exit::Success
    } else {
        Exit::Worse
    };
    exit.into()
}
