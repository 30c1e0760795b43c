//! Removes a backend from the configuration under traffic.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use lab::{Machine, wait_until};

use crate::{
    cluster::{Cluster, SERVICES, Service},
    http::{After, Connection},
    traffic::{self, Request},
};

/// The service under traffic.
const SERVICE: &Service = &SERVICES[2];
/// Index of the node whose pod is removed.
const REMOVED: usize = 1;
/// Number of connections that stay open and send request after request.
const CONNECTIONS: usize = 40;
/// Rounds of requests on them, before the removal and again after it.
const ROUNDS: u64 = 60;
const ROUND_PAUSE: Duration = Duration::from_millis(10);
/// Time between two new connections.
const PACE: Duration = Duration::from_millis(2);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The fate of the connections.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) service: &'static Service,
    /// Name and index of the removed node.
    pub(crate) removed: (String, usize),
    /// Time from the change of the file to the change of the tables.
    pub(crate) took: Duration,
    /// Number of open connections to the other nodes whose slot has kept its owner.
    pub(crate) kept: usize,
    /// Number of answers on them.
    pub(crate) kept_answers: u64,
    /// Why some of them broke; empty if none did.
    pub(crate) kept_broken: Vec<String>,
    /// Number of open connections to the other nodes whose slot has another owner.
    pub(crate) moved: usize,
    /// Number of open connections to the removed node.
    pub(crate) of_removed: usize,
    /// Number of these that went on.
    of_removed_answered: usize,
    /// Number of answers by node to requests that began after the change.
    pub(crate) answers_after: Vec<u64>,
    /// The first failure among these requests, and their number.
    pub(crate) failures_after: Option<(String, usize)>,
    /// The requests that failed because they were under way at the change.
    pub(crate) under_way: RequestsAtChange,
}

impl Removal {
    /// Returns the number of open connections to the removed node that broke.
    pub(crate) fn of_removed_broken(&self) -> usize {
        self.of_removed - self.of_removed_answered
    }

    /// Removes a node's pod under traffic, observes the connections, and puts it back.
    pub(crate) fn run(cluster: &Cluster) -> Result<Self> {
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        let removed = &cluster.nodes()[REMOVED];
        let to = SERVICE.address();
        let (change, sent, open) = thread::scope(|scope| {
            let sent = scope.spawn(|| traffic::send(cluster, &[to], PACE, u32::MAX, &stop));
            let open = scope.spawn(|| keep_asking(cluster, to, &rounds, &stop));
            let change = (|| {
                wait_for_rounds(&rounds)?;
                let took = cluster.configure(Some(removed))?;
                let changed = Instant::now();
                wait_for_rounds(&rounds)?;
                anyhow::Ok((took, changed))
            })();
            stop.store(true, Ordering::Relaxed);
            (change, sent.join(), open.join())
        });
        let panicked = |_| anyhow!("a thread of the client panicked");
        let open = open.map_err(panicked)??;
        let sent = sent.map_err(panicked)?;
        let (took, changed) = change?;

        let (after, before): (Vec<Request>, Vec<Request>) = sent
            .into_iter()
            .partition(|request| request.began >= changed);
        let (of_removed, kept): (Vec<OpenConnection>, Vec<OpenConnection>) = open
            .into_iter()
            .partition(|connection| connection.node == removed.label());
        let (moved, kept) = split_by_slot(cluster, kept)?;
        Ok(Self {
            service: SERVICE,
            removed: (removed.label().to_owned(), REMOVED),
            took,
            kept: kept.len(),
            kept_answers: kept.iter().map(|connection| connection.answers).sum(),
            kept_broken: kept.into_iter().filter_map(|open| open.broken).collect(),
            moved: moved.len(),
            of_removed: of_removed.len(),
            of_removed_answered: of_removed
                .iter()
                .filter(|open| open.broken.is_none())
                .count(),
            answers_after: traffic::answers(cluster, &after)?,
            failures_after: traffic::failures(&after),
            under_way: RequestsAtChange::explain(cluster, removed, before)?,
        })
    }
}

