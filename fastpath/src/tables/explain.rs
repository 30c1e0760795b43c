//! Explains which backend a flow gets and why, with the datapath's own code over the live tables.
//!
//! A frame runs through the same `decide`, stages and rewrites as in the kernel. Look-ups use the live tables and the
//! kernel's FIB; nothing is remembered or counted.

mod fib;
mod flow_frame;
mod world;

use std::{fmt, net::SocketAddr};

use xdp_prog::{
    abi::{
        BACKEND_LOCAL, NextHop, SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT, SERVICE_NODE_PORT,
        SERVICE_PODS, SERVICE_SOURCE_RANGES, Service, Tag,
    },
    flow::{FlowKey, V4, V6},
    frame::HostFrame,
    ip::Ip,
    maglev,
    parse::{self, Packet},
    process::{self, Action},
    punt::Punt,
    reason::{self, ReasonKind},
    stage::Stage,
    wire::{ethernet, protocol},
    world::Translation,
};

use self::{
    flow_frame::first_frame,
    world::{Counted, LookUp, ReadOnly},
};
use super::{BackendKey, ForwardMode, ServiceKey, Tables, encode::backend_key, types::address_of};

/// The result of one decision, as far as it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The chosen backend, if there is such a service and it has one.
    pub choice: Option<ChosenBackend>,
    /// The new addresses and ports of a packet in NAT mode.
    pub translated: Option<Translated>,
    pub verdict: Outcome,
}

/// The new addresses and ports of a packet in NAT mode: `10.0.0.9:61001 -> 10.0.0.7:8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// New source.
    pub source: SocketAddr,
    /// New destination.
    pub destination: SocketAddr,
    /// Whether the packet belongs to no known flow. When a real packet comes, another port may be free.
    pub is_new: bool,
}

impl fmt::Display for Translated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.source, self.destination)?;
        if self.is_new {
            f.write_str(", a new flow: by this port or another one that is free")?;
        }
        Ok(())
    }
}

/// The steps by which the backend of a flow was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenBackend {
    pub service: u32,
    pub hash: u32,
    /// Index of the slot within the service's table.
    pub slot: u32,
    pub slots: u32,
    pub id: u32,
    pub backend: BackendKey,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is sent out of the device with this index.
    Forward(u32),
    /// It is handed to the stack, for this reason.
    Pass(&'static str),
    /// It is dropped, for this reason.
    Drop(&'static str),
    /// It is answered, with this reply.
    Reply(&'static str),
}

/// The way of one frame, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The steps, in order.
    pub steps: Vec<TraceStep>,
    pub before: Vec<u8>,
    /// The frame as it goes on; the frame of a dropped packet may be half edited.
    pub after: Vec<u8>,
    pub verdict: Outcome,
}

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// Topic of the step: `parse`, `service`, `slot`, `backend`, `mend`.
    pub name: &'static str,
    pub text: String,
}

impl Tables {
    /// Decides as the datapath would about the first small packet of a flow that comes in by device `ingress`.
    ///
    /// With device 0, the kernel's FIB is not asked, because it could not answer.
    ///
    /// Returns `None` if service and client are of different families.
    pub fn which(
        &self,
        service: &ServiceKey,
        from: SocketAddr,
        ingress: u32,
    ) -> Option<Explanation> {
        let frame = HostFrame::new(&first_frame(service, from)?);
        let flow = flow_of(&frame, &mut Vec::new());
        let run = Run::of(self, frame, ingress);
        Some(Explanation {
            choice: flow.and_then(|flow| self.choose(service, &flow)),
            translated: run.translated,
            verdict: run.verdict,
        })
    }

    fn choose(&self, service: &ServiceKey, flow: &Flow) -> Option<ChosenBackend> {
        let service = self.service(service)?.id;
        let entry = self.service.read(service)?;
        let hash = flow.hash(self, &entry);
        let slot = maglev::slot(hash, entry.word.log2_length());
        let id = self.lut.get(entry.word.base() + slot)?.owner();
        let backend = self.backends.get(id).filter(|_| id != 0)?;
        Some(ChosenBackend {
            service,
            hash,
            slot,
            slots: 1 << entry.word.log2_length(),
            id,
            backend: backend_key(backend),
        })
    }

