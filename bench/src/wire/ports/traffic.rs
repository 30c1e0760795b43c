//! Traffic through a device under test.

use anyhow::{Context, Result, bail};

use super::{Active, Cards, client_of, planned_flows};
use crate::{
    load::{
        Asked, Generator, Trial,
        live::{Live, Path},
        sockets::{Flow, Requests},
    },
    scenario::{Load, System},
    wire::{addresses::FIRST_PROOF_PORT, flows::Ends},
};

/// A load through a device: the device is brought up, and proves itself, whenever another one was up in between.
#[derive(Debug)]
pub(super) struct Traffic<'a> {
    cards: &'a Cards,
    system: System,
    load: Load,
    /// The client's port of the first flow.
    first_port: u16,
    /// The change that brought the device up when the rest was opened; 0 for none.
    change: u64,
    /// Whether flows learn before each trial which backend is theirs: a device may have forgotten them.
    learns: bool,
    opened: Opened<'a>,
}

#[derive(Debug)]
enum Opened<'a> {
    Nothing,
    Flows(Vec<Flow>),
    Frames(Box<Live<'a>>),
}

impl<'a> Traffic<'a> {
    pub(super) fn new(cards: &'a Cards, system: System, load: &Load, first_port: u16) -> Self {
        Self {
            cards,
            system,
            load: load.clone(),
            first_port,
            change: 0,
            learns: false,
            opened: Opened::Nothing,
        }
    }

    /// Brings the device up and opens the load, if another device was up since.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let active = self.cards.activate(self.system)?;
        if active.change != self.change {
            // What is open has the client's ports.
            self.opened = Opened::Nothing;
            self.opened = if self.load.generator.makes_frames() {
                self.prove_round_trips(&active)?;
                Opened::Frames(Box::new(self.open_frames(&active)?))
            } else {
                Opened::Flows(self.open_flows(&active)?)
            };
            self.change = active.change;
        }
        Ok(())
    }

    fn ends(&self) -> Ends<'a> {
        Ends {
            client: client_of(self.cards),
            backends: &self.cards.backends,
            moves_flows: false,
        }
    }

    fn open_flows(&mut self, active: &Active) -> Result<Vec<Flow>> {
        let planned = planned_flows(
            &self.cards.ports,
            &active.device,
            &self.load,
            self.first_port,
        )?;
        self.learns = planned.iter().any(|flow| flow.backend.is_none());
        let flows = planned
            .iter()
            .map(|flow| self.ends().open_flow(flow, &self.load));
        let mut flows = flows.collect::<Result<Vec<Flow>>>()?;
        self.ends()
            .prove(self.system, &self.load, &mut flows, self.learns)?;
        Ok(flows)
    }

    /// Proves that the device answers requests to each place that frames go to, which nobody answers.
    fn prove_round_trips(&self, active: &Active) -> Result<()> {
        let places = active.device.targets(self.load.family).len();
        let load = self.load.of_proof(u32::try_from(places)?);
        let (ports, device) = (&self.cards.ports, &active.device);
        let planned = planned_flows(ports, device, &load, FIRST_PROOF_PORT)?;
        let open = |flow| self.ends().open_flow(flow, &load);
        let mut flows: Vec<Flow> = planned.iter().map(open).collect::<Result<_>>()?;
        let learns = planned.iter().any(|flow| flow.backend.is_none());
        self.ends().prove(self.system, &load, &mut flows, learns)?;
        Ok(())
    }

    fn open_frames(&self, active: &Active) -> Result<Live<'a>> {
        let Cards {
            client,
            backend,
            scenario,
            ..
        } = self.cards;
        let (out, sink) = (
            client.link()?,
            backend.as_ref().context("frames end here")?.link()?,
        );
        let family = self.load.family;
        let hop = active.next_hops.iter().find(|(own, _)| *own == family);
        let (_, hop) = hop.with_context(|| format!("there is no next hop for {family}"))?;
        let macs = [*hop, out.mac()].concat();
        let path = Path {
            macs: *macs.first_chunk().context("two addresses of six bytes")?,
            out,
            entry: None,
            sink,
            replaces_pass: false,
            from_stack: false,
            services: active.device.targets(family),
            outer: 0,
            untags: false,
        };
        let mut live = Live::new(path, &self.load, scenario.seed)?;
        live.prove(self.system, scenario.seed)?;
        Ok(live)
    }
}

impl Generator for Traffic<'_> {
    fn run(&mut self, asked: Asked) -> Result<Trial> {
        self.prepare()?;
        let ends = self.ends();
        match &mut self.opened {
            Opened::Frames(live) => live.run(asked),
            Opened::Flows(flows) => {
                if self.learns {
                    ends.prove(self.system, &self.load, flows, true)?;
                }
                let requests = Requests::of(&self.load, asked);
                Ok(ends.sender(flows, requests)()?.0)
            }
            Opened::Nothing => bail!("nothing is open"),
        }
    }
}
