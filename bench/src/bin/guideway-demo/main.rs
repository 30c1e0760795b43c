//! `make demo`: real HTTP through Guideway, on one machine.
//!
//! It builds a client, a router, an edge and three nodes with a pod each from network namespaces, runs nginx in
//! the pods and the agents on edge and nodes, and measures. Every statement that it prints about the result is
//! a claim that it has checked. If one does not hold, it prints the agents' logs and ends with code 1.

mod claims;
mod cluster;
mod http;
mod page;
mod progress;
mod removal;
mod traffic;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{claims::Claims, cluster::Cluster, removal::Removal, traffic::Traffic};

/// Requests to each service.
const REQUESTS: u32 = 3000;
/// Time between two requests.
const PACE: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    let began = Instant::now();
    print!("{}", progress::title());
    let mut cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(error) => return failed(&error, ""),
    };
    let mut claims = Claims::default();
    let shown = show(&mut cluster, &mut claims);
    print!("{claims}");
    if let Err(error) = shown {
        return failed(&error, &cluster.logs());
    }
    let seconds = began.elapsed().as_secs();
    if claims.hold() {
        println!("\nAll of this was checked in {seconds} s: the demo PASSED.");
        return ExitCode::SUCCESS;
    }
    println!("\nThe demo FAILED after {seconds} s.");
    eprint!("{}", cluster.logs());
    ExitCode::FAILURE
}

/// Runs the traffic, prints the results and collects the claims.
fn show(cluster: &mut Cluster, claims: &mut Claims) -> Result<()> {
    cluster.start_agents().context("cannot start the agents")?;
    print!("{}", page::rows_title(REQUESTS, PACE));
    let Traffic { rows, packets } =
        Traffic::measure(cluster, REQUESTS, PACE).context("cannot measure the services")?;
    print!("{}", page::rows(&rows));
    claims.traffic(&rows);
    claims.latency(&rows);
    print!("{}", page::path(&packets));
    claims.direct_return(&packets);
    claims.fresh_connections(cluster.challenges()?);

    print!("{}", page::removal_title());
    let removal = Removal::run(cluster).context("cannot remove a backend")?;
    print!("{}", page::removal(&removal));
    claims.removal(&removal);
    Ok(())
}

fn failed(error: &anyhow::Error, logs: &str) -> ExitCode {
    println!("\nThe demo FAILED.");
    eprint!("guideway-demo: {error:#}\n{logs}");
    ExitCode::FAILURE
}
