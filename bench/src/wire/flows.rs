//! Flows through the lab: opened, and proved to be answered.

use std::{net::UdpSocket, sync::atomic::Ordering, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use lab::wait_for;

use super::{Lab, PlannedFlow, addresses};
use crate::{
    load::{
        Asked, Generator, Trial,
        sockets::{self, Flow, Requests},
    },
    probe::PROBE_LENGTH,
    scenario::{AddressFamily, Load, System},
};

/// Flows by which a balancer shows that it balances. Chance leaves one of three backends out once in 10^11 times.
const BALANCE_FLOWS: u32 = 64;
/// How long a system may take until all its flows have had an answer.
const PROOF_TIMEOUT: Duration = Duration::from_secs(30);
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

impl Generator for Sockets<'_> {
    /// kube-proxy may have forgotten a flow that was idle, and then chooses anew: so each flow sends one request first, and
    /// the backend that answers is the flow's from then on.
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        let (lab, system) = (self.lab, self.system);
        if system.proxy_mode().is_some() {
            lab.prove(system, self.load.family, &mut self.flows)?;
        }
        let requests = Requests::of(&self.load, asked);
        Ok(sockets::run(&self.flows, &requests, &lab.backends)?.0)
    }
}

/// Returns how many flows prove that a system balances, before those of a load.
pub(super) fn flows_of_proof(system: System) -> u32 {
    match system {
        System::Direct | System::Routing => 0,
        _ => BALANCE_FLOWS,
    }
}

impl Lab {
    /// Opens the flows of a load to a system, and proves that each has an answer from its own backend, and that a
    /// balancer uses all backends.
    pub(super) fn open_sockets(&self, system: System, load: &Load) -> Result<Sockets<'_>> {
        let proof = flows_of_proof(system);
        if proof > 0 {
            let mut flows = self.open_flows(system, load, proof)?;
            let trial = self.prove(system, load.family, &mut flows)?;
            ensure!(
                trial.shares.iter().all(|&share| share > 0),
                "{system} does not balance: {proof} flows went to its backends as {:?}",
                trial.shares
            );
        }
        let mut flows = self.open_flows(system, load, load.flows)?;
        self.prove(system, load.family, &mut flows)?;
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
        planned.iter().map(|flow| self.open_flow(flow)).collect()
    }

    /// Until a flow has had an answer, the first backend counts as that of a flow whose backend the system draws.
    fn open_flow(&self, planned: &PlannedFlow) -> Result<Flow> {
        let open = || {
            let socket = UdpSocket::bind(planned.client)?;
            socket.connect(planned.to)?;
            socket.set_nonblocking(true)?;
            Ok::<_, std::io::Error>(socket)
        };
        let client = self.net.clients()[0].namespace();
        Ok(Flow {
            socket: client.run(open).context("opening a flow")?,
            backend: planned.backend.unwrap_or(0),
        })
    }

    /// Sends one probe by each flow until all are answered by the right backend.
    fn prove(&self, system: System, family: AddressFamily, flows: &mut [Flow]) -> Result<Trial> {
        let pace = u64::try_from(PROOF_PACE.as_nanos())?;
        let number = u32::try_from(flows.len())?;
        let requests = Requests {
            seconds: PROOF_PACE.as_secs_f64() * f64::from(number),
            due: (0..number).map(|number| u64::from(number) * pace).collect(),
            flows: (0..number).collect(),
            payloads: vec![PROBE_LENGTH],
        };
        let learns = system.proxy_mode().is_some();
        let awaited = format!(
            "{system} answers all of {} flows by {family} from their backends",
            flows.len()
        );
        Ok(wait_for(&awaited, PROOF_TIMEOUT, || {
            let (trial, answered_by) = sockets::run(flows, &requests, &self.backends)?;
            let tally = trial.tally;
            let right = learns || tally.misdelivered == 0;
            if tally.received < tally.offered || tally.corrupt > 0 || !right {
                bail!("{tally:?}")
            }
            for (flow, backend) in flows.iter_mut().zip(&answered_by) {
                flow.backend = backend.unwrap_or(flow.backend);
            }
            Ok(trial)
        })?)
    }
}
