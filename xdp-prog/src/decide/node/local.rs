//! Delivery to a pod of this machine of what came bare: from a client, or from an edge by L2 DSR.

use super::is_here;
use crate::{
    abi::{MODE_L2DSR, SERVICE_PODS},
    decide::{
        edge::balance::{self, Choice, Found},
        head::Head,
    },
    flow::FlowKey,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::Packet,
    reason::{DropReason, PassReason},
    verdict::Verdict,
    world::{Tables, World},
};

/// Decides what is to be done with a frame of this stage.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    with_packet!(frame, packet => deliver(frame, tables, &packet), reason => Verdict::Pass(reason))
}

#[inline(always)]
fn deliver<'t, F: Frame, A: Ip, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
) -> Verdict<'t> {
    // The stage before has read it too.
    let head = match Head::read(frame, tables, packet) {
        Ok(head) => head,
        Err(reason) => return Verdict::Drop(reason),
    };
    let flow = head.flow(packet);
    let found = match balance::find(tables, &flow) {
        Ok(found) => found,
        Err(verdict) => return verdict,
    };
    match choose(frame, tables, &found, &flow) {
        Ok(choice) if is_here(choice.backend) => {
            Verdict::Deliver(head.deliver(packet, &choice.chosen(), None))
        }
        // The table has changed since the stage before chose this machine.
        Ok(_) => Verdict::Drop(DropReason::UnknownPod),
        Err(verdict) => verdict,
    }
}

/// Chooses the backend of a packet that came bare: among this machine's own pods, if an edge sent it by L2 DSR.
///
/// # Errors
///
/// Returns the verdict where there is nothing to choose from.
#[inline(always)]
fn choose<'t, F: Frame, A: Ip, T: Tables>(
    frame: &F,
    tables: &'t T,
    found: &Found,
    flow: &FlowKey<A>,
) -> Result<Choice<'t>, Verdict<'t>> {
    if found.entry.mode != MODE_L2DSR || !balance::is_from_edge(frame, tables) {
        return balance::choose(tables, found, flow);
    }
    if found.entry.flags & SERVICE_PODS == 0 {
        return Err(Verdict::Pass(PassReason::LocalBackend));
    }
    balance::choose_local(tables, found, flow).ok_or(Verdict::Drop(DropReason::UnknownPod))
}
