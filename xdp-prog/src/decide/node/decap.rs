//! Node role: IP-in-IP from a trusted edge, for the pod that the tag names.

use crate::{
    abi::{ADDRESS_LOCAL, ADDRESS_VIP, AddressKey, DeliveryKey, Tag, Tuple},
    decide::owner::{choose_pod_instead, find_with_pods, tagged_pod},
    family::Family,
    flow::FlowKey,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Decap, Delivery, Owner, Verdict},
    wire::protocol,
    world::{Answer, Shortcuts, Tables, World},
};

/// Decides what is to be done with a frame of this stage; [`receive`](super::receive) has handed over the key of its note.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let (note_key, may_have_been_returned) = DeliveryKey::handed_over(tables);
    let decap = match find_packet(frame, tables, may_have_been_returned) {
        Ok(decap) if decap.is_encapsulated() => decap,
        Ok(_) => return Verdict::Pass(PassReason::Protocol),
        Err(verdict) => return verdict,
    };
    if !decap.is_plain {
        return Verdict::Decap(decap);
    }
    let Some(decap) = decap.relayed(frame, tables) else {
        return Verdict::Drop(DropReason::StageMissing);
    };
    // A packet that does not parse is judged again, less strictly, when its outer header is taken off.
    with_packet!(frame, decap.inner, at decap.inner_l3,
        packet => decide_delivery(frame, tables, &packet, decap, note_key),
        _ => Verdict::Decap(decap))
}

/// Checks the outer header of a frame from a trusted edge.
///
/// # Errors
///
/// Returns the verdict on a frame that is not from a trusted edge.
#[inline(always)]
pub fn open_frame<'t, F: Frame, T: Tables + Shortcuts>(
    frame: &F,
    tables: &T,
) -> Result<Decap, Verdict<'t>> {
    let place = find_packet(frame, tables, false)?;
    if place.is_encapsulated() {
        Ok(place)
    } else {
        Err(Verdict::Pass(PassReason::Protocol))
    }
}

/// Finds a frame's packet: behind the outer header of a trusted edge, or bare. One that a node may have returned is left
/// for [`Stage::Returned`].
///
/// # Errors
///
/// Returns the verdict on a frame whose packet cannot be read, or must not be.
#[inline(always)]
pub fn find_packet<'t, F: Frame, T: Tables + Shortcuts>(
    frame: &F,
    tables: &T,
    may_have_been_returned: bool,
) -> Result<Decap, Verdict<'t>> {
    with_packet!(frame, outer => find_inner(tables, &outer, may_have_been_returned), reason => Err(Verdict::Pass(reason)))
}

#[inline(always)]
fn find_inner<'t, A: Ip, T: Tables + Shortcuts>(
    tables: &T,
    outer: &Packet<A>,
    may_have_been_returned: bool,
) -> Result<Decap, Verdict<'t>> {
    let inner = match outer.protocol {
        protocol::IPV4 => Family::V4,
        protocol::IPV6 => Family::V6,
        _ => {
            return Ok(Decap {
                l3: outer.l3,
                inner_l3: outer.l3,
                inner_room: outer.length,
                is_plain: true,
                inner: A::FAMILY,
                outer_class: outer.traffic_class,
                tag: outer.tag,
            });
        }
    };
    let decap = Decap::of(outer, inner);
    if may_have_been_returned && decap.is_plain && decap.tag.is_returned() {
        return Err(Verdict::Continue(Stage::Returned));
    }
    accept(tables, outer)?;
    Ok(decap)
}

