//! `guideway-bench scale`: what many Services cost a packet.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use bench::{
    bars::Outcome,
    host,
    scale::{self, Row},
    scenario::MOST_SERVICES,
};

use super::beside;
use crate::{exit_code, show_progress};

/// Measures Guideway with many Services beside Guideway with one: the rate of live frames, in rounds that go back and forth.
///
/// UDP and TCP by IPIP, to 16 of the Services: what misses caches where all have traffic is a row of `datapath`.
///
/// Needs root, and `guideway` beside this program. Takes a minute or two.
#[derive(Debug, clap::Args)]
#[command(after_help = bench::exit::Exit::help(&crate::OF_BARS))]
pub(crate) struct Scale {
    /// Number of Services.
    #[arg(long, default_value_t = MOST_SERVICES, value_parser = clap::value_parser!(u32).range(2..=i64::from(MOST_SERVICES)))]
    services: u32,
    /// Rounds of each load.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(6..))]
    rounds: u32,
    /// The `guideway` program [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    guideway: Option<PathBuf>,
}

impl Scale {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        host::preflight()?;
        let guideway = self.guideway.clone().map_or_else(beside, Ok)?;
        let (services, rounds) = (self.services, self.rounds as usize);
        println!("1 Service and {services}, {rounds} rounds:");
        let print = |row: &Row| println!("{row}");
        let rows = scale::measure(services, rounds, &guideway, &show_progress, &print)?;
        Ok(exit_code(Outcome::worst(rows.iter().map(Row::outcome))))
    }
}
