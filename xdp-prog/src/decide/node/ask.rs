//! Node role: is the flow of a packet known here? The edge has other owners for it if not.
//!
//! What is not known is returned, and no flow is noted for it. A datagram beyond the allowance of returns is delivered.

use super::{
    flow_lookup,
    known::{self, Known},
};
use crate::{
    abi::DeliveryKey, decide::allowance::has_return, frame::Frame, stage::Stage, verdict::Delivery,
    wire::protocol, world::World,
};

/// Returns the stage that goes on with the packet that an earlier one has handed over.
///
/// Each part reads the packet anew from what was handed over, so that the stack holds what one of them needs.
#[inline(always)]
pub fn decide<F: Frame, T: World>(frame: &F, tables: &T) -> Stage {
    match find(frame, tables) {
        Known::Proved => {
            note_flow_and_delivery(frame, tables);
            Stage::PodFlow
        }
        Known::Unnoted => Stage::PodFlow,
        Known::No => Stage::Return,
    }
}

/// Notes a flow that is known, and the delivery, for the packets of the next second.
#[inline(always)]
fn note_flow_and_delivery<F: Frame, T: World>(frame: &F, tables: &T) {
    if let Some((delivery, _)) = Delivery::handed_over(tables) {
        let delivery = Delivery {
            note_key: DeliveryKey::handed_over_aside(tables),
            ..delivery
        };
        // The stage that follows finds it too.
        let _ = flow_lookup::look_up(frame, tables, &delivery);
    }
}

/// Looks for the packet's flow.
#[inline(always)]
fn find<F: Frame, T: World>(frame: &F, tables: &T) -> Known {
    let Some((delivery, _)) = Delivery::handed_over(tables) else {
        return Known::No;
    };
    let Some(forward) = flow_lookup::forward_tuple(frame, &delivery) else {
        return Known::No;
    };
    let segment = flow_lookup::segment(frame, &delivery);
    match known::find(tables, &forward, delivery.backend, &segment) {
        Known::No if delivery.protocol != protocol::TCP && !has_return(tables) => Known::Unnoted,
        known => known,
    }
}
