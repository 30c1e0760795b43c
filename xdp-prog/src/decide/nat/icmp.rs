//! NAT mode: ICMP errors about a flow, both ways.
//!
//! ```text
//! router -> VIP:  VIP:80 -> client:port       edge -> backend:  backend:8080 -> edge:61234
//! VIP -> client:  client:port -> VIP:80       router -> edge:   edge:61234 -> backend:8080
//! ```
//!
//! The quote is translated so that its sender recognises its own packet. Who made
//! the error is not told on: the other end could not reach it, and does not ask.

use super::{Arrived, Translate, follow};
use crate::{
    decide::{
        Action, Ip, Verdict, World, balance, carry_out,
        icmp::{Messages, has_checksum, quoted},
        is_vip, send,
    },
    frame::{Frame, FrameMut, FrameSum},
    parse::{self, Packet},
    reason::{DropReason, PassReason, ReturnReason},
    rewrite,
    wire::ethernet,
};

/// An ICMP error that leaves with other addresses, and its quote with other ends.
#[derive(Clone, Copy, Debug)]
pub struct TranslateError<'t> {
    /// The error itself.
    pub error: Translate<'t>,
    /// Offset of the quoted IP header.
    pub quoted_l3: usize,
    /// Offset of the quoted transport header.
    pub quoted_l4: usize,
    /// Whether the quote reaches as far as its transport checksum; a word, because this may lie on the BPF stack.
    pub has_checksum: u32,
}

/// Takes a frame through this stage.
#[inline(always)]
pub fn process<F: FrameMut + FrameSum, T: World>(
    frame: &mut F,
    tables: &T,
    ingress: u32,
) -> Action {
    let error = match decide(frame, tables) {
        Ok(error) => error,
        Err(verdict) => return carry_out(frame, tables, ingress, verdict),
    };
    match rewrite::nat::translate_error(frame, &error) {
        Ok(()) => {
            let by = error.error.by;
            match by.backend {
                0 => tables.count_reason(ReturnReason::NatError.index()),
                backend => {
                    tables.count_forward(by.service, backend, error.error.length as u64);
                }
            }
            send(by.ifindex, ingress)
        }
        Err(reason) => {
            tables.count_reason(reason.index());
            Action::Drop
        }
    }
}

#[inline(always)]
fn decide<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<TranslateError<'t>, Verdict<'t>> {
    let link = match parse::link(frame) {
        Ok(link) => link,
        Err(reason) => return Err(Verdict::Pass(reason)),
    };
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => translate(frame, tables, &packet),
            Err(reason) => Err(Verdict::Pass(reason)),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => translate(frame, tables, &packet),
            Err(reason) => Err(Verdict::Pass(reason)),
        },
        _ => Err(Verdict::Pass(PassReason::NotIp)),
    }
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
    let service = match balance::find(tables, &quote.flow) {
        Ok(found) => found.id,
        Err(_) => 0,
    };
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
            Err(reason) => return Err(Verdict::Drop(reason)),
        }
    } else {
        match follow::to_backend(tables, &arrived) {
            Ok(translation) => translation,
            Err(reason) => return Err(Verdict::Drop(reason)),
        }
    };
    let Some(by) = tables.keep(translation) else {
        return Err(Verdict::Drop(DropReason::NoHeadroom));
    };
    Ok(TranslateError {
        error: Translate {
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

/// At an address that is nobody's but a service's, nothing else can be meant.
#[inline(always)]
fn unknown<'t, A: Ip, T: World>(tables: &T, packet: &Packet<A>) -> Verdict<'t> {
    if is_vip(tables, packet.destination) {
        Verdict::Drop(DropReason::MalformedIcmp)
    } else {
        Verdict::Pass(PassReason::Icmp)
    }
}
