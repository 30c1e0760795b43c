//! What the agent says about itself and its tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use fastpath::facts;
use fastpath::nexthop::Resolution;
use fastpath::tables::{
    BackendKey, InstalledService, Outcome, ReasonCount, ServiceKey, ServiceKeyError, TableError,
};
use xdp_prog::abi::Traffic;
use xdp_prog::failure::Failure;
use xdp_prog::reason::{PassReason, ReasonKind};

use super::checks::reasons;
use super::problems::Item;
use super::{Agent, index_of};
use crate::api::server::{error_line, line};
use crate::api::{
    Backend, Choice, Interface, Reason, Reply, Request, Service, Status, Step, Table, Trace,
    Untrusted, Which,
};
use crate::chain::chain;
use crate::desired::BackendSpec;
use crate::health::selection::Member;
use crate::hex;
use crate::metrics::Snapshot;

impl Agent {
    /// Returns the answer as a line of JSON, and whether it ends the agent.
    pub(super) fn answer(&mut self, request: &Request) -> (String, bool) {
        let text = match request {
            Request::Status {} => line(&Reply::Ok(self.status())),
            Request::Services {} => self
                .services()
                .map_or_else(error_line, |rows| line(&Reply::Ok(rows))),
            Request::Backends {} => self
                .backends()
                .map_or_else(error_line, |rows| line(&Reply::Ok(rows))),
            Request::Drops {} => self
                .drops()
                .map_or_else(error_line, |rows| line(&Reply::Ok(rows))),
            Request::Which { service, from } => self
                .which(service, from)
                .map_or_else(error_line, |which| line(&Reply::Ok(which))),
            Request::Trace {
                service,
                from,
                frame,
                interface,
            } => self
                .ingress(interface.as_deref())
                .and_then(|ingress| {
                    self.trace(
                        service.as_deref(),
                        from.as_deref(),
                        frame.as_deref(),
                        ingress,
                    )
                })
                .map_or_else(error_line, |trace| line(&Reply::Ok(trace))),
            Request::Detach {} => match self.detach() {
                Ok(detached) => return (line(&Reply::Ok(detached)), true),
                Err(reason) => error_line(reason),
            },
        };
        (text, false)
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            status: self.status(),
            started_at: self.started_at,
            services: self.services().unwrap_or_default(),
            backends: self.each_backend().unwrap_or_default(),
            reasons: self.reasons().unwrap_or_default(),
            failures: self.failures().unwrap_or_default(),
            health: self.health_values(),
            kubernetes: self.kubernetes_values(),
        }
    }

    fn status(&self) -> Status {
        let desired = &self.config.desired;
        let node = desired.is_node(&self.machine.addresses);
        let roles = [(desired.edge, "edge"), (node, "node")];
        let mut next_hops: BTreeMap<String, u64> = ["resolved", "local", "unresolved"]
            .map(|state| (state.to_owned(), 0))
            .into();
        for node in self.nodes_in_use() {
            *next_hops
                .entry(state(self.tables.next_hop(node)).to_owned())
                .or_default() += 1;
        }
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            roles: roles
                .iter()
                .filter(|(has, _)| *has)
                .map(|(_, role)| (*role).to_owned())
                .collect(),
            config: self.status.clone(),
            kubernetes: self.kubernetes_status(),
            interfaces: self.interfaces(),
            egress: self.egress_status(),
            tables: self.fill(),
            next_hops,
            services: self.tables.services().count(),
            health: self.health_status(),
            problems: self
                .problems
                .texts()
                .chain(reasons(&self.not_made))
                .chain(self.object_problems())
                .collect(),
            unapplied: self.problems.len(),
            warnings: self
                .sweeps
                .warnings()
                .chain(&self.uncounted)
                .cloned()
                .collect(),
            untrusted: self.last_untrusted(),
        }
    }

    pub(super) fn interfaces(&self) -> Vec<Interface> {
        let wanted = self.config.desired.interfaces.iter();
        wanted
            .map(|(name, mode)| {
                let attachment = self.attached.get(name).map(|attached| &attached.attachment);
                let problem = self.problems.of(&Item::Interface(name.clone())).cloned();
                let fallback = attachment.and_then(|attachment| attachment.fallback.as_deref());
                Interface {
                    name: name.clone(),
                    wanted: mode.name().to_owned(),
                    mode: attachment.map(|attachment| attachment.mode.to_string()),
                    note: problem.or_else(|| fallback.map(|error| chain(error))),
                }
            })
            .collect()
    }

    fn fill(&self) -> Vec<Table> {
        let fill = self.tables.fill();
        let usage = |name: &str, usage: fastpath::tables::Usage| Table {
            name: name.to_owned(),
            used: usage.used as u64,
            capacity: usage.capacity as u64,
            largest_free_run: None,
        };
        let live = self.tables.live_fill();
        let live = live.map(|(name, live)| usage(&name.to_lowercase(), live));
        let own = [
            Table {
                name: "lut_slots".to_owned(),
                used: (fill.arena.slots - fill.arena.free).into(),
                capacity: fill.arena.slots.into(),
                largest_free_run: Some(fill.arena.largest_free.into()),
            },
            usage("services", fill.services),
            usage("backends", fill.backends),
            usage("next_hops", fill.next_hops),
            usage("pods", fill.pods),
            usage("source_ranges", fill.source_ranges),
            usage("nat_flows", self.tables.nat_fill()),
        ];
        own.into_iter().chain(live).collect()
    }

    /// Lists the services that are configured or still installed.
    fn services(&self) -> Result<Vec<Service>, String> {
        let traffic = self.tables.service_traffic().map_err(told)?;
        let traffic: BTreeMap<ServiceKey, Traffic> = traffic.into_iter().collect();
        let installed: BTreeMap<&ServiceKey, &InstalledService> = self.tables.services().collect();
        let mut keys: Vec<&ServiceKey> = self
            .wanted
            .keys()
            .chain(installed.keys().copied())
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let row = |key: &ServiceKey| {
            let (configured, wanted) = self.config.desired.service(key).unzip();
            let present = installed.get(key);
            let traffic = traffic.get(key).copied().unwrap_or_default();
            let mode = present
                .map(|service| service.mode)
                .or(wanted.map(|service| service.spec.mode));
            Service {
                name: wanted.map_or_else(|| key.to_string(), |service| service.name.clone()),
                service: key.to_string(),
                mode: mode.map(|mode| mode.to_string()).unwrap_or_default(),
                traffic_policy: wanted
                    .map(|service| service.spec.traffic_policy.to_string())
                    .unwrap_or_default(),
                session_affinity: wanted.is_some_and(|service| service.spec.affinity.is_some()),
                source_ranges: wanted.map_or(0, |service| service.spec.source_ranges.len()),
                local_pods: present.map_or(0, |service| service.local_pods()),
                left_out: present.map_or(0, |service| service.left_out().len()),
                backends: wanted.map_or(0, |service| service.spec.sharing().count()),
                slots: present.map_or(0, |service| service.run.length()),
                packets: traffic.packets,
                bytes: traffic.bytes,
                problem: self.problems.of(&Item::Service(*key)).cloned(),
                all_fail: self
                    .selection
                    .all_fail
                    .contains(&configured.unwrap_or(*key)),
            }
        };
        Ok(keys.into_iter().map(row).collect())
    }

    /// Lists each backend of each service that is installed.
    fn backends(&self) -> Result<Vec<Backend>, String> {
        let traffic = self.tables.backend_traffic().map_err(told)?;
        let traffic: BTreeMap<BackendKey, Traffic> = traffic.into_iter().collect();
        let conditions = self.conditions();
        let mut rows = Vec::new();
        for (key, service) in self.tables.services() {
            let slots = self.tables.slots_by_backend(service);
            let name = self.name_of(key).unwrap_or_else(|| key.to_string());
            let installed = self.tables.specs().get(key);
            let installed = installed.map(|spec| spec.backends.as_slice());
            let (configured_key, configured) = self.config.desired.service(key).unzip();
            let configured_key = configured_key.unwrap_or(*key);
            let left_out: BTreeSet<&BackendKey> = service.left_out().iter().collect();
            let draining = self.config.desired.draining.get(&configured_key);
            let draining = draining.map_or(&[][..], |draining| draining);
            let configured = configured.map(|service| service.spec.backends.as_slice());
            // Those that are left out are configured only, those about to be removed installed only.
            let backends: BTreeMap<Member, &BackendSpec> = [Some(draining), configured, installed]
                .into_iter()
                .flatten()
                .flatten()
                .map(|backend| (Member::new(&configured_key, service.mode, backend), backend))
                .collect();
            for (member, backend) in backends {
                let next_hop = self.tables.next_hop(backend.address);
                let traffic = traffic.get(&member.backend).copied().unwrap_or_default();
                let mut row = Backend {
                    name: name.clone(),
                    service: key.to_string(),
                    backend: backend_text(&member.backend),
                    node: member.backend.address.to_string(),
                    left_out: left_out.contains(&member.backend),
                    draining: draining.iter().any(|one| one.pod == backend.pod),
                    weight: backend.weight,
                    slots: slots.get(&member.backend).copied().unwrap_or(0),
                    table_size: service.run.length(),
                    state: state(next_hop).to_owned(),
                    next_hop: describe(next_hop),
                    mac: mac(next_hop),
                    path_mtu: self.tables.path_mtu(backend.address),
                    packets: traffic.packets,
                    bytes: traffic.bytes,
                    ..Backend::default()
                };
                self.describe_health(&conditions, &member, &mut row);
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// Lists each backend once, for counters that are over all services.
    fn each_backend(&self) -> Result<Vec<Backend>, String> {
        let traffic = self.tables.backend_traffic().map_err(told)?;
        let row = |(key, traffic): (BackendKey, Traffic)| Backend {
            backend: key.to_string(),
            packets: traffic.packets,
            bytes: traffic.bytes,
            ..Backend::default()
        };
        Ok(traffic.into_iter().map(row).collect())
    }

    fn last_untrusted(&self) -> Option<Untrusted> {
        // Without it the rest of an answer stands.
        let (source, ago) = self.tables.last_untrusted().ok()??;
        Some(Untrusted {
            source: source.to_string(),
            seconds_ago: ago.as_secs(),
        })
    }

    /// Lists what ended a packet, or its frame after the program had sent it.
    fn drops(&self) -> Result<Vec<Reason>, String> {
        let mut rows = self.reasons()?;
        rows.extend(self.failures()?);
        // Drops first: they are what people look for.
        rows.sort_by(|a, b| a.action.cmp(&b.action));
        Ok(rows)
    }

    fn failures(&self) -> Result<Vec<Reason>, String> {
        let failures = self.tables.failures().map_err(told)?;
        let row = |(failure, packets): (Failure, u64)| {
            let drivers = match failure {
                Failure::Transmit => self.transmit_errors(),
                Failure::Unsupported
                | Failure::DeviceDown
                | Failure::NoDevice
                | Failure::TooLong
                | Failure::Other => BTreeMap::new(),
            };
            Reason {
                action: "fail".to_owned(),
                reason: failure.label().to_owned(),
                // Many drivers tell both ways of one frame.
                packets: packets.max(drivers.values().sum()),
                drivers,
                last: None,
            }
        };
        Ok(failures.into_iter().map(row).collect())
    }

    /// Reads what the drivers of attached devices failed to send, as far as they count it.
    fn transmit_errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for device in self.attached.keys() {
            let counted = facts::transmit_errors(device).unwrap_or_default();
            let counted = counted.into_iter().filter(|(_, frames)| *frames > 0);
            errors.extend(counted.map(|(name, frames)| (format!("{device} {name}"), frames)));
        }
        errors
    }

    fn reasons(&self) -> Result<Vec<Reason>, String> {
        let reasons = self.tables.reasons().map_err(told)?;
        let row = |reason: ReasonCount| Reason {
            action: match reason.kind {
                ReasonKind::Drop => "drop",
                ReasonKind::Reply => "reply",
                ReasonKind::Pass => "pass",
                ReasonKind::Return => "return",
            }
            .to_owned(),
            reason: reason.label.to_owned(),
            packets: reason.packets,
            drivers: BTreeMap::new(),
            last: if reason.label == PassReason::EncapUntrusted.label() {
                self.last_untrusted()
            } else {
                None
            },
        };
        Ok(reasons.into_iter().map(row).collect())
    }

    fn which(&self, service: &str, from: &str) -> Result<Which, String> {
        let (key, from) = parse_flow(service, from)?;
        let explanation = self.tables.which(&key, from, self.ingress(None)?);
        let explanation = explanation.ok_or_else(|| families_differ(&key, from))?;
        let choice = explanation.choice.map(|choice| {
            let service = self.tables.service(&key);
            let slots = service.map(|service| self.tables.slots_by_backend(service));
            let spec = self.tables.specs().get(&key);
            let backend = spec.and_then(|spec| {
                spec.backends
                    .iter()
                    .find(|backend| backend.key(spec.mode) == choice.backend)
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
        let next_hop = explanation
            .choice
            .map(|choice| describe(self.tables.next_hop(choice.backend.address)));
        let (action, reason) = outcome(explanation.verdict);
        Ok(Which {
            name: self.name_of(&key),
            service: key.to_string(),
            from: from.to_string(),
            choice,
            translated: explanation.translated.map(|ends| ends.to_string()),
            action: action.to_owned(),
            reason: reason.map(str::to_owned),
            next_hop,
        })
    }

    fn nodes_in_use(&self) -> BTreeSet<IpAddr> {
        self.tables.backends().map(|(key, _)| key.address).collect()
    }

    /// Returns the number of the interface that a packet comes in by, if nobody says the first one with the
    /// program.
    fn ingress(&self, name: Option<&str>) -> Result<u32, String> {
        match name {
            Some(name) => index_of(name).ok_or_else(|| format!("there is no interface {name}")),
            None => {
                let mut attached = self.attached.values();
                Ok(attached
                    .next()
                    .map_or(0, |attached| attached.attachment.ifindex))
            }
        }
    }

    fn trace(
        &self,
        service: Option<&str>,
        from: Option<&str>,
        frame: Option<&str>,
        ingress: u32,
    ) -> Result<Trace, String> {
        let trace = match (frame, service, from) {
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
                Outcome::Forward(ifindex) => Some(device_name(ifindex)),
                Outcome::Pass(_) | Outcome::Drop(_) | Outcome::Reply(_) => None,
            },
        })
    }

    pub(super) fn name_of(&self, key: &ServiceKey) -> Option<String> {
        let (_, service) = self.config.desired.service(key)?;
        Some(service.name.clone())
    }
}

fn told(error: TableError) -> String {
    chain(&error)
}

/// Names what packets are delivered to: the pod, where there is one.
fn backend_text(backend: &BackendKey) -> String {
    backend
        .pod
        .map_or_else(|| backend.address.to_string(), |pod| pod.to_string())
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

/// Names an outcome and its reason.
const fn outcome(outcome: Outcome) -> (&'static str, Option<&'static str>) {
    match outcome {
        Outcome::Forward(_) => ("forward", None),
        Outcome::Pass(reason) => ("pass", Some(reason)),
        Outcome::Drop(reason) => ("drop", Some(reason)),
        Outcome::Reply(reason) => ("reply", Some(reason)),
    }
}

fn state(next_hop: Option<Resolution>) -> &'static str {
    match next_hop {
        Some(Resolution::Resolved(_)) => "resolved",
        Some(Resolution::Local) => "local",
        Some(Resolution::Unresolved(_)) | None => "unresolved",
    }
}

/// Names the device that packets leave by, or why there is none.
fn describe(next_hop: Option<Resolution>) -> String {
    match next_hop {
        Some(Resolution::Resolved(hop)) => device_name(hop.ifindex),
        Some(Resolution::Local) => "this machine".to_owned(),
        Some(Resolution::Unresolved(reason)) => reason.to_string(),
        None => "not looked up".to_owned(),
    }
}

fn mac(next_hop: Option<Resolution>) -> Option<String> {
    match next_hop {
        Some(Resolution::Resolved(hop)) => Some(hex::mac(hop.destination_mac)),
        _ => None,
    }
}

fn device_name(ifindex: u32) -> String {
    let interfaces = nix::net::if_::if_nameindex();
    let name = interfaces.ok().and_then(|interfaces| {
        let interface = interfaces
            .iter()
            .find(|interface| interface.index() == ifindex)?;
        Some(interface.name().to_string_lossy().into_owned())
    });
    name.unwrap_or_else(|| format!("ifindex {ifindex}"))
}
