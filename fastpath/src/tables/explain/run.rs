//! One run of a frame through the datapath's code, and the record of its steps.

use std::net::SocketAddr;

use xdp_prog::{
    abi::{
        BACKEND_LOCAL, NextHop, SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT, SERVICE_NODE_PORT,
        SERVICE_PODS, SERVICE_SOURCE_RANGES, Service, Tag,
    },
    frame::HostFrame,
    process::{self, Action},
    punt::Punt,
    reason::{self, ReasonKind},
    stage::Stage,
    world::{PinTable, Translation},
};

use super::{
    super::{ForwardMode, Tables, encode::backend_key, types::address_of},
    ChosenBackend, Outcome, TraceStep, Translated,
    headers::{Flow, flow_of},
    world::{Counted, LookUp, ReadOnly},
};

/// The result of a frame's run through the datapath's code.
pub(super) struct Run {
    pub(super) steps: Vec<TraceStep>,
    pub(super) after: Vec<u8>,
    pub(super) choice: Option<ChosenBackend>,
    pub(super) translated: Option<Translated>,
    pub(super) verdict: Outcome,
}

impl Run {
    pub(super) fn of(tables: &Tables, mut frame: HostFrame, ingress: u32) -> Self {
        let world = ReadOnly::new(tables, ingress);
        let mut steps = Vec::new();
        let flow = flow_of(&frame, &mut steps);
        let client_port = flow.as_ref().map(Flow::source_port);
        let mut recorder = TraceRecorder {
            tables,
            flow,
            service: None,
            slot: None,
            choice: None,
            steps,
        };
        let mut is_new = false;
        let mut action = process::process(&mut frame, &world, ingress);
        recorder.look_ups(&world);
        // Far more stages than any frame passes: one owner of this machine after the other is asked, 15 at most.
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
            choice: recorder.choice,
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
    /// The slot that was read last.
    slot: Option<FoundSlot>,
    /// The backend that was read last, for a slot.
    choice: Option<ChosenBackend>,
    steps: Vec<TraceStep>,
}

/// A slot of a service's table.
#[derive(Clone, Copy)]
struct FoundSlot {
    hash: u32,
    /// Its index within the table, and the table's length.
    slot: u32,
    slots: u32,
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
                LookUp::PastOwners(count) => {
                    self.record("past", format!("past owners of the slot: {count}"));
                }
                LookUp::PastOwner(id) => self.record("past", format!("owner {id} is looked at")),
                LookUp::Pin(table, pin) => {
                    let how = match table {
                        PinTable::Kept => "pinned",
                        PinTable::Young => "pinned since its last packet",
                    };
                    let mut text = format!("{how}, to backend {}", pin.backend());
                    if pin.is_marked() {
                        text.push_str(
                            "; a SYN has come since, so the current owner is tried first",
                        );
                    }
                    self.record("pin", text);
                }
                LookUp::Client(id) => {
                    let text = format!("the client's last new connection went to backend {id}");
                    self.record("client", text);
                }
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
            self.slot = Some(FoundSlot { hash, slot, slots });
            self.record("slot", text);
        }
    }

    fn backend(&mut self, id: u32) {
        let Some(entry) = self.tables.backends.get(id).filter(|_| id != 0) else {
            return self.record("slot", "no backend".to_owned());
        };
        let (key, tag) = (backend_key(entry), Tag(entry.tag).pod_bits());
        self.choice = self.slot.map(|found| ChosenBackend {
            hash: found.hash,
            slot: found.slot,
            slots: found.slots,
            backend: key,
        });
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