    /// Follows the first small packet of a flow; see [`Tables::trace_frame`].
    ///
    /// Returns `None` if service and client are of different families.
    pub fn trace(&self, service: &ServiceKey, from: SocketAddr, ingress: u32) -> Option<Trace> {
        Some(self.trace_frame(&first_frame(service, from)?, ingress))
    }

    /// Follows a frame, which begins with its Ethernet header, as if it had come in by device `ingress`; see
    /// [`Tables::which`].
    pub fn trace_frame(&self, bytes: &[u8], ingress: u32) -> Trace {
        let run = Run::of(self, HostFrame::new(bytes), ingress);
        Trace {
            steps: run.steps,
            before: bytes.to_vec(),
            after: run.after,
            verdict: run.verdict,
        }
    }
}

/// The result of a frame's run through the datapath's code.
struct Run {
    steps: Vec<TraceStep>,
    after: Vec<u8>,
    translated: Option<Translated>,
    verdict: Outcome,
}

impl Run {
    fn of(tables: &Tables, mut frame: HostFrame, ingress: u32) -> Self {
        let world = ReadOnly::new(tables, ingress);
        let mut steps = Vec::new();
        let flow = flow_of(&frame, &mut steps);
        let client_port = flow.as_ref().map(Flow::source_port);
        let mut recorder = TraceRecorder {
            tables,
            flow,
            service: None,
            steps,
        };
        let mut is_new = false;
        let mut action = process::process(&mut frame, &world, ingress);
        recorder.look_ups(&world);
        // A frame passes few stages, one of them twice. The loop has a bound all the same.
        for _ in Stage::ALL {
            let Action::Continue(stage) = action else {
                break;
            };
            recorder.record("stage", format!("goes on in {}", stage.program()));
            is_new |= stage == Stage::NatBegin;
            if stage == Stage::Punt {
                let reason = Punt::handed_over(&world).reason().label();
                recorder.record("mend", format!("goes to the agent as {reason}, or else"));
            }
            action = process::resume(stage, &mut frame, &world, ingress);
            recorder.look_ups(&world);
        }
        for (target, answer) in world.fib().asked() {
            let found = answer.map_or_else(|reason| format!("no way: {reason}"), next_hop);
            recorder.record("fib", format!("to {target}: {found}"));
        }
        let translated = world.translation().map(|by| translated(by, is_new));
        if let Some(translated) = translated {
            recorder.record("nat", translated.to_string());
        }
        let shown = flow_of(&frame, &mut Vec::new());
        if let (Action::Pass, Some(own), Some(shown)) =
            (action, client_port, shown.as_ref().map(Flow::source_port))
            && own != shown
        {
            let text = format!("the client's port {own} is {shown} at the pod");
            recorder.record("flow", text);
        }
        let counted = world.counted();
        for one in &counted {
            recorder.record("count", counter(tables, *one));
        }
        Self {
            steps: recorder.steps,
            after: frame.bytes().to_vec(),
            translated,
            verdict: outcome(action, &counted, ingress),
        }
    }
}

fn outcome(action: Action, counted: &[Counted], ingress: u32) -> Outcome {
    let reason = counted.iter().rev().find_map(|one| match one {
        Counted::Reason(index) => reason::all().nth(*index as usize),
        Counted::Forward { .. } => None,
    });
    match (action, reason) {
        (_, Some((ReasonKind::Reply, label))) => Outcome::Reply(label),
        (Action::Transmit, _) => Outcome::Forward(ingress),
        (Action::Redirect(ifindex), _) => Outcome::Forward(ifindex),
        (Action::Pass, Some((_, label))) => Outcome::Pass(label),
        (Action::Drop, Some((_, label))) => Outcome::Drop(label),
        (Action::Pass, None) => Outcome::Pass("uncounted"),
        (Action::Drop | Action::Continue(_), _) => Outcome::Drop("stage_missing"),
    }
}

/// The record of a run.
struct TraceRecorder<'t> {
    tables: &'t Tables,
    flow: Option<Flow>,
    /// The service that was found last.
    service: Option<Service>,
    steps: Vec<TraceStep>,
}

