//! NAT mode: the translation of packets that follow a flow without being part of it: later fragments and ICMP errors.
//!
//! They do not renew the flow (RFC 5508 section 3.2).

use super::{
    arrived::Arrived,
    lifetime::{is_known, is_live},
    to_backend::{as_edge, is_by_nat, reply_key, way},
    to_client::as_vip,
};
use crate::{
    punt::unsent,
    reason::DropReason,
    verdict::Verdict,
    world::{Answer, NatFlows, Translation, World},
};

impl Arrived {
    /// Judges whether the packet can leave by a device with this MTU, in bytes.
    #[inline(always)]
    fn fits<'t>(&self, mtu: u32) -> Result<(), Verdict<'t>> {
        match self.obstacle(mtu) {
            None => Ok(()),
            Some(Answer::TIME_EXCEEDED) => Err(Verdict::Drop(DropReason::TtlExpired)),
            Some(answer) => Err(Verdict::Answer(answer)),
        }
    }
}

/// Finds the translation of a packet that follows a client's flow to the backend.
///
/// # Errors
///
/// Returns the verdict on a packet that cannot be sent.
#[inline(always)]
pub(super) fn to_backend<'t, T: World>(
    tables: &T,
    arrived: &Arrived,
) -> Result<Translation, Verdict<'t>> {
    let key = &arrived.key;
    let now = tables.now();
    let entry = match tables.see_nat_forward(key, |_| None) {
        Some(entry) if is_known(&entry, key, now) => entry,
        _ => return Err(Verdict::Drop(DropReason::NatUnknownFlow)),
    };
    let Some(backend) = tables.backend(entry.backend()) else {
        return Err(Verdict::Drop(DropReason::NatUnknownFlow));
    };
    let way = match way(tables, arrived.family, backend) {
        Ok(way) => way,
        Err(reason) => return Err(unsent(tables, entry.backend(), reason)),
    };
    let reply = reply_key(backend, way.address, entry.port(), key.protocol());
    if !is_by_nat(backend) || !entry.is_answered_as(&reply) {
        return Err(Verdict::Drop(DropReason::NatUnknownFlow));
    }
    arrived.fits(way.hop.mtu)?;
    Ok(as_edge(arrived, &entry, backend, &way))
}

/// Finds the translation of a packet that follows a backend's replies to the client; `None` if there is no such flow.
///
/// # Errors
///
/// Returns the verdict on a packet that cannot be sent.
#[inline(always)]
pub(super) fn to_client<'t, T: NatFlows>(
    tables: &T,
    arrived: &Arrived,
) -> Result<Option<Translation>, Verdict<'t>> {
    let reply = &arrived.key;
    let entry = match tables.see_nat_reverse(reply) {
        Some(entry) if entry.is_for(reply) => entry,
        _ => return Ok(None),
    };
    let key = entry.forward_key(reply.protocol());
    match tables.see_nat_forward(&key, |_| None) {
        Some(forward) if is_live(&forward, &key, reply, tables.now()) => {}
        _ => return Ok(None),
    }
    arrived.fits(entry.link.mtu().into())?;
    Ok(Some(as_vip(arrived, &entry)))
}
