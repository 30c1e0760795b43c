//! Which backend a flow gets, and why: the datapath's own code over the live tables.
//!
//! A frame runs through the same `decide`, stages and rewrites as in the kernel, with
//! look-ups in the live tables and in the kernel's FIB; nothing is remembered and nothing counted.

mod fib;
mod flow_frame;
mod world;

use std::{fmt, net::SocketAddr};

use xdp_prog::{
    abi::{
        BACKEND_LOCAL, NextHop, PodKey, SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT, SERVICE_NODE_PORT,
        SERVICE_PODS, SERVICE_SOURCE_RANGES, Tag,
    },
    decide::{
        edge::balance::{self, Choice, Found},
        node::receive,
    },
    flow::FlowKey,
    frame::HostFrame,
    ip::Ip,
    parse::{self, Packet},
    process::Action,
    reason::{self, ReasonKind},
    stage::Stage,
    verdict::Verdict,
    wire::{ethernet, protocol},
    world::{Tables as _, Translation},
};

use self::{
    flow_frame::first_frame,
    world::{Counted, ReadOnly},
};
use super::{BackendKey, ServiceKey, Tables, encode::backend_key, types::address_of};

/// The steps of one decision, as far as it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Where the look-up led, if there is such a service with a backend.
    pub choice: Option<ChosenBackend>,
    /// The ends that NAT mode gives the packet.
    pub translated: Option<Translated>,
    pub verdict: Outcome,
}

/// The ends that NAT mode gives a packet: `10.0.0.9:61001 -> 10.0.0.7:8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Who it comes from then.
    pub source: SocketAddr,
    /// Who it goes to then.
    pub destination: SocketAddr,
    /// Whether no flow is known that it belongs to, so that another port may be free when it comes.
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

/// How the backend of a flow was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChosenBackend {
    pub service: u32,
    pub hash: u32,
    /// The slot within the service's table.
    pub slot: u32,
    pub slots: u32,
    pub id: u32,
    pub backend: BackendKey,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent out of the device with this index.
    Forward(u32),
    /// Handed to the stack, for this reason.
    Pass(&'static str),
    /// Dropped, for this reason.
    Drop(&'static str),
    /// Answered in its place, with this.
    Reply(&'static str),
}

/// The way of one frame, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What was looked at, in order.
    pub steps: Vec<TraceStep>,
    pub before: Vec<u8>,
    /// The frame as it goes on; that of a dropped one may be half edited.
    pub after: Vec<u8>,
    pub verdict: Outcome,
}

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// What it is about: `parse`, `service`, `slot`, `backend`.
    pub name: &'static str,
    pub text: String,
}

impl Tables {
    /// Decides as the datapath would for the first small packet of a flow that comes in on a device.
    ///
    /// With device 0 the kernel's FIB is not asked, as it has no answer then.
    ///
    /// Returns nothing where service and client are of different families.
    pub fn which(
        &self,
        service: &ServiceKey,
        from: SocketAddr,
        ingress: u32,
    ) -> Option<Explanation> {
        let frame = HostFrame::new(&first_frame(service, from)?);
        let choice = with_packet(&frame, &Chosen { tables: self }).flatten();
        let Run {
            translated,
            verdict,
            ..
        } = run(self, frame, ingress);
        Some(Explanation {
            choice,
            translated,
            verdict,
        })
    }

    /// Follows the first small packet of a flow; see [`Tables::trace_frame`].
    ///
    /// Returns nothing where service and client are of different families.
    pub fn trace(&self, service: &ServiceKey, from: SocketAddr, ingress: u32) -> Option<Trace> {
        Some(self.trace_frame(&first_frame(service, from)?, ingress))
    }

    /// Follows a frame, from the Ethernet header on, as if it had come in on a device; see [`Tables::which`].
    pub fn trace_frame(&self, bytes: &[u8], ingress: u32) -> Trace {
        let frame = HostFrame::new(bytes);
        let mut steps = with_packet(&frame, &Described { tables: self }).unwrap_or_default();
        let run = run(self, frame, ingress);
        steps.extend(run.steps);
        Trace {
            steps,
            before: bytes.to_vec(),
            after: run.after,
            verdict: run.verdict,
        }
    }
}

