//! The table of packet cases, by subject, and the world they take place in.
//!
//! ```text
//! client --> this machine (edge, and node for its peer) --> node with an IPv4 / IPv6 address
//!            ^ IP-in-IP from a trusted peer or a stranger
//! ```

mod answers;
mod at_vips;
mod checksums;
mod decap;
mod extensions;
mod forward;
mod fragments;
mod hairpin_errors;
mod icmp;
mod lengths;
mod link;
mod lookup;
mod mending;
mod nat;
mod neighbour;
mod node_ports;
mod not_ours;
mod past_owners;
mod paths;
mod pods;
mod policies;
mod policies_of_nodes;
mod probe;
mod returns;
mod routed;
mod security;
mod shared;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use etherparse::TcpHeader;
use xdp_prog::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_VIP, AddressKey, BACKEND_V4, BACKEND_V6, Backend, Client,
        ClientBackend, MODE_IPIP, MODE_L2DSR, NextHop, PathReport, Pin, Traffic, Tuple,
    },
    process::Action,
    reason::{DropReason, PassReason, ReplyReason},
};

use super::{
    kernel::{HEADROOM, INGRESS},
    packet::{End, Link, Packet},
    tables::{Counts, TableSet, address_key, padded},
};

/// One frame in, and everything that must come of it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) tables: TableSet,
    /// Frames that came before; of them only what they leave behind matters.
    pub(crate) earlier: Vec<Vec<u8>>,
    pub(crate) input: Vec<u8>,
    /// Free bytes in front of the frame.
    pub(crate) headroom: usize,
    pub(crate) action: Action,
    pub(crate) output: Vec<u8>,
    /// What the frame adds to all counters.
    pub(crate) counts: Counts,
    /// Addresses that the frame is noted to announce, each with its MAC.
    pub(crate) claims: HashMap<AddressKey, [u8; 6]>,
    /// What the frame is noted to say of the paths to nodes.
    pub(crate) paths: HashMap<AddressKey, PathReport>,
    /// The pins that the frame leaves: kept and young ones.
    pub(crate) pins: [HashMap<Tuple, Pin>; 2],
    /// The backends of clients' last new connections that the frame leaves.
    pub(crate) clients: HashMap<Client, ClientBackend>,
    /// When the rest holds no more, by [`fastpath::clock::coarse_ns`]. What runs later has to be made anew.
    pub(crate) holds_until: u64,
    /// Makes the cases of its subject.
    pub(crate) subject: Subject,
    pub(crate) kernel: InKernel,
}

/// The cases of a subject, which are made together.
pub(crate) type Subject = fn() -> Vec<Case>;

impl Case {
    /// Returns the same case for this moment.
    pub(crate) fn anew(&self) -> Self {
        cases_of(self.subject)
            .find(|case| case.name == self.name)
            .unwrap()
    }

    /// The frame is noted as another machine's announcement.
    fn claims(mut self, address: IpAddr, mac: [u8; 6]) -> Self {
        self.claims.insert(address_key(address), mac);
        self
    }

    /// The frame leaves these pins: kept and young ones.
    fn pins(mut self, pins: [HashMap<Tuple, Pin>; 2]) -> Self {
        self.pins = pins;
        self
    }

    /// The frame notes this backend as that of a client's last new connection, at the moment when it comes.
    fn notes_client(mut self, address: IpAddr, affinity: u64, id: u32) -> Self {
        let client = Client {
            address: address_key(address),
            affinity,
        };
        let backend = &self.tables.backends[id as usize];
        let entry = ClientBackend::new(&client, id, backend, 0);
        self.clients.insert(client, entry);
        self
    }

    /// The rest holds until this moment only.
    fn until(mut self, moment: u64) -> Self {
        self.holds_until = moment;
        self
    }

    /// The frame is noted as what a router says of the path to a node.
    fn says(mut self, node: IpAddr, report: PathReport) -> Self {
        self.paths.insert(address_key(node), report);
        self
    }
}

/// What `BPF_PROG_TEST_RUN` makes of a case's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InKernel {
    /// It takes it.
    Runs,
    /// It answers `EINVAL`: the frame is shorter than an Ethernet header.
    Refuses,
    /// It cannot be told to: its headroom is fixed.
    FixedHeadroom,
}