/// Checks source and destination of an outer header.
///
/// # Errors
///
/// Returns the verdict on a packet whose outer header must not be taken off.
#[inline(always)]
fn accept<'t, A: Ip, T: Tables + Shortcuts>(
    tables: &T,
    outer: &Packet<A>,
) -> Result<(), Verdict<'t>> {
    let source = outer.source.key();
    let destination = outer.destination.key();
    // The trie holds IPv4 edges as mapped addresses. Nobody filters IPv6 packets with such a source.
    let disguised = A::FAMILY == Family::V6 && source.is_mapped();
    // The protocol is 0, which no note of a pod has.
    let key = Tuple::new(source, destination, [0; 2], [0; 2], 0);
    let generation = notes_generation(tables);
    if !disguised && tables.shortcut(&key, generation).is_some() {
        return Ok(());
    }
    let flags = tables.address_flags(&destination);
    if flags == ADDRESS_VIP {
        return Err(Verdict::Drop(DropReason::VipEncap));
    }
    if flags & ADDRESS_LOCAL == 0 {
        return Err(Verdict::Pass(PassReason::EncapNotOurs));
    }
    if disguised || !tables.is_trusted_edge(&source) {
        tables.note_untrusted(&source);
        return Err(Verdict::Pass(PassReason::EncapUntrusted));
    }
    tables.note_shortcut(&key, generation, 0);
    Ok(())
}

#[inline(always)]
fn notes_generation<T: Tables>(tables: &T) -> u32 {
    match tables.config() {
        Some(config) => config.notes_generation,
        None => 0,
    }
}

#[inline(always)]
fn decide_delivery<'t, F: Frame, A: Ip, T: Tables + Shortcuts>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    decap: Decap,
    note_key: DeliveryKey,
) -> Verdict<'t> {
    if packet.length > decap.inner_room {
        return Verdict::Decap(decap);
    }
    if packet.protocol == A::ICMP && !packet.is_fragment {
        return Verdict::Continue(Stage::IcmpLocal);
    }
    let has_ports = matches!(
        packet.protocol,
        protocol::TCP | protocol::UDP | protocol::SCTP
    );
    if packet.is_fragment {
        return Verdict::Continue(Stage::FragmentWithin);
    }
    if !has_ports {
        return Verdict::Decap(decap);
    }
    let Ok(flow) = parse::flow(frame, packet) else {
        return Verdict::Decap(decap);
    };
    let flags = parse::tcp_flags(frame, packet);
    let generation = notes_generation(tables);
    let key = pod_key(&flow, decap.tag);
    let ports = flow.ports();
    let mut note_key = note_key;
    let owner = match pod_by_shortcut(tables, &key, generation) {
        Some(owner) => Some(owner),
        None => {
            let Some(found) = find_with_pods(tables, &flow) else {
                return Verdict::Decap(decap);
            };
            match tagged_pod(tables, &found, decap.tag) {
                Some(owner) => {
                    let value = u64::from(owner.service) << 32 | u64::from(owner.id);
                    tables.note_shortcut(&key, generation, value);
                    Some(owner)
                }
                None if decap.is_returned_if_unknown(flags) => None,
                None => {
                    note_key = DeliveryKey::NONE;
                    choose_pod_instead(tables, &found, &flow)
                }
            }
        }
    };
    match owner {
        Some(owner) => Verdict::Deliver(Delivery {
            note_key,
            ..Delivery::new(packet, ports, flags, &owner, Some(decap))
        }),
        None if decap.is_returned_if_unknown(flags) => Verdict::Continue(Stage::Return),
        None if flags.begins_connection() => Verdict::Drop(DropReason::UnknownPodSyn),
        // A packet that was returned belongs to a connection elsewhere.
        None if packet.protocol == protocol::TCP && !flags.rst() && !decap.tag.is_returned() => {
            Verdict::Answer(Answer::refuse_inner(A::FAMILY))
        }
        None => Verdict::Drop(DropReason::UnknownPod),
    }
}

/// Returns the pod that earlier packets with the same service and tag went to.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
fn pod_by_shortcut<'t, T: Tables + Shortcuts>(
    tables: &'t T,
    key: &Tuple,
    generation: u32,
) -> Option<Owner<'t>> {
    let value = tables.shortcut(key, generation)?;
    let id = value as u32;
    let backend = tables.backend(id)?;
    backend.is_own_pod().then_some(Owner {
        service: (value >> 32) as u32,
        id,
        backend,
        hash: 0,
    })
}

/// Returns the key under which the pod of a service and a tag is noted.
#[inline(always)]
fn pod_key<A: Ip>(flow: &FlowKey<A>, tag: Tag) -> Tuple {
    Tuple::new(
        AddressKey::default(),
        flow.destination.key(),
        tag.pod_bits().to_ne_bytes(),
        flow.destination_port,
        flow.protocol,
    )
}
