//! Counts the instructions per packet on each path, on a machine whose clock counts instructions.
//!
//! An emulator can advance its clock by one nanosecond per instruction (qemu's `-icount shift=0,sleep=off`,
//! "TCG Instruction Counting" in its documentation). The kernel's run statistics then count instructions. The
//! counts are reproducible to a tenth of a percent, whatever else the host does. They say nothing about caches
//! and branches.

mod table;

use std::collections::{BTreeMap, btree_map::Entry};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

pub use self::table::table;
use super::{
    Case, Family, Protocol, Stream, System,
    report::lower,
    rig::{self, Rig, RunStatistics},
};
use crate::{host, stats::median};

/// Frames of a trial. They are so many that a timer interrupt adds little.
const FRAMES: u32 = 4_000;
/// Trials of each system. Their median is not affected by a single one in which the kernel did other work.
const TRIALS: usize = 3;
/// Numbers of flows. With one flow, each packet finds the state that the previous one left.
const FLOWS: [u32; 2] = [1, 1_000];

/// What counts of instructions tell and what they do not. It stands beside every such figure.
pub const MEANING: &str = "Instructions are free of the host's noise, and blind to caches and branches: \
                           what misses a cache takes time that no instruction shows.";

/// The instructions per packet on one path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// The path.
    #[serde(rename = "way")]
    pub system: System,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Number of flows.
    pub flows: u32,
    /// Instructions per packet, less those of the empty program.
    #[serde(rename = "instructions")]
    pub net: f64,
}

impl Instructions {
    /// Formats a line of a table with the columns path, family, protocol, flows, instructions.
    pub fn line(&self) -> String {
        format!(
            "{:<14} {:<3} {:<4} {:>5} {:>8.1}",
            self.system.name(),
            lower(self.family),
            lower(self.protocol),
            self.flows,
            self.net
        )
    }
}

/// Counts the instructions of every path. Each result is passed to `found` at once, because counting takes minutes.
///
/// # Errors
///
/// When the kernel refuses something, or frames are lost.
pub fn count(found: impl Fn(&Instructions) + Sync + Send) -> Result<()> {
    host::preflight()?;
    let namespace = lab::Namespace::new("count").context("making a network namespace")?;
    let cables = rig::cable(&namespace)?;
    namespace.run(|| {
        let core = host::occupy_core(None)?;
        let mut rig = Rig::new(cables, core)?;
        for family in Family::ALL {
            for protocol in Protocol::ALL {
                for flows in FLOWS {
                    let case = Case {
                        family,
                        protocol,
                        stream: Stream::in_turn(flows),
                    };
                    count_ways(&mut rig, case, &found)?;
                }
            }
        }
        Ok(())
    })
}

fn count_ways(rig: &mut Rig, case: Case, found: &impl Fn(&Instructions)) -> Result<()> {
    rig.prepare(case)?;
    let _statistics = RunStatistics::enable()?;
    let mut mean = |system| -> Result<f64> {
        let trials: Result<Vec<f64>> = (0..TRIALS)
            .map(|_| rig.cost(system, case, FRAMES))
            .collect();
        Ok(median(&trials?))
    };
    // Several paths have the same empty program.
    let mut of_empty = BTreeMap::new();
    for system in System::ALL {
        let Some(empty) = system.empty() else {
            continue;
        };
        // One packet of one flow would be too few.
        let is_too_few = system.is_of_first_packets() && case.stream.flows == 1;
        if is_too_few || !system.has(case.protocol) {
            continue;
        }
        let of_empty = match of_empty.entry(empty) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(place) => *place.insert(mean(empty)?),
        };
        let net = mean(system)? - of_empty;
        ensure!(
            net > 0.0,
            "{} takes no more than an empty program: does this machine's clock count instructions?",
            system.name()
        );
        found(&Instructions {
            system,
            family: case.family,
            protocol: case.protocol,
            flows: case.stream.flows,
            net,
        });
    }
    Ok(())
}
