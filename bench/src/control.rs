//! Measures what following a large cluster costs: time until the tables are full, time of one change, memory, CPU.
//!
//! The agent is the real `guideway run --kubernetes`, on a machine of its own with real packets. The cluster
//! comes from one of two sources:
//!
//! | source | what | for |
//! |---|---|---|
//! | `real` | etcd and kube-apiserver, filled with objects | the pace and answers of a real server |
//! | `recorded` | a server in this process that plays lists and watches back | sizes too large for a real server |
//!
//! **Cold start**: from the end of the last list to the last table. Both times are in the agent's log.
//! Connections to services all over the cluster then show that the tables are full.
//!
//! **One change**: from the moment that the recorded server gets an event to the first new connection that
//! reaches the endpoint in it. This includes the event's way, the whole agent, and the packet's way. The
//! changes are far enough apart that none waits for another.
//!
//! **Storm**: the same for a sample of many changes per second. An agent that falls behind gets later and
//! later, so the latest of the last third counts.
//!
//! **Heartbeats**: kubelets write the status of their Nodes, and every watcher of Nodes receives every write.
//! So the cost of a cluster grows with the square of its Nodes. The figure is the CPU time of all threads while
//! heartbeats arrive, less that of an equal time without them.
//!
//! **Memory**: resident bytes at the end, including those of mapped tables, and their maximum.
//!
//! **All rows**: what `guideway services` and `guideway backends` take for the whole cluster, and what one change takes
//! while `backends` is asked for without a pause. This comes last, because answers need memory of the agent too.
//!
//! **Idle**: CPU time of all threads while nothing changes, over a period that includes the agent's timers and
//! the renewal of its watches. Every node gets an echo each second and answers it. Because all is on one
//! machine, the agent's CPU time includes the kernel's work at the nodes.

mod agent;
mod asked;
mod cluster;
mod nodes;
mod report;
pub mod result;
mod scenario;
mod source;
mod wire;
pub(crate) mod writer;

use std::{
    ops::Range,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use self::{
    agent::Agent,
    source::Server,
    wire::{Prober, Wire},
};
pub use self::{
    cluster::Cluster,
    report::{Report, ScenarioFigures},
    scenario::Scenario,
    source::Source,
};
use crate::host::{self, Facts};

/// How long to wait for a packet that follows a change.
const PACKET_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two single changes. It is longer than the agent gathers changes, and than it waits for packets
/// in flight before it reuses freed memory.
const CHANGE_PAUSE: Duration = Duration::from_millis(100);
/// Number of services whose tables are probed after the start, all over the cluster.
const PROBED_SERVICES: u32 = 16;
/// Time between two changes of a storm that are measured.
const STORM_SAMPLE: Duration = Duration::from_millis(500);
/// Time between two batches of a storm's changes.
const STORM_TICK: Duration = Duration::from_millis(10);

/// Bound of the 99th percentile from one change's arrival to its first packet, in milliseconds.
const MOST_CHANGE_MS: f64 = 10.0;
/// Bound of the time from complete lists to full tables, in seconds.
const MOST_START_SECONDS: f64 = 5.0;
/// Bound of a storm's change, in seconds. An agent that is too slow by a thirtieth exceeds it.
const MOST_STORM_SECONDS: f64 = 1.0;
/// Bound of the changes that the server was too slow to write, in percent. With more, it was a smaller storm.
const MOST_UNWRITTEN_PERCENT: f64 = 5.0;
/// Most single changes while all rows are asked for.
const MOST_CHANGES_WHILE_ASKED: u32 = 100;
/// Bound of the CPU time while nothing changes, in percent of one core.
const MOST_IDLE_PERCENT: f64 = 1.0;
/// Bound of the CPU time for one heartbeat of a Node, in microseconds. Nearly all of it must be decoding,
/// whatever the number of Nodes.
const MOST_HEARTBEAT_US: f64 = 200.0;
/// Bounds of the memory for each endpoint and for each service without its lookup tables, in bytes.
const ENDPOINT_BYTES: f64 = 1536.0;
const SERVICE_BYTES: f64 = 3072.0;
const MIB: f64 = (1 << 20) as f64;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `guideway` program.
    pub guideway: PathBuf,
    /// The clusters.
    pub scenarios: Vec<Scenario>,
}

/// Runs the scenarios. `progress` is called with what is being done.
///
/// # Errors
///
/// When the machine is unfit, a program ends, or packets do not follow the cluster.
pub fn run(options: &Options, progress: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    host::preflight()?;
    let mut report = Report::new(Facts::collect());
    for scenario in &options.scenarios {
        let mut results = ScenarioFigures::new(scenario);
        let outcome = measure(options, scenario, &mut results, progress);
        outcome.with_context(|| format!("measuring {}", results.title()))?;
        report.add(results);
    }
    Ok(report)
}

