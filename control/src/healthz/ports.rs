//! The `healthCheckNodePort` of Services: a listener at each port reports the number of ready pods here.
//!
//! Listeners are opened and closed as Services come and go. A port that cannot be opened is tried again with
//! growing pauses. Where kube-proxy runs, it has all these ports and gives the same answers.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::{HeaderName, HeaderValue};
use imbl::OrdMap;
use nix::errno::Errno;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::server::json_answer;
use super::{HealthCheckPorts, Reports};
use crate::config::HealthCheckNodePorts;
use crate::http::{self, Answer, ConnectionLimit, Limits, SourceLimit};
use crate::index::objects::ObjectName;
use crate::index::{BrokenRule, HealthCheck, Object, Problem};
use crate::timer::sleep_until;

/// Most connections at one port.
const MAX_CONNECTIONS: usize = 16;
/// Most connections at all ports together. Without this limit they could use up the process's file descriptors.
const MAX_ALL_CONNECTIONS: usize = 256;
/// Most connections of one source at a port. A load balancer needs one for each address that it asks from.
const MAX_OF_A_SOURCE: usize = 4;
/// Most connections of one source at all ports together.
const MAX_ALL_OF_A_SOURCE: usize = 64;
/// Pause after the first failed attempt to listen. It doubles with each further failure, up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Header with the number of ready pods, by which load balancers may weight nodes.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The answer at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PortAnswer {
    service: ObjectName,
    local_endpoints: usize,
}

/// The answers by port.
type PortAnswers = Arc<Mutex<BTreeMap<u16, PortAnswer>>>;

/// Opens and closes listeners until the task is dropped.
pub async fn serve(mode: HealthCheckNodePorts, reports: Reports) {
    if mode == HealthCheckNodePorts::Off {
        return;
    }
    let mut check_ports = reports.check_ports.subscribe();
    let mut ports = Ports {
        mode,
        reports: reports.clone(),
        told: PortAnswers::default(),
        connections: ConnectionLimit::new(MAX_ALL_CONNECTIONS),
        sources: SourceLimit::new(MAX_ALL_OF_A_SOURCE),
        open: BTreeMap::new(),
        failed: BTreeMap::new(),
    };
    loop {
        let wanted = check_ports.borrow_and_update().clone();
        ports.follow(&wanted, Instant::now()).await;
        reports.set_problems(ports.problems());
        let retry = ports.failed.values().map(|failure| failure.retry).min();
        tokio::select! {
            changed = check_ports.changed() => if changed.is_err() { return },
            () = sleep_until(retry) => {}
        }
    }
}

struct Ports {
    mode: HealthCheckNodePorts,
    reports: Reports,
    told: PortAnswers,
    connections: ConnectionLimit,
    sources: SourceLimit,
    open: BTreeMap<SocketAddr, Listening>,
    failed: BTreeMap<SocketAddr, Failure>,
}

/// A listening task. Dropping it closes the listener.
struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A port that could not be opened.
#[derive(Debug)]
struct Failure {
    service: ObjectName,
    attempts: u32,
    retry: Instant,
    is_in_use: bool,
    reason: String,
}

impl Ports {
    /// Opens and closes listeners to match `check_ports`, and retries failed ports that are due.
    async fn follow(&mut self, check_ports: &HealthCheckPorts, now: Instant) {
        let told = by_port(&check_ports.services);
        let listened = |port: u16| {
            check_ports
                .addresses
                .iter()
                .map(move |ip| (*ip, port).into())
        };
        let wanted: BTreeMap<SocketAddr, ObjectName> = told
            .iter()
            .flat_map(|(port, told)| listened(*port).map(|at| (at, told.service.clone())))
            .collect();
        *self.told.lock() = told;
        self.open.retain(|at, _| wanted.contains_key(at));
        self.failed
            .retain(|at, failure| wanted.get(at) == Some(&failure.service));
        for (at, service) in wanted {
            let waits = self
                .failed
                .get(&at)
                .is_some_and(|failure| failure.retry > now);
            if !waits && !self.open.contains_key(&at) {
                self.open(at, service, now).await;
            }
        }
    }