/// Requests that failed at the change.
#[derive(Debug, Default)]
pub(crate) struct RequestsAtChange {
    /// Number of requests to the removed node, or whose slot has another owner.
    pub(crate) cut_off: usize,
    /// Failures of requests that the change should not have affected.
    pub(crate) unexpected: Vec<String>,
}

impl RequestsAtChange {
    /// Asks the edge which node each failed request belonged to. Puts the removed node back for that.
    fn explain(cluster: &Cluster, removed: &Machine, requests: Vec<Request>) -> Result<Self> {
        let mut failed = Vec::new();
        for request in requests {
            let Err(error) = request.outcome else {
                continue;
            };
            let client = request
                .client
                .with_context(|| format!("a new connection failed: {error:#}"))?;
            failed.push((client, cluster.which(SERVICE, client)?, error));
        }
        // The same backends give the same table as before the removal.
        cluster.configure(None)?;
        let mut under_way = Self::default();
        for (client, node_after, error) in failed {
            let node = cluster.which(SERVICE, client)?;
            if node == removed.label() || node != node_after {
                under_way.cut_off += 1;
            } else {
                let unexpected = format!("{client} on {node}: {error:#}");
                under_way.unexpected.push(unexpected);
            }
        }
        Ok(under_way)
    }
}

/// Separates connections whose slot has another owner from those whose slot has kept it. When a backend is
/// removed, Maglev moves a few slots of the other backends.
fn split_by_slot(
    cluster: &Cluster,
    open: Vec<OpenConnection>,
) -> Result<(Vec<OpenConnection>, Vec<OpenConnection>)> {
    let (mut moved, mut kept) = (Vec::new(), Vec::new());
    for connection in open {
        let owner = cluster.which(SERVICE, connection.client)?;
        if owner == connection.node {
            kept.push(connection);
        } else {
            moved.push(connection);
        }
    }
    Ok((moved, kept))
}

/// A connection that stays open.
#[derive(Debug)]
struct OpenConnection {
    client: SocketAddr,
    node: String,
    answers: u64,
    broken: Option<String>,
    connection: Connection,
}

impl OpenConnection {
    fn new(to: SocketAddr) -> Result<Self> {
        let mut connection = Connection::connect(to)?;
        Ok(Self {
            client: connection.client()?,
            node: connection.get(After::KeepAlive)?,
            answers: 1,
            broken: None,
            connection,
        })
    }

    fn ask(&mut self) {
        if self.broken.is_some() {
            return;
        }
        match self.connection.get(After::KeepAlive) {
            Ok(node) if node == self.node => self.answers += 1,
            Ok(node) => self.broken = Some(format!("{node} answered for {}", self.node)),
            Err(error) => self.broken = Some(format!("{error:#}")),
        }
    }
}

/// Opens the connections and sends requests on each in turn until told to stop.
fn keep_asking(
    cluster: &Cluster,
    to: SocketAddr,
    rounds: &AtomicU64,
    stop: &AtomicBool,
) -> Result<Vec<OpenConnection>> {
    cluster.client().namespace().run(|| {
        let mut open = (0..CONNECTIONS)
            .map(|_| OpenConnection::new(to))
            .collect::<Result<Vec<_>>>()?;
        while !stop.load(Ordering::Relaxed) {
            open.iter_mut().for_each(OpenConnection::ask);
            rounds.fetch_add(1, Ordering::Relaxed);
            thread::sleep(ROUND_PAUSE);
        }
        Ok(open)
    })
}

fn wait_for_rounds(rounds: &AtomicU64) -> lab::Result<()> {
    let until = rounds.load(Ordering::Relaxed) + ROUNDS;
    wait_until("requests on the open connections", TIMEOUT, || {
        rounds.load(Ordering::Relaxed) >= until
    })
}
