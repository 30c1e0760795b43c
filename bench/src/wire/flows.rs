//! Flows through the lab: opened, and proved to be answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use lab::{Namespace, wait_for};
use socket2::Type;

use super::{BACKENDS, Lab, PlannedFlow, addresses, addresses::FIRST_PROOF_PORT};
use crate::{
    datapath::Protocol,
    load::{
        Asked, Generator, Trial,
        sockets::{AnsweredBy, Backends, Flow, Requests, Way, ask_for_stamps, client_socket, run},
    },
    probe::PROBE_LENGTH,
    scenario::{Load, System},
};

/// Flows by which a balancer shows of a Service that it balances. Chance leaves one of three backends out once in 10^11
/// times.
const BALANCE_FLOWS: u32 = 64;
/// How long a system may take until all its flows have had an answer.
const PROOF_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may take to be opened.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two probes of a proof.
const PROOF_PACE: Duration = Duration::from_millis(1);

/// A load through sockets to one system.
#[derive(Debug)]
pub(super) struct Sockets<'a> {
    lab: &'a Lab,
    system: System,
    load: Load,
    flows: Vec<Flow>,
}

impl Sockets<'_> {
    /// kube-proxy may have forgotten a flow that was idle, and then chooses anew: so each flow sends one request first, and
    /// the backend that answers is the flow's from then on. A flow that has lost its backend never goes there again, so
    /// after such an event there are new ones, which use all backends.
    pub(super) fn learn(&mut self) -> Result<()> {
        if self.system.proxy_mode().is_some() {
            if self.lab.moves_flows() {
                self.flows = (self.lab).open_flows(self.system, &self.load, self.load.flows)?;
            }
            self.lab.prove(self.system, &self.load, &mut self.flows)?;
        }
        Ok(())
    }

    /// Returns what sends the requests of a trial: in any thread.
    pub(super) fn sender(&self, asked: Asked) -> impl FnOnce() -> Result<Trial> + Send {
        let requests = Requests::of(&self.load, asked);
        let send = self.lab.ends().sender(&self.flows, requests);
        || Ok(send()?.0)
    }
}

impl Generator for Sockets<'_> {
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        self.learn()?;
        self.sender(asked)()
    }
}

impl Lab {
    /// Proves, once for each family and protocol, that a system answers requests to each place that flows go to: what was
    /// sent comes back, from the backend that the flow belongs to. A balancer uses all backends for each of its Services.
    pub(super) fn prove_round_trips(&self, system: System, load: &Load) -> Result<()> {
        let what = (system, load.family, load.protocol);
        let mut proven = self.proven.lock().unwrap_or_else(PoisonError::into_inner);
        if !proven.contains(&what) {
            self.try_each_service(system, load)?;
            proven.push(what);
        }
        Ok(())
    }

    fn try_each_service(&self, system: System, load: &Load) -> Result<()> {
        let targets = addresses::targets(&self.scenario, system, &load.of_proof(1))?;
        let each = if system.balances() { BALANCE_FLOWS } else { 1 };
        let load = load.of_proof(each * u32::try_from(targets.len())?);
        let clients = addresses::clients(load.family, FIRST_PROOF_PORT, load.flows)?.into_iter();
        let planned = addresses::flows(&self.scenario, system, &load, clients)?;
        // Nothing has happened to the system yet.
        let ends = Ends {
            moves_flows: false,
            ..self.ends()
        };
        let open = |flow| ends.open_flow(flow, &load);
        let mut flows: Vec<Flow> = planned.iter().map(open).collect::<Result<_>>()?;
        ends.prove(system, &load, &mut flows, system.proxy_mode().is_some())?;
        if system.balances() {
            let answered = planned.iter().zip(&flows);
            expect_balance(system, answered.map(|(plan, flow)| (plan.to, flow.backend)))?;
        }
        Ok(())
    }

    /// Opens the flows of a load to a system, and proves that each has an answer from its own backend.
    pub(super) fn open_sockets(&self, system: System, load: &Load) -> Result<Sockets<'_>> {
        self.prove_round_trips(system, load)?;
        let mut flows = self.open_flows(system, load, load.flows)?;
        self.prove(system, load, &mut flows)?;
        let load = load.clone();
        Ok(Sockets {
            lab: self,
            system,
            load,
            flows,
        })
    }

    fn open_flows(&self, system: System, load: &Load, number: u32) -> Result<Vec<Flow>> {
        let taken = u16::try_from(number)?;
        let first = self.next_port.fetch_add(taken, Ordering::Relaxed);
        let clients = addresses::clients(load.family, first, number)?.into_iter();
        let planned = addresses::flows(&self.scenario, system, load, clients)?;
        let ends = self.ends();
        planned
            .iter()
            .map(|flow| ends.open_flow(flow, load))
            .collect()
    }

    /// Tells whether flows may be answered by other backends during a trial.
    fn moves_flows(&self) -> bool {
        let event = self.scenario.event;
        event.is_some_and(|event| event.what.moves_flows())
    }

    fn ends(&self) -> Ends<'_> {
        Ends {
            client: self.net.clients()[0].namespace(),
            backends: &self.backends,
            moves_flows: self.moves_flows(),
        }
    }

    /// Sends one probe by each flow until all are answered by the right backend.
    fn prove(&self, system: System, load: &Load, flows: &mut [Flow]) -> Result<Trial> {
        let learns = system.proxy_mode().is_some();
        self.ends().prove(system, load, flows, learns)
    }
}

