//! Runs the table of packet cases through all three engines, and through the kernel once more as frames that the agent has
//! mended. The third engine, the whole edge, refuses those that it cannot meet, and says how many for each reason.
//!
//! One line and a diff per case that fails, then `N passed, N failed`. An
//! argument picks the cases whose name contains it. It takes the right to
//! load BPF programs and to make network namespaces, `ip`, /proc/sys and /sys
//! (for the number of CPUs), no other files.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold may panic")]

mod support;

use std::{
    collections::{BTreeMap, HashMap},
    process::ExitCode,
};

use anyhow::ensure;
use fastpath::clock::coarse_ns;
use support::{
    cases::{self, Case, InKernel},
    host,
    kernel::{self, Kernel},
    report,
    tables::{Counts, ModelTables, TableSet},
    whole_edge::{WholeEdge, without_node_role},
};
use xdp_prog::{
    abi::{AddressKey, Client, ClientBackend, PathReport, Pin, Tuple},
    process::Action,
};

/// Cases that the third engine meets at the least: those of an edge without pods, NAT and NodePorts.
const LEAST_MET: usize = 1500;
/// How often a case is made anew that holds for a moment only.
const MOST_ATTEMPTS: usize = 10;

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
    let mut engines = Engines::load()?;
    let (mut passed, mut failed) = (0, 0);
    for case in cases::all() {
        if !case.name.contains(filter) {
            continue;
        }
        let name = case.name.clone();
        let faults = engines.faults(case)?;
        if faults.is_empty() {
            passed += 1;
        } else {
            failed += 1;
            println!("FAIL {name}\n{}", faults.concat());
        }
    }
    println!("{passed} passed, {failed} failed");
    let (met, refused) = (engines.met, &engines.refused);
    println!("whole edge: {met} met, refused {refused:?}");
    ensure!(
        !filter.is_empty() || met >= LEAST_MET,
        "a whole edge meets fewer than {LEAST_MET} cases"
    );
    Ok(failed)
}

/// The second and the third engine, and how many cases the third one has met, and refused for each reason.
struct Engines {
    kernel: Kernel,
    edge: WholeEdge,
    met: usize,
    refused: BTreeMap<&'static str, usize>,
}

impl Engines {
    fn load() -> anyhow::Result<Self> {
        let kernel = Kernel::load()?;
        Ok(Self {
            edge: WholeEdge::over(&kernel)?,
            kernel,
            met: 0,
            refused: BTreeMap::new(),
        })
    }

    /// Runs a case in all engines; returns what is wrong. Where the machine is so slow that the case holds no more, it is
    /// made anew and run at once.
    fn faults(&mut self, mut case: Case) -> anyhow::Result<Vec<String>> {
        for _ in 0..MOST_ATTEMPTS {
            let mut faults = Vec::new();
            on_host(&case, &mut faults);
            in_kernel(&mut self.kernel, &case, &mut faults)?;
            as_mended(&mut self.kernel, &case, &mut faults)?;
            let refusal = self.in_whole_edge(&case, &mut faults)?;
            if coarse_ns() < case.holds_until {
                match refusal {
                    Some(reason) => *self.refused.entry(reason).or_default() += 1,
                    None => self.met += 1,
                }
                return Ok(faults);
            }
            case = case.anew();
        }
        Ok(vec!["  the machine is too slow for it\n".to_owned()])
    }

    /// Runs a case as a whole edge does, or returns why that cannot meet it.
    fn in_whole_edge(
        &mut self,
        case: &Case,
        faults: &mut Vec<String>,
    ) -> anyhow::Result<Option<&'static str>> {
        let tables = match edge_tables(case) {
            Ok(tables) => tables,
            Err(refusal) => return Ok(Some(refusal)),
        };
        self.kernel.install(&tables)?;
        self.edge.follow(&tables)?;
        for frame in &case.earlier {
            self.edge.run(frame);
        }
        let before = self.kernel.counts();
        let (action, bytes) = self.edge.run(&case.input);
        if action != case.action {
            faults.push(format!(
                "  edge: action {action:?}, expected {:?}\n",
                case.action
            ));
        }
        let counts = self.kernel.counts().since(&before);
        compare("edge", case, &bytes, &counts, faults);
        compare_paths("edge", case, &self.kernel.paths()?, faults);
        compare_pins("edge", case, &self.kernel.pins()?, faults);
        Ok(None)
    }
}

/// Returns the tables with which a whole edge meets a case. It must do there what the case expects without the node role
/// and without the FIB.
///
/// # Errors
///
/// Names what a whole edge does not have.
fn edge_tables(case: &Case) -> Result<TableSet, &'static str> {
    let tables = without_node_role(&case.tables)?;
    if case.headroom != kernel::HEADROOM {
        return Err("other headroom");
    }
    if !is_expected(case, &ModelTables::new(&tables)) {
        return Err("the node role");
    }
    if !is_expected(case, &ModelTables::new(&tables).without_fib()) {
        return Err("the FIB");
    }
    Ok(tables)
}

