//! NAT mode: the first packet of a flow, which reserves a port.

use super::{
    Arrived, Fate, Inserted, NatFlows, Origin, fate, forget, is_by_nat, origin, reply_key, way,
};
use crate::{
    abi::{AddressKey, BACKEND_LOCAL, Backend, NatForward, NatMark, Tuple},
    decide::{Ip, Stage, Verdict, World, answer::Answer, balance},
    frame::Frame,
    parse::{self, Packet},
    reason::{DropReason, PassReason},
    wire::{ethernet, protocol},
};

/// Ports that are tried for a new flow before it is refused: half of them in leaps, half in a row.
pub const PORT_PROBES: u32 = 32;

/// Decides what is to be done with a frame of this stage: a client's packet of no flow that is known.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T, ingress: u32) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    let chosen = match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => choose(frame, tables, &packet),
            Err(reason) => Err(Verdict::Pass(reason)),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => choose(frame, tables, &packet),
            Err(reason) => Err(Verdict::Pass(reason)),
        },
        _ => Err(Verdict::Pass(PassReason::NotIp)),
    };
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

/// The backend that a new flow is to have.
struct Chosen<'t> {
    arrived: Arrived,
    id: u32,
    backend: &'t Backend,
    /// Where to look for a port first. Not the hash that chose the backend: that of its other flows begins with
    /// the same bits.
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
    let found = match balance::find(tables, &flow) {
        Ok(found) => found,
        // There was a service just now.
        Err(_) => return Err(Verdict::Drop(DropReason::TableChanged)),
    };
    let Some(choice) = balance::choose_from(tables, &found, found.entry.word, &flow) else {
        return Err(Verdict::Answer(Answer::REFUSE));
    };
    if !is_by_nat(choice.backend) {
        return Err(if choice.backend.flags & BACKEND_LOCAL != 0 {
            Verdict::Pass(PassReason::LocalBackend)
        } else {
            // The service is about to leave NAT mode.
            Verdict::Drop(DropReason::TableChanged)
        });
    }
    let flags = parse::tcp_flags(frame, packet);
    if packet.protocol == protocol::TCP && !flags.begins_connection() {
        return Err(Verdict::Drop(DropReason::NatUnknownFlow));
    }
    let seed = tables.config().map_or(0, |config| config.hash_seed);
    Ok(Chosen {
        arrived: Arrived::new(frame, packet, &flow, found.id),
        id: choice.id,
        backend: choice.backend,
        hash: flow.hash(!seed),
    })
}

/// Reserves a port for a flow, of which the packet is then one that is known.
///
/// # Errors
///
/// [`DropReason::NatPortsExhausted`], [`DropReason::NatTableFull`], or why the packet cannot be sent.
#[inline(always)]
fn begin<'t, T: World>(
    tables: &'t T,
    chosen: &Chosen<'t>,
    origin: &Origin,
) -> Result<Verdict<'t>, DropReason> {
    let arrived = &chosen.arrived;
    let way = way(tables, arrived.family, chosen.backend)?;
    if let Some(answer) = arrived.obstacle(way.hop.mtu) {
        return Ok(Verdict::Answer(answer));
    }
    let now = tables.now();
    // The flow may be known, but have been idle for too long.
    if tables.see_nat_forward(&arrived.key, |_| None).is_some() {
        forget(tables, &arrived.key, None, now);
    }
    let mtu = tables.device_mtu(origin.ifindex).unwrap_or(0);
    let new = New {
        key: &arrived.key,
        id: chosen.id,
        backend: chosen.backend,
        address: way.address,
        origin: &Origin {
            link: origin.link.with_mtu(mtu),
            ..*origin
        },
        now,
    };
    reserve(tables, &new, chosen.hash)?;
    Ok(Verdict::Continue(Stage::Nat))
}

/// A flow that is to begin.
struct New<'a> {
    key: &'a Tuple,
    id: u32,
    backend: &'a Backend,
    address: AddressKey,
    origin: &'a Origin,
    now: u64,
}

