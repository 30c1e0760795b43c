//! Edge role: service -> slot -> backend -> next hop.

use crate::{
    abi::{
        BACKEND_LOCAL, BACKEND_NAT, BACKEND_V4, Backend, Config, HOP_GATEWAY, MODE_IPIP,
        MODE_L2DSR, NextHop, SERVICE_NAT, SERVICE_NODE_PORT, SERVICE_SOURCE_RANGES, ServiceWord,
    },
    decide::{
        edge::straight,
        owner::{
            FoundService, checked_service, current_owner, flow_hash, no_owner, no_service, owner,
            slot_index, to_past,
        },
    },
    flow::FlowKey,
    frame::Frame,
    ip::Ip,
    parse::{self, Packet, TcpFlags},
    punt::unsent,
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Forward, Outer, Owner, Verdict},
    world::{Answer, HandOver, HandOvers, Tables, World},
};

/// What a packet is looked up by in a service's table.
pub(super) struct LutLookup {
    table: ServiceWord,
    pub(super) hash: u32,
    /// [`Service::mode`](crate::abi::Service::mode).
    pub(super) mode: u32,
    /// Whether clients keep their backends.
    pub(super) has_affinity: bool,
}

/// Sends a packet with ports to the backend of its service.
///
/// A plain service's entry is not read: its index entry says all that is needed.
#[inline(always)]
pub fn balance<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    flow: &FlowKey<A>,
) -> Verdict<'t> {
    // A reply in NAT mode.
    if let Some(config) = tables.config()
        && config.is_nat_port(flow.destination_port, config.nat_only_ports)
    {
        return Verdict::Continue(Stage::NatReply);
    }
    let Some((entry, check)) = A::service(tables, flow) else {
        return no_service(tables, flow);
    };
    let service = entry.id();
    let lookup = match entry.plain() {
        Some(table) => LutLookup {
            table,
            hash: flow_hash(tables, 0, flow),
            mode: MODE_IPIP,
            has_affinity: false,
        },
        None => match lookup_by_rules(frame, tables, packet, flow, (service, check)) {
            Ok(lookup) => lookup,
            Err(verdict) => return verdict,
        },
    };
    let index = slot_index(lookup.table, lookup.hash);
    let slot = tables.slot(index).unwrap_or_default();
    let (owner, tries) = if slot.has_past() || lookup.has_affinity {
        let place = (service, index, slot);
        match straight::choose(frame, tables, packet, flow, &lookup, place) {
            Some(chosen) => chosen,
            None => return to_past(tables, service, index, flow, lookup.hash),
        }
    } else {
        match current_owner(tables, service, slot, lookup.hash) {
            Some(owner) => (owner, 0),
            None => return no_owner(tables, service),
        }
    };
    match forward(tables, packet, flow, lookup.mode, &owner) {
        Ok(Verdict::Forward(forward)) => Verdict::Forward(forward.with_tries(tries)),
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Asks the rules of a service, by its id and the check of its key.
///
/// # Errors
///
/// Returns the verdict on a packet that goes by another way than the service's table.
#[inline(always)]
fn lookup_by_rules<'t, F: Frame, A: Ip, T: Tables + HandOvers>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    flow: &FlowKey<A>,
    (service, check): (u32, u32),
) -> Result<LutLookup, Verdict<'t>> {
    let found = checked_service(tables, service, check)?;
    admit(tables, &found, flow, parse::tcp_flags(frame, packet))?;
    if found.is_sent_by_edge(frame, tables) {
        return Err(match owner(tables, &found, flow, true) {
            Ok(owner) => to_own_pod(tables, flow, &owner),
            Err(verdict) => verdict,
        });
    }
    if found.entry.flags & SERVICE_NAT != 0 {
        tables.hand_over(HandOver {
            service,
            ..HandOver::default()
        });
        return Err(Verdict::Continue(Stage::Nat));
    }
    Ok(LutLookup {
        table: found.entry.word,
        hash: flow_hash(tables, found.entry.affinity, flow),
        mode: found.entry.mode,
        has_affinity: found.entry.affinity != 0,
    })
}

/// Leaves a packet for the stage that delivers it to a pod of this machine.
#[inline(always)]
fn to_own_pod<'t, A: Ip, T: HandOvers>(
    tables: &T,
    flow: &FlowKey<A>,
    owner: &Owner<'_>,
) -> Verdict<'t> {
    tables.hand_over(HandOver {
        service: owner.service,
        backend: owner.id,
        ports: flow.ports(),
        ..HandOver::default()
    });
    Verdict::Continue(Stage::Local)
}

/// Judges whether the flow may use the service.
#[inline(always)]
pub fn admit<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &FoundService,
    flow: &FlowKey<A>,
    flags: TcpFlags,
) -> Result<(), Verdict<'t>> {
    let rules = found.entry.flags;
    // This comes before the source ranges: the peers of the kernel's own flows need not be clients.
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

/// Largest length in bytes that an IPv4 header can state. The MTU of a loopback device is one more.
pub(crate) const LARGEST_PACKET: u32 = 65_535;

/// Sends a packet to its backend, or answers it if it is too large or its TTL is used up. `mode` is the service's
/// [`Service::mode`](crate::abi::Service::mode).
///
/// # Errors
///
/// Returns the reason why the packet must be dropped.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "an outer header's length")]
pub fn forward<'t, A: Ip, T: Tables + HandOvers>(
    tables: &'t T,
    packet: &Packet<A>,
    flow: &FlowKey<A>,
    mode: u32,
    owner: &Owner<'t>,
) -> Result<Verdict<'t>, DropReason> {
    let backend = owner.backend;
    if backend.is_own_pod() {
        return Ok(to_own_pod(tables, flow, owner));
    }
    if backend.flags & BACKEND_LOCAL != 0 {
        return Ok(Verdict::Pass(PassReason::LocalBackend));
    }
    if packet.hop_limit <= 1 {
        return Ok(Verdict::Answer(Answer::TIME_EXCEEDED));
    }
    let hop = match next_hop(tables, backend) {
        Ok(hop) => hop,
        Err(reason) => return Ok(unsent(tables, owner.id, reason)),
    };
    let outer = match mode {
        _ if backend.flags & BACKEND_NAT != 0 => Outer::None,
        // A router would send the packet back to us, because it is still addressed to the VIP.
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
        service: owner.service,
        backend: owner.id,
        l3: packet.l3,
        inner: A::FAMILY,
        length: packet.length,
        traffic_class: packet.traffic_class,
        outer,
        tag: backend.tag,
        source: outer_source(tables, outer, hop)?,
        spread: owner.hash & u32::from(hop.spread),
        destination: &backend.address,
        hop,
    }))
}

/// Returns the next hop to a backend's node.
///
/// # Errors
///
/// [`DropReason::NextHopUnresolved`] if neither netlink nor the FIB knows one.
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

/// Returns the next hop's preferred source, else the machine-wide one.
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
    outer_source_of(config, outer).ok_or(DropReason::NoOuterSource)
}

/// Returns the machine-wide outer source.
#[inline(always)]
pub(super) fn outer_source_of(config: &Config, outer: Outer) -> Option<&[u8; 16]> {
    let source = if outer == Outer::V4 {
        &config.source_v4
    } else {
        &config.source_v6
    };
    if is_unspecified(source) {
        None
    } else {
        Some(source)
    }
}

/// Tells whether an address is all zero. It compares words, because the BPF target has no `memcmp`.
#[inline(always)]
pub(crate) fn is_unspecified(address: &[u8; 16]) -> bool {
    let [high, low] = crate::flow::words(address);
    high | low == 0
}
