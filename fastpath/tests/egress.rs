//! Packets on their way out through the TC egress program, in two engines: the
//! host functions, and the loaded object by `BPF_PROG_TEST_RUN`.
//!
//! Bytes, counters and what is remembered must be what the case says. One line
//! and a diff per case that fails, then `N passed, N failed`; an argument picks
//! the cases whose name contains it.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold may panic")]

#[path = "egress/cases.rs"]
mod cases;
#[path = "egress/kernel.rs"]
mod kernel;
#[path = "egress/model.rs"]
mod model;
#[path = "egress/packets.rs"]
mod packets;
#[expect(
    dead_code,
    reason = "the XDP program's cases and engines are other tests'"
)]
mod support;

use std::process::ExitCode;

use cases::{Case, Outcome};
use support::report;
use xdp_prog::reason;

fn main() -> ExitCode {
    // Cargo and people may pass options that mean nothing here.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    match run(filter.as_deref().unwrap_or_default()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("egress cases cannot run: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the cases and returns how many failed.
fn run(filter: &str) -> anyhow::Result<usize> {
    let mut kernel = kernel::Kernel::load()?;
    let (mut passed, mut failed) = (0, 0);
    for case in cases::all() {
        if !case.name.contains(filter) {
            continue;
        }
        let mut faults = String::new();
        compare("host", &case, &model::run(&case), &mut faults);
        if case.devices == 1 {
            compare("kernel", &case, &kernel.run(&case)?, &mut faults);
        }
        if faults.is_empty() {
            passed += 1;
        } else {
            failed += 1;
            println!("FAIL {}\n{faults}", case.name);
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed)
}

fn compare(engine: &str, case: &Case, outcome: &Outcome, faults: &mut String) {
    if outcome.goes_on != case.expected.goes_on {
        faults.push_str(&format!("  {engine}: goes on: {}\n", outcome.goes_on));
    }
    if outcome.reasons != case.expected.reasons {
        faults.push_str(&format!(
            "  {engine}: counters {}, expected {}\n",
            counters(&outcome.reasons),
            counters(&case.expected.reasons)
        ));
    }
    if outcome.remembered != case.expected.remembered {
        faults.push_str(&format!(
            "  {engine}: remembers {:#?}\n  {engine}: expected  {:#?}\n",
            outcome.remembered, case.expected.remembered
        ));
    }
    if outcome.bytes != case.expected.bytes {
        faults.push_str(&format!(
            "  {engine}: bytes differ\n{}",
            report::difference(&case.expected.bytes, &outcome.bytes)
        ));
    }
}

fn counters(counts: &[u64]) -> String {
    reason::all()
        .zip(counts)
        .filter(|(_, count)| **count != 0)
        .map(|((_, label), count)| format!("{label}+{count} "))
        .collect()
}