    async fn open(&mut self, at: SocketAddr, service: ObjectName, now: Instant) {
        let error = match listen(at).await {
            Ok(listener) => {
                if self.failed.remove(&at).is_some() {
                    tracing::info!(%service, %at, "the health check port is free; it is answered here");
                }
                let limits = Limits::of_probes(
                    vec![
                        ConnectionLimit::new(MAX_CONNECTIONS),
                        self.connections.clone(),
                    ],
                    vec![SourceLimit::new(MAX_OF_A_SOURCE), self.sources.clone()],
                );
                let answers = self.answers(at.port());
                let task = tokio::spawn(http::serve(listener, limits, answers));
                self.open.insert(at, Listening(task));
                return;
            }
            Err(error) => error,
        };
        let before = self.failed.remove(&at);
        let failure = Failure {
            attempts: before.as_ref().map_or(0, |before| before.attempts) + 1,
            retry: now + pause(before.as_ref().map_or(0, |before| before.attempts)),
            is_in_use: error.kind() == ErrorKind::AddrInUse,
            reason: error.to_string(),
            service,
        };
        if before.is_none_or(|before| before.reason != failure.reason) {
            self.log(at, &failure);
        }
        self.failed.insert(at, failure);
    }

    fn log(&self, at: SocketAddr, failure: &Failure) {
        let Failure {
            service, reason, ..
        } = failure;
        if self.is_left(failure) {
            tracing::info!(%service, %at, "somebody else, such as kube-proxy, answers at the health check port");
        } else {
            tracing::warn!(%service, %at, reason, "cannot listen at the health check port");
        }
    }

    /// Returns whether a port is left to the program that has it.
    fn is_left(&self, failure: &Failure) -> bool {
        self.mode == HealthCheckNodePorts::Auto && failure.is_in_use
    }

    fn problems(&self) -> Vec<Problem> {
        let failed = self.failed.iter();
        failed
            .filter(|(_, failure)| !self.is_left(failure))
            .map(|(at, failure)| Problem {
                object: Object::Service(failure.service.clone()),
                rule: BrokenRule::FailedToStartServiceHealthcheck,
                text: format!(
                    "cannot listen at the health check port {at} ({}), so that load balancers leave this machine out",
                    failure.reason
                ),
                remedy: if failure.is_in_use {
                    "free the port, or set kubernetes.health_check_node_port to auto to leave it to who has it"
                } else {
                    "free what is short, or set kubernetes.health_check_node_port to off"
                }
                .to_owned(),
                only_here: true,
            })
            .collect()
    }

    /// Returns the handler of requests at a port. It ignores what is asked.
    fn answers<R>(
        &self,
        port: u16,
    ) -> impl Fn(R) -> std::future::Ready<Answer> + Clone + Send + Sync + use<R> {
        let (told, reports) = (Arc::clone(&self.told), self.reports.clone());
        move |_| {
            let told = told.lock().get(&port).cloned();
            let is_healthy = reports.machine_health().is_healthy(Instant::now());
            std::future::ready(match told {
                Some(told) => answer(&told, is_healthy),
                // The Service has just been removed; its listener will be closed.
                None => json_answer(false, Vec::new()),
            })
        }
    }
}

/// Returns the answers by port. Kubernetes gives no two Services the same port.
fn by_port(services: &OrdMap<ObjectName, HealthCheck>) -> BTreeMap<u16, PortAnswer> {
    let told = services.iter().map(|(name, check)| {
        let told = PortAnswer {
            service: name.clone(),
            local_endpoints: check.local_endpoints,
        };
        (check.port, told)
    });
    told.collect()
}

/// Returns the pause after a failure that `failures` others preceded.
fn pause(failures: u32) -> Duration {
    let pause = FIRST_PAUSE.checked_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
    pause.map_or(LAST_PAUSE, |pause| pause.min(LAST_PAUSE))
}

async fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let without_ipv6 = [Errno::EAFNOSUPPORT, Errno::EADDRNOTAVAIL].map(|errno| errno as i32);
    match TcpListener::bind(at).await {
        Err(error)
            if at.ip() == IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED)
                && error
                    .raw_os_error()
                    .is_some_and(|errno| without_ipv6.contains(&errno)) =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port())).await
        }
        outcome => outcome,
    }
}

#[derive(Debug, Serialize)]
struct Service<'a> {
    namespace: &'a str,
    name: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Service<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

/// Answers as kube-proxy does: 200 if there are ready pods here and the tables are up to date.
fn answer(told: &PortAnswer, is_healthy: bool) -> Answer {
    let body = Body {
        service: Service {
            namespace: &told.service.namespace,
            name: &told.service.name,
        },
        local_endpoints: told.local_endpoints,
        service_proxy_healthy: is_healthy,
    };
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"\t"));
    if let Err(error) = body.serialize(&mut serializer) {
        tracing::error!(%error, "a health check has no body");
    }
    let answer = json_answer(told.local_endpoints != 0 && is_healthy, text);
    http::with_header(answer, WEIGHT, HeaderValue::from(told.local_endpoints))
}
