//! NAT mode: ICMP errors about a flow, both ways.
//!
//! ```text
//! router -> VIP:  VIP:80 -> client:port       edge -> backend:  backend:8080 -> edge:61234
//! VIP -> client:  client:port -> VIP:80       router -> edge:   edge:61234 -> backend:8080
//! ```
//!
//! The quote is translated, so that the quoted packet's sender recognises it. The error's source does not name the
//! router that made it, because the receiver could not reach that router and does not need to.

use super::{arrived::Arrived, follow};
use crate::{
    decide::{
        address::is_vip,
        message::{Messages, has_checksum, quoted},
    },
    frame::Frame,
    ip::{Ip, with_packet},
    parse::Packet,
    reason::{DropReason, PassReason},
    verdict::{Translate, TranslateError, Verdict},
    world::World,
};

/// Finds the translation of an ICMP error and its quote.
///
/// # Errors
///
/// Returns the verdict on an error about no flow of NAT mode.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<TranslateError<'t>, Verdict<'t>> {
    with_packet!(frame, packet => translate(frame, tables, &packet), reason => Err(Verdict::Pass(reason)))
}

#[inline(always)]
fn translate<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Result<TranslateError<'t>, Verdict<'t>> {
    let Some(quote) = quoted(frame, packet) else {
        return Err(Verdict::Pass(PassReason::Icmp));
    };
    let service = tables.handed_over().service;
    let arrived = Arrived {
        service,
        family: A::FAMILY,
        l3: packet.l3,
        l4: packet.l3 + A::HEADER_LENGTH,
        length: packet.length,
        hop_limit: packet.hop_limit.into(),
        flags: 0,
        numbers: 0,
        key: quote.flow.tuple(),
    };
    let translation = if service == 0 {
        match follow::to_client(tables, &arrived) {
            Ok(Some(translation)) => translation,
            Ok(None) => return Err(unknown(tables, packet)),
            Err(verdict) => return Err(unanswered(verdict)),
        }
    } else {
        match follow::to_backend(tables, &arrived) {
            Ok(translation) => translation,
            Err(verdict) => return Err(unanswered(verdict)),
        }
    };
    let Some(by) = tables.keep(translation) else {
        return Err(Verdict::Drop(DropReason::NoHeadroom));
    };
    Ok(TranslateError {
        error: Translate {
            service: service.into(),
            family: arrived.family,
            l3: arrived.l3,
            l4: arrived.l4,
            length: arrived.length,
            by,
        },
        quoted_l3: quote.l3,
        quoted_l4: quote.l4,
        has_checksum: has_checksum(packet, &quote).into(),
    })
}

/// Ends an error that is too big: no ICMP error is answered.
#[inline(always)]
fn unanswered(verdict: Verdict<'_>) -> Verdict<'_> {
    match verdict {
        Verdict::Answer(_) => Verdict::Drop(DropReason::MtuExceeded),
        verdict => verdict,
    }
}

/// Ends an error about no flow: at a VIP nothing else can be meant, so it is dropped; elsewhere it passes.
#[inline(always)]
fn unknown<'t, A: Ip, T: World>(tables: &T, packet: &Packet<A>) -> Verdict<'t> {
    if is_vip(tables, packet.destination) {
        Verdict::Drop(DropReason::MalformedIcmp)
    } else {
        Verdict::Pass(PassReason::Icmp)
    }
}
