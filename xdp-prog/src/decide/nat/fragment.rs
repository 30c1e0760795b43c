//! NAT mode: later fragments, which have no transport header.
//!
//! They follow the ports that the first one has published, to where its flow
//! goes. It has renewed the flow; they only look.

use super::{Arrived, NatFlows, as_edge, as_vip, is_by_nat, is_known, leave, reply_key, way};
use crate::{
    decide::{Ip, Verdict, World, answer::Answer, balance, fragment::Head},
    frame::Frame,
    parse::{self, Packet},
    reason::{DropReason, PassReason},
    wire::ethernet,
};

/// Decides what is to be done with a frame of this stage.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Verdict::Pass(reason),
    };
    let arrived = match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => arrived(frame, tables, &packet),
            Err(reason) => return Verdict::Pass(reason),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => arrived(frame, tables, &packet),
            Err(reason) => return Verdict::Pass(reason),
        },
        _ => return Verdict::Pass(PassReason::NotIp),
    };
    match arrived {
        Ok(arrived) if arrived.service == 0 => to_client(tables, &arrived),
        Ok(arrived) => match to_backend(tables, &arrived) {
            Ok(verdict) => verdict,
            Err(reason) => Verdict::Drop(reason),
        },
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Finds the flow, and the service if the packet is a client's.
#[inline(always)]
fn arrived<F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
) -> Result<Arrived, DropReason> {
    let head = Head::read(frame, tables, packet)?;
    let flow = head.flow(packet);
    Ok(Arrived {
        service: match balance::find(tables, &flow) {
            Ok(found) => found.id,
            Err(_) => 0,
        },
        family: A::FAMILY,
        l3: packet.l3,
        l4: packet.l4,
        length: packet.length,
        hop_limit: packet.hop_limit.into(),
        flags: 0,
        key: flow.tuple(),
    })
}

impl Arrived {
    /// Judges whether the packet can leave by a device with this MTU; an ICMP error is never about a later
    /// fragment.
    #[inline(always)]
    fn fits(&self, mtu: u32) -> Result<(), DropReason> {
        match self.obstacle(mtu) {
            None => Ok(()),
            Some(Answer::TIME_EXCEEDED) => Err(DropReason::TtlExpired),
            Some(_) => Err(DropReason::MtuExceeded),
        }
    }
}

#[inline(always)]
fn to_backend<'t, T: World>(tables: &'t T, arrived: &Arrived) -> Result<Verdict<'t>, DropReason> {
    let key = &arrived.key;
    let now = tables.now();
    let entry = match tables.see_nat_forward(key, |_| None) {
        Some(entry) if is_known(&entry, key, now) => entry,
        _ => return Err(DropReason::NatUnknownFlow),
    };
    let Some(backend) = tables.backend(entry.backend()) else {
        return Err(DropReason::NatUnknownFlow);
    };
    let way = way(tables, arrived.family, backend)?;
    let reply = reply_key(backend, way.address, entry.port(), key.protocol());
    if !is_by_nat(backend) || !entry.is_answered_as(&reply) {
        return Err(DropReason::NatUnknownFlow);
    }
    arrived.fits(way.hop.mtu)?;
    let mut translation = as_edge(arrived, &entry, backend, &way);
    translation.protocol = 0;
    Ok(leave(tables, arrived, translation))
}

#[inline(always)]
fn to_client<'t, T: NatFlows>(tables: &'t T, arrived: &Arrived) -> Verdict<'t> {
    let entry = match tables.see_nat_reverse(&arrived.key, |_| None) {
        Some(entry) if entry.is_for(&arrived.key) => entry,
        _ => return Verdict::Pass(PassReason::NatNotOurs),
    };
    match arrived.fits(entry.link.mtu().into()) {
        Ok(()) => {
            let mut translation = as_vip(arrived, &entry);
            translation.protocol = 0;
            leave(tables, arrived, translation)
        }
        Err(reason) => Verdict::Drop(reason),
    }
}
