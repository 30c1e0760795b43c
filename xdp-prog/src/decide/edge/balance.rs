//! Edge role: service -> slot -> backend -> next hop.

use crate::{
    abi::{
        BACKEND_LOCAL, BACKEND_NAT, BACKEND_POD, BACKEND_V4, Backend, CONFIG_NODE, CONFIG_PROBES,
        EdgeMac, HOP_GATEWAY, MODE_L2DSR, NextHop, SERVICE_DROP_WHEN_EMPTY, SERVICE_NAT,
        SERVICE_NODE_PORT, SERVICE_SOURCE_RANGES, Service, ServiceWord,
    },
    decide::address::is_vip,
    flow::FlowKey,
    frame::Frame,
    ip::Ip,
    maglev,
    parse::{self, Packet, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Chosen, Forward, Outer, Verdict},
    wire::{ethernet::Ethernet, protocol},
    world::{Answer, Tables},
};

/// A service that a packet is for, and what of it was read.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Service id.
    pub id: u32,
    /// The service as it was read.
    pub entry: Service,
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

impl<'t> Choice<'t> {
    /// Returns what was chosen.
    #[inline(always)]
    pub const fn chosen(&self) -> Chosen<'t> {
        Chosen {
            service: self.service,
            id: self.id,
            backend: self.backend,
        }
    }
}

/// Takes a packet with ports from its service to its backend.
#[inline(always)]
pub fn balance<'t, F: Frame, A: Ip, T: Tables>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    flow: &FlowKey<A>,
) -> Verdict<'t> {
    let found = match find(tables, flow) {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    let flags = parse::tcp_flags(frame, packet);
    if let Err(verdict) = admit(tables, &found, flow, flags) {
        return verdict;
    }
    if found.entry.mode == MODE_L2DSR && is_from_edge(frame, tables) {
        return Verdict::Continue(Stage::Local);
    }
    if found.entry.flags & SERVICE_NAT != 0 {
        return Verdict::Nat(found.id);
    }
    match choose(tables, &found, flow) {
        Ok(choice) => match forward(tables, packet, &choice) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        Err(verdict) => verdict,
    }
}

/// Tells whether another edge sent this frame by L2 DSR, which makes this machine its node.
#[inline(always)]
pub fn is_from_edge<F: Frame, T: Tables>(frame: &F, tables: &T) -> bool {
    let is_node = tables
        .config()
        .is_some_and(|config| config.flags & CONFIG_NODE != 0);
    is_node
        && frame
            .view::<Ethernet>(0)
            .is_some_and(|header| tables.is_edge_mac(&EdgeMac::new(header.source())))
}

/// Finds the service of a flow.
///
/// The word behind the id carries a check of the key it belongs to, which tells two IPv6 services of one fingerprint apart.
///
/// # Errors
///
/// Returns the verdict where there is none.
#[inline(always)]
pub fn find<'t, A: Ip, T: Tables>(tables: &'t T, flow: &FlowKey<A>) -> Result<Found, Verdict<'t>> {
    let Some((id, check)) = A::service(tables, flow) else {
        return Err(no_service(tables, flow));
    };
    match tables.service(id) {
        Some(entry) if entry.word.check() == check && entry.word.base() != 0 => {
            Ok(Found { id, entry })
        }
        _ => Err(Verdict::Drop(DropReason::TableChanged)),
    }
}

/// A reply to NAT mode comes for a port that is no service's: one of the mode's, or, for SCTP, any.
#[inline(always)]
fn no_service<'t, A: Ip, T: Tables>(tables: &T, flow: &FlowKey<A>) -> Verdict<'t> {
    let config = tables.config();
    let is_nat = config.is_some_and(|config| {
        let offset = u16::from_be_bytes(flow.destination_port).wrapping_sub(config.nat_port);
        offset < config.nat_ports || (flow.protocol == protocol::SCTP && config.nat_ports != 0)
    });
    if is_nat {
        return Verdict::Continue(Stage::NatReply);
    }
    if is_vip(tables, flow.destination) {
        return Verdict::Answer(Answer::REFUSE);
    }
    if config.is_some_and(|config| config.flags & CONFIG_PROBES != 0) {
        return Verdict::Continue(Stage::Probe);
    }
    Verdict::Pass(PassReason::NoService)
}

/// Judges whether the flow may use the service.
#[inline(always)]
pub fn admit<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &Found,
    flow: &FlowKey<A>,
    flags: TcpFlags,
) -> Result<(), Verdict<'t>> {
    let rules = found.entry.flags;
    // Before the ranges: whom the kernel talks to need not be a client.
    if rules & SERVICE_NODE_PORT != 0
        && !flags.begins_connection()
        && tables.is_local_flow(&flow.tuple())
    {
        return Err(Verdict::Pass(PassReason::LocalFlow));
    }
    if rules & SERVICE_SOURCE_RANGES != 0
        && !tables.is_in_source_range(found.id, &flow.source.key())
    {
        return Err(Verdict::Drop(DropReason::SourceRange));
    }
    Ok(())
}