/// Returns the whole table; the cases of a subject are made as they are reached, for some take times.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    let subjects: [Subject; 37] = [
        not_ours::cases,
        probe::cases,
        lengths::cases,
        link::cases,
        fragments::cases,
        extensions::cases,
        forward::cases,
        lookup::cases,
        mending::cases,
        decap::cases,
        nat::cases,
        neighbour::cases,
        paths::cases,
        pods::cases,
        pods::keys_of_known_flows,
        node_ports::cases,
        policies::cases,
        policies_of_nodes::cases,
        security::cases,
        routed::cases,
        answers::cases,
        at_vips::cases,
        checksums::cases,
        icmp::cases,
        shared::cases,
        hairpin_errors::cases,
        past_owners::cases,
        past_owners::of_this_moment,
        past_owners::returned::cases,
        past_owners::here::cases,
        past_owners::about::cases,
        past_owners::datagrams::cases,
        past_owners::affinity::cases,
        past_owners::keep::cases,
        past_owners::own_pods::cases,
        past_owners::affinity::of_this_moment,
        returns::cases,
    ];
    let mut names = HashSet::new();
    let cases = subjects.into_iter().flat_map(cases_of);
    cases.inspect(move |case| {
        let is_new = names.insert(case.name.clone());
        assert!(is_new, "two cases are called {}", case.name);
    })
}

fn cases_of(subject: Subject) -> impl Iterator<Item = Case> {
    let cases = subject().into_iter();
    cases.map(move |case| Case { subject, ..case })
}

/// A case of which only the outcome is missing.
struct Draft {
    name: String,
    tables: TableSet,
    earlier: Vec<Vec<u8>>,
    input: Vec<u8>,
    headroom: usize,
}

/// Begins a case in the usual world.
fn case(name: impl Into<String>, input: Vec<u8>) -> Draft {
    Draft {
        name: name.into(),
        tables: world(),
        earlier: Vec::new(),
        input,
        headroom: HEADROOM,
    }
}

impl Draft {
    /// Changes the tables.
    fn with(mut self, change: impl FnOnce(&mut TableSet)) -> Self {
        change(&mut self.tables);
        self
    }

    /// Lets another frame come first.
    fn after(mut self, frame: Vec<u8>) -> Self {
        self.earlier.push(frame);
        self
    }

    fn headroom(mut self, headroom: usize) -> Self {
        self.headroom = headroom;
        self
    }

    /// The frame goes to the stack as it is.
    fn passes(self, reason: PassReason) -> Case {
        let output = self.input.clone();
        self.ends(Action::Pass, output, counted(reason.index()))
    }

    /// The frame ends here, not a byte of it changed.
    fn drops(self, reason: DropReason) -> Case {
        let output = self.input.clone();
        self.ends(Action::Drop, output, counted(reason.index()))
    }

    /// `packet` leaves by the device that it came in on, as `output`.
    fn transmits(self, way: Way, packet: &Packet, output: Vec<u8>) -> Case {
        self.forwards(Action::Transmit, way, packet.length(), output)
    }

    /// A packet of `length` bytes leaves as `output`.
    fn forwards(self, action: Action, way: Way, length: usize, output: Vec<u8>) -> Case {
        let traffic = Traffic {
            packets: 1,
            bytes: length as u64,
        };
        let mut counts = Counts::default();
        counts.services[way.service as usize] = traffic;
        counts.backends[way.backend as usize] = traffic;
        self.ends(action, output, counts)
    }

    /// A packet of `length` bytes goes to a pod of this machine as `output`.
    fn delivers(self, way: Way, length: usize, output: Vec<u8>) -> Case {
        let mut case = self.forwards(Action::Pass, way, length, output);
        case.counts.reasons[PassReason::Delivered.index() as usize] = 1;
        case
    }

    /// The frame is answered by `output`, sent back by the way it came.
    fn replies(self, reason: ReplyReason, output: Vec<u8>) -> Case {
        self.ends(Action::Transmit, output, counted(reason.index()))
    }

    /// The inner packet goes to the stack as `output`.
    fn decapsulates(self, output: Vec<u8>) -> Case {
        let counts = counted(PassReason::Decapsulated.index());
        self.ends(Action::Pass, output, counts)
    }

    fn ends(self, action: Action, output: Vec<u8>, counts: Counts) -> Case {
        let kernel = if self.input.len() < 14 {
            InKernel::Refuses
        } else if self.headroom != HEADROOM {
            InKernel::FixedHeadroom
        } else {
            InKernel::Runs
        };
        Case {
            name: self.name,
            pins: self.tables.pins.clone(),
            clients: self.tables.clients.clone(),
            tables: self.tables,
            earlier: self.earlier,
            input: self.input,
            headroom: self.headroom,
            action,
            output,
            counts,
            claims: HashMap::new(),
            paths: HashMap::new(),
            holds_until: u64::MAX,
            subject: Vec::new,
            kernel,
        }
    }
}