impl TraceRecorder<'_> {
    /// Records a step once: stages repeat look-ups.
    fn record(&mut self, name: &'static str, text: String) {
        let step = TraceStep { name, text };
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// Records the look-ups that the run has made since the last call.
    fn look_ups(&mut self, world: &ReadOnly<'_>) {
        for look_up in world.take_look_ups() {
            match look_up {
                LookUp::Service(at, None) => self.record("service", format!("none at {at}")),
                LookUp::Service(at, Some(id)) => {
                    self.service = self.tables.service.read(id);
                    let rules = self.service.as_ref().map_or(String::new(), rules);
                    self.record("service", format!("{id} at {at}{rules}"));
                }
                LookUp::LocalFlow => self.record("policy", "a flow of the kernel's own".to_owned()),
                LookUp::SourceRange(is_in) => {
                    let done = if is_in { "admitted" } else { "refused" };
                    self.record("policy", format!("{done} by the source ranges"));
                }
                LookUp::Pod(tag, Some(id)) => {
                    self.record("pod", format!("tag {tag} is backend {id}"));
                }
                LookUp::Pod(tag, None) => {
                    self.record("pod", format!("tag {tag} is no pod of this machine"));
                }
                LookUp::Slot(index) => self.slot(index),
                LookUp::Backend(id) => self.backend(id),
            }
        }
    }

    fn slot(&mut self, index: u32) {
        let (Some(flow), Some(entry)) = (&self.flow, &self.service) else {
            return;
        };
        let hash = flow.hash(self.tables, entry);
        let by = match entry.affinity {
            0 => "five-tuple",
            _ => "client address",
        };
        let found = [entry.word, entry.local].into_iter().find_map(|table| {
            let slots = 1 << table.log2_length();
            let slot = index.checked_sub(table.base())?;
            (slot < slots).then_some((slot, slots))
        });
        if let Some((slot, slots)) = found {
            let text = format!("{slot} of {slots}, by hash {hash:#010x} of the {by}");
            self.record("slot", text);
        }
    }

    fn backend(&mut self, id: u32) {
        let Some(entry) = self.tables.backends.get(id).filter(|_| id != 0) else {
            return self.record("slot", "no backend".to_owned());
        };
        let (key, tag) = (backend_key(entry), Tag(entry.tag).pod_bits());
        self.record("backend", format!("{id}: {key}, tag {tag}"));
        let hop = match entry.next_hop {
            _ if entry.flags & BACKEND_LOCAL != 0 => "this machine".to_owned(),
            0 => "unresolved; the datapath asks the kernel's FIB".to_owned(),
            id => match self.tables.next_hops.get(id) {
                Some(hop) => next_hop(hop),
                None => format!("{id}, which is not there"),
            },
        };
        self.record("next hop", hop);
    }
}

fn rules(entry: &Service) -> String {
    let marks: Vec<&str> = [
        (SERVICE_PODS, "pods"),
        (SERVICE_NAT, "nat"),
        (SERVICE_NODE_PORT, "NodePort"),
        (SERVICE_SOURCE_RANGES, "source ranges"),
        (SERVICE_DROP_WHEN_EMPTY, "dropped when empty"),
    ]
    .into_iter()
    .filter(|(flag, _)| entry.flags & flag != 0)
    .map(|(_, mark)| mark)
    .collect();
    let mode = ForwardMode::from_abi(entry.mode, entry.flags);
    let mut text = format!(", mode {mode}");
    if !marks.is_empty() {
        text.push_str(&format!(" ({})", marks.join(", ")));
    }
    if entry.local.base() != 0 {
        text.push_str(", with pods of this machine");
    }
    text
}

fn translated(by: &Translation, is_new: bool) -> Translated {
    let [a, b, c, d] = by.ports.to_ne_bytes();
    let end = |address, port| SocketAddr::new(address_of(address), u16::from_be_bytes(port));
    Translated {
        source: end(by.source, [a, b]),
        destination: end(by.destination, [c, d]),
        is_new,
    }
}

