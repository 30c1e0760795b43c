//! Answers to this machine's own checks of backends.
//!
//! [`crate::egress`] sends a check to another address than the one its socket is connected to. So the answer's source
//! becomes the socket's peer before the stack sees it.

use crate::{
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    reason::PassReason,
    verdict::RestoreSource,
    world::Probes,
};

/// Finds the source address that an answer to a check gets.
///
/// # Errors
///
/// Returns the reason why the stack gets the packet unchanged: it answers no check, for one.
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
