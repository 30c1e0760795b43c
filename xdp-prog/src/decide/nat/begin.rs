//! NAT mode: the first packet of a flow. It chooses a backend and reserves a port.

use super::{
    ANSWER_NS, Fate, HANDSHAKE_NS, QUIET_DATAGRAMS_NS, QUIET_RESET_NS, SPAN_OF_USE_NS,
    arrived::{Arrived, HEEDED, MADE_ROOM, SOUGHT, go_on},
    fate,
    lifetime::forget,
    share,
    to_backend::{for_replies, is_by_nat, origin, reply_key, way},
};
use crate::{
    abi::{
        AddressKey, BACKEND_LOCAL, Backend, NAT_CONDEMNED, NAT_OPEN, NAT_RESET, NatForward,
        NatMark, NatReverse, Tuple,
    },
    decide::{
        address::is_no_client,
        flow_of::{opaque_address, opaque_tuple},
        owner::{FoundService, choose_from},
    },
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    punt::unsent,
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::Verdict,
    wire::protocol,
    world::{Answer, Inserted, NatFlows, NatState, Origin, Taken, World},
};

/// Number of ports that are tried before a new flow is refused: the first half in leaps, the second half in a row.
pub const PORT_PROBES: u32 = 32;
/// Most half-open flows among the tried ports at which an open flow gives way. More of them are a sign of forged
/// packets, which no open flow shall give way to.
const HALF_OPEN_AT_MOST: u64 = PORT_PROBES as u64 / 4;

/// Decides what becomes of a client's packet that belongs to no known flow.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T, ingress: u32) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    let chosen = with_packet!(frame, behind link,
        packet => choose(frame, tables, &packet),
        reason => Err(Verdict::Pass(reason)));
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(verdict) => return verdict,
    };
    let Some(origin) = origin(frame, &link, ingress) else {
        return Verdict::Pass(PassReason::VlanDepth);
    };
    match begin(tables, &chosen, &origin) {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

/// A packet and the backend of its new flow.
struct Chosen<'t> {
    arrived: Arrived,
    id: u32,
    backend: &'t Backend,
    /// Chooses the first port to try. It is not the hash that chose the backend, because those of the backend's other
    /// flows begin with the same bits.
    hash: u32,
}

#[inline(always)]
fn choose<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Result<Chosen<'t>, Verdict<'t>> {
    let flow = match parse::flow(frame, packet) {
        Ok(flow) => flow,
        Err(reason) => return Err(Verdict::Pass(reason)),
    };
    let Some(found) = FoundService::handed_over(tables, tables.handed_over().service) else {
        return Err(Verdict::Drop(DropReason::TableChanged));
    };
    let Some(owner) = choose_from(tables, &found, found.entry.word, &flow) else {
        return Err(Verdict::Answer(Answer::REFUSE));
    };
    if !is_by_nat(owner.backend) {
        return Err(if owner.backend.flags & BACKEND_LOCAL != 0 {
            Verdict::Pass(PassReason::LocalBackend)
        } else {
            // The backends are not reached by NAT any more: the service is about to leave NAT mode.
            Verdict::Drop(DropReason::TableChanged)
        });
    }
    let flags = parse::tcp_flags(frame, packet);
    if packet.protocol == protocol::TCP && !flags.begins_connection() {
        return Err(Verdict::Drop(DropReason::NatUnknownFlow));
    }
    if is_no_client(tables, &packet.source.key()) {
        return Err(Verdict::Drop(DropReason::SourceIsVip));
    }
    let seed = tables.config().map_or(0, |config| config.hash_seed);
    Ok(Chosen {
        arrived: Arrived::new(frame, packet, &flow, found.id),
        id: owner.id,
        backend: owner.backend,
        hash: flow.hash(!seed),
    })
}

