//! NAT mode: later fragments, which have no transport header.
//!
//! They follow the ports that the first one has published, to where its flow
//! goes. It has renewed the flow; they only look.

use super::{arrived::Arrived, follow, to_backend::send_translated, to_client::is_to_vip};
use crate::{
    decide::{edge::balance, head::Head},
    frame::Frame,
    ip::{Ip, with_packet},
    parse::Packet,
    reason::{DropReason, PassReason},
    verdict::Verdict,
    world::{Translation, World},
};

/// Decides what is to be done with a frame of this stage.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let arrived = with_packet!(frame,
        packet => arrived(frame, tables, &packet),
        reason => return Verdict::Pass(reason));
    let arrived = match arrived {
        Ok(arrived) => arrived,
        Err(reason) => return Verdict::Drop(reason),
    };
    match arrived.relayed(tables) {
        Some(arrived) => send(tables, &arrived),
        None => Verdict::Drop(DropReason::StageMissing),
    }
}

/// Sends the fragment after its first one.
#[inline(always)]
fn send<'t, T: World>(tables: &'t T, arrived: &Arrived) -> Verdict<'t> {
    let translation = if arrived.service == 0 {
        match follow::to_client(tables, arrived) {
            Ok(Some(translation)) => translation,
            // The first one was refused.
            Ok(None) if is_to_vip(tables, arrived) => {
                return Verdict::Drop(DropReason::NatUnknownFlow);
            }
            Ok(None) => return Verdict::Pass(PassReason::NatNotOurs),
            Err(reason) => return Verdict::Drop(reason),
        }
    } else {
        match follow::to_backend(tables, arrived) {
            Ok(translation) => translation,
            Err(reason) => return Verdict::Drop(reason),
        }
    };
    let without_ports = Translation {
        protocol: 0,
        ..translation
    };
    send_translated(tables, arrived, without_ports)
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
        numbers: 0,
        key: flow.tuple(),
    })
}
