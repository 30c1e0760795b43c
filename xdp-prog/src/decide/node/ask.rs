//! Node role: is the flow of a packet known here? The edge has other owners for it if not.
//!
//! What is not known is returned, and no flow is noted for it. A datagram beyond the allowance of returns is delivered.

use super::{flow_lookup, known};
use crate::{
    abi::DeliveryKey, decide::allowance::has_return, frame::Frame, stage::Stage, verdict::Delivery,
    wire::protocol, world::World,
};

/// Finds the flow of the packet that an earlier stage has handed over.
///
/// Each part reads the packet anew from what was handed over, so that the stack holds what one of them needs.
///
/// # Errors
///
/// Returns the stage that goes on with a packet whose flow is not proved, has another client port at the pod, or is not
/// known.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Result<Delivery<'t>, Stage> {
    let has_no_entry = match find_proved(frame, tables) {
        Ok(delivery) => return Ok(delivery),
        Err(has_no_entry) => tables.opaque(has_no_entry.into()) != 0,
    };
    Err(if is_known(frame, tables, has_no_entry) {
        Stage::PodFlow
    } else {
        Stage::Return
    })
}

/// Finds and renews the packet's flow, if it is proved and the pod sees the client's own address and port.
///
/// # Errors
///
/// Returns whether no proved flow has that address and port.
#[inline(always)]
fn find_proved<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Result<Delivery<'t>, bool> {
    let Some((delivery, _)) = Delivery::handed_over(tables) else {
        return Err(false);
    };
    let delivery = Delivery {
        note_key: DeliveryKey::handed_over_aside(tables),
        ..delivery
    };
    match known::find_proved(frame, tables, &delivery) {
        Some(true) => Ok(delivery),
        found => Err(found.is_none()),
    }
}

/// Tells whether the packet's flow is known at all. `has_no_entry` is what [`find_proved`] has found out.
#[inline(always)]
fn is_known<F: Frame, T: World>(frame: &F, tables: &T, has_no_entry: bool) -> bool {
    let Some((delivery, _)) = Delivery::handed_over(tables) else {
        return false;
    };
    let Some(forward) = flow_lookup::forward_tuple(frame, &delivery) else {
        return false;
    };
    let segment = flow_lookup::segment(frame, &delivery);
    known::is_known(tables, &forward, delivery.backend, &segment, has_no_entry)
        || (delivery.protocol != protocol::TCP && !has_return(tables))
}
