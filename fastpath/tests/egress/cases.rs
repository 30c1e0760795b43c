//! What must become of packets that leave a node.
//!
//! ```text
//! client <-- this machine <-- pod      seen by the client: a VIP, or a NodePort of this machine
//! ```

#[path = "cases/checksums.rs"]
mod checksums;
#[path = "cases/fragments.rs"]
mod fragments;
#[path = "cases/hairpin.rs"]
mod hairpin;
#[path = "cases/icmp.rs"]
mod icmp;
#[path = "cases/mss.rs"]
mod mss;
#[path = "cases/other_port.rs"]
mod other_port;
#[path = "cases/own.rs"]
mod own;
#[path = "cases/ports.rs"]
mod ports;
#[path = "cases/probe.rs"]
mod probe;
#[path = "cases/replies.rs"]
mod replies;

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use xdp_prog::{
    abi::{AddressKey, Datagram, LocalFlow, PodFlow, Probe, Tuple},
    decide::node::unproved,
    parse::{Segment, TcpFlags},
    reason::{PassReason, REASON_COUNT},
    world::FlowTable,
};

use super::{
    packets::{ACKNOWLEDGEMENT, SEQUENCE},
    support::{
        packet::{ACK, End, Link, Packet, SYN},
        tables::{TableSet, address_key},
    },
};

/// One packet that leaves, and everything that must come of it.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) tables: Tables,
    /// Packets that left before; of them only what they leave behind matters.
    pub(crate) earlier: Vec<Vec<u8>>,
    pub(crate) input: Vec<u8>,
    /// The packet's mark.
    pub(crate) mark: u32,
    /// How many devices with the program it passes; test runs in the kernel know one only.
    pub(crate) devices: usize,
    pub(crate) expected: Outcome,
}

/// What became of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Whether it is handed to the next program.
    pub(crate) goes_on: bool,
    pub(crate) bytes: Vec<u8>,
    /// What it added to the counters.
    pub(crate) reasons: Vec<u64>,
    pub(crate) remembered: Remembered,
}

/// What is known afterwards, without the times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) answered: HashMap<Tuple, PodFlow>,
    pub(crate) embryonic: HashMap<Tuple, PodFlow>,
    /// Source and destination port.
    pub(crate) datagrams: HashMap<Tuple, ([u8; 2], [u8; 2])>,
    /// For how long, in whole minutes, and whether this machine has closed the flow.
    pub(crate) local: HashMap<Tuple, (u64, bool)>,
    pub(crate) peers: HashMap<Tuple, AddressKey>,
}

/// What is known before: the entries' `seen` is their age.
#[derive(Clone, Default)]
pub(crate) struct Tables {
    pub(crate) set: TableSet,
    answered: HashMap<Tuple, PodFlow>,
    embryonic: HashMap<Tuple, PodFlow>,
    datagrams: HashMap<Tuple, Datagram>,
    /// By index, beginning at 0.
    pub(crate) probes: Vec<Probe>,
    /// What is in `EGRESS_PORTS`.
    pub(crate) egress_ports: BTreeSet<u16>,
}

impl Tables {
    /// Returns a table of flows as of a time.
    pub(crate) fn flows_at(&self, table: FlowTable, now: u64) -> HashMap<Tuple, PodFlow> {
        let mut flows = match table {
            FlowTable::Established => self.answered.clone(),
            FlowTable::Embryonic => self.embryonic.clone(),
        };
        for flow in flows.values_mut() {
            flow.seen = now.wrapping_sub(flow.seen);
        }
        flows
    }

    /// Returns the table of datagrams as of a time.
    pub(crate) fn datagrams_at(&self, now: u64) -> HashMap<Tuple, Datagram> {
        let mut datagrams = self.datagrams.clone();
        for datagram in datagrams.values_mut() {
            datagram.seen = now.wrapping_sub(datagram.seen);
        }
        datagrams
    }

    fn remembered(&self) -> Remembered {
        Remembered {
            answered: timeless(&self.answered),
            embryonic: timeless(&self.embryonic),
            datagrams: ports_of(&self.datagrams),
            local: HashMap::new(),
            peers: HashMap::new(),
        }
    }
}

/// Leaves the times out.
pub(crate) fn timeless(flows: &HashMap<Tuple, PodFlow>) -> HashMap<Tuple, PodFlow> {
    flows
        .iter()
        .map(|(key, flow)| (*key, aged(*flow, 0)))
        .collect()
}

/// Gives a flow this age.
fn aged(mut flow: PodFlow, age: u64) -> PodFlow {
    flow.seen = age;
    flow
}

/// Leaves the times out.
pub(crate) fn ports_of(datagrams: &HashMap<Tuple, Datagram>) -> HashMap<Tuple, ([u8; 2], [u8; 2])> {
    datagrams
        .iter()
        .map(|(key, datagram)| (*key, (datagram.source_port(), datagram.destination_port())))
        .collect()
}