/// What a frame's run through the datapath's code brought.
struct Run {
    steps: Vec<TraceStep>,
    after: Vec<u8>,
    translated: Option<Translated>,
    verdict: Outcome,
}

fn run(tables: &Tables, mut frame: HostFrame, ingress: u32) -> Run {
    let world = ReadOnly::new(tables, ingress);
    let mut steps = Vec::new();
    let mut is_new = false;
    let client_port = with_packet(&frame, &SourcePort).flatten();
    let mut action = xdp_prog::process::process(&mut frame, &world, ingress);
    // Few stages come, and one of them twice; a bound all the same.
    for _ in Stage::ALL {
        let Action::Continue(stage) = action else {
            break;
        };
        steps.push(step("stage", format!("goes on in {}", stage.program())));
        is_new |= stage == Stage::NatBegin;
        action = xdp_prog::process::resume(stage, &mut frame, &world, ingress);
    }
    steps.extend(world.fib().asked().map(|(target, answer)| {
        let found = answer.map_or_else(|reason| format!("no way: {reason}"), next_hop);
        step("fib", format!("to {target}: {found}"))
    }));
    let translated = world.translation().map(|by| translated(by, is_new));
    if let Some(translated) = translated {
        steps.push(step("nat", translated.to_string()));
    }
    let shown_port = with_packet(&frame, &SourcePort).flatten();
    if let (Action::Pass, Some(own), Some(shown)) = (action, client_port, shown_port)
        && own != shown
    {
        steps.push(step(
            "flow",
            format!("the client's port {own} is {shown} at the pod"),
        ));
    }
    let counted = world.counted();
    steps.extend(
        counted
            .iter()
            .map(|one| step("count", counter(tables, *one))),
    );
    let reason = counted.iter().rev().find_map(|one| match one {
        Counted::Reason(index) => reason::all().nth(*index as usize),
        Counted::Forward { .. } => None,
    });
    let verdict = match (action, reason) {
        (_, Some((ReasonKind::Reply, label))) => Outcome::Reply(label),
        (Action::Transmit, _) => Outcome::Forward(ingress),
        (Action::Redirect(ifindex), _) => Outcome::Forward(ifindex),
        (Action::Pass, Some((_, label))) => Outcome::Pass(label),
        (Action::Drop, Some((_, label))) => Outcome::Drop(label),
        (Action::Pass, None) => Outcome::Pass("uncounted"),
        (Action::Drop | Action::Continue(_), _) => Outcome::Drop("stage_missing"),
    };
    Run {
        steps,
        after: frame.bytes().to_vec(),
        translated,
        verdict,
    }
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

fn step(name: &'static str, text: String) -> TraceStep {
    TraceStep { name, text }
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

/// Something to be told of a packet of either family.
trait About {
    type Answer;

    fn packet<A: Ip>(&self, frame: &HostFrame, packet: &Packet<A>) -> Self::Answer;
}

/// Parses a frame's link and IP headers; nothing where they are not in order.
fn with_packet<Q: About>(frame: &HostFrame, about: &Q) -> Option<Q::Answer> {
    let link = parse::link(frame).ok()?;
    match link.ether_type {
        ethernet::IPV4 => Some(about.packet(frame, &parse::ipv4(frame, link.l3).ok()?)),
        ethernet::IPV6 => Some(about.packet(frame, &parse::ipv6(frame, link.l3).ok()?)),
        _ => None,
    }
}

fn has_ports<A>(packet: &Packet<A>) -> bool {
    let protocol = packet.protocol;
    !packet.is_fragment && matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// Asks for the source port of a packet, or of the one that it carries.
struct SourcePort;

impl About for SourcePort {
    type Answer = Option<u16>;

    fn packet<A: Ip>(&self, frame: &HostFrame, packet: &Packet<A>) -> Self::Answer {
        match packet.protocol {
            _ if packet.is_fragment => None,
            protocol::IPV4 => self.packet(frame, &parse::ipv4(frame, packet.l4).ok()?),
            protocol::IPV6 => self.packet(frame, &parse::ipv6(frame, packet.l4).ok()?),
            protocol::TCP | protocol::UDP | protocol::SCTP => {
                let flow = parse::flow(frame, packet).ok()?;
                Some(u16::from_be_bytes(flow.source_port))
            }
            _ => None,
        }
    }
}

/// Asks for the backend of a bare packet's flow.
struct Chosen<'t> {
    tables: &'t Tables,
}

impl About for Chosen<'_> {
    type Answer = Option<ChosenBackend>;

    fn packet<A: Ip>(&self, frame: &HostFrame, packet: &Packet<A>) -> Self::Answer {
        let flow = parse::flow(frame, packet).ok()?;
        let found = balance::find(self.tables, &flow).ok()?;
        let choice = balance::choose(self.tables, &found, &flow).ok()?;
        Some(chosen(&choice))
    }
}

fn chosen(choice: &Choice<'_>) -> ChosenBackend {
    ChosenBackend {
        service: choice.service,
        hash: choice.hash,
        slot: choice.slot,
        slots: 1 << choice.entry.word.log2_length(),
        id: choice.id,
        backend: backend_key(choice.backend),
    }
}

/// Asks for every look-up that a packet leads to.
struct Described<'t> {
    tables: &'t Tables,
}

