//! Node role: IP-in-IP from a trusted edge -> the pod that the tag names.

use super::is_here;
use crate::{
    abi::{ADDRESS_LOCAL, ADDRESS_VIP, AddressKey, PodKey, SERVICE_PODS, Tag, Tuple},
    decide::edge::balance::{self, Choice, Found},
    family::Family,
    flow::FlowKey,
    frame::Frame,
    ip::{Ip, with_packet},
    parse::{self, Packet, TcpFlags},
    reason::{DropReason, PassReason},
    stage::Stage,
    verdict::{Chosen, Decap, Deliver, Verdict},
    wire::protocol,
    world::{Answer, Shortcuts, Tables, World},
};

/// Decides what is to be done with a frame of this stage.
#[inline(always)]
pub fn decide<'t, F: Frame, T: World>(frame: &F, tables: &'t T) -> Verdict<'t> {
    let decap = match open_frame(frame, tables) {
        Ok(decap) => decap,
        Err(verdict) => return verdict,
    };
    if !decap.is_plain {
        return Verdict::Decap(decap);
    }
    // What does not parse is judged again, and more leniently, as the header is taken off.
    with_packet!(frame, decap.inner, at decap.inner_l3,
        packet => deliver(frame, tables, &packet, decap),
        _ => Verdict::Decap(decap))
}

/// Accepts the outer header of a frame from a trusted edge.
///
/// # Errors
///
/// Returns the verdict on a frame that is none.
#[inline(always)]
pub fn open_frame<'t, F: Frame, T: Tables + Shortcuts>(
    frame: &F,
    tables: &T,
) -> Result<Decap, Verdict<'t>> {
    let place = locate(frame, tables)?;
    if place.is_encapsulated() {
        Ok(place)
    } else {
        Err(Verdict::Pass(PassReason::Protocol))
    }
}

/// Finds a frame's packet: behind the outer header of a trusted edge, or where there is none, in front.
///
/// # Errors
///
/// Returns the verdict on a frame whose packet cannot be seen, or must not.
#[inline(always)]
pub fn locate<'t, F: Frame, T: Tables + Shortcuts>(
    frame: &F,
    tables: &T,
) -> Result<Decap, Verdict<'t>> {
    with_packet!(frame, outer => open(tables, &outer), reason => Err(Verdict::Pass(reason)))
}

#[inline(always)]
fn open<'t, A: Ip, T: Tables + Shortcuts>(
    tables: &T,
    outer: &Packet<A>,
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
    accept(tables, outer)?;
    Ok(Decap {
        l3: outer.l3,
        inner_l3: outer.l4,
        inner_room: outer.l3 + outer.length - outer.l4,
        is_plain: outer.l4 - outer.l3 == A::HEADER_LENGTH,
        inner,
        outer_class: outer.traffic_class,
        tag: outer.tag,
    })
}

/// Accepts the two ends of an outer header.
///
/// # Errors
///
/// Returns the verdict on a packet that is not opened.
#[inline(always)]
fn accept<'t, A: Ip, T: Tables + Shortcuts>(
    tables: &T,
    outer: &Packet<A>,
) -> Result<(), Verdict<'t>> {
    let source = outer.source.key();
    let destination = outer.destination.key();
    // The trie holds IPv4 edges as mapped addresses, which nobody filters as IPv6 sources.
    let disguised = A::FAMILY == Family::V6 && source.is_mapped();
    // No pod's note has this protocol.
    let key = Tuple::new(source, destination, [0; 2], [0; 2], 0);
    let epoch = epoch(tables);
    if !disguised && tables.shortcut(&key, epoch).is_some() {
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
    tables.note_shortcut(&key, epoch, 0);
    Ok(())
}

#[inline(always)]
fn epoch<T: Tables>(tables: &T) -> u32 {
    match tables.config() {
        Some(config) => config.epoch,
        None => 0,
    }
}

