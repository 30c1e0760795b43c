//! The answers to this machine's own checks: their source becomes what the check's socket is
//! connected to ([`crate::egress`] sent the question by another address).

use crate::{
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    reason::PassReason,
    verdict::RestoreSource,
    world::Probes,
};

/// Tells which source a packet that is no service's gets before the stack sees it.
///
/// # Errors
///
/// Returns why the stack gets it as it is.
#[inline(always)]
pub fn decide<F: Frame, T: Probes>(frame: &F, tables: &T) -> Result<RestoreSource, PassReason> {
    with_packet!(frame, packet => restore(frame, tables, &packet), reason => Err(reason))
}

#[inline(always)]
fn restore<F: Frame, A: Ip, T: Probes>(
    frame: &F,
    tables: &T,
    packet: &Packet<A>,
) -> Result<RestoreSource, PassReason> {
    let flow = parse::flow(frame, packet)?;
    match tables.probe_peer(&flow.tuple()) {
        Some(source) => Ok(RestoreSource {
            l3: packet.l3,
            l4: packet.l4,
            family: A::FAMILY,
            source,
        }),
        None => Err(PassReason::NoService),
    }
}
