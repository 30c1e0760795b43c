//! Packet + tables -> [`Verdict`]: the load balancer itself.
//!
//! No I/O, no packet bytes changed. [`process`] is the whole way of a packet:
//! decide, rewrite, count; the XDP programs and the host tests call it.
//!
//! The edge's plain path is decided in one go ([`balance`]). The rest is left to
//! a [`Stage`] of its own, which begins anew with the frame as it came: the
//! kernel verifies each XDP program as a whole and only so many of its paths, and
//! the plain path pays nothing for what it does not use.

pub mod answer;
pub mod balance;
pub mod deliver;
pub mod fragment;
pub mod icmp;
pub mod local;
pub mod nat;
pub mod neighbour;
pub mod path;
pub mod pod_flow;
pub mod probe;
pub mod receive;
pub mod relay;
pub mod unproved;

use self::{
    answer::{Answer, Answers},
    deliver::{Deliver, FlowLookup, Flows, SeenAs, Shown},
    fragment::Fragments,
    icmp::Messages,
    nat::{NatFlows, Translate},
    neighbour::Announcements,
    path::Paths,
    probe::Probes,
    receive::Shortcuts,
    relay::{OFFSETS, Relay},
};
use crate::{
    abi::{
        ADDRESS_INNER, ADDRESS_LOCAL, ADDRESS_NAT, ADDRESS_NODE_PORT, ADDRESS_SHARED, ADDRESS_VIP,
        AddressKey, Backend, Config, EdgeMac, NextHop, Pod, PodKey, Service, ServiceKeyV4,
        ServiceKeyV6, Slot, Tag, Tuple,
    },
    flow::{Address, FlowKey, V4, V6},
    frame::{Frame, FrameMut, FrameSum},
    parse::{self, Packet},
    reason::{DropReason, PassReason, ReturnReason},
    rewrite,
    wire::{
        ethernet,
        icmp::{self as icmp_wire, Icmp},
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
    },
};

/// The look-ups that a decision may make.
pub trait Tables {
    /// Returns the machine-wide settings.
    fn config(&self) -> Option<&Config>;
    /// Returns the flags of an address in `VIPS`, 0 if it is not there.
    fn address_flags(&self, address: &AddressKey) -> u32;
    /// Tells whether IP-in-IP is accepted from this source.
    fn is_trusted_edge(&self, source: &AddressKey) -> bool;
    /// Tells whether an edge sends L2 DSR frames from this MAC.
    fn is_edge_mac(&self, source: &EdgeMac) -> bool;
    /// Tells whether a service's source ranges hold this client.
    fn is_in_source_range(&self, service: u32, client: &AddressKey) -> bool;
    /// Tells whether a packet answers a flow of this machine's own kernel.
    fn is_local_flow(&self, flow: &Tuple) -> bool;
    /// Returns a pod of this machine, read with one load.
    fn pod(&self, key: &PodKey) -> Option<Pod>;
    /// Returns the id of an IPv4 service.
    fn service_v4(&self, key: &ServiceKeyV4) -> Option<u32>;
    /// Returns the id of an IPv6 service.
    fn service_v6(&self, key: &ServiceKeyV6) -> Option<u32>;
    /// Returns a service, its word read with one load.
    fn service(&self, id: u32) -> Option<Service>;
    /// Returns a slot of the LUT arena, read with one load.
    fn slot(&self, index: u32) -> Option<Slot>;
    /// Returns a backend.
    fn backend(&self, id: u32) -> Option<&Backend>;
    /// Returns a next hop.
    fn next_hop(&self, id: u32) -> Option<&NextHop>;
    /// Asks the kernel's FIB and neighbour table for the way to a backend. Where it leads through a VLAN device that user
    /// space has listed in `VLANS`, the answer is the device below, with the tag.
    fn fib_next_hop(&self, backend: &Backend) -> Option<&NextHop>;
    /// Asks likewise for the way to any address.
    fn fib_route(&self, address: &AddressKey) -> Option<&NextHop>;
    /// Asks the kernel's FIB for the device that leads to any address, be the neighbour there known or not: the VLAN
    /// device itself.
    fn fib_device(&self, address: &AddressKey) -> Option<u32>;
}