/// Leaves the time of day out.
pub(crate) fn lifetimes(
    flows: &HashMap<Tuple, LocalFlow>,
    now: u64,
) -> HashMap<Tuple, (u64, bool)> {
    /// More than a case takes.
    const SLACK_NS: u64 = 30_000_000_000;
    let lifetime = |flow: &LocalFlow| (flow.until() + SLACK_NS).saturating_sub(now);
    flows
        .iter()
        .map(|(key, flow)| (*key, (lifetime(flow) / MINUTE_NS, flow.is_closed())))
        .collect()
}

const MINUTE_NS: u64 = 60_000_000_000;

/// Returns the whole table.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for subject in [
        replies::cases,
        checksums::cases,
        mss::cases,
        fragments::cases,
        hairpin::cases,
        icmp::cases,
        other_port::cases,
        own::cases,
        ports::cases,
        probe::cases,
    ] {
        cases.extend(subject());
    }
    let mut names: Vec<_> = cases.iter().map(|case| &case.name).collect();
    names.sort();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        panic!("two cases are called {}", pair[0]);
    }
    cases
}

/// Who talks: the client to `vip`, and the pod answers.
#[derive(Clone, Copy, Debug)]
struct Ends {
    family: &'static str,
    client: End,
    vip: End,
    pod: End,
    /// This machine.
    node: IpAddr,
}

const V4: Ends = Ends {
    family: "v4",
    client: (v4(198, 51, 100, 7), 40_000),
    vip: (v4(203, 0, 113, 10), 80),
    pod: (v4(10, 244, 1, 5), 8080),
    node: v4(192, 0, 2, 11),
};
const V6: Ends = Ends {
    family: "v6",
    client: (v6(0xc, 7), 40_000),
    vip: (v6(0xf, 10), 80),
    pod: (v6(0x1, 5), 8080),
    node: v6(0xe, 11),
};
const BOTH: [Ends; 2] = [V4, V6];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// An address in 2001:db8::/32.
const fn v6(network: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, host))
}

impl Ends {
    /// The same, but that the pod listens on the port that the client talks to.
    fn same_port(mut self) -> Self {
        self.pod.1 = self.vip.1;
        self
    }

    /// Key of the flow, as the client's packets come to the pod.
    fn key(&self, protocol: u8) -> Tuple {
        tuple(self.client, self.pod, protocol)
    }

    /// The flow, as young as possible.
    fn flow(&self) -> PodFlow {
        self.flow_with(0, 0)
    }

    /// The flow whose packets come with an outer header of this length, in this state.
    fn flow_with(&self, outer: u8, state: u8) -> PodFlow {
        self.flow_of(TCP, outer, state)
    }

    /// The flow that the pod has accepted, and its client has not acknowledged that.
    fn accepted(&self, outer: u8, state: u8) -> PodFlow {
        accepted(self.flow_with(outer, state), SEQUENCE)
    }

    /// The flow of this protocol.
    fn flow_of(&self, protocol: u8, outer: u8, state: u8) -> PodFlow {
        let (key, port) = (self.key(protocol), self.vip.1.to_be_bytes());
        PodFlow::new(&key, address_key(self.vip.0), port, outer, state, 0)
    }

    /// Key of the flow where the pod sees the client by another port.
    fn other_key(&self, protocol: u8) -> Tuple {
        tuple((self.client.0, OTHER_PORT), self.pod, protocol)
    }

    /// That flow.
    fn other_flow(&self, protocol: u8, state: u8) -> PodFlow {
        let (key, port) = (self.other_key(protocol), self.vip.1.to_be_bytes());
        PodFlow::new(&key, address_key(self.vip.0), port, 0, state, 0)
            .with_client_port(&key, self.client.1.to_be_bytes())
    }

    /// That flow's second entry.
    fn forward(&self, protocol: u8) -> (Tuple, PodFlow) {
        let key = tuple(self.client, self.vip, protocol);
        let port = OTHER_PORT.to_be_bytes();
        (
            key,
            PodFlow::forward(&key, address_key(self.pod.0), port, 0),
        )
    }
}

fn tuple(source: End, destination: End, protocol: u8) -> Tuple {
    Tuple::new(
        address_key(source.0),
        address_key(destination.0),
        source.1.to_be_bytes(),
        destination.1.to_be_bytes(),
        protocol,
    )
}

/// The same flow once the pod has accepted it by this number.
fn accepted(mut flow: PodFlow, sequence: u32) -> PodFlow {
    unproved::accept(&mut flow, sequence);
    flow
}

/// The same flow once its client has sent a SYN with the number before this one.
fn asked(mut flow: PodFlow, next: u32) -> PodFlow {
    let syn = Segment {
        flags: TcpFlags(SYN),
        sequence: next - 1,
        acknowledgement: 0,
    };
    unproved::remember(&mut flow, &syn);
    flow
}