fn counted(reason: u32) -> Counts {
    let mut counts = Counts::default();
    counts.reasons[reason as usize] = 1;
    counts
}

pub(crate) const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// An address in 2001:db8::/32.
pub(crate) const fn v6(network: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, host))
}

const CLIENT_V4: IpAddr = v4(198, 51, 100, 7);
const CLIENT_V6: IpAddr = v6(0xc, 7);
const VIP_V4: IpAddr = v4(203, 0, 113, 10);
const VIP_V6: IpAddr = v6(0xf, 10);
/// This machine.
const EDGE_V4: IpAddr = v4(192, 0, 2, 1);
const EDGE_V6: IpAddr = v6(0xe, 1);
/// Another edge, in a trusted prefix: 192.0.2.0/29 and 2001:db8:e::/125.
const PEER_V4: IpAddr = v4(192, 0, 2, 2);
const PEER_V6: IpAddr = v6(0xe, 2);
/// Outside of the trusted prefixes by their last bit.
const STRANGER_V4: IpAddr = v4(192, 0, 2, 8);
const STRANGER_V6: IpAddr = v6(0xe, 8);
const NODE_V4: IpAddr = v4(192, 0, 2, 11);
const NODE_V6: IpAddr = v6(0xe, 11);

const TCP: u8 = 6;
const UDP: u8 = 17;

/// How frames come in.
pub(crate) const IN: Link<'static> = Link {
    destination: [0x02, 0, 0, 0, 0, 0x01],
    source: [0x02, 0, 0, 0, 0, 0xc1],
    tags: &[],
};
const TO_NODE_V4: Link<'static> = Link {
    destination: [0x02, 0, 0, 0, 0x04, 0x11],
    source: IN.destination,
    tags: &[],
};
const TO_NODE_V6: Link<'static> = Link {
    destination: [0x02, 0, 0, 0, 0x06, 0x11],
    source: IN.destination,
    tags: &[],
};

/// How answers to frames that came as [`IN`] go back.
const BACK: Link<'static> = Link {
    destination: IN.source,
    source: IN.destination,
    tags: &[],
};

/// The ICMP error that answers a packet: v4's and v6's type and code, and the MTU that it tells.
fn error(packet: &Packet, v4: (u8, u8), v6: (u8, u8), mtu: u32) -> Packet {
    let (client, address) = packet.ends();
    let (message, longest) = if address.is_ipv4() {
        (v4, 576 - 28)
    } else {
        (v6, 1280 - 48)
    };
    let quote = packet.bytes();
    let quote = &quote[..quote.len().min(longest)];
    Packet::icmp(address, client, message, mtu.to_be_bytes(), quote)
        .fresh()
        .class(0xc0)
}

fn too_big(packet: &Packet, mtu: u32) -> Packet {
    error(packet, (3, 4), (2, 0), mtu)
}

fn time_exceeded(packet: &Packet) -> Packet {
    error(packet, (11, 0), (3, 0), 0)
}

fn port_unreachable(packet: &Packet) -> Packet {
    error(packet, (3, 3), (1, 4), 0)
}

/// The RST from `from` that answers a segment without ACK: it acknowledges up to `acknowledged`.
fn reset(from: End, to: End, acknowledged: u32) -> Packet {
    let mut header = TcpHeader::new(from.1, to.1, 0, 0);
    header.rst = true;
    header.ack = true;
    header.acknowledgment_number = acknowledged;
    Packet::tcp_with(from, to, header, &[]).fresh()
}

/// The RST that answers a SYN of [`Packet::tcp`] with so many bytes of payload.
fn reset_of_syn(to: End, payload: u32) -> Packet {
    reset(to, client(to), 0x0102_0305 + payload)
}

/// Seed of the flow hash.
const HASH_SEED: u64 = 0x6775_6964_6577_6179;

/// Service and backend of a forwarded packet.
#[derive(Clone, Copy)]
struct Way {
    service: u32,
    backend: u32,
}