/// Time, for what is remembered of flows.
pub trait Clock {
    /// Returns the monotonic time in ns, as it was read first in this timer tick on this CPU.
    ///
    /// It is a tick or two old as a rule. But the kernel moves its tick before its clock (`tick_do_update_jiffies64`):
    /// what reads between the two when a machine wakes that had no ticks gets, for one tick, the time at
    /// which it fell idle. Good for what is renewed and lasts for seconds, not for locks.
    fn now(&self) -> u64;
}

/// Everything that a packet may ask, remember and count.
pub trait World:
    Tables
    + Counters
    + Flows
    + Fragments
    + Relay
    + Probes
    + NatFlows
    + Shortcuts
    + Answers
    + Announcements
    + Paths
{
}

impl<T> World for T where
    T: Tables
        + Counters
        + Flows
        + Fragments
        + Relay
        + Probes
        + NatFlows
        + Shortcuts
        + Answers
        + Announcements
        + Paths
{
}

/// The counters that a packet may move.
pub trait Counters {
    /// Counts a pass or drop by its index.
    fn count_reason(&self, index: u32);
    /// Counts a forwarded packet and its bytes for service and backend.
    fn count_forward(&self, service: u32, backend: u32, bytes: u64);
}

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'t> {
    /// Hand it to the kernel's stack, unchanged.
    Pass(PassReason),
    /// End it here.
    Drop(DropReason),
    /// Send it to a backend.
    Forward(Forward<'t>),
    /// Take the outer header off and hand the rest to the stack.
    Decap(Decap),
    /// Hand it to a pod of this machine, by way of the stack.
    Deliver(Deliver<'t>),
    /// Send it to the other end of a NAT mode flow.
    Translate(Translate<'t>),
    /// Begin anew in another stage.
    Continue(Stage),
    /// The backends of this service take part by NAT: begin anew in that stage.
    Nat(u32),
    /// An answer is due: begin anew in the stage that judges and gives it.
    Answer(Answer),
}

/// A part of the program that decides what is not common; its number is its index in `STAGES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Node role: IP-in-IP.
    Receive = 0,
    /// Delivery to a pod of this machine, of what came bare.
    Local = 1,
    /// Bare ICMP to addresses of ours.
    Icmp = 2,
    /// Bare fragments to addresses of ours.
    Fragment = 3,
    /// NAT mode, from client to backend.
    Nat = 4,
    /// Answers to this machine's own checks.
    Probe = 5,
    /// NAT mode: the first packet of a flow.
    NatBegin = 6,
    /// NAT mode, from backend to client.
    NatReply = 7,
    /// Fragments within IP-in-IP.
    FragmentWithin = 8,
    /// Answers that this machine gives itself.
    Answer = 9,
    /// ICMP errors for pods of this machine, bare or within IP-in-IP.
    IcmpLocal = 10,
    /// NAT mode: later fragments, both ways.
    NatFragment = 11,
    /// NAT mode: ICMP errors, both ways.
    NatIcmp = 12,
    /// Questions for the MAC of announced addresses.
    Neighbour = 13,
    /// ICMP errors about outer packets of this machine.
    Path = 14,
    /// Delivery to a pod of this machine, where the flow begins, is proved or has another client port at the pod.
    PodFlow = 15,
    /// NAT mode: what a client's packet proves of its flow.
    NatProof = 16,
    /// NAT mode: the first packet of a flow for which another one of its service goes.
    NatShare = 17,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Self; 18] = [
        Self::Receive,
        Self::Local,
        Self::Icmp,
        Self::Fragment,
        Self::Nat,
        Self::Probe,
        Self::NatBegin,
        Self::NatReply,
        Self::FragmentWithin,
        Self::Answer,
        Self::IcmpLocal,
        Self::NatFragment,
        Self::NatIcmp,
        Self::Neighbour,
        Self::Path,
        Self::PodFlow,
        Self::NatProof,
        Self::NatShare,
    ];

    /// Returns the index in `STAGES`.
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Returns the name of the stage's program in the object.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Receive => "guideway_receive",
            Self::Local => "guideway_local",
            Self::Icmp => "guideway_icmp",
            Self::Fragment => "guideway_fragment",
            Self::Nat => "guideway_nat",
            Self::Probe => "guideway_probe",
            Self::NatBegin => "guideway_nat_begin",
            Self::NatReply => "guideway_nat_reply",
            Self::FragmentWithin => "guideway_fragment_within",
            Self::Answer => "guideway_answer",
            Self::IcmpLocal => "guideway_icmp_local",
            Self::NatFragment => "guideway_nat_fragment",
            Self::NatIcmp => "guideway_nat_icmp",
            Self::Neighbour => "guideway_neighbour",
            Self::Path => "guideway_path",
            Self::PodFlow => "guideway_pod_flow",
            Self::NatProof => "guideway_nat_proof",
            Self::NatShare => "guideway_nat_share",
        }
    }
}

