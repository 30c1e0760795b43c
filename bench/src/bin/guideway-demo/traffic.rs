//! Sends requests at a fixed rate, and counts where their packets went.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::{
    cluster::{Cluster, SERVICES, Service},
    http::{After, Connection},
};

/// Most simultaneous requests.
const WORKERS: usize = 16;

/// A request with its result.
#[derive(Debug)]
pub(crate) struct Request {
    to: SocketAddr,
    /// When it was started.
    pub(crate) began: Instant,
    /// Time from when it was due to its last byte. It includes the delay by stalled requests before it.
    pub(crate) latency: Duration,
    /// The client's address and port, if the connection was opened.
    pub(crate) client: Option<SocketAddr>,
    /// Name of the node that answered.
    pub(crate) outcome: Result<String>,
}

/// Sends requests to these addresses in turn, each on its own connection and one every `pace`, until `limit` requests
/// or `stop`.
pub(crate) fn send(
    cluster: &Cluster,
    to: &[SocketAddr],
    pace: Duration,
    limit: u32,
    stop: &AtomicBool,
) -> Vec<Request> {
    let next = AtomicU32::new(0);
    let sent = Mutex::new(Vec::new());
    let start = Instant::now();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= limit {
                break;
            }
            let due = start + pace * number;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let request = request(to[number as usize % to.len()], due);
            let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
            sent.push(request);
        }
    };
    cluster.client().namespace().run(|| {
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(work);
            }
        });
    });
    sent.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn request(to: SocketAddr, due: Instant) -> Request {
    let began = Instant::now();
    let connection = Connection::connect(to);
    let client = connection
        .as_ref()
        .ok()
        .and_then(|connection| connection.client().ok());
    let outcome = connection.and_then(|mut connection| connection.get(After::Close));
    Request {
        to,
        began,
        latency: due.elapsed(),
        client,
        outcome,
    }
}

/// Packets counted at the interfaces while requests ran.
///
/// Bytes cannot be compared: with an XDP program, veth counts received packets without their Ethernet header
/// and sent ones with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packets {
    pub(crate) client_sent: u64,
    pub(crate) client_received: u64,
    pub(crate) edge_in: u64,
    pub(crate) edge_out: u64,
    pub(crate) nodes_out: u64,
}

impl Packets {
    fn now(cluster: &Cluster) -> Result<Self> {
        let client = cluster.client().link()?.stats()?;
        let edge = cluster.edge().link()?.stats()?;
        let mut nodes_out = 0;
        for node in cluster.nodes() {
            nodes_out += node.link()?.stats()?.tx_packets;
        }
        Ok(Self {
            client_sent: client.tx_packets,
            client_received: client.rx_packets,
            edge_in: edge.rx_packets,
            edge_out: edge.tx_packets,
            nodes_out,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            client_sent: self.client_sent - before.client_sent,
            client_received: self.client_received - before.client_received,
            edge_in: self.edge_in - before.edge_in,
            edge_out: self.edge_out - before.edge_out,
            nodes_out: self.nodes_out - before.nodes_out,
        }
    }

    /// Returns the packets that entered the edge but did not come from the client: replies, if any, and a
    /// little address resolution.
    pub(crate) fn replies_at_edge(self) -> u64 {
        self.edge_in.saturating_sub(self.client_sent)
    }
}

/// The results of requests to all services.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// In the order of the services.
    pub(crate) rows: Vec<Row>,
    pub(crate) packets: Packets,
}

impl Traffic {
    /// Sends `requests` requests to each service. The services take turns with each request, so that whatever else
    /// the machine does meanwhile delays all alike.
    pub(crate) fn measure(cluster: &Cluster, requests: u32, pace: Duration) -> Result<Self> {
        let addresses = SERVICES.each_ref().map(Service::address);
        let limit = requests * u32::try_from(addresses.len())?;
        let before = Packets::now(cluster)?;
        let never = AtomicBool::new(false);
        let sent = send(cluster, &addresses, pace, limit, &never);
        let packets = Packets::now(cluster)?.since(before);
        let rows = SERVICES
            .iter()
            .map(|service| Row::new(cluster, service, requests, &sent))
            .collect::<Result<_>>()?;
        Ok(Self { rows, packets })
    }
}

/// The results of one service's requests.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) service: &'static Service,
    pub(crate) requests: u32,
    /// The first failure, and the number of failures.
    pub(crate) failures: Option<(String, usize)>,
    /// Number of answers by node, in the order of the nodes.
    pub(crate) answers: Vec<u64>,
    /// Latencies of answered requests, in microseconds.
    pub(crate) latency: Histogram<u64>,
}

impl Row {
    /// Finds a service's requests among those that were sent.
    fn new(
        cluster: &Cluster,
        service: &'static Service,
        requests: u32,
        sent: &[Request],
    ) -> Result<Self> {
        let own = || {
            sent.iter()
                .filter(|request| request.to == service.address())
        };
        let mut latency = Histogram::new(3)?;
        for request in own().filter(|request| request.outcome.is_ok()) {
            latency.record(request.latency.as_micros().try_into()?)?;
        }
        Ok(Self {
            service,
            requests,
            failures: failures(own()),
            answers: answers(cluster, own())?,
            latency,
        })
    }
}

/// Counts answers by node.
pub(crate) fn answers<'a>(
    cluster: &Cluster,
    sent: impl IntoIterator<Item = &'a Request>,
) -> Result<Vec<u64>> {
    let mut by_name: BTreeMap<&str, u64> = cluster
        .nodes()
        .iter()
        .map(|node| (node.label(), 0))
        .collect();
    for name in sent.into_iter().flat_map(|request| &request.outcome) {
        *by_name
            .get_mut(name.as_str())
            .with_context(|| format!("an answer from {name:?}, which is no node"))? += 1;
    }
    Ok(by_name.into_values().collect())
}

/// Returns the first failure and the number of failures; `None` if there are none.
pub(crate) fn failures<'a>(sent: impl IntoIterator<Item = &'a Request>) -> Option<(String, usize)> {
    let mut failed = sent
        .into_iter()
        .filter_map(|request| request.outcome.as_ref().err());
    let first = failed.next()?;
    Some((format!("{first:#}"), 1 + failed.count()))
}