// The port says how the service forwards; backend 1 is the node with the IPv4
// address, backend 2 the one with the IPv6 address.
const V4_TCP: (Way, End) = (way(1, 1), (VIP_V4, 80));
const V4_UDP: (Way, End) = (way(2, 1), (VIP_V4, 53));
const V6_TCP: (Way, End) = (way(3, 2), (VIP_V6, 80));
const V6_UDP: (Way, End) = (way(4, 2), (VIP_V6, 53));
const V4_IN_V6: (Way, End) = (way(5, 2), (VIP_V4, 8006));
const V6_IN_V4: (Way, End) = (way(6, 1), (VIP_V6, 8004));
const V4_L2: (Way, End) = (way(7, 1), (VIP_V4, 8002));
const V6_L2: (Way, End) = (way(8, 2), (VIP_V6, 8002));
/// Backends that are written but serve nothing, so that a wrong id is seen.
const OTHER_BACKENDS: std::ops::Range<u32> = 3..8;

const fn way(service: u32, backend: u32) -> Way {
    Way { service, backend }
}

fn world() -> TableSet {
    let mut tables = TableSet::default();
    tables.config.hash_seed = HASH_SEED;
    for vip in [VIP_V4, VIP_V6] {
        tables.address(vip, ADDRESS_VIP);
    }
    for own in [EDGE_V4, EDGE_V6] {
        tables.address(own, ADDRESS_LOCAL);
    }
    tables.trust(v4(192, 0, 2, 0), 29);
    tables.trust(v6(0xe, 0), 125);
    for (service, protocol, mode) in [
        (V4_TCP, TCP, MODE_IPIP),
        (V4_UDP, UDP, MODE_IPIP),
        (V6_TCP, TCP, MODE_IPIP),
        (V6_UDP, UDP, MODE_IPIP),
        (V4_IN_V6, TCP, MODE_IPIP),
        (V6_IN_V4, TCP, MODE_IPIP),
        (V4_L2, TCP, MODE_L2DSR),
        (V6_L2, TCP, MODE_L2DSR),
    ] {
        let (way, to) = service;
        tables.service(way.service, to, protocol, mode, &[way.backend]);
    }
    tables.backends[1] = Backend {
        address: padded(NODE_V4),
        next_hop: 1,
        flags: BACKEND_V4,
        ..Backend::default()
    };
    tables.backends[2] = Backend {
        address: padded(NODE_V6),
        next_hop: 2,
        flags: BACKEND_V6,
        ..Backend::default()
    };
    tables.next_hops[1] = hop(&TO_NODE_V4, EDGE_V4);
    tables.next_hops[2] = hop(&TO_NODE_V6, EDGE_V6);
    for id in OTHER_BACKENDS {
        tables.backends[id as usize] = Backend {
            address: padded(other_node(id)),
            next_hop: id,
            flags: BACKEND_V4,
            ..Backend::default()
        };
        tables.next_hops[id as usize] = hop(&to_other_node(id), EDGE_V4);
    }
    tables
}

/// A next hop on the ingress device.
fn hop(link: &Link<'_>, source: IpAddr) -> NextHop {
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&link.destination);
    macs[6..].copy_from_slice(&link.source);
    NextHop {
        ifindex: INGRESS,
        mtu: 1500,
        source: padded(source),
        own: padded(source),
        macs,
        ..NextHop::default()
    }
}

fn other_node(id: u32) -> IpAddr {
    v4(192, 0, 2, 100 + u8::try_from(id).unwrap())
}

fn to_other_node(id: u32) -> Link<'static> {
    Link {
        destination: [0x02, 0, 0, 0, 0x0f, u8::try_from(id).unwrap()],
        ..TO_NODE_V4
    }
}

/// A TCP segment from the client of that family.
fn tcp(to: End) -> Packet {
    Packet::tcp(client(to), to, b"GET / HTTP/1.0\r\n\r\n")
}

/// A UDP datagram from the client of that family.
fn udp(to: End) -> Packet {
    Packet::udp(client(to), to, b"query")
}

fn client(to: End) -> End {
    if to.0.is_ipv4() {
        (CLIENT_V4, 40_000)
    } else {
        (CLIENT_V6, 40_000)
    }
}

/// The frame in which a packet leaves for the node with the IPv4 address.
fn sent_in_v4(packet: &Packet) -> Vec<u8> {
    TO_NODE_V4.carry(&packet.next_hop().within(EDGE_V4, NODE_V4))
}

/// The frame in which a packet leaves for the node with the IPv6 address.
fn sent_in_v6(packet: &Packet) -> Vec<u8> {
    TO_NODE_V6.carry(&packet.next_hop().within(EDGE_V6, NODE_V6))
}