/// A packet on its way to a backend.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'t> {
    /// Service id.
    pub service: u32,
    /// Backend id.
    pub backend: u32,
    /// Offset of the packet's IP header.
    pub l3: usize,
    /// The packet's family.
    pub inner: Family,
    /// Length of the packet before encapsulation.
    pub length: usize,
    /// DSCP and ECN, copied to the outer header.
    pub traffic_class: u8,
    /// The outer header, if any.
    pub outer: Outer,
    /// Names the pod in the outer header.
    pub tag: u16,
    /// Outer source address, IPv4 in the first four bytes.
    pub source: &'t [u8; 16],
    /// What the flow adds to the last two bytes of the source, as a big-endian number; a word, because verdicts lie on
    /// the BPF stack.
    pub spread: u32,
    /// Outer destination address: the backend's node.
    pub destination: &'t [u8; 16],
    /// Where the frame goes.
    pub hop: &'t NextHop,
}

/// The header to be put in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    /// L2 DSR: none.
    None,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Outer {
    /// Returns the length of the header in bytes.
    #[inline(always)]
    pub const fn length(self) -> usize {
        match self {
            Self::None => 0,
            Self::V4 => Ipv4::LENGTH,
            Self::V6 => Ipv6::LENGTH,
        }
    }
}

/// An encapsulated packet from a trusted edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decap {
    /// Offset of the outer header.
    pub l3: usize,
    /// Offset of the inner header.
    pub inner_l3: usize,
    /// Bytes between the inner header's start and the outer packet's end.
    pub inner_room: usize,
    /// Whether the outer header has neither options nor extension headers: no edge of ours writes any.
    pub is_plain: bool,
    /// The inner family, as the outer header announces it.
    pub inner: Family,
    /// The outer header's DSCP and ECN.
    pub outer_class: u8,
    /// The outer header's word about the pod.
    pub tag: Tag,
}

impl Decap {
    /// Carries it through [`Relay`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
        let [offsets, flags, tag, _] = tables.relay([
            (self.l3 as u64) << 48 | (self.inner_l3 as u64) << 32 | self.inner_room as u64,
            u64::from(self.outer_class) << 2 | u64::from(self.is_plain) << 1 | self.inner.bit(),
            u64::from(self.tag.0),
            0,
        ])?;
        Some(Self {
            l3: (offsets >> 48) as usize & OFFSETS,
            inner_l3: (offsets >> 32) as usize & OFFSETS,
            inner_room: offsets as u32 as usize,
            is_plain: flags & 2 != 0,
            inner: Family::of_bit(flags),
            outer_class: (flags >> 2) as u8,
            tag: Tag(tag as u16),
        })
    }

    /// Tells whether there is an outer header at all.
    #[inline(always)]
    pub const fn is_encapsulated(&self) -> bool {
        self.inner_l3 != self.l3
    }
}