fn counter(tables: &Tables, counted: Counted) -> String {
    match counted {
        Counted::Reason(index) => match reason::all().nth(index as usize) {
            Some((kind, label)) => format!("{kind:?} {label}").to_lowercase(),
            None => format!("reason {index}"),
        },
        Counted::Forward {
            service,
            backend,
            bytes,
        } => {
            let to = tables.backends.get(backend).map_or_else(
                || format!("backend {backend}"),
                |entry| backend_key(entry).to_string(),
            );
            format!("1 packet, {bytes} bytes for service {service} and {to}")
        }
    }
}

/// A flow of either family.
enum Flow {
    V4(FlowKey<V4>),
    V6(FlowKey<V6>),
}

impl Flow {
    fn source_port(&self) -> u16 {
        u16::from_be_bytes(match self {
            Self::V4(flow) => flow.source_port,
            Self::V6(flow) => flow.source_port,
        })
    }

    /// Returns the hash that chooses a slot of the service's tables.
    fn hash(&self, tables: &Tables, service: &Service) -> u32 {
        let seed = tables.settings.hash_seed;
        match (self, service.affinity) {
            (Self::V4(flow), 0) => flow.hash(seed),
            (Self::V6(flow), 0) => flow.hash(seed),
            (Self::V4(flow), seed) => flow.client_hash(seed),
            (Self::V6(flow), seed) => flow.client_hash(seed),
        }
    }
}

/// Returns the flow of a frame's innermost packet, and records the headers on the way to it.
fn flow_of(frame: &HostFrame, steps: &mut Vec<TraceStep>) -> Option<Flow> {
    let link = parse::link(frame).ok()?;
    let mut next = match link.ether_type {
        ethernet::IPV4 => (protocol::IPV4, link.l3),
        ethernet::IPV6 => (protocol::IPV6, link.l3),
        _ => return None,
    };
    for name in ["parse", "inner"] {
        match next {
            (protocol::IPV4, l3) => {
                let packet = parse::ipv4(frame, l3).ok()?;
                steps.push(headers(name, &packet));
                if packet.is_fragment || has_ports(packet.protocol) {
                    return flow(frame, &packet, steps).map(Flow::V4);
                }
                next = (packet.protocol, packet.l4);
            }
            (protocol::IPV6, l3) => {
                let packet = parse::ipv6(frame, l3).ok()?;
                steps.push(headers(name, &packet));
                if packet.is_fragment || has_ports(packet.protocol) {
                    return flow(frame, &packet, steps).map(Flow::V6);
                }
                next = (packet.protocol, packet.l4);
            }
            _ => return None,
        }
    }
    None
}

const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

fn flow<A: Ip>(
    frame: &HostFrame,
    packet: &Packet<A>,
    steps: &mut Vec<TraceStep>,
) -> Option<FlowKey<A>> {
    let mut tell = |name, text| steps.push(TraceStep { name, text });
    if packet.is_fragment {
        tell("parse", "a fragment".to_owned());
        return None;
    }
    let flow = parse::flow(frame, packet).ok()?;
    let [source, destination] = [flow.source_port, flow.destination_port].map(u16::from_be_bytes);
    let flags = parse::tcp_flags(frame, packet).0;
    tell(
        "ports",
        format!("{source} to {destination}, TCP flags {flags:#04x}"),
    );
    Some(flow)
}

fn headers<A: Ip>(name: &'static str, packet: &Packet<A>) -> TraceStep {
    let protocol = match packet.protocol {
        protocol::IPV4 | protocol::IPV6 => "IP-in-IP".to_owned(),
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "ICMP".to_owned(),
        number => format!("protocol {number}"),
    };
    let text = format!(
        "{:?}, {protocol} from {} to {}, {} bytes, TTL {}, class {:#04x}",
        A::FAMILY,
        address_of(packet.source.key()),
        address_of(packet.destination.key()),
        packet.length,
        packet.hop_limit,
        packet.traffic_class
    );
    TraceStep { name, text }
}

fn next_hop(hop: &NextHop) -> String {
    let mac = |bytes: &[u8]| {
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(":")
    };
    let (to, from) = hop.macs.split_at(6);
    let mut text = format!(
        "device {}, MAC {} from {}, MTU {}",
        hop.ifindex,
        mac(to),
        mac(from),
        hop.mtu
    );
    if hop.vlan != [0; 2] {
        text.push_str(&format!(", VLAN {}", u16::from_be_bytes(hop.vlan) & 0xfff));
    }
    text
}
