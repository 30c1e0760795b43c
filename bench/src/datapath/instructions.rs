//! How many instructions each way takes per packet, where the machine's clock counts instructions.
//!
//! An emulator can let its clock advance by a nanosecond with each instruction (qemu's `-icount shift=0,sleep=off`,
//! "TCG Instruction Counting" in its documentation). The kernel's run statistics then count instructions. They
//! repeat to a tenth of a percent, whatever else the host does, and tell nothing of caches and branches.

use std::collections::{BTreeMap, btree_map::Entry};

use anyhow::{Context, Result, ensure};

use super::{
    Case, Family, Protocol, Stream, System,
    report::lower,
    rig::{self, Rig, RunStatistics},
};
use crate::{host, stats::median};

/// Frames of a trial. What a timer interrupt adds to one of them is little beside them all.
const FRAMES: u32 = 4_000;
/// Trials of each system: their median does not see the one in which the kernel did something else.
const TRIALS: usize = 3;
/// Numbers of flows: with one, each packet finds what the one before it has left.
const FLOWS: [u32; 2] = [1, 1_000];

/// What one packet takes on one way.
#[derive(Clone, Copy, Debug)]
pub struct Instructions {
    /// The way.
    pub system: System,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Number of flows.
    pub flows: u32,
    /// Instructions of a packet, those of an empty program taken off.
    pub net: f64,
}

impl Instructions {
    /// Returns the figures as a line of a table with the columns way, family, protocol, flows, instructions.
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

/// Counts the instructions of every way; each goes to `found` at once, since counting takes minutes.
///
/// # Errors
///
/// When the kernel refuses something or frames get lost.
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
    // Several ways have one empty program.
    let mut of_empty = BTreeMap::new();
    for system in System::ALL {
        let Some(empty) = system.empty() else {
            continue;
        };
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