/// Reserves a port for a new flow, and then sends the packet as one of a known flow.
///
/// # Errors
///
/// [`DropReason::NatPortsExhausted`], [`DropReason::NatTableFull`], or the reason why the packet cannot be sent.
#[inline(always)]
fn begin<'t, T: World>(
    tables: &'t T,
    chosen: &Chosen<'t>,
    origin: &Origin,
) -> Result<Verdict<'t>, DropReason> {
    let arrived = &chosen.arrived;
    let way = match way(tables, arrived.family, chosen.backend) {
        Ok(way) => way,
        Err(reason) => return Ok(unsent(tables, chosen.id, reason)),
    };
    if let Some(answer) = arrived.obstacle(way.hop.mtu) {
        return Ok(Verdict::Answer(answer));
    }
    let progress = tables.handed_over().detail;
    let has_room = progress & MADE_ROOM != 0 || has_room(tables, arrived.service);
    if !has_room && progress & SOUGHT == 0 {
        return Ok(Verdict::Continue(Stage::NatShare));
    }
    let now = tables.now();
    // The flow may be known, but idle for too long.
    if tables.see_nat_forward(&arrived.key, |_| None).is_some() {
        forget(tables, &arrived.key, None, now);
    }
    let new = New {
        key: &opaque_tuple(tables, &arrived.key),
        service: arrived.service,
        id: chosen.id,
        backend: chosen.backend,
        address: opaque_address(tables, way.address),
        origin: &for_replies(tables, origin),
        now,
    };
    reserve(tables, &new, chosen.hash, has_room)?;
    Ok(go_on(tables, arrived.service, HEEDED, Stage::Nat))
}

/// A flow that begins.
struct New<'a> {
    key: &'a Tuple,
    service: u32,
    id: u32,
    backend: &'a Backend,
    address: AddressKey,
    origin: &'a Origin,
    now: u64,
}

/// Reserves a source port for a flow and adds its entries.
///
/// # Errors
///
/// [`DropReason::NatPortsExhausted`], [`DropReason::NatTableFull`].
#[inline(always)]
fn reserve<T: World>(
    tables: &T,
    new: &New<'_>,
    hash: u32,
    has_room: bool,
) -> Result<(), DropReason> {
    let config = tables.config().ok_or(DropReason::NatPortsExhausted)?;
    let protocol = new.key.protocol();
    let (first, ports) = if protocol == protocol::SCTP {
        // SCTP's checksum covers the ports, so the flow must keep the client's port.
        let [a, b, ..] = new.key.ports().to_ne_bytes();
        (u16::from_be_bytes([a, b]), 1)
    } else {
        (config.nat_port, u32::from(config.nat_ports))
    };
    if ports == 0 || (protocol == protocol::SCTP && port_of(new.key) != new.backend.port) {
        return Err(DropReason::NatPortsExhausted);
    }
    // The verifier follows the loop once for all protocols and ranges.
    #[expect(clippy::cast_possible_truncation, reason = "is 32 bits wide")]
    let ports = tables.opaque(ports.into()) as u32;
    let start = scaled(hash, ports);
    let leap = 1 + scaled(hash << 16, ports - 1);
    let mut offset = start;
    let Some(taken) = tables.taken() else {
        return Err(DropReason::NatPortsExhausted);
    };
    taken.begin(has_room);
    for probe in 0..PORT_PROBES {
        let reply = reply_at(new, first, offset);
        match tables.nat_state(&reply) {
            Some(state) => taken.note(offset, protocol, &state, new.now),
            None if taken.has_room() => match hold(tables, new, &reply) {
                Inserted::Done => return complete(tables, new, &reply),
                Inserted::Full => taken.has_room.set(0),
                Inserted::Exists => {}
            },
            None => {}
        }
        offset += if probe < PORT_PROBES / 2 { leap } else { 1 };
        if offset >= ports {
            offset -= ports;
        }
    }
    let found = taken.gives_way();
    let reply = reply_at(new, first, found.unwrap_or(start));
    let reason = if taken.has_room() {
        DropReason::NatPortsExhausted
    } else {
        DropReason::NatTableFull
    };
    if !free(
        tables,
        new.service,
        new.key,
        &reply,
        new.now,
        found.is_some(),
    ) {
        return Err(reason);
    }
    match hold(tables, new, &reply) {
        Inserted::Done => complete(tables, new, &reply),
        Inserted::Full | Inserted::Exists => Err(reason),
    }
}