impl About for Described<'_> {
    type Answer = Vec<TraceStep>;

    fn packet<A: Ip>(&self, frame: &HostFrame, packet: &Packet<A>) -> Self::Answer {
        let mut steps = vec![step("parse", headers(packet))];
        let inner = Inner {
            tables: self.tables,
            tag: packet.tag,
        };
        match packet.protocol {
            _ if packet.is_fragment => steps.push(step("parse", "a fragment".to_owned())),
            protocol::IPV4 => {
                if let Ok(packet) = parse::ipv4(frame, packet.l4) {
                    steps.extend(inner.packet(frame, &packet));
                }
            }
            protocol::IPV6 => {
                if let Ok(packet) = parse::ipv6(frame, packet.l4) {
                    steps.extend(inner.packet(frame, &packet));
                }
            }
            _ => {
                if let Some(flow) = flow(frame, packet, &mut steps) {
                    self.bare(frame, packet, &flow, &mut steps);
                }
            }
        }
        steps
    }
}

impl Described<'_> {
    fn bare<A: Ip>(
        &self,
        frame: &HostFrame,
        packet: &Packet<A>,
        flow: &FlowKey<A>,
        steps: &mut Vec<TraceStep>,
    ) {
        let Some(found) = service(self.tables, flow, steps) else {
            return;
        };
        let flags = parse::tcp_flags(frame, packet);
        let admitted = balance::admit(self.tables, &found, flow, flags);
        let told = match admitted {
            Ok(()) => "admitted",
            Err(Verdict::Pass(_)) => "a flow of the kernel's own",
            Err(_) => "refused by the source ranges",
        };
        steps.push(step("policy", told.to_owned()));
        if admitted.is_err() {
            return;
        }
        match balance::choose(self.tables, &found, flow) {
            Ok(choice) => {
                let chosen = chosen(&choice);
                let (slot, slots) = (chosen.slot, chosen.slots);
                let by = match found.entry.affinity {
                    0 => "five-tuple",
                    _ => "client address",
                };
                let hash = choice.hash;
                steps.push(step(
                    "slot",
                    format!("{slot} of {slots}, by hash {hash:#010x} of the {by}"),
                ));
                self.backend(choice.id, steps);
            }
            Err(_) => steps.push(step("slot", "no backend".to_owned())),
        }
    }

    fn backend(&self, id: u32, steps: &mut Vec<TraceStep>) {
        let Some(entry) = self.tables.backend(id) else {
            return;
        };
        let key = backend_key(entry);
        let tag = Tag(entry.tag).pod_bits();
        steps.push(step("backend", format!("{id}: {key}, tag {tag}")));
        let hop = match entry.next_hop {
            _ if entry.flags & BACKEND_LOCAL != 0 => "this machine".to_owned(),
            0 => "unresolved; the datapath asks the kernel's FIB".to_owned(),
            id => match xdp_prog::world::Tables::next_hop(self.tables, id) {
                Some(hop) => next_hop(hop),
                None => format!("{id}, which is not there"),
            },
        };
        steps.push(step("next hop", hop));
    }
}

