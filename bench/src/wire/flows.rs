//! Flows through the lab: opened, and proved to be answered.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use lab::wait_for;

use super::{BACKENDS, Lab, PORT, routed};
use crate::{
    load::sockets::{self, Flow, Trial},
    scenario::{Load, SMALLEST_FRAME, System},
};

/// Flows by which a balancer shows that it balances. Chance leaves one of three backends out once in 10^11 times.
const BALANCE_FLOWS: u32 = 64;
/// How long a system may take until all its flows have had an answer.
const PROOF_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two probes of a proof.
const PROOF_PACE: Duration = Duration::from_millis(1);

impl Lab {
    /// Opens the flows of a load to a system, and proves that each has an answer from its own backend, and that a
    /// balancer uses all backends.
    ///
    /// # Errors
    ///
    /// When a flow has no answer, or another backend's; when a backend has no flow.
    pub fn open(&self, system: System, load: &Load) -> Result<Vec<Flow>> {
        if !matches!(system, System::Direct | System::Routing) {
            let mut flows = self.open_flows(system, BALANCE_FLOWS)?;
            let trial = self.prove(system, &mut flows)?;
            ensure!(
                trial.shares.iter().all(|&share| share > 0),
                "{system} does not balance: {BALANCE_FLOWS} flows went to its backends as {:?}",
                trial.shares
            );
        }
        let mut flows = self.open_flows(system, load.flows)?;
        self.prove(system, &mut flows)?;
        Ok(flows)
    }

    /// Prepares flows for a trial. kube-proxy may have forgotten a flow that was idle, and then chooses anew: so each flow
    /// sends one request, and the backend that answers is the flow's from then on.
    ///
    /// # Errors
    ///
    /// When a flow has no answer.
    pub fn refresh(&self, system: System, flows: &mut [Flow]) -> Result<()> {
        if system.proxy_mode().is_some() {
            self.prove(system, flows)?;
        }
        Ok(())
    }

    fn open_flows(&self, system: System, number: u32) -> Result<Vec<Flow>> {
        (0..number)
            .map(|flow| self.open_flow(system, flow))
            .collect()
    }

    fn open_flow(&self, system: System, number: u32) -> Result<Flow> {
        let client = &self.net.clients()[0];
        let own = SocketAddr::new(client.v4(), client.fresh_port());
        let node = number as usize % BACKENDS;
        let (to, backend) = match system {
            System::Direct => (SocketAddr::new(self.nodes(system)[node].v4(), PORT), node),
            System::Routing => (SocketAddr::new(routed(node)?.into(), PORT), node),
            _ => {
                let services: Vec<SocketAddr> = self.listing(system)?.tried().collect();
                let service = services[number as usize % services.len()];
                (service, self.expected(system, service, own)?)
            }
        };
        let open = || {
            let socket = UdpSocket::bind(own)?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(socket)
        };
        Ok(Flow {
            socket: client.namespace().run(open).context("opening a flow")?,
            backend: u16::try_from(backend)?,
        })
    }

    /// Asks the edge's agent which backend a flow belongs to. kube-proxy's choice is chance, and is learned from the first
    /// answer.
    fn expected(&self, system: System, service: SocketAddr, client: SocketAddr) -> Result<usize> {
        if !system.is_ours() {
            return Ok(0);
        }
        let (key, from) = (format!("{service}/udp"), client.to_string());
        let arguments = ["which", "--service", &key, "--from", &from];
        let edge = self.edge(system)?.namespace();
        let answer = self.guideway.ask(edge, &arguments)?;
        let backend = answer["choice"]["backend"].as_str().unwrap_or_default();
        // With a port, where the edge translates it.
        let address: IpAddr = backend
            .parse()
            .or_else(|_| backend.parse().map(|socket: SocketAddr| socket.ip()))
            .with_context(|| format!("no backend in {answer}"))?;
        let mut nodes = self.nodes(system).iter();
        let place = nodes.position(|node| node.v4() == address);
        place.with_context(|| format!("{address} is no node"))
    }

    /// Sends one probe by each flow until all are answered by the right backend.
    fn prove(&self, system: System, flows: &mut [Flow]) -> Result<Trial> {
        let pace = u64::try_from(PROOF_PACE.as_nanos())?;
        let due: Vec<u64> = (0..)
            .map(|number| number * pace)
            .take(flows.len())
            .collect();
        let learns = system.proxy_mode().is_some();
        let awaited = format!(
            "{system} answers all of {} flows from their backends",
            flows.len()
        );
        Ok(wait_for(&awaited, PROOF_TIMEOUT, || {
            let trial = sockets::run(flows, &due, SMALLEST_FRAME, &self.backends)?;
            let tally = trial.tally;
            let right = learns || tally.misdelivered == 0;
            if tally.received < tally.offered || tally.corrupt > 0 || !right {
                bail!("{tally:?}")
            }
            for (flow, backend) in flows.iter_mut().zip(&trial.answered_by) {
                flow.backend = backend.unwrap_or(flow.backend);
            }
            Ok(trial)
        })?)
    }
}
