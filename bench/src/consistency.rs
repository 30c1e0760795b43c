//! Simulates many edges over days: which connections break while their backend lives, and what that costs.
//!
//! Backends come, drain and go. Edges learn of it late, or not of every change. Routers spread connections over edges
//! anew. Clients send, fall silent, send again, end, or vanish, and use their ports again. The same happens with each
//! [`Policy`]:
//!
//! | policy | an edge sends a segment to | and remembers |
//! |---|---|---|
//! | `maglev` | the owner of the connection's slot | nothing |
//! | `maglev-lru` | the backend that it remembers, else the slot's owner | so many connections |
//! | `maglev-unbounded` | the same | all connections |
//! | `lists1`, `lists4` | what Guideway's programs decide | lists of 1, 4 past owners, and pins |
//! | `guideway` | the same | lists of 14, and pins |
//! | `without-pins` | the same | lists of 14 |
//!
//! **The product's own code decides.** Tables are populated by `xdp_prog::maglev`, lists are made by
//! [`fastpath::tables::past_owners`], and each segment is a frame that goes through `xdp_prog::process` at the edge, at the
//! node and, returned, at the edge again. Answers of pods go through `xdp_prog::egress`. What is simulated is the memory
//! of the machines: tables of flows and pins have room for all.
//!
//! **Why a connection broke** is told by an account of all owners of all slots that is kept apart from the lists. What no
//! limit of the claim explains is a defect, which the report describes: it, or the same seed, repeats it.
//!
//! Edges do not exchange their past owners. So an edge that has not known an owner (it was rebooted, or did not learn of a
//! set that was soon another one) does not try it: `no past`.

mod addresses;
mod agenda;
mod backends;
mod broken;
mod clients;
mod owners;
mod policy;
mod report;
pub mod result;
mod scenario;
mod simulation;
mod sockets;
mod table;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::Result;

pub use self::{
    broken::Reasons,
    policy::Policy,
    report::{Report, Row},
    scenario::Scenario,
    table::table,
};

/// Simulates a scenario with each policy. `progress` is called with what has been done.
///
/// # Errors
///
/// When the scenario cannot be simulated.
pub fn run(scenario: &Scenario, progress: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    scenario.check()?;
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        // Those that take longest come first.
        let policies = || {
            Policy::ALL
                .iter()
                .rev()
                .nth(next.fetch_add(1, Ordering::Relaxed))
        };
        while let Some(policy) = policies() {
            let row = simulation::simulate(scenario, *policy);
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.push(row);
            progress(&format!("{} of {} policies", rows.len(), Policy::ALL.len()));
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores.min(Policy::ALL.len()) {
            scope.spawn(work);
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|row: &Row| row.policy);
    Ok(Report { rows })
}
