//! Answers that need the agent's own thread: what happens to a packet in the live tables, and detaching.
//!
//! The [`observer`](crate::observer) answers questions about the agent's state.

use std::net::SocketAddr;

use fastpath::tables::{Outcome, ServiceKey, ServiceKeyError};
use serde::Serialize;

use super::attachments::index_of;
use super::{Agent, Question};
use crate::api::server::{error_line, line};
use crate::api::{Choice, Reply, Step, Trace, TraceRequest, Which, WhichRequest};
use crate::chain::chain;
use crate::hex;
use crate::next_hop::DeviceNames;
use crate::target_state::name_of;

impl Agent {
    /// Returns the answer as a line of JSON, and whether the question ends the agent.
    pub(super) fn answer(&mut self, question: &Question) -> (String, bool) {
        fn reply<T: Serialize>(answer: Result<T, String>) -> String {
            answer.map_or_else(error_line, |answer| line(&Reply::Ok(answer)))
        }
        match question {
            Question::Which(flow) => (reply(self.which(flow)), false),
            Question::Trace(packet) => (reply(self.trace(packet)), false),
            Question::Detach => {
                let detached = self.detach();
                let is_end = detached.is_ok();
                (reply(detached), is_end)
            }
        }
    }

    fn which(&self, asked: &WhichRequest) -> Result<Which, String> {
        let (key, from) = parse_flow(&asked.service, &asked.from)?;
        let explanation = self.tables.which(&key, from, self.ingress(None)?);
        let explanation = explanation.ok_or_else(|| families_differ(&key, from))?;
        let choice = explanation.choice.map(|choice| {
            let service = self.tables.service(&key);
            let slots = service.map(|service| self.tables.slots_by_backend(service));
            let spec = self.tables.specs().get(&key);
            let backend = spec.and_then(|spec| {
                let mut backends = spec.backends.iter();
                backends.find(|backend| backend.key(spec.mode) == choice.backend)
            });
            Choice {
                mode: service
                    .map(|service| service.mode.to_string())
                    .unwrap_or_default(),
                hash: choice.hash,
                slot: choice.slot,
                table_size: choice.slots,
                backend: choice.backend.to_string(),
                weight: backend.map(|backend| backend.weight),
                slots: slots
                    .and_then(|slots| slots.get(&choice.backend).copied())
                    .unwrap_or(0),
            }
        });
        let devices = DeviceNames::read();
        let next_hop = explanation
            .choice
            .map(|choice| devices.describe(self.tables.next_hop(choice.backend.address)));
        let (action, reason) = outcome(explanation.verdict);
        Ok(Which {
            name: name_of(&self.config.desired.services, &key),
            service: key.to_string(),
            from: from.to_string(),
            choice,
            translated: explanation.translated.map(|ends| ends.to_string()),
            action: action.to_owned(),
            reason: reason.map(str::to_owned),
            next_hop,
        })
    }

    /// Returns the index of the interface that a packet arrives on; without a name, the first interface with
    /// the program.
    fn ingress(&self, name: Option<&str>) -> Result<u32, String> {
        match name {
            Some(name) => index_of(name).ok_or_else(|| format!("there is no interface {name}")),
            None => Ok(self.attachments.first_ifindex()),
        }
    }

    fn trace(&self, asked: &TraceRequest) -> Result<Trace, String> {
        let ingress = self.ingress(asked.interface.as_deref())?;
        let trace = match (&asked.frame, &asked.service, &asked.from) {
            (Some(frame), _, _) => {
                let bytes = hex::decode(frame).ok_or("the frame is not hexadecimal")?;
                self.tables.trace_frame(&bytes, ingress)
            }
            (None, Some(service), Some(from)) => {
                let (key, from) = parse_flow(service, from)?;
                let trace = self.tables.trace(&key, from, ingress);
                trace.ok_or_else(|| families_differ(&key, from))?
            }
            (None, _, _) => return Err("give a service and a client, or a frame".to_owned()),
        };
        let (action, reason) = outcome(trace.verdict);
        let step = |step: fastpath::tables::TraceStep| Step {
            name: step.name.to_owned(),
            text: step.text,
        };
        Ok(Trace {
            steps: trace.steps.into_iter().map(step).collect(),
            before: hex::encode(&trace.before),
            after: hex::encode(&trace.after),
            action: action.to_owned(),
            reason: reason.map(str::to_owned),
            device: match trace.verdict {
                Outcome::Forward(ifindex) => Some(DeviceNames::read().of(ifindex)),
                Outcome::Pass(_) | Outcome::Drop(_) | Outcome::Reply(_) => None,
            },
        })
    }
}

fn parse_flow(service: &str, from: &str) -> Result<(ServiceKey, SocketAddr), String> {
    let key = service
        .parse()
        .map_err(|error: ServiceKeyError| chain(&error))?;
    let from = from
        .parse()
        .map_err(|_| format!("{from:?} is not an address and port"))?;
    Ok((key, from))
}

fn families_differ(service: &ServiceKey, from: SocketAddr) -> String {
    format!(
        "service {service} and client {from} are of different families; give a client of the \
         service's"
    )
}

const fn outcome(outcome: Outcome) -> (&'static str, Option<&'static str>) {
    match outcome {
        Outcome::Forward(_) => ("forward", None),
        Outcome::Pass(reason) => ("pass", Some(reason)),
        Outcome::Drop(reason) => ("drop", Some(reason)),
        Outcome::Reply(reason) => ("reply", Some(reason)),
    }
}
