//! Packet + tables -> [`Verdict`]: the load balancer itself.
//!
//! No I/O, no clock, no packet bytes changed. [`process`] is the whole way of
//! a packet: decide, rewrite, count; the XDP program and the host tests call it.

use crate::{
    abi::{
        ADDRESS_LOCAL, ADDRESS_VIP, AddressKey, BACKEND_LOCAL, BACKEND_V4, Backend, Config,
        HOP_GATEWAY, MODE_L2DSR, NextHop, Service, ServiceKeyV4, ServiceKeyV6, Slot,
    },
    flow::{Address, FlowKey, V4, V6},
    frame::{Frame, FrameMut},
    maglev,
    parse::{self, Packet},
    reason::{DropReason, PassReason},
    rewrite,
    wire::{ethernet, ipv4::Ipv4, ipv6::Ipv6, protocol},
};

/// The look-ups that a decision may make.
pub trait Tables {
    /// Returns the machine-wide settings.
    fn config(&self) -> Option<&Config>;
    /// Returns the flags of an address in `VIPS`, 0 if it is not there.
    fn address_flags(&self, address: &AddressKey) -> u32;
    /// Tells whether IP-in-IP is accepted from this source.
    fn is_trusted_edge(&self, source: &AddressKey) -> bool;
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
    /// Asks the kernel's FIB and neighbour table for the way to a backend.
    fn fib_next_hop(&self, backend: &Backend) -> Option<&NextHop>;
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
    /// Outer source address, IPv4 in the first four bytes.
    pub source: &'t [u8; 16],
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
    /// The inner family, as the outer header announces it.
    pub inner: Family,
    /// The outer header's DSCP and ECN.
    pub outer_class: u8,
}

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
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
}

/// Takes one frame all the way: decides, rewrites, counts.
#[inline(always)]
pub fn process<F: FrameMut, T: Tables + Counters>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let dropped = match decide(frame, tables) {
        Verdict::Pass(reason) => {
            tables.count_reason(reason.index());
            return Action::Pass;
        }
        Verdict::Drop(reason) => reason,
        Verdict::Forward(forward) => match rewrite::forward(frame, &forward) {
            Ok(()) => {
                tables.count_forward(forward.service, forward.backend, forward.length as u64);
                return if forward.hop.ifindex == ingress {
                    Action::Transmit
                } else {
                    Action::Redirect(forward.hop.ifindex)
                };
            }
            Err(reason) => reason,
        },
        Verdict::Decap(decap) => match rewrite::decap(frame, &decap) {
            Ok(()) => {
                tables.count_reason(PassReason::Decapsulated.index());
                return Action::Pass;
            }
            Err(reason) => reason,
        },
    };
    tables.count_reason(dropped.index());
    Action::Drop
}

/// Decides what is to be done with a frame.
#[inline(always)]
pub fn decide<'t, F: Frame, T: Tables>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let verdict = parse::link(frame).and_then(|link| match link.ether_type {
        ethernet::IPV4 => parse::ipv4(frame, link.l3).map(|packet| route(frame, tables, &packet)),
        ethernet::IPV6 => parse::ipv6(frame, link.l3).map(|packet| route(frame, tables, &packet)),
        _ => Err(PassReason::NotIp),
    });
    verdict.unwrap_or_else(Verdict::Pass)
}

/// What differs between the families.
pub trait Ip: Address {
    /// The family.
    const FAMILY: Family;
    /// Returns the address as the tables spell it.
    fn key(self) -> AddressKey;
    /// Looks a service up and returns its id and the check that its word must carry.
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(u32, u32)>;
}

impl Ip for V4 {
    const FAMILY: Family = Family::V4;

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

#[inline(always)]
fn route<'t, F: Frame, A: Ip, T: Tables>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    if packet.is_fragment {
        return fragment(tables, packet);
    }
    match packet.protocol {
        protocol::TCP | protocol::UDP => match parse::flow(frame, packet) {
            Ok(flow) => balance(tables, packet, &flow),
            Err(reason) => Verdict::Pass(reason),
        },
        protocol::ICMP | protocol::ICMPV6 => Verdict::Pass(PassReason::Icmp),
        protocol::IPV4 => receive(tables, packet, Family::V4),
        protocol::IPV6 => receive(tables, packet, Family::V6),
        _ => Verdict::Pass(PassReason::Protocol),
    }
}

/// Later fragments name no ports, so none of the datagram can be balanced.
#[inline(always)]
fn fragment<A: Ip, T: Tables>(tables: &T, packet: &Packet<A>) -> Verdict<'static> {
    if tables.address_flags(&packet.destination.key()) & ADDRESS_VIP != 0 {
        Verdict::Drop(DropReason::Fragment)
    } else {
        Verdict::Pass(PassReason::FragmentNotOurs)
    }
}

/// Edge role: service -> slot -> backend -> next hop.
#[inline(always)]
pub fn balance<'t, A: Ip, T: Tables>(
    tables: &'t T,
    packet: &Packet<A>,
    flow: &FlowKey<A>,
) -> Verdict<'t> {
    match choose(tables, flow) {
        Ok(choice) => forward(tables, packet, &choice).unwrap_or_else(Verdict::Drop),
        Err(verdict) => verdict,
    }
}

