//! ICMP for pods of this machine: errors that came bare, or from a trusted edge in an outer header.

use crate::{
    abi::Tuple,
    decide::{
        message::{Kind, Messages, has_checksum, has_service, kind, quoted},
        node::{decap, flow_lookup, known},
        owner::{find_with_pods, tagged_owner},
    },
    frame::Frame,
    ip::with_packet,
    parse::{Packet, Segment, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Decap, ErrorDelivery, Owner, Verdict},
    world::World,
};

/// Finds the pod that an ICMP error is for.
///
/// # Errors
///
/// Returns the verdict on a message that is not an error for a pod.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(
    frame: &F,
    tables: &'t T,
) -> Result<ErrorDelivery<'t>, Verdict<'t>> {
    let place = decap::find_packet(frame, tables, false)?;
    let Some(place) = place.relayed(frame, tables) else {
        return Err(Verdict::Drop(DropReason::StageMissing));
    };
    with_packet!(frame, place.inner, at place.inner_l3,
        packet => sort_local(frame, tables, &packet, place),
        _ => Err(to_stack(place)))
}

#[inline(always)]
fn sort_local<'t, F: Frame, A: Messages, T: World>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    place: Decap,
) -> Result<ErrorDelivery<'t>, Verdict<'t>> {
    if packet.length > place.inner_room || !place.is_plain {
        return Err(to_stack(place));
    }
    match kind(frame, packet) {
        Kind::Error => {}
        Kind::EchoRequest | Kind::Solicitation | Kind::CutShort | Kind::Other => {
            return Err(to_stack(place));
        }
    }
    let Some(quote) = quoted(frame, packet) else {
        return Err(to_stack(place));
    };
    if !has_service(quote.flow.protocol) {
        return Err(to_stack(place));
    }
    let owner = if place.is_encapsulated() {
        let Some(found) = find_with_pods(tables, &quote.flow) else {
            return Err(to_stack(place));
        };
        let is_returned_if_unknown = place.is_returned_if_unknown(TcpFlags::default());
        let owner = tagged_owner(
            tables,
            &found,
            &quote.flow,
            place.tag,
            is_returned_if_unknown,
        );
        if is_returned_if_unknown && !is_known(tables, owner.as_ref(), &quote.flow.tuple()) {
            return Err(Verdict::Continue(Stage::Return));
        }
        owner
    } else {
        Owner::handed_over(tables, &tables.handed_over())
    };
    match owner {
        Some(owner) => Ok(ErrorDelivery {
            service: owner.service,
            id: owner.id,
            backend: owner.backend,
            place,
            l4: packet.l4,
            length: packet.length,
            quoted_l3: quote.l3,
            quoted_l4: quote.l4,
            protocol: quote.flow.protocol,
            has_checksum: has_checksum(packet, &quote),
            client_at_pod: flow_lookup::client_at_pod(tables, &quote.flow, owner.backend),
        }),
        None => Err(Verdict::Drop(DropReason::UnknownPod)),
    }
}

/// Tells whether the flow that an error is about is known at its pod.
#[inline(always)]
fn is_known<T: World>(tables: &T, owner: Option<&Owner<'_>>, flow: &Tuple) -> bool {
    match owner {
        Some(owner) => known::is_known(tables, flow, owner.backend, &Segment::default(), false),
        None => false,
    }
}

#[inline(always)]
const fn to_stack<'t>(place: Decap) -> Verdict<'t> {
    if place.is_encapsulated() {
        Verdict::Decap(place)
    } else {
        Verdict::Pass(PassReason::Icmp)
    }
}