#[inline(always)]
fn deliver<'t, F: Frame, A: Ip, T: Tables + Shortcuts>(
    frame: &F,
    tables: &'t T,
    packet: &Packet<A>,
    decap: Decap,
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
    let epoch = epoch(tables);
    let key = pod_key(&flow, decap.tag);
    if let Some(chosen) = noted(tables, &key, epoch) {
        return Verdict::Deliver(Deliver::new(packet, &flow, flags, &chosen, Some(decap)));
    }
    let Some(found) = find(tables, &flow) else {
        return Verdict::Decap(decap);
    };
    let choice = match named(tables, &found, decap.tag) {
        Some(choice) => {
            let value = u64::from(choice.service) << 32 | u64::from(choice.id);
            tables.note_shortcut(&key, epoch, value);
            Some(choice)
        }
        None => instead(tables, &found, &flow, flags),
    };
    match choice {
        Some(choice) => {
            let chosen = choice.chosen();
            Verdict::Deliver(Deliver::new(packet, &flow, flags, &chosen, Some(decap)))
        }
        None if packet.protocol == protocol::TCP && !flags.rst() && !flags.begins_connection() => {
            Verdict::Answer(Answer::refuse_inner(A::FAMILY))
        }
        None => Verdict::Drop(DropReason::UnknownPod),
    }
}

/// Returns the pod that earlier packets to the same service with the same tag went to.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "takes the low half")]
fn noted<'t, T: Tables + Shortcuts>(tables: &'t T, key: &Tuple, epoch: u32) -> Option<Chosen<'t>> {
    let value = tables.shortcut(key, epoch)?;
    let id = value as u32;
    let backend = tables.backend(id)?;
    is_here(backend).then_some(Chosen {
        service: (value >> 32) as u32,
        id,
        backend,
    })
}

/// The name of the look-up of a service and one of its pods.
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

/// Finds the service of an encapsulated packet, if its backends are pods.
///
/// A NodePort's packet carries the edge's address, which is none of this
/// machine's: its service is looked up at the unspecified address.
#[inline(always)]
pub fn find<A: Ip, T: Tables>(tables: &T, flow: &FlowKey<A>) -> Option<Found> {
    let found = match balance::find(tables, flow) {
        Ok(found) => found,
        Err(_) => {
            let anywhere = FlowKey {
                destination: A::UNSPECIFIED,
                ..*flow
            };
            balance::find(tables, &anywhere).ok()?
        }
    };
    (found.entry.flags & SERVICE_PODS != 0).then_some(found)
}

/// Finds the pod that a tag names; a packet that may begin a flow takes another one of the service.
#[inline(always)]
pub fn pod<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &Found,
    flow: &FlowKey<A>,
    flags: TcpFlags,
    tag: Tag,
) -> Option<Choice<'t>> {
    match named(tables, found, tag) {
        Some(choice) => Some(choice),
        None => instead(tables, found, flow, flags),
    }
}

/// Finds the pod that a tag names, if it is here.
#[inline(always)]
fn named<'t, T: Tables>(tables: &'t T, found: &Found, tag: Tag) -> Option<Choice<'t>> {
    let key = PodKey::new(found.id, tag);
    let id = tables.pod(&key)?.backend(key)?;
    let backend = tables.backend(id)?;
    is_here(backend).then_some(Choice {
        service: found.id,
        entry: found.entry,
        hash: 0,
        slot: 0,
        id,
        backend,
    })
}

/// Chooses a pod of this machine in the place of one that is not here, for what may begin a flow.
#[inline(always)]
fn instead<'t, A: Ip, T: Tables>(
    tables: &'t T,
    found: &Found,
    flow: &FlowKey<A>,
    flags: TcpFlags,
) -> Option<Choice<'t>> {
    if flow.protocol != protocol::TCP || flags.begins_connection() {
        balance::choose_local(tables, found, flow)
    } else {
        None
    }
}
