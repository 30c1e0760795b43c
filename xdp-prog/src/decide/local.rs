//! Delivery to a pod of this machine of what came bare: from a client, or from an edge by L2 DSR.

use super::{
    Ip, Tables, Verdict, World,
    balance::{self, Choice, Found},
    fragment::Head,
};
use crate::{
    abi::{BACKEND_LOCAL, BACKEND_POD, Backend, MODE_L2DSR, SERVICE_PODS},
    flow::FlowKey,
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
    match link.ether_type {
        ethernet::IPV4 => match parse::ipv4(frame, link.l3) {
            Ok(packet) => deliver(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        ethernet::IPV6 => match parse::ipv6(frame, link.l3) {
            Ok(packet) => deliver(frame, tables, &packet),
            Err(reason) => Verdict::Pass(reason),
        },
        _ => Verdict::Pass(PassReason::NotIp),
    }
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
            Verdict::Deliver(head.deliver(packet, &choice, None))
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

/// Tells whether a backend is a pod of this machine.
#[inline(always)]
pub const fn is_here(backend: &Backend) -> bool {
    const HERE: u32 = BACKEND_LOCAL | BACKEND_POD;
    backend.flags & HERE == HERE
}
