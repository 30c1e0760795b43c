//! Asks for all rows of a table as people do, with the command.

use std::{
    io::{self, Read},
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{MIB, agent::Agent, cluster::Cluster, report::ScenarioFigures};
use crate::usage::Memory;

/// Bounds of the time that commands take to show all rows, in seconds, and the number of services that the first is for.
const MOST_SERVICES_SECONDS: f64 = 1.0;
const MOST_BACKENDS_SECONDS: f64 = 3.0;
const ROWS_OF_SERVICES: u32 = 10_000;
/// Bound of the memory of the command that shows all backends, in MiB.
const MOST_BACKENDS_MIB: f64 = 200.0;

/// What a command took.
#[derive(Clone, Copy, Debug)]
struct Cost {
    time: Duration,
    /// Most resident bytes; `None` if the command ended too soon to be looked at.
    memory: Option<u64>,
}

/// Measures the commands that show all services and all backends.
pub(super) fn measure_rows(
    cluster: &Cluster,
    agent: &Agent<'_>,
    results: &mut ScenarioFigures,
) -> Result<()> {
    let services = show(agent, "services")?;
    results.add(
        "guideway services, all rows",
        "s",
        services.time.as_secs_f64(),
        (cluster.services <= ROWS_OF_SERVICES).then_some(MOST_SERVICES_SECONDS),
    );
    let backends = show(agent, "backends")?;
    results.add(
        "guideway backends, all rows",
        "s",
        backends.time.as_secs_f64(),
        Some(MOST_BACKENDS_SECONDS),
    );
    let memory = backends.memory.context("its page fits a pipe")?;
    results.add(
        "guideway backends, memory",
        "MiB",
        memory as f64 / MIB,
        Some(MOST_BACKENDS_MIB),
    );
    Ok(())
}

/// Runs a command that shows all rows.
fn show(agent: &Agent<'_>, command: &str) -> Result<Cost> {
    let begun = Instant::now();
    let mut process = agent
        .command(command)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting guideway {command}"))?;
    let mut page = process.stdout.take().context("its output was piped")?;
    // The page is complete before its first byte is written. As long as nobody reads the rest of a page that no pipe
    // holds, the process stays.
    page.read_exact(&mut [0]).context("reading the page")?;
    let memory = Memory::of(process.id()).ok().map(|memory| memory.peak);
    io::copy(&mut page, &mut io::sink()).context("reading the page")?;
    let status = process.wait()?;
    ensure!(status.success(), "guideway {command} ended with {status}");
    let time = begun.elapsed();
    Ok(Cost { time, memory })
}

/// Does something while all backends are asked for without a pause.
pub(super) fn meanwhile<T>(agent: &Agent<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asker = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                show(agent, "backends")?;
            }
            anyhow::Ok(())
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        asker.join().expect("the asker does not panic")?;
        done
    })
}
