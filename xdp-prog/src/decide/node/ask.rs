//! Node role: is a TCP segment's connection known here? The edge has other owners for it if not.
//!
//! It is known if `FLOWS` has it and it has not ended a while ago: the client may use its port again by now, with another
//! owner of its slot. One of a flow that is not proved yet is known if it proves it: it acknowledges the number of the
//! pod's SYN+ACK. Everything else is returned, and leaves nothing behind.

use super::{
    flow_lookup::{self, FlowLookup},
    unproved,
};
use crate::{
    abi::{DeliveryKey, Tuple},
    decide::address::addresses,
    flow_state,
    frame::Frame,
    parse::Segment,
    stage::Stage,
    verdict::Delivery,
    wire::transport::Tcp,
    world::{FlowTable, World},
};

/// Returns the stage that goes on with the packet that an earlier one has handed over.
///
/// Each part reads the packet anew from what was handed over, so that the stack holds what one of them needs.
#[inline(always)]
pub fn decide<F: Frame, T: World>(frame: &F, tables: &T) -> Stage {
    match find(frame, tables) {
        Some(lookup) => {
            if lookup == FlowLookup::Established {
                note(frame, tables);
            }
            Stage::PodFlow
        }
        None => Stage::Return,
    }
}

/// Notes a flow that is known, and the delivery, for the packets of the next second.
#[inline(always)]
fn note<F: Frame, T: World>(frame: &F, tables: &T) {
    if let Some((delivery, _)) = Delivery::handed_over(tables) {
        let delivery = Delivery {
            note_key: DeliveryKey::handed_over_aside(tables),
            ..delivery
        };
        // The stage that follows finds it too.
        let _ = flow_lookup::look_up(frame, tables, &delivery);
    }
}

/// Finds the packet's flow, under the client's own port at the pod or another one; `None` if it is not known here.
#[inline(always)]
fn find<F: Frame, T: World>(frame: &F, tables: &T) -> Option<FlowLookup> {
    let (delivery, _) = Delivery::handed_over(tables)?;
    let (client, address) = addresses(frame, delivery.family, delivery.l3)?;
    let segment = Segment::of(frame.view::<Tcp>(delivery.l4)?);
    let forward = Tuple::new(
        client,
        address,
        delivery.source_port(),
        delivery.destination_port(),
        delivery.protocol,
    );
    let pod = delivery.backend.pod;
    let seen_by_pod = flow_lookup::seen_by_pod(tables, &forward, &pod);
    let (seen, unseen) = seen_by_pod.seen_and_unseen(&forward);
    let now = tables.now();
    let mut port = delivery.source_port();
    // The client's own port, then that of the forward entry.
    for is_last in [false, true] {
        let key = delivery.key(seen, port);
        for table in [FlowTable::Established, FlowTable::Embryonic] {
            let is_known = tables.with_flow(table, &key, |flow| {
                let (client, service) = (delivery.source_port(), delivery.destination_port());
                flow.is_between(client, unseen, service, seen_by_pod.flag())
                    && match table {
                        FlowTable::Established => !flow_state::is_over(flow, now),
                        FlowTable::Embryonic => unproved::is_proof(flow, &segment),
                    }
            });
            match is_known {
                Some(true) if table == FlowTable::Established => {
                    return Some(FlowLookup::Established);
                }
                Some(true) => return Some(FlowLookup::Embryonic),
                Some(false) => break,
                None => {}
            }
        }
        if is_last {
            break;
        }
        let (other, _) = flow_lookup::find_forward(tables, &forward, &pod)?;
        port = other.to_be_bytes();
    }
    None
}