/// IP version; a word, because it lies on the BPF stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns it as a number of one bit, for [`Relay`].
    #[inline(always)]
    pub(crate) const fn bit(self) -> u64 {
        matches!(self, Self::V6) as u64
    }

    /// Returns it from the lowest bit of a number.
    #[inline(always)]
    pub(crate) const fn of_bit(number: u64) -> Self {
        if number & 1 == 0 { Self::V4 } else { Self::V6 }
    }
}

/// What [`process`] asks the kernel to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hand the frame to the stack.
    Pass,
    /// Free the frame.
    Drop,
    /// Send the frame out of the device it came in on.
    Transmit,
    /// Send the frame out of the device with this index.
    Redirect(u32),
    /// Go on in another stage with the frame as it is.
    Continue(Stage),
}

/// Takes one frame all the way: decides, rewrites, counts.
#[inline(always)]
pub fn process<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let verdict = decide(frame, tables);
    carry_out(frame, tables, ingress, verdict)
}

/// Goes on with a frame in another stage.
#[inline(always)]
pub fn resume<F: FrameMut + FrameSum, T: World>(
    stage: Stage,
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let verdict = match stage {
        Stage::Receive => receive::decide(frame, tables),
        Stage::Local => local::decide(frame, tables),
        Stage::Icmp => icmp::decide(frame, tables),
        Stage::Fragment => fragment::decide(frame, tables),
        Stage::Probe => return probe::process(frame, tables),
        Stage::Nat => nat::decide(frame, tables, ingress),
        Stage::NatBegin => nat::begin::decide(frame, tables, ingress),
        Stage::NatProof => nat::proof::decide(frame, tables),
        Stage::NatShare => nat::share::decide(frame, tables),
        Stage::NatReply => nat::decide_reply(frame, tables),
        Stage::FragmentWithin => fragment::decide_within(frame, tables),
        Stage::Answer => return answer::process(frame, tables, ingress),
        Stage::IcmpLocal => return icmp::process_local(frame, tables, ingress),
        Stage::NatFragment => nat::fragment::decide(frame, tables),
        Stage::NatIcmp => return nat::icmp::process(frame, tables, ingress),
        Stage::Neighbour => return neighbour::process(frame, tables, ingress),
        Stage::Path => path::decide(frame, tables),
        Stage::PodFlow => return pod_flow::process(frame, tables),
    };
    carry_out(frame, tables, ingress, verdict)
}

/// Does what a verdict says, and counts it.
#[inline(always)]
pub fn carry_out<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
    verdict: Verdict<'_>,
) -> Action {
    let dropped = match verdict {
        Verdict::Pass(reason) => {
            tables.count_reason(reason.index());
            return Action::Pass;
        }
        Verdict::Drop(reason) => reason,
        Verdict::Forward(forward) => match rewrite::forward(frame, &forward) {
            Ok(()) => {
                tables.count_forward(forward.service, forward.backend, forward.length as u64);
                return send(forward.hop.ifindex, ingress);
            }
            Err(reason) => reason,
        },
        Verdict::Translate(translate) => match rewrite::nat::translate(frame, &translate) {
            Ok(()) => {
                match translate.by.backend {
                    0 => tables.count_reason(ReturnReason::NatReply.index()),
                    backend => {
                        let service = translate.by.service;
                        tables.count_forward(service, backend, translate.length as u64);
                    }
                }
                return send(translate.by.ifindex, ingress);
            }
            Err(reason) => reason,
        },
        Verdict::Continue(stage) => return Action::Continue(stage),
        Verdict::Nat(service) => {
            tables.note_nat_service(service);
            return Action::Continue(Stage::Nat);
        }
        Verdict::Answer(answer) => {
            tables.hand_over(answer);
            return Action::Continue(Stage::Answer);
        }
        Verdict::Deliver(deliver) => match hand_to_pod(frame, tables, &deliver) {
            Ok(action) => return action,
            Err(reason) => reason,
        },
        Verdict::Decap(decap) => match hand_to_stack(frame, tables, ingress, &decap) {
            Ok(()) => return Action::Pass,
            Err(reason) => reason,
        },
    };
    tables.count_reason(dropped.index());
    Action::Drop
}