/// Tells whether the first engine does what a case expects with these tables.
fn is_expected(case: &Case, tables: &ModelTables<'_>) -> bool {
    for frame in &case.earlier {
        host::run(tables, frame, case.headroom);
    }
    let outcome = host::run(tables, &case.input, case.headroom);
    let mut counts = Counts::default();
    counts.add(&outcome.events);
    (outcome.action, outcome.bytes, counts)
        == (case.action, case.output.clone(), case.counts.clone())
}

fn on_host(case: &Case, faults: &mut Vec<String>) {
    let began = coarse_ns();
    let tables = ModelTables::new(&case.tables);
    for frame in &case.earlier {
        host::run(&tables, frame, case.headroom);
    }
    tables.lose_socket();
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
    compare_clients("host", case, began, &tables.clients.borrow(), faults);
}

fn in_kernel(kernel: &mut Kernel, case: &Case, faults: &mut Vec<String>) -> anyhow::Result<()> {
    let began = coarse_ns();
    kernel.install(&case.tables)?;
    for frame in &case.earlier {
        kernel.run(frame)?;
    }
    kernel.lose_socket(&case.tables)?;
    let before = kernel.counts();
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
            let counts = kernel.counts().since(&before);
            compare("kernel", case, &bytes, &counts, faults);
            compare_claims("kernel", case, &kernel.claims()?, faults);
            compare_paths("kernel", case, &kernel.paths()?, faults);
            compare_pins("kernel", case, &kernel.pins()?, faults);
            compare_clients("kernel", case, began, &kernel.clients()?, faults);
        }
    }
    Ok(())
}

/// Runs a case's frame as a mended one: all is the same, but that it leaves by a redirect, or as the stack takes it where
/// it comes back.
fn as_mended(kernel: &mut Kernel, case: &Case, faults: &mut Vec<String>) -> anyhow::Result<()> {
    let mut case = case.clone();
    match case.action {
        _ if case.kernel != InKernel::Runs => return Ok(()),
        Action::Transmit => case.action = Action::Redirect(kernel::INGRESS),
        Action::Pass => match for_stack(&case.output) {
            Some(output) => case.output = output,
            // Nobody mends it.
            None => return Ok(()),
        },
        Action::Drop | Action::Redirect(_) | Action::Continue(_) => {}
    }
    kernel.install(&case.tables)?;
    for frame in &case.earlier {
        kernel.run(frame)?;
    }
    kernel.lose_socket(&case.tables)?;
    let before = kernel.counts();
    let (action, bytes) = kernel.run_mended(&case.input)?;
    if action != kernel::action_code(case.action) {
        faults.push(format!(
            "  mended: action {action}, expected {:?}\n",
            case.action
        ));
    }
    let counts = kernel.counts().since(&before);
    compare("mended", &case, &bytes, &counts, faults);
    Ok(())
}

/// Returns a frame as the stack takes it: for the MAC of the device where it comes back, and without VLAN tags; `None` if
/// it has more than two.
fn for_stack(frame: &[u8]) -> Option<Vec<u8>> {
    let tags = [0, 4, 8].into_iter().find(|tags| {
        let ether_type = frame.get(12 + tags..14 + tags);
        ether_type.is_some_and(|found| ![[0x81, 0], [0x88, 0xa8]].contains(&[found[0], found[1]]))
    })?;
    Some([&kernel::MENDED_MAC, &frame[6..12], &frame[12 + tags..]].concat())
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

/// An entry is as it was, or is that of a connection since `began`, ns.
fn compare_clients(
    engine: &str,
    case: &Case,
    began: u64,
    clients: &HashMap<Client, ClientBackend>,
    faults: &mut Vec<String>,
) {
    let is_expected = |(client, entry): (&Client, &ClientBackend)| {
        let expected = case.clients.get(client).copied().unwrap_or_default();
        let is_new = expected.word == entry.word && entry.seen >= began;
        match case.tables.clients.get(client) {
            Some(earlier) if *earlier == expected => *entry == expected,
            _ => is_new,
        }
    };
    if clients.len() != case.clients.len() || !clients.iter().all(is_expected) {
        faults.push(format!(
            "  {engine}: clients {clients:x?}, expected {:x?}\n",
            case.clients
        ));
    }
}

/// Returns pins without when they were made, which a marked one does not tell.
fn timeless(pins: &[HashMap<Tuple, Pin>; 2]) -> [HashMap<Tuple, Pin>; 2] {
    pins.each_ref().map(|pins| {
        let timeless = |pin: Pin| {
            if pin.is_marked() {
                pin
            } else {
                pin.unmarked(0)
            }
        };
        let pins = pins.iter().map(|(flow, pin)| (*flow, timeless(*pin)));
        pins.collect()
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