fn measure(
    options: &Options,
    scenario: &Scenario,
    results: &mut ScenarioFigures,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<()> {
    let title = results.title();
    let say = |what: &str| progress(&format!("{title}: {what}"));
    let cluster = &scenario.cluster;
    say("filling");
    let wire = Wire::new(cluster.nodes)?;
    let server = Server::start(scenario.source, cluster, &wire.edge, &say)?;
    let mut prober = wire.prober()?;
    let _nodes = wire.nodes()?;

    say("cold start");
    let mut agent = Agent::start(&options.guideway, &wire.edge, cluster)?;
    let outcome = measure_agent(scenario, &mut agent, &server, &mut prober, results, &say);
    outcome.with_context(|| format!("the end of the agent's log:\n{}", agent.end_of_log()))?;
    agent.stop()
}

fn measure_agent(
    scenario: &Scenario,
    agent: &mut Agent<'_>,
    server: &Server,
    prober: &mut Prober,
    results: &mut ScenarioFigures,
    say: &dyn Fn(&str),
) -> Result<()> {
    let cluster = &scenario.cluster;
    let start = agent.wait_until_full(cluster.services)?;
    results.add(
        "lists complete to full tables",
        "s",
        start.tables.as_secs_f64(),
        Some(MOST_START_SECONDS),
    );
    results.add(
        "start of the program to full tables",
        "s",
        start.total.as_secs_f64(),
        None,
    );
    let distance = (cluster.services / PROBED_SERVICES).max(1) as usize;
    for service in (0..cluster.services).step_by(distance) {
        prober
            .wait_for(
                Cluster::vip(service),
                Cluster::node_address(service % cluster.nodes),
                PACKET_TIMEOUT,
            )
            .context("the tables are not as the lists were")?;
    }

    if scenario.changes > 0 {
        say("single changes");
        let times = single_changes(cluster, server, prober, 0..scenario.changes)?;
        // A real server needs time to write and to report; the bound is only for what comes after.
        let (p50, p99, bound) = match scenario.source {
            Source::Recorded => (
                "one change to its first packet, p50",
                "one change to its first packet, p99",
                Some(MOST_CHANGE_MS),
            ),
            Source::Real => (
                "one write to its first packet, p50",
                "one write to its first packet, p99",
                None,
            ),
        };
        add_quantiles(results, &times, [(p50, None), (p99, bound)]);
    }
    if let Some((rate, duration)) = scenario.storm {
        say("storm");
        let before = agent.cpu_time()?;
        let (lags, unwritten) = storm(scenario, server, prober, rate, duration)?;
        let busy = (agent.cpu_time()? - before).as_secs_f64() / duration.as_secs_f64();
        let last = &lags[lags.len() * 2 / 3..];
        let latest = last.iter().copied().reduce(f64::max);
        let latest = latest.context("no change was measured in the storm")?;
        results.add(
            "storm: latest of the last third",
            "s",
            latest,
            Some(MOST_STORM_SECONDS),
        );
        results.add("storm: CPU, % of one core", "%", busy * 100.0, None);
        results.add(
            "storm: changes not written in its time",
            "%",
            unwritten * 100.0,
            Some(MOST_UNWRITTEN_PERCENT),
        );
    }

    // The bounds for idle CPU time and memory assume many Services per Node. Scenarios with heartbeats have
    // many Nodes and few Services.
    let is_typical = scenario.heartbeats.is_none();
    say("idle");
    let before = agent.cpu_time()?;
    thread::sleep(scenario.idle);
    let idle = (agent.cpu_time()? - before).as_secs_f64() / scenario.idle.as_secs_f64();
    results.add(
        "CPU when nothing changes, % of one core",
        "%",
        idle * 100.0,
        is_typical.then_some(MOST_IDLE_PERCENT),
    );

    if let Some((rate, duration)) = scenario.heartbeats {
        say("heartbeats");
        let (begun, before) = (Instant::now(), agent.cpu_time()?);
        let written = heartbeats(cluster, server, rate, duration)?;
        let busy = (agent.cpu_time()? - before).as_secs_f64();
        let own = busy - idle * begun.elapsed().as_secs_f64();
        let each = own / f64::from(written.max(1)) * 1e6;
        results.add(
            "one heartbeat of a Node, CPU",
            "us",
            each,
            Some(MOST_HEARTBEAT_US),
        );
    }

    let memory = agent.memory()?;
    let endpoints = f64::from(cluster.services * cluster.endpoints);
    let bound = ENDPOINT_BYTES * endpoints
        + SERVICE_BYTES * f64::from(cluster.services)
        + agent.lookup_table_bytes()?;
    results.add(
        "memory, resident",
        "MiB",
        memory.resident as f64 / MIB,
        is_typical.then_some(bound / MIB),
    );
    results.add("memory, peak", "MiB", memory.peak as f64 / MIB, None);

    say("all rows");
    asked::measure_rows(cluster, agent, results)?;
    if scenario.changes > 0 {
        let number = scenario.changes.min(MOST_CHANGES_WHILE_ASKED);
        let numbers = scenario.changes..scenario.changes + number;
        let change = || single_changes(cluster, server, prober, numbers);
        let names = [
            "one change while backends is asked, p50",
            "one change while backends is asked, p99",
        ];
        let times = asked::meanwhile(agent, change)?;
        add_quantiles(results, &times, names.map(|name| (name, None)));
    }
    Ok(())
}

/// Adds the median and the 99th percentile of times in milliseconds.
fn add_quantiles(
    results: &mut ScenarioFigures,
    times: &[f64],
    [median, late]: [(&'static str, Option<f64>); 2],
) {
    for ((name, bound), quantile) in [(median, 0.50), (late, 0.99)] {
        results.add_quantile(name, "ms", times, quantile, bound);
    }
}

/// Measures the changes of these numbers, one Service after the other. Returns their times in milliseconds.
fn single_changes(
    cluster: &Cluster,
    server: &Server,
    prober: &mut Prober,
    numbers: Range<u32>,
) -> Result<Vec<f64>> {
    let change = |number: u32| {
        thread::sleep(CHANGE_PAUSE);
        let (service, round) = (number % cluster.services, number / cluster.services + 1);
        let took = change_one(server, prober, cluster, service, round)?;
        Ok(took.as_secs_f64() * 1e3)
    };
    numbers.map(change).collect()
}

/// Changes the first endpoint of a Service and waits for the first packet to it. Returns the time that this took.
fn change_one(
    server: &Server,
    prober: &mut Prober,
    cluster: &Cluster,
    service: u32,
    round: u32,
) -> Result<Duration> {
    let node = cluster.node_of_change(service, round);
    let begun = Instant::now();
    server.put_slice(cluster, service, round)?;
    prober.wait_for(
        Cluster::vip(service),
        Cluster::node_address(node),
        PACKET_TIMEOUT,
    )?;
    Ok(begun.elapsed())
}

/// Writes `rate` heartbeats of Nodes per second. Returns how many were written.
fn heartbeats(cluster: &Cluster, server: &Server, rate: u32, duration: Duration) -> Result<u32> {
    let begun = Instant::now();
    let mut written: u32 = 0;
    while begun.elapsed() < duration {
        let due = (begun.elapsed().as_secs_f64() * f64::from(rate)).floor();
        while f64::from(written) < due {
            server.put_heartbeat(written % cluster.nodes, written)?;
            written += 1;
        }
        thread::sleep(STORM_TICK);
    }
    Ok(written)
}

/// Writes `rate` changes per second. Returns how late the sampled ones were, in seconds, and the share of
/// changes that could not be written.
fn storm(
    scenario: &Scenario,
    server: &Server,
    prober: &mut Prober,
    rate: u32,
    duration: Duration,
) -> Result<(Vec<f64>, f64)> {
    let cluster = &scenario.cluster;
    // The last service is sampled; the others make the storm.
    let others = cluster.services - 1;
    ensure!(others > 0, "a storm needs two services");
    let begun = Instant::now();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written: u32 = 0;
            while begun.elapsed() < duration {
                let due = (begun.elapsed().as_secs_f64() * f64::from(rate)).floor();
                while f64::from(written) < due {
                    let (service, round) = (written % others, written / others);
                    server.put_slice(cluster, service, scenario.changes + round + 1)?;
                    written += 1;
                }
                thread::sleep(STORM_TICK);
            }
            let due = f64::from(rate) * duration.as_secs_f64();
            anyhow::Ok((1.0 - f64::from(written) / due).max(0.0))
        });
        let mut lags = Vec::new();
        while begun.elapsed() < duration {
            let round = u32::try_from(lags.len())? + 1;
            let lag = change_one(server, prober, cluster, others, scenario.changes + round)?;
            lags.push(lag.as_secs_f64());
            thread::sleep(STORM_SAMPLE);
        }
        let unwritten = writer.join().expect("the writer does not panic")?;
        Ok((lags, unwritten))
    })
}