#[inline(always)]
const fn send(ifindex: u32, ingress: u32) -> Action {
    if ifindex == ingress {
        Action::Transmit
    } else {
        Action::Redirect(ifindex)
    }
}

#[inline(always)]
fn hand_to_pod<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    deliver: &Deliver<'_>,
) -> Result<Action, DropReason> {
    let deliver = deliver.relayed(tables).ok_or(DropReason::StageMissing)?;
    let Some(lookup) = deliver::look_up(frame, tables, &deliver) else {
        return Err(DropReason::NoHeadroom);
    };
    match lookup {
        FlowLookup::Embryonic if deliver.protocol == protocol::TCP => {
            deliver.hand_over(tables, false);
            Ok(Action::Continue(Stage::PodFlow))
        }
        FlowLookup::Established | FlowLookup::Embryonic => {
            let shown = Shown {
                seen_as: SeenAs::Client,
                port: u16::from_be_bytes(deliver.source_port()),
            };
            show_to_pod(frame, tables, &deliver, shown)?;
            Ok(Action::Pass)
        }
        lookup => {
            deliver.hand_over(tables, lookup == FlowLookup::Unknown);
            Ok(Action::Continue(Stage::PodFlow))
        }
    }
}

/// Hands a packet to its pod, which sees the client like this.
#[inline(always)]
fn show_to_pod<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    deliver: &Deliver<'_>,
    shown: Shown,
) -> Result<(), DropReason> {
    rewrite::deliver(frame, deliver, shown)?;
    tables.count_forward(deliver.service, deliver.id, deliver.length as u64);
    tables.count_reason(PassReason::Delivered.index());
    Ok(())
}

/// Tells whether a packet inside is a whole echo request without options: edges ask nodes so, by the way of
/// clients' packets, whether they take outer headers off.
#[inline(always)]
fn is_echo_request<F: Frame>(frame: &F, decap: &Decap) -> bool {
    const PLAIN: u8 = 0x45;
    let l3 = decap.inner_l3;
    let (l4, request) = match decap.inner {
        Family::V4 => match frame.view::<Ipv4>(l3) {
            Some(header)
                if header.version_ihl == PLAIN
                    && header.protocol == protocol::ICMP
                    && matches!(header.fragment, [0 | 0x40, 0]) =>
            {
                (l3 + Ipv4::LENGTH, icmp_wire::v4::ECHO_REQUEST)
            }
            _ => return false,
        },
        Family::V6 => match frame.view::<Ipv6>(l3) {
            Some(header) if header.next_header == protocol::ICMPV6 => {
                (l3 + Ipv6::LENGTH, icmp_wire::v6::ECHO_REQUEST)
            }
            _ => return false,
        },
    };
    match frame.view::<Icmp>(l4) {
        Some(header) => header.kind == request,
        None => false,
    }
}

#[inline(always)]
fn hand_to_stack<F: FrameMut, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
    decap: &Decap,
) -> Result<(), DropReason> {
    let (_, destination) =
        deliver::addresses(frame, decap.inner, decap.inner_l3).ok_or(DropReason::MalformedInner)?;
    // Whoever forges an edge's address gets no further than to what is everyone's.
    let flags = tables.address_flags(&destination);
    let is_probe = flags & ADDRESS_LOCAL != 0 && is_echo_request(frame, decap);
    if flags & (ADDRESS_VIP | ADDRESS_INNER) == 0 && !is_probe {
        return Err(DropReason::InnerNotOurs);
    }
    let edge = outer_source(frame, decap.l3).ok_or(DropReason::MalformedInner)?;
    if is_sent_back(tables, &destination, &edge, ingress) {
        return Err(DropReason::SentBack);
    }
    rewrite::decap(frame, decap)?;
    tables.count_reason(PassReason::Decapsulated.index());
    Ok(())
}

