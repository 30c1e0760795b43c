//! Runs the table of packet cases through both engines.
//!
//! One line and a diff per case that fails, then `N passed, N failed`. An
//! argument picks the cases whose name contains it. It takes the right to
//! load BPF programs and to make network namespaces, `ip`, /proc/sys and /sys
//! (for the number of CPUs), no other files.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold may panic")]

mod support;

use std::{collections::HashMap, process::ExitCode};

use support::{
    cases::{self, Case, InKernel},
    host,
    kernel::{self, Kernel},
    report,
    tables::{Counts, ModelTables},
};
use xdp_prog::abi::{AddressKey, PathReport, Pin, Tuple};

fn main() -> ExitCode {
    // Cargo and people may pass options that mean nothing here.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    match run(filter.as_deref().unwrap_or_default()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("packet cases cannot run: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the cases and returns how many failed.
fn run(filter: &str) -> anyhow::Result<usize> {
    let mut kernel = Kernel::load()?;
    let (mut passed, mut failed) = (0, 0);
    for case in cases::all() {
        if !case.name.contains(filter) {
            continue;
        }
        let mut faults = faults(&mut kernel, &case)?;
        // What a case says of this moment is over where the machine is slow: it is made anew, and run at once.
        for _ in 0..3 {
            if faults.is_empty() || !case.name.contains("of_this_moment") {
                break;
            }
            let again = cases::all()
                .into_iter()
                .find(|again| again.name == case.name);
            faults = self::faults(&mut kernel, &again.unwrap())?;
        }
        if faults.is_empty() {
            passed += 1;
        } else {
            failed += 1;
            println!("FAIL {}\n{}", case.name, faults.concat());
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed)
}

/// Runs a case in both engines; returns what is wrong.
fn faults(kernel: &mut Kernel, case: &Case) -> anyhow::Result<Vec<String>> {
    let mut faults = Vec::new();
    on_host(case, &mut faults);
    in_kernel(kernel, case, &mut faults)?;
    Ok(faults)
}

fn on_host(case: &Case, faults: &mut Vec<String>) {
    let tables = ModelTables::new(&case.tables);
    for frame in &case.earlier {
        host::run(&tables, frame, case.headroom);
    }
    let outcome = host::run(&tables, &case.input, case.headroom);
    let mut counts = Counts::default();
    counts.add(&outcome.events);
    if outcome.action != case.action {
        faults.push(format!(
            "  host: action {:?}, expected {:?}\n",
            outcome.action, case.action
        ));
    }
    compare("host", case, &outcome.bytes, &counts, faults);
    compare_claims("host", case, &tables.claims.borrow(), faults);
    compare_paths("host", case, &tables.paths.borrow(), faults);
    compare_pins("host", case, &tables.pins.borrow(), faults);
}

fn in_kernel(kernel: &mut Kernel, case: &Case, faults: &mut Vec<String>) -> anyhow::Result<()> {
    kernel.install(&case.tables)?;
    for frame in &case.earlier {
        kernel.run(frame)?;
    }
    let before = kernel.counts()?;
    match (case.kernel, kernel.run(&case.input)) {
        (InKernel::Refuses, Err(error)) if error.raw_os_error() == Some(libc::EINVAL) => {}
        (InKernel::Refuses, Ok(_)) => {
            faults.push("  kernel: took a frame that it should refuse\n".to_owned());
        }
        (_, Err(error)) => faults.push(format!("  kernel: {error}\n")),
        (InKernel::FixedHeadroom, Ok(_)) => {}
        (InKernel::Runs, Ok((action, bytes))) => {
            if action != kernel::action_code(case.action) {
                faults.push(format!(
                    "  kernel: action {action}, expected {} ({:?})\n",
                    kernel::action_code(case.action),
                    case.action
                ));
            }
            let counts = kernel.counts()?.since(&before);
            compare("kernel", case, &bytes, &counts, faults);
            compare_claims("kernel", case, &kernel.claims()?, faults);
            compare_paths("kernel", case, &kernel.paths()?, faults);
            compare_pins("kernel", case, &kernel.pins()?, faults);
        }
    }
    Ok(())
}

fn compare_claims(
    engine: &str,
    case: &Case,
    claims: &HashMap<AddressKey, [u8; 6]>,
    faults: &mut Vec<String>,
) {
    if *claims != case.claims {
        faults.push(format!(
            "  {engine}: noted {claims:02x?}, expected {:02x?}\n",
            case.claims
        ));
    }
}

fn compare_paths(
    engine: &str,
    case: &Case,
    paths: &HashMap<AddressKey, PathReport>,
    faults: &mut Vec<String>,
) {
    if *paths != case.paths {
        faults.push(format!(
            "  {engine}: noted {paths:x?}, expected {:x?}\n",
            case.paths
        ));
    }
}

fn compare_pins(
    engine: &str,
    case: &Case,
    pins: &[HashMap<Tuple, Pin>; 2],
    faults: &mut Vec<String>,
) {
    let (pins, expected) = (timeless(pins), timeless(&case.pins));
    if pins != expected {
        faults.push(format!(
            "  {engine}: pins {pins:x?}, expected {expected:x?}\n"
        ));
    }
}

/// Returns pins without when they were made.
fn timeless(pins: &[HashMap<Tuple, Pin>; 2]) -> [HashMap<Tuple, u64>; 2] {
    const MOMENT: u64 = 0xff << 32;
    pins.each_ref().map(|pins| {
        let words = pins.iter().map(|(flow, pin)| (*flow, pin.0 & !MOMENT));
        words.collect()
    })
}

fn compare(engine: &str, case: &Case, bytes: &[u8], counts: &Counts, faults: &mut Vec<String>) {
    if *counts != case.counts {
        faults.push(format!(
            "  {engine}: counters{}\n  {engine}: expected{}\n",
            report::counters(counts),
            report::counters(&case.counts)
        ));
    }
    if bytes != case.output {
        faults.push(format!(
            "  {engine}: bytes differ\n{}",
            report::difference(&case.output, bytes)
        ));
    }
}