/// The backend of a flow and how it was found.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'t> {
    /// Service id.
    pub service: u32,
    /// The service as it was read.
    pub entry: Service,
    /// The flow's hash.
    pub hash: u32,
    /// The slot within the service's table.
    pub slot: u32,
    /// Backend id.
    pub id: u32,
    /// The backend.
    pub backend: &'t Backend,
}

/// How often a look-up is made before the packet is given up as [`DropReason::TableChanged`].
const LOOKUPS: usize = 3;

/// Chooses the backend of a flow.
///
/// A hash element may be recycled by the kernel between finding and reading
/// it, and then holds another service's id. The word behind the id carries a
/// check of the key it belongs to: on a mismatch the look-up is made again.
///
/// # Errors
///
/// Returns the verdict where there is nothing to choose from.
#[inline(always)]
pub fn choose<'t, A: Ip, T: Tables>(
    tables: &'t T,
    flow: &FlowKey<A>,
) -> Result<Choice<'t>, Verdict<'t>> {
    let seed = tables.config().map_or(0, |config| config.hash_seed);
    for _ in 0..LOOKUPS {
        let Some((service, check)) = A::service(tables, flow) else {
            return Err(Verdict::Pass(PassReason::NoService));
        };
        let Some(entry) = tables.service(service) else {
            continue;
        };
        if entry.word.check() != check || entry.word.base() == 0 {
            continue;
        }
        let hash = flow.hash(seed);
        let slot = maglev::slot(hash, entry.word.log2_length());
        let id = tables
            .slot(entry.word.base() + slot)
            .unwrap_or_default()
            .current();
        return match tables.backend(id) {
            Some(backend) if id != 0 => Ok(Choice {
                service,
                entry,
                hash,
                slot,
                id,
                backend,
            }),
            _ => Err(Verdict::Drop(DropReason::NoBackend)),
        };
    }
    Err(Verdict::Drop(DropReason::TableChanged))
}

/// What an IPv4 header can state; a loopback device's MTU is one more.
const LARGEST_PACKET: u32 = 65_535;

#[inline(always)]
fn forward<'t, A: Ip, T: Tables>(
    tables: &'t T,
    packet: &Packet<A>,
    choice: &Choice<'t>,
) -> Result<Verdict<'t>, DropReason> {
    let backend = choice.backend;
    if backend.flags & BACKEND_LOCAL != 0 {
        return Ok(Verdict::Pass(PassReason::LocalBackend));
    }
    if packet.hop_limit <= 1 {
        return Err(DropReason::TtlExpired);
    }
    let hop = match backend.next_hop {
        0 => tables.fib_next_hop(backend),
        id => tables.next_hop(id),
    };
    let hop = hop
        .filter(|hop| hop.ifindex != 0)
        .ok_or(DropReason::NextHopUnresolved)?;
    let outer = match choice.entry.mode {
        // A router would send the packet, still addressed to the VIP, back to us.
        MODE_L2DSR if hop.flags & HOP_GATEWAY != 0 => return Err(DropReason::NotOnLink),
        MODE_L2DSR => Outer::None,
        _ if backend.flags & BACKEND_V4 != 0 => Outer::V4,
        _ => Outer::V6,
    };
    if packet.length + outer.length() > hop.mtu.min(LARGEST_PACKET) as usize {
        return Err(DropReason::MtuExceeded);
    }
    Ok(Verdict::Forward(Forward {
        service: choice.service,
        backend: choice.id,
        l3: packet.l3,
        inner: A::FAMILY,
        length: packet.length,
        traffic_class: packet.traffic_class,
        outer,
        source: outer_source(tables, outer, hop)?,
        destination: &backend.address,
        hop,
    }))
}

/// The next hop's preferred source, else the machine-wide one.
#[inline(always)]
fn outer_source<'t, T: Tables>(
    tables: &'t T,
    outer: Outer,
    hop: &'t NextHop,
) -> Result<&'t [u8; 16], DropReason> {
    if outer == Outer::None || !is_unspecified(&hop.source) {
        return Ok(&hop.source);
    }
    let config = tables.config().ok_or(DropReason::NoOuterSource)?;
    let source = if outer == Outer::V4 {
        &config.source_v4
    } else {
        &config.source_v6
    };
    if is_unspecified(source) {
        Err(DropReason::NoOuterSource)
    } else {
        Ok(source)
    }
}

/// Compares as words: the BPF target has no `memcmp`.
#[inline(always)]
fn is_unspecified(address: &[u8; 16]) -> bool {
    let [high, low] = crate::flow::words(address);
    high | low == 0
}

/// Node role: IP-in-IP.
#[inline(always)]
fn receive<A: Ip, T: Tables>(tables: &T, packet: &Packet<A>, inner: Family) -> Verdict<'static> {
    if tables.address_flags(&packet.destination.key()) & ADDRESS_LOCAL == 0 {
        return Verdict::Pass(PassReason::EncapNotOurs);
    }
    let source = packet.source.key();
    // The trie holds IPv4 edges as mapped addresses, which nobody filters as IPv6 sources.
    let disguised = A::FAMILY == Family::V6 && source.is_mapped();
    if disguised || !tables.is_trusted_edge(&source) {
        return Verdict::Pass(PassReason::EncapUntrusted);
    }
    Verdict::Decap(Decap {
        l3: packet.l3,
        inner_l3: packet.l4,
        inner_room: packet.l3 + packet.length - packet.l4,
        inner,
        outer_class: packet.traffic_class,
    })
}