/// Checks that flows to each Service have been answered by all backends.
fn expect_balance(
    system: System,
    answered: impl Iterator<Item = (SocketAddr, Option<u16>)>,
) -> Result<()> {
    let mut backends: BTreeMap<SocketAddr, BTreeSet<u16>> = BTreeMap::new();
    for (service, backend) in answered {
        backends.entry(service).or_default().extend(backend);
    }
    let one_sided = backends.iter().find(|(_, used)| used.len() < BACKENDS);
    one_sided.map_or(Ok(()), |(service, used)| {
        bail!("{system} does not balance: {BALANCE_FLOWS} flows to {service} went to its backends {used:?}")
    })
}

/// Where flows begin, and who answers them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends<'a> {
    pub(super) client: &'a Namespace,
    pub(super) backends: &'a Backends,
    /// Whether flows may be answered by other backends during a trial.
    pub(super) moves_flows: bool,
}

impl<'a> Ends<'a> {
    /// Opens a flow.
    pub(super) fn open_flow(self, planned: &PlannedFlow, load: &Load) -> Result<Flow> {
        let PlannedFlow {
            client: from,
            to,
            backend,
        } = *planned;
        let way = match load.protocol {
            Protocol::Udp => {
                let open = || connected_socket(from, to);
                let socket = self.client.run(open).context("opening a flow")?;
                ask_for_stamps(&socket, load.stamps).context("asking for stamps")?;
                Way::Udp(socket)
            }
            Protocol::Tcp if load.connects() => Way::Connections([from, to]),
            Protocol::Tcp => {
                let awaited = format!("{to} takes a connection");
                let connect = || self.client.run(|| connection(from, to));
                Way::Tcp(wait_for(&awaited, PROOF_TIMEOUT, connect)?)
            }
        };
        Ok(Flow {
            way,
            backend: backend.filter(|_| !self.moves_flows),
        })
    }

    /// Returns what sends requests by flows, in the client's namespace.
    pub(super) fn sender(
        self,
        flows: &'a [Flow],
        requests: Requests,
    ) -> impl FnOnce() -> Result<(Trial, AnsweredBy)> + Send + 'a {
        move || self.client.run(|| run(flows, &requests, self.backends))
    }

    /// Sends one probe by each flow until all are answered by the right backend: where flows learn their backends, by any,
    /// which is theirs from then on.
    pub(super) fn prove(
        self,
        system: System,
        load: &Load,
        flows: &mut [Flow],
        learns: bool,
    ) -> Result<Trial> {
        let pace = u64::try_from(PROOF_PACE.as_nanos())?;
        let number = u32::try_from(flows.len())?;
        let requests = Requests {
            seconds: PROOF_PACE.as_secs_f64() * f64::from(number),
            due: (0..number).map(|number| u64::from(number) * pace).collect(),
            flows: (0..number).collect(),
            messages: vec![PROBE_LENGTH],
            exchange: load.exchange,
            stamps: load.stamps,
        };
        let awaited = format!(
            "{system} answers all of {} flows of the load {load} from their backends",
            flows.len()
        );
        Ok(wait_for(&awaited, PROOF_TIMEOUT, || {
            let (client, backends) = (self.client, self.backends);
            let (trial, answered_by) = client.run(|| run(flows, &requests, backends))?;
            let tally = trial.tally;
            let right = learns || tally.misdelivered == 0;
            if tally.received < tally.offered || tally.corrupt > 0 || !right {
                bail!("{tally:?}")
            }
            // A connection of its own has a backend of its own.
            let is_fixed = learns && !load.connects() && !self.moves_flows;
            for (flow, backend) in flows.iter_mut().zip(answered_by) {
                if is_fixed {
                    flow.backend = backend;
                }
            }
            Ok(trial)
        })?)
    }
}

fn connected_socket(from: SocketAddr, to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(from)?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn connection(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = client_socket(Type::STREAM, from, to)?;
    socket.connect_timeout(&to.into(), CONNECT_TIMEOUT)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_must_be_balanced_and_not_all_together() {
        let services: [SocketAddr; 2] =
            ["10.99.0.2:10000", "10.99.0.2:10001"].map(|text| text.parse().unwrap());
        let judged = |of_second: &[u16]| {
            let first = [0, 1, 2, 0].map(|backend| (services[0], Some(backend)));
            let second = of_second
                .iter()
                .map(|&backend| (services[1], Some(backend)));
            expect_balance(System::OursIpip, first.into_iter().chain(second))
        };
        judged(&[2, 1, 0]).unwrap();
        let error = judged(&[2, 1, 1]).unwrap_err().to_string();
        assert!(
            error.contains("10.99.0.2:10001 went to its backends {1, 2}"),
            "{error}"
        );
    }
}