/// Reserves a source port for a flow and writes its entries.
///
/// # Errors
///
/// [`DropReason::NatPortsExhausted`], [`DropReason::NatTableFull`].
#[inline(always)]
fn reserve<T: World>(tables: &T, new: &New<'_>, hash: u32) -> Result<(), DropReason> {
    let config = tables.config().ok_or(DropReason::NatPortsExhausted)?;
    let protocol = new.key.protocol();
    let (first, ports) = if protocol == protocol::SCTP {
        // Its checksum covers the ports: the client's is the only one it can have.
        let [a, b, ..] = new.key.ports().to_ne_bytes();
        (u16::from_be_bytes([a, b]), 1)
    } else {
        (config.nat_port, u32::from(config.nat_ports))
    };
    let [_, _, a, b] = new.key.ports().to_ne_bytes();
    if ports == 0 || (protocol == protocol::SCTP && [a, b] != new.backend.port) {
        return Err(DropReason::NatPortsExhausted);
    }
    let start = scaled(hash, ports);
    let leap = 1 + scaled(hash << 16, ports - 1);
    let mut offset = start;
    for probe in 0..PORT_PROBES {
        let reply = reply_at(new, first, offset);
        match hold(tables, new, &reply) {
            Inserted::Done => return complete(tables, new, &reply),
            Inserted::Full => return Err(DropReason::NatTableFull),
            Inserted::Exists => {}
        }
        offset += if probe < PORT_PROBES / 2 { leap } else { 1 };
        if offset >= ports {
            offset -= ports;
        }
    }
    let reply = reply_at(new, first, start);
    free_if_over(tables, &reply, new.now);
    match hold(tables, new, &reply) {
        Inserted::Done => complete(tables, new, &reply),
        Inserted::Full => Err(DropReason::NatTableFull),
        Inserted::Exists => Err(DropReason::NatPortsExhausted),
    }
}

/// Scales the top bits of a hash to a number below `range`.
#[inline(always)]
const fn scaled(hash: u32, range: u32) -> u32 {
    ((hash as u64 * range as u64) >> 32) as u32
}

/// Returns the key of the replies to one of the ports.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "below the number of ports")]
fn reply_at(new: &New<'_>, first: u16, offset: u32) -> Tuple {
    let port = first.wrapping_add(offset as u16).to_be_bytes();
    reply_key(new.backend, new.address, port, new.key.protocol())
}

/// Adds the reverse entry, which reserves the port.
#[inline(always)]
fn hold<T: NatFlows>(tables: &T, new: &New<'_>, reply: &Tuple) -> Inserted {
    tables.insert_nat_reverse(reply, new.key, new.origin, NatMark::new(new.now, 0))
}

/// Adds the forward entry to a reverse one that has just been added.
#[inline(always)]
fn complete<T: NatFlows>(tables: &T, new: &New<'_>, reply: &Tuple) -> Result<(), DropReason> {
    let mark = NatMark::new(new.now, 0);
    let entry = NatForward::new(new.key, reply, new.id, new.origin.fingerprint(), mark);
    let reason = match tables.insert_nat_forward(new.key, &entry) {
        Inserted::Done => return Ok(()),
        Inserted::Full => DropReason::NatTableFull,
        // Another CPU has a packet of the same flow and was first.
        Inserted::Exists => DropReason::TableChanged,
    };
    tables.remove_nat_reverse(reply);
    Err(reason)
}

/// Removes both entries of the flow with this reverse key, if it is over for long enough.
#[inline(always)]
fn free_if_over<T: NatFlows>(tables: &T, reply: &Tuple, now: u64) {
    let Some(entry) = tables.see_nat_reverse(reply, |_| None) else {
        return;
    };
    let key = entry.forward_key(reply.protocol());
    if !tables.claim_nat(&key) {
        return;
    }
    // Before the claim was there, another CPU may have given the port to another flow.
    if let Some(entry) = tables.see_nat_reverse(reply, |_| None) {
        let is_same = entry.forward_key(reply.protocol()).is(&key);
        let forward = tables.see_nat_forward(&key, |_| None);
        if is_same && entry.is_for(reply) {
            match fate(&key, forward.as_ref(), reply, &entry, now) {
                Fate::Lives => {}
                Fate::Over => {
                    tables.remove_nat_forward(&key);
                    tables.remove_nat_reverse(reply);
                }
                Fate::Orphan => tables.remove_nat_reverse(reply),
            }
        }
    }
    tables.release_nat(&key);
}