/// Tells whether the service may have one more flow without removing another.
#[inline(always)]
fn has_room<T: NatFlows>(tables: &T, service: u32) -> bool {
    tables
        .nat_count(service)
        .leaves_room(tables.nat_count(0).flows)
}

/// A flow's standing when its port is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The client has not proved its address.
    HalfOpen,
    /// The flow is proved; it may have ended, but no packet proves that.
    Open,
}

/// Returns the standing of a flow that may give way, and how long it must have been silent first, in ns; `None` if it
/// never gives way.
#[inline(always)]
const fn standing(protocol: u8, state: &NatState) -> Option<(Standing, u64)> {
    if !state.mark.has(NAT_OPEN) || is_new(protocol, state) {
        let patience = if protocol == protocol::TCP {
            HANDSHAKE_NS
        } else {
            ANSWER_NS
        };
        return Some((Standing::HalfOpen, patience));
    }
    match protocol {
        protocol::TCP if state.mark.has(NAT_RESET) => Some((Standing::Open, QUIET_RESET_NS)),
        protocol::UDP => Some((Standing::Open, QUIET_DATAGRAMS_NS)),
        _ => None,
    }
}

/// Tells whether a flow gives way, judged by its reverse entry alone.
#[inline(always)]
pub(super) const fn gives_way_by(protocol: u8, state: &NatState, now: u64) -> bool {
    match standing(protocol, state) {
        Some((_, patience)) => state.mark.idle(now) >= patience,
        None => false,
    }
}

/// Tells whether an open UDP flow has been in use for too short a time to be believed.
#[inline(always)]
const fn is_new(protocol: u8, state: &NatState) -> bool {
    let used = NatReverse::began_at(state.mark.time()).wrapping_sub(state.began_with);
    protocol == protocol::UDP && used < NatReverse::began_at(SPAN_OF_USE_NS)
}

impl Taken {
    const NONE: u64 = u64::MAX;

    #[inline(always)]
    fn begin(&self, has_room: bool) {
        self.has_room.set(has_room.into());
        self.half_open.set(0);
        self.oldest.set(Self::NONE);
        self.oldest_idle.set(0);
        self.quietest.set(Self::NONE);
        self.quietest_idle.set(0);
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.has_room.get() != 0
    }

    #[inline(always)]
    fn note(&self, offset: u32, protocol: u8, state: &NatState, now: u64) {
        let Some((standing, patience)) = standing(protocol, state) else {
            return;
        };
        let (place, longest) = match standing {
            Standing::HalfOpen => {
                self.half_open.set(self.half_open.get() + 1);
                (&self.oldest, &self.oldest_idle)
            }
            Standing::Open => (&self.quietest, &self.quietest_idle),
        };
        let idle = state.mark.idle(now);
        if idle >= patience && idle >= longest.get() {
            place.set(offset.into());
            longest.set(idle);
        }
    }

    /// Returns the offset of the port whose flow gives way.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "was an offset")]
    fn gives_way(&self) -> Option<u32> {
        let (oldest, quietest) = (self.oldest.get(), self.quietest.get());
        if oldest != Self::NONE {
            Some(oldest as u32)
        } else if quietest != Self::NONE && self.half_open.get() <= HALF_OPEN_AT_MOST {
            Some(quietest as u32)
        } else {
            None
        }
    }
}

/// Maps a hash to a number below `range`; the top bits count most.
#[inline(always)]
const fn scaled(hash: u32, range: u32) -> u32 {
    ((hash as u64 * range as u64) >> 32) as u32
}

/// Returns the key of the replies to the port at `offset`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "below the number of ports")]
fn reply_at(new: &New<'_>, first: u16, offset: u32) -> Tuple {
    let port = first.wrapping_add(offset as u16).to_be_bytes();
    reply_key(new.backend, new.address, port, new.key.protocol())
}

/// Adds the reverse entry, which reserves the port of `reply`.
#[inline(always)]
fn hold<T: NatFlows>(tables: &T, new: &New<'_>, reply: &Tuple) -> Inserted {
    tables.insert_nat_reverse(reply, new.key, new.origin, NatMark::new(new.now, 0))
}

