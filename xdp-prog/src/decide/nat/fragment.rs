//! NAT mode: later fragments, which have no transport header.
//!
//! They follow the flow of the ports that their first fragment has published. They do not renew it; the first
//! fragment did.

use super::{arrived::Arrived, follow, to_backend::send_translated, to_client::is_to_vip};
use crate::{
    frame::Frame,
    ip::{Ip, with_packet},
    parse::Packet,
    reason::{DropReason, PassReason},
    verdict::Verdict,
    world::{Translation, World},
};

/// Decides what becomes of a later fragment.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let arrived = with_packet!(frame,
        packet => arrived(tables, &packet),
        reason => return Verdict::Pass(reason));
    match arrived.relayed(tables) {
        Some(arrived) => send(tables, &arrived),
        None => Verdict::Drop(DropReason::StageMissing),
    }
}

/// Sends the fragment the way of its first one.
#[inline(always)]
fn send<'t, T: World>(tables: &'t T, arrived: &Arrived) -> Verdict<'t> {
    let translation = if arrived.service == 0 {
        match follow::to_client(tables, arrived) {
            Ok(Some(translation)) => translation,
            // The first fragment was refused.
            Ok(None) if is_to_vip(tables, arrived) => {
                return Verdict::Drop(DropReason::NatUnknownFlow);
            }
            Ok(None) => return Verdict::Pass(PassReason::NatNotOurs),
            Err(verdict) => return verdict,
        }
    } else {
        match follow::to_backend(tables, arrived) {
            Ok(translation) => translation,
            Err(verdict) => return verdict,
        }
    };
    let without_ports = Translation {
        protocol: 0,
        ..translation
    };
    send_translated(tables, arrived, without_ports)
}

#[inline(always)]
fn arrived<A: Ip, T: World>(tables: &T, packet: &Packet<A>) -> Arrived {
    let known = tables.handed_over();
    Arrived {
        service: known.service,
        family: A::FAMILY,
        l3: packet.l3,
        l4: packet.l4,
        length: packet.length,
        hop_limit: packet.hop_limit.into(),
        flags: 0,
        numbers: 0,
        key: packet.flow_of(known.ports).tuple(),
    }
}