/// Tells whether the stack would send on what an edge has sent by the device that leads to the edge: the edge would be
/// the next to get it, and send it here again.
///
/// The FIB names VLAN devices, bonds and bridges, XDP the device below, and the MAC is often the same for all of them. So
/// the FIB is asked for the edge too: what goes on by another VLAN device of the same device is not sent back.
#[inline(always)]
fn is_sent_back<T: Tables>(
    tables: &T,
    destination: &AddressKey,
    edge: &AddressKey,
    ingress: u32,
) -> bool {
    match tables.fib_device(destination) {
        Some(device) => device == ingress || tables.fib_device(edge) == Some(device),
        None => false,
    }
}

/// Reads the source address off the header at `l3`, of either family.
#[inline(always)]
fn outer_source<F: Frame>(frame: &F, l3: usize) -> Option<AddressKey> {
    let header: &Ipv4 = frame.view(l3)?;
    let family = if header.version() == 4 {
        Family::V4
    } else {
        Family::V6
    };
    let (source, _) = deliver::addresses(frame, family, l3)?;
    Some(source)
}

/// Decides what is to be done with a frame.
///
/// Here and below, `match` rather than closures: a closure that is too large
/// to be inlined becomes a function of its own, and the kernel refuses the type
/// information of what it returns.
#[inline(always)]
pub fn decide<'t, F: Frame, T: Tables>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(PassReason::GroupAddress) if neighbour::announces(tables) => {
            return Verdict::Continue(Stage::Neighbour);
        }
        Err(reason) => return Verdict::Pass(reason),
    };
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => route(frame, tables, &packet),
            Err(reason) => match frame.view::<Ipv4>(link.l3) {
                Some(header) if header.version() == 4 => {
                    let destination = V4(header.destination());
                    pass_unless_at_vip(tables, destination, reason, DropReason::VipHeaders)
                }
                _ => Verdict::Pass(reason),
            },
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => route(frame, tables, &packet),
            Err(reason) => match frame.view::<Ipv6>(link.l3) {
                Some(header) if header.version() == 6 => {
                    let destination = V6(header.destination);
                    pass_unless_at_vip(tables, destination, reason, DropReason::VipHeaders)
                }
                _ => Verdict::Pass(reason),
            },
        },
        ethernet::ARP if neighbour::announces(tables) => Verdict::Continue(Stage::Neighbour),
        _ => Verdict::Pass(PassReason::NotIp),
    }
}

/// What differs between the families.
pub trait Ip: Address {
    /// The family.
    const FAMILY: Family;
    /// Length of a header without options.
    const HEADER_LENGTH: usize;
    /// Protocol number of the family's ICMP.
    const ICMP: u8;
    /// Returns the address as the tables spell it.
    fn key(self) -> AddressKey;
    /// Looks a service up and returns its id and the check that its word must carry.
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(u32, u32)>;
}

impl Ip for V4 {
    const FAMILY: Family = Family::V4;
    const HEADER_LENGTH: usize = Ipv4::LENGTH;
    const ICMP: u8 = protocol::ICMP;

    #[inline(always)]
    fn key(self) -> AddressKey {
        AddressKey::v4(self.0)
    }

    #[inline(always)]
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(u32, u32)> {
        let key = ServiceKeyV4::new(flow.destination.0, flow.destination_port, flow.protocol);
        tables.service_v4(&key).map(|id| (id, key.check()))
    }
}