/// Asks what an encapsulated packet leads to.
struct Inner<'t> {
    tables: &'t Tables,
    tag: Tag,
}

impl About for Inner<'_> {
    type Answer = Vec<TraceStep>;

    fn packet<A: Ip>(&self, frame: &HostFrame, packet: &Packet<A>) -> Self::Answer {
        let mut steps = vec![step("inner", headers(packet))];
        let Some(flow) = flow(frame, packet, &mut steps) else {
            return steps;
        };
        let Some(found) = receive::find(self.tables, &flow) else {
            let at = service_end(&flow);
            steps.push(step("service", format!("none with pods at {at}")));
            return steps;
        };
        steps.push(described(&found, &flow));
        let key = PodKey::new(found.id, self.tag);
        let named = self.tables.pod(&key).and_then(|pod| pod.backend(key));
        let tag = self.tag.pod_bits();
        steps.push(step(
            "pod",
            match named {
                Some(id) => format!("tag {tag} is backend {id}"),
                None => format!("tag {tag} is no pod of this machine"),
            },
        ));
        let flags = parse::tcp_flags(frame, packet);
        if let Some(choice) = receive::pod(self.tables, &found, &flow, flags, self.tag) {
            if named != Some(choice.id) {
                let id = choice.id;
                steps.push(step("pod", format!("backend {id} in its place")));
            }
            let described = Described {
                tables: self.tables,
            };
            described.backend(choice.id, &mut steps);
        }
        steps
    }
}

fn headers<A: Ip>(packet: &Packet<A>) -> String {
    let protocol = match packet.protocol {
        protocol::IPV4 | protocol::IPV6 => "IP-in-IP".to_owned(),
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "ICMP".to_owned(),
        number => format!("protocol {number}"),
    };
    format!(
        "{:?}, {protocol} from {} to {}, {} bytes, TTL {}, class {:#04x}",
        A::FAMILY,
        address_of(packet.source.key()),
        address_of(packet.destination.key()),
        packet.length,
        packet.hop_limit,
        packet.traffic_class
    )
}

fn flow<A: Ip>(
    frame: &HostFrame,
    packet: &Packet<A>,
    steps: &mut Vec<TraceStep>,
) -> Option<FlowKey<A>> {
    if !has_ports(packet) {
        return None;
    }
    let flow = parse::flow(frame, packet).ok()?;
    let [source, destination] = [flow.source_port, flow.destination_port].map(u16::from_be_bytes);
    let flags = parse::tcp_flags(frame, packet).0;
    steps.push(step(
        "ports",
        format!("{source} to {destination}, TCP flags {flags:#04x}"),
    ));
    Some(flow)
}

fn service<A: Ip>(tables: &Tables, flow: &FlowKey<A>, steps: &mut Vec<TraceStep>) -> Option<Found> {
    let Ok(found) = balance::find(tables, flow) else {
        steps.push(step("service", format!("none at {}", service_end(flow))));
        return None;
    };
    steps.push(described(&found, flow));
    Some(found)
}

fn service_end<A: Ip>(flow: &FlowKey<A>) -> SocketAddr {
    SocketAddr::new(
        address_of(flow.destination.key()),
        u16::from_be_bytes(flow.destination_port),
    )
}

fn described<A: Ip>(found: &Found, flow: &FlowKey<A>) -> TraceStep {
    let entry = &found.entry;
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
    let mode = super::ForwardMode::from_abi(entry.mode, entry.flags);
    let mut text = format!("{} at {}, mode {mode}", found.id, service_end(flow));
    if !marks.is_empty() {
        text.push_str(&format!(" ({})", marks.join(", ")));
    }
    if entry.local.base() != 0 {
        text.push_str(", with pods of this machine");
    }
    step("service", text)
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