/// Chooses the backend of a flow.
///
/// # Errors
///
/// Returns the verdict where there is nothing to choose from.
#[inline(always)]
pub fn choose<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &Found,
    flow: &FlowKey<A>,
) -> Result<Choice<'t>, Verdict<'t>> {
    match choose_from(tables, found, found.entry.word, flow) {
        Some(choice) => Ok(choice),
        None if found.entry.flags & SERVICE_DROP_WHEN_EMPTY != 0 => {
            Err(Verdict::Drop(DropReason::NoLocalBackend))
        }
        None => Err(Verdict::Answer(Answer::REFUSE)),
    }
}

/// Chooses from this machine's own pods.
#[inline(always)]
pub fn choose_local<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &Found,
    flow: &FlowKey<A>,
) -> Option<Choice<'t>> {
    if found.entry.local.base() == 0 {
        return None;
    }
    choose_from(tables, found, found.entry.local, flow)
}

/// Chooses from one of a service's tables; nothing where it is empty.
#[inline(always)]
pub fn choose_from<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &Found,
    table: ServiceWord,
    flow: &FlowKey<A>,
) -> Option<Choice<'t>> {
    let hash = if found.entry.affinity == 0 {
        flow.hash(tables.config().map_or(0, |config| config.hash_seed))
    } else {
        flow.client_hash(found.entry.affinity)
    };
    let slot = maglev::slot(hash, table.log2_length());
    let id = tables.slot(table.base() + slot).unwrap_or_default().0;
    if id == 0 {
        return None;
    }
    Some(Choice {
        service: found.id,
        entry: found.entry,
        hash,
        slot,
        id,
        backend: tables.backend(id)?,
    })
}

/// What an IPv4 header can state; a loopback device's MTU is one more.
pub(crate) const LARGEST_PACKET: u32 = 65_535;

/// Sends a packet to its backend, or answers it.
///
/// # Errors
///
/// Returns why it can be neither.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an outer header's length")]
pub fn forward<'t, A: Ip, T: Tables>(
    tables: &'t T,
    packet: &Packet<A>,
    choice: &Choice<'t>,
) -> Result<Verdict<'t>, DropReason> {
    let backend = choice.backend;
    if backend.flags & BACKEND_LOCAL != 0 {
        return Ok(if backend.flags & BACKEND_POD != 0 {
            Verdict::Continue(Stage::Local)
        } else {
            Verdict::Pass(PassReason::LocalBackend)
        });
    }
    if packet.hop_limit <= 1 {
        return Ok(Verdict::Answer(Answer::TIME_EXCEEDED));
    }
    let hop = next_hop(tables, backend)?;
    let outer = match choice.entry.mode {
        _ if backend.flags & BACKEND_NAT != 0 => Outer::None,
        // A router would send the packet, still addressed to the VIP, back to us.
        MODE_L2DSR if hop.flags & HOP_GATEWAY != 0 => return Err(DropReason::NotOnLink),
        MODE_L2DSR => Outer::None,
        _ if backend.flags & BACKEND_V4 != 0 => Outer::V4,
        _ => Outer::V6,
    };
    let mtu = hop.mtu.min(LARGEST_PACKET);
    if packet.length + outer.length() > mtu as usize {
        let inner_mtu = mtu.saturating_sub(outer.length() as u32);
        return Ok(Verdict::Answer(Answer::too_big(inner_mtu)));
    }
    Ok(Verdict::Forward(Forward {
        service: choice.service,
        backend: choice.id,
        l3: packet.l3,
        inner: A::FAMILY,
        length: packet.length,
        traffic_class: packet.traffic_class,
        outer,
        tag: backend.tag,
        source: outer_source(tables, outer, hop)?,
        spread: choice.hash & u32::from(hop.spread),
        destination: &backend.address,
        hop,
    }))
}

/// Returns how to reach a backend's node.
///
/// # Errors
///
/// [`DropReason::NextHopUnresolved`] where neither netlink nor the FIB knows.
#[inline(always)]
pub fn next_hop<'t, T: Tables>(
    tables: &'t T,
    backend: &Backend,
) -> Result<&'t NextHop, DropReason> {
    let hop = match backend.next_hop {
        0 => tables.fib_next_hop(backend),
        id => tables.next_hop(id),
    };
    hop.filter(|hop| hop.ifindex != 0)
        .ok_or(DropReason::NextHopUnresolved)
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
pub(crate) fn is_unspecified(address: &[u8; 16]) -> bool {
    let [high, low] = crate::flow::words(address);
    high | low == 0
}