impl Ip for V6 {
    const FAMILY: Family = Family::V6;
    const HEADER_LENGTH: usize = Ipv6::LENGTH;
    const ICMP: u8 = protocol::ICMPV6;

    #[inline(always)]
    fn key(self) -> AddressKey {
        AddressKey::v6(self.0)
    }

    #[inline(always)]
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(u32, u32)> {
        let key = ServiceKeyV6::new(flow.destination.0, flow.destination_port, flow.protocol);
        tables.service_v6(&key).map(|id| (id, key.check()))
    }
}

/// Tells whether an address is nobody's but a service's: whatever comes for it is ours.
///
/// One that is the machine's own or shared as well is not: what no service has there passes.
#[inline(always)]
fn is_vip<A: Ip, T: Tables>(tables: &T, address: A) -> bool {
    tables.address_flags(&address.key()) == ADDRESS_VIP
}

/// Tells whether nobody can be a client at an address: it is nobody's but a service's, whoever balances that.
///
/// A machine that has a VIP for its own stack is none there either: answers to other ports would come to the service.
#[inline(always)]
fn is_no_client<T: Tables>(tables: &T, address: &AddressKey) -> bool {
    matches!(tables.address_flags(address), ADDRESS_VIP | ADDRESS_INNER)
}

/// Leaves what no service can have to the stack, but at a VIP: there it would be forwarded to an edge, this one for
/// one, and circle until its TTL ends; and where NodePorts are if it hides its ports.
#[inline(always)]
fn pass_unless_at_vip<'t, A: Ip, T: Tables>(
    tables: &T,
    destination: A,
    elsewhere: PassReason,
    at_a_vip: DropReason,
) -> Verdict<'t> {
    if is_vip(tables, destination) {
        return Verdict::Drop(at_a_vip);
    }
    let hides_ports = matches!(
        elsewhere,
        PassReason::TruncatedIp | PassReason::ExtensionDepth | PassReason::TruncatedTransport
    );
    if hides_ports && has_node_ports(tables, destination) {
        return Verdict::Drop(DropReason::NodePortHeaders);
    }
    Verdict::Pass(elsewhere)
}

/// Tells whether NodePorts are at an address: what may be for one, and hides it, is not for the stack, which would find
/// the port closed and refuse a client's connection by a number that is right (RFC 1858 section 3).
#[inline(always)]
fn has_node_ports<A: Ip, T: Tables>(tables: &T, address: A) -> bool {
    tables.address_flags(&address.key()) & ADDRESS_NODE_PORT != 0
}

#[inline(always)]
fn route<'t, F: Frame, A: Messages, T: Tables>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    /// Addresses to which more than service traffic comes that is ours.
    const OURS: u32 = ADDRESS_VIP | ADDRESS_SHARED | ADDRESS_NODE_PORT | ADDRESS_NAT;
    let is_ours = || tables.address_flags(&packet.destination.key()) & OURS != 0;
    if packet.is_fragment {
        return if is_ours() {
            Verdict::Continue(Stage::Fragment)
        } else {
            Verdict::Pass(PassReason::FragmentNotOurs)
        };
    }
    match packet.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => match parse::flow(frame, packet) {
            Ok(flow) => balance::balance(frame, tables, packet, &flow),
            Err(reason) => {
                pass_unless_at_vip(tables, packet.destination, reason, DropReason::VipTransport)
            }
        },
        protocol::ICMP | protocol::ICMPV6 => {
            if is_ours() {
                Verdict::Continue(Stage::Icmp)
            } else if icmp::is_too_big(frame, packet) {
                Verdict::Continue(Stage::Path)
            } else {
                Verdict::Pass(PassReason::Icmp)
            }
        }
        protocol::IPV4 | protocol::IPV6 => Verdict::Continue(Stage::Receive),
        _ => pass_unless_at_vip(
            tables,
            packet.destination,
            PassReason::Protocol,
            DropReason::VipProtocol,
        ),
    }
}