/// The same flow once its client has acknowledged so much, where nothing else is known of it.
fn older(mut flow: PodFlow, acknowledgement: u32) -> PodFlow {
    let ack = Segment {
        flags: TcpFlags(ACK),
        sequence: ACKNOWLEDGEMENT,
        acknowledgement,
    };
    unproved::remember(&mut flow, &ack);
    flow
}

/// A number that no segment has.
const FAR: u32 = 0x7000_0000;

/// A client's port as its pod sees it.
const OTHER_PORT: u16 = 51_234;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// How frames leave.
const OUT: Link<'static> = Link {
    destination: [0x02, 0, 0, 0, 0, 0x99],
    source: [0x02, 0, 0, 0, 0, 0x11],
    tags: &[],
};

/// A case of which only the outcome is missing.
struct Draft {
    name: String,
    tables: Tables,
    earlier: Vec<Vec<u8>>,
    input: Vec<u8>,
    mark: u32,
    devices: usize,
    changes: Vec<Change>,
}

type Change = Box<dyn FnOnce(&mut Remembered)>;

/// Begins a case in which nothing is known.
fn case(name: impl Into<String>, input: Vec<u8>) -> Draft {
    Draft {
        name: name.into(),
        tables: Tables::default(),
        earlier: Vec::new(),
        input,
        mark: 0,
        devices: 1,
        changes: Vec::new(),
    }
}

impl Draft {
    /// The pod has answered this flow before.
    fn answered(mut self, key: Tuple, flow: PodFlow) -> Self {
        self.tables.answered.insert(key, flow);
        self.leaves_from(u16::from_be_bytes(key.destination_port()))
    }

    /// The pod has not answered this flow.
    fn embryonic(mut self, key: Tuple, flow: PodFlow) -> Self {
        self.tables.embryonic.insert(key, flow);
        self.leaves_from(u16::from_be_bytes(key.destination_port()))
    }

    /// A pod of this machine listens on a port, or it is a NodePort.
    fn leaves_from(mut self, port: u16) -> Self {
        self.tables.egress_ports.insert(port);
        self
    }

    /// Neither is so any more.
    fn leaves_no_more_from(mut self, port: u16) -> Self {
        self.tables.egress_ports.remove(&port);
        self
    }

    fn datagram(mut self, key: Tuple, datagram: Datagram) -> Self {
        self.tables.datagrams.insert(key, datagram);
        self
    }

    /// The packet is marked.
    fn marked(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// The packet passes two devices, such as a VLAN and a bond.
    fn by_two_devices(mut self) -> Self {
        self.devices = 2;
        self
    }

    /// The checks have these ways, by index.
    fn probes(mut self, probes: &[Probe]) -> Self {
        self.tables.probes = probes.to_vec();
        self
    }

    /// Changes the other tables.
    fn with(mut self, change: impl FnOnce(&mut TableSet)) -> Self {
        change(&mut self.tables.set);
        self
    }

    /// Lets another packet leave first.
    fn after(mut self, frame: Vec<u8>) -> Self {
        self.earlier.push(frame);
        self
    }

    /// Expects that something else is known afterwards.
    fn remembers(mut self, change: impl FnOnce(&mut Remembered) + 'static) -> Self {
        self.changes.push(Box::new(change));
        self
    }

    /// Expects the flow to have been moved to those that the pod has answered.
    fn establishes(self, key: Tuple, flow: PodFlow) -> Self {
        self.remembers(move |remembered| {
            remembered.embryonic.remove(&key);
            remembered.answered.insert(key, flow);
        })
    }

    /// The packet leaves as it is.
    fn untouched(self) -> Case {
        let output = self.input.clone();
        self.ends(output, vec![0; REASON_COUNT])
    }

    /// The packet leaves as `output`, counted.
    fn translated(self, output: Vec<u8>) -> Case {
        self.counted(output, PassReason::Translated)
    }

    /// The packet leaves as `output`, counted under a reason.
    fn counted(self, output: Vec<u8>, reason: PassReason) -> Case {
        let mut reasons = vec![0; REASON_COUNT];
        reasons[reason.index() as usize] = 1;
        self.ends(output, reasons)
    }

    /// The packet comes back as `output`, counted.
    fn turned(self, output: Vec<u8>) -> Case {
        let mut case = self.translated(output);
        case.expected.goes_on = false;
        case
    }

    fn ends(self, bytes: Vec<u8>, reasons: Vec<u64>) -> Case {
        let mut remembered = self.tables.remembered();
        for change in self.changes {
            change(&mut remembered);
        }
        Case {
            name: self.name,
            tables: self.tables,
            earlier: self.earlier,
            input: self.input,
            mark: self.mark,
            devices: self.devices,
            expected: Outcome {
                goes_on: true,
                bytes,
                reasons,
                remembered,
            },
        }
    }
}

/// A reply as `from` sends it: a UDP datagram.
fn udp(from: End, to: End) -> Packet {
    Packet::udp(from, to, b"an answer")
}