/// Adds the forward entry to a reverse entry that was just added; removes the reverse entry on failure.
#[inline(always)]
fn complete<T: NatFlows>(tables: &T, new: &New<'_>, reply: &Tuple) -> Result<(), DropReason> {
    let mark = NatMark::new(new.now, 0);
    let entry = NatForward::new(new.key, reply, new.id, new.origin.fingerprint(), mark);
    let reason = match tables.insert_nat_forward(new.key, &entry) {
        Inserted::Done => {
            tables.count_nat(new.service, 1, 1);
            share::note(tables, new.service, new.id, entry.port());
            return Ok(());
        }
        Inserted::Full => DropReason::NatTableFull,
        // Another CPU has just added the same flow.
        Inserted::Exists => DropReason::TableChanged,
    };
    tables.remove_nat_reverse(reply);
    Err(reason)
}

/// Removes both entries of the flow with this reverse key, if the flow is over, or may give way to the new flow of
/// `service` and does. Tells whether they were removed.
#[inline(always)]
pub(super) fn free<T: NatFlows>(
    tables: &T,
    service: u32,
    new: &Tuple,
    reply: &Tuple,
    now: u64,
    may_give_way: bool,
) -> bool {
    let Some(entry) = tables.see_nat_reverse(reply) else {
        return false;
    };
    let key = entry.forward_key(reply.protocol());
    if !tables.claim_nat(&key) {
        return false;
    }
    // Another CPU may have given the port to another flow before the claim was held.
    let freed = match tables.see_nat_reverse(reply) {
        Some(entry) if entry.is_for(reply) && entry.forward_key(reply.protocol()).is(&key) => {
            free_claimed(tables, &key, reply, &entry, now, may_give_way)
        }
        _ => false,
    };
    tables.release_nat(&key);
    // User space counts the flows of other services that share the backend.
    let is_own = entry.port() == port_of(new) && entry.address == new.destination();
    if freed && is_own {
        let half_open = if entry.mark.has(NAT_OPEN) { 0 } else { -1 };
        tables.count_nat(service, -1, half_open);
    }
    freed
}

#[inline(always)]
fn free_claimed<T: NatFlows>(
    tables: &T,
    key: &Tuple,
    reply: &Tuple,
    reverse: &NatReverse,
    now: u64,
    may_give_way: bool,
) -> bool {
    let forward = tables.see_nat_forward(key, |_| None);
    let mut fate = fate(key, forward.as_ref(), reply, reverse, now);
    if let Some(entry) = &forward
        && entry.is_for(key)
        && entry.is_answered_as(reply)
        && fate == Fate::Lives
    {
        let mark = entry.mark;
        let goes = may_give_way && gives_way(key.protocol(), mark, reverse, now);
        // No packet renews a condemned flow.
        if goes && tables.replace_nat_mark(key, mark, mark.with(NAT_CONDEMNED)) {
            fate = Fate::Over;
        }
    }
    match fate {
        Fate::Lives => return false,
        Fate::Over => tables.remove_nat_forward(key),
        Fate::Orphan => {}
    }
    tables.remove_nat_reverse(reply);
    true
}

/// Tells whether a flow gives way; `mark` is that of its forward entry.
#[inline(always)]
const fn gives_way(protocol: u8, mark: NatMark, reverse: &NatReverse, now: u64) -> bool {
    let both = NatMark::new(reverse.mark.time(), mark.flags());
    let state = NatState::of(reverse).marked(both);
    match standing(protocol, &state) {
        Some((Standing::HalfOpen, patience)) => mark.idle(now) >= patience,
        // Anybody can send packets in the client's name, so only the backend's silence counts.
        Some((Standing::Open, patience)) => reverse.mark.idle(now) >= patience,
        None => false,
    }
}

/// Returns the destination port of a client's flow, in wire order.
#[inline(always)]
const fn port_of(key: &Tuple) -> [u8; 2] {
    let [_, _, a, b] = key.ports().to_ne_bytes();
    [a, b]
}
