//! Verdict -> byte edits.
//!
//! Forwarding writes a fresh Ethernet header, and a VLAN tag if the next hop needs one, right in front of the IP
//! headers. The tags that the frame came with are lost:
//!
//! ```text
//!              | Ethernet | tags | inner IP ...
//! | Ethernet | [tag] | outer IP  | inner IP ...
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and offsets come from 16-bit fields and were checked against the MTU"
)]

use zerocopy::transmute;

use crate::{
    csum::{self, Sum},
    family::Family,
    frame::FrameMut,
    reason::DropReason,
    verdict::{ClientAtPod, Delivery, Forward, Outer, RestoreSource, SeenByPod},
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        ipv4::{DONT_FRAGMENT, Ipv4},
        ipv6::Ipv6,
        transport::{Ports, Tcp},
    },
    words::join_u16,
};

mod decap;
mod error;
pub mod nat;
pub mod neighbour;
mod options;
mod reply;
mod send_back;
mod translate;

pub use self::{
    decap::decap,
    error::deliver_error,
    options::enter_options,
    reply::{LONGEST_ERROR_V4, LONGEST_ERROR_V6, reply},
    send_back::send_back,
};

/// TTL and hop limit of packets that this machine makes (IANA "IP Parameters": the default).
pub const TTL: u8 = 64;

/// Turns the frame of a packet into the frame that goes to its backend.
///
/// # Errors
///
/// [`DropReason::NoHeadroom`] if the outer header does not fit in front of the frame. The frame is then half edited
/// and must be dropped.
#[inline(always)]
pub fn forward<F: FrameMut>(frame: &mut F, forward: &Forward<'_>) -> Result<(), DropReason> {
    decrement_hop_limit(frame, forward.l3, forward.inner)?;
    forward_again(frame, forward)
}

/// Turns the frame of a packet that has been on its way before into the frame that goes to another backend.
///
/// # Errors
///
/// As [`forward`].
#[inline(always)]
pub fn forward_again<F: FrameMut>(frame: &mut F, forward: &Forward<'_>) -> Result<(), DropReason> {
    let link_length = if forward.hop.vlan == [0; 2] {
        Ethernet::LENGTH
    } else {
        Ethernet::LENGTH + VlanTag::LENGTH
    };
    let delta = forward.l3 as i32 - (link_length + forward.outer.length()) as i32;
    if delta != 0 && !frame.move_start(delta) {
        return Err(DropReason::NoHeadroom);
    }
    write_link(frame, forward)?;
    match forward.outer {
        Outer::None => Ok(()),
        Outer::V4 => write_outer_v4(frame, link_length, forward),
        Outer::V6 => {
            let header = view_mut::<Ipv6, _>(frame, link_length)?;
            let class = forward.traffic_class;
            let first = 0x60 << 8 | u16::from(class) << 4;
            let first = join_u16(first.to_be_bytes(), forward.tag.to_be_bytes());
            header.class_label = first.to_ne_bytes();
            header.payload_length = (forward.length as u16).to_be_bytes();
            header.next_header = forward.inner.encap_protocol();
            header.hop_limit = TTL;
            header.source = spread(*forward.source, forward.spread);
            header.destination = *forward.destination;
            Ok(())
        }
    }
}

#[inline(always)]
fn view_mut<T: crate::frame::Wire, F: FrameMut>(
    frame: &mut F,
    offset: usize,
) -> Result<&mut T, DropReason> {
    frame.view_mut(offset).ok_or(DropReason::NoHeadroom)
}

#[inline(always)]
fn decrement_hop_limit<F: FrameMut>(
    frame: &mut F,
    l3: usize,
    family: Family,
) -> Result<(), DropReason> {
    /// One in the upper byte of a word in memory order: the TTL, or what its decrement adds to the checksum.
    const HOP: u32 = 0x0100_u16.to_be() as u32;
    match family {
        Family::V4 => {
            let header = view_mut::<Ipv4, _>(frame, l3)?;
            if header.ttl == 0 {
                return Ok(());
            }
            header.ttl -= 1;
            // The checksum is a complement, so it gains what the TTL loses. It is never 0xffff (RFC 1624 section 3).
            let check = u32::from(u16::from_ne_bytes(header.checksum)) + HOP;
            let carry = u32::from(check >= 0xffff);
            header.checksum = ((check + carry) as u16).to_ne_bytes();
        }
        Family::V6 => {
            let header = view_mut::<Ipv6, _>(frame, l3)?;
            header.hop_limit = header.hop_limit.saturating_sub(1);
        }
    }
    Ok(())
}

#[inline(always)]
fn patch_checksum(header: &mut Ipv4, old: u16, new: u16) {
    let check = u16::from_be_bytes(header.checksum);
    header.checksum = csum::update(check, Sum::ZERO.replace_u16(old, new)).to_be_bytes();
}

#[inline(always)]
fn write_link<F: FrameMut>(frame: &mut F, forward: &Forward<'_>) -> Result<(), DropReason> {
    let payload = match forward.outer {
        Outer::None => forward.inner.ether_type(),
        Outer::V4 => Family::V4.ether_type(),
        Outer::V6 => Family::V6.ether_type(),
    };
    write_ethernet(frame, forward.hop.macs, forward.hop.vlan, payload)
}

/// Writes an Ethernet header, and a VLAN tag unless `vlan` is zero.
#[inline(always)]
fn write_ethernet<F: FrameMut>(
    frame: &mut F,
    macs: [u8; 12],
    vlan: [u8; 2],
    payload: [u8; 2],
) -> Result<(), DropReason> {
    let tagged = vlan != [0; 2];
    let header = view_mut::<Ethernet, _>(frame, 0)?;
    header.macs = macs;
    header.ether_type = if tagged {
        ethernet::VLAN.to_be_bytes()
    } else {
        payload
    };
    if tagged {
        let tag = view_mut::<VlanTag, _>(frame, Ethernet::LENGTH)?;
        *tag = VlanTag {
            control: vlan,
            ether_type: payload,
        };
    }
    Ok(())
}

#[inline(always)]
fn write_outer_v4<F: FrameMut>(
    frame: &mut F,
    offset: usize,
    forward: &Forward<'_>,
) -> Result<(), DropReason> {
    let [source, ..]: [u32; 4] = transmute!(*forward.source);
    let [destination, ..]: [u32; 4] = transmute!(*forward.destination);
    let source = source | forward.spread.to_be();
    *view_mut::<Ipv4, _>(frame, offset)? = ipv4_header(
        forward.traffic_class,
        (forward.length + Ipv4::LENGTH) as u16,
        forward.tag,
        forward.inner.encap_protocol(),
        source.to_ne_bytes(),
        destination.to_ne_bytes(),
    );
    Ok(())
}

/// Puts a flow's bits into the last two bytes of an outer IPv6 source address, so that receivers spread the flows.
#[inline(always)]
const fn spread(source: [u8; 16], bits: u32) -> [u8; 16] {
    let [a, b, c, d]: [u32; 4] = transmute!(source);
    transmute!([a, b, c, d | bits.to_be()])
}

/// Returns the header of a packet that this machine makes, with the don't-fragment flag set. The identification of
/// such a packet is free for other use (RFC 6864 section 4.1).
#[inline(always)]
fn ipv4_header(
    class: u8,
    length: u16,
    identification: u16,
    protocol: u8,
    source: [u8; 4],
    destination: [u8; 4],
) -> Ipv4 {
    let sum = Sum::ZERO
        .add_u16(u16::from_be_bytes([0x45, class]))
        .add_u16(length)
        .add_u16(identification)
        .add_u16(u16::from_be_bytes(DONT_FRAGMENT))
        .add_u16(u16::from_be_bytes([TTL, protocol]))
        .add_array(&source)
        .add_array(&destination);
    Ipv4 {
        version_ihl: 0x45,
        tos: class,
        total_length: length.to_be_bytes(),
        identification: identification.to_be_bytes(),
        fragment: DONT_FRAGMENT,
        ttl: TTL,
        protocol,
        checksum: sum.checksum().to_be_bytes(),
        source,
        destination,
    }
}

/// Translates a packet for its pod and takes off the outer header, if there is one.
///
/// The destination becomes the pod's address and port, the source becomes `client_at_pod`.
///
/// # Errors
///
/// Returns the reason why the packet cannot be delivered; the frame must then be dropped.
#[inline(always)]
pub fn deliver<F: FrameMut>(
    frame: &mut F,
    delivery: &Delivery<'_>,
    client_at_pod: ClientAtPod,
) -> Result<(), DropReason> {
    if let Some(decap) = &delivery.decap {
        // Whoever made the delivery has parsed the inner packet.
        decap::merge_classes(frame, decap)?;
    }
    let difference = match delivery.family {
        Family::V4 => translate_v4(frame, delivery, client_at_pod.seen_by_pod)?,
        Family::V6 => translate_v6(frame, delivery, client_at_pod.seen_by_pod)?,
    };
    let ports = Ports {
        source: client_at_pod.port.to_be_bytes(),
        destination: delivery.backend.port,
    };
    if !delivery.is_later {
        translate::set_transport(
            frame,
            delivery.protocol.into(),
            delivery.l4,
            ports,
            difference,
        )?;
    }
    match &delivery.decap {
        Some(decap) => decap::take_off(frame, decap),
        None => Ok(()),
    }
}

#[inline(always)]
fn translate_v4<F: FrameMut>(
    frame: &mut F,
    delivery: &Delivery<'_>,
    seen_by_pod: SeenByPod,
) -> Result<Sum, DropReason> {
    let pod = delivery.backend.pod.last_octets();
    let header = view_mut::<Ipv4, _>(frame, delivery.l3)?;
    // An address that moves from one end to the other leaves the sum as it is.
    let (source, gone) = match seen_by_pod {
        SeenByPod::Client => (header.source, header.destination),
        SeenByPod::Destination => (header.destination, header.source),
    };
    let difference = Sum::ZERO.replace_array(&gone, &pod);
    header.source = source;
    header.destination = pod;
    let check = u16::from_be_bytes(header.checksum);
    header.checksum = csum::update(check, difference).to_be_bytes();
    Ok(difference)
}

#[inline(always)]
fn translate_v6<F: FrameMut>(
    frame: &mut F,
    delivery: &Delivery<'_>,
    seen_by_pod: SeenByPod,
) -> Result<Sum, DropReason> {
    let pod = delivery.backend.pod.octets();
    let header = view_mut::<Ipv6, _>(frame, delivery.l3)?;
    let difference = match seen_by_pod {
        SeenByPod::Client => Sum::ZERO.replace_array(&header.destination, &pod),
        SeenByPod::Destination => {
            let difference = Sum::ZERO.replace_array(&header.source, &pod);
            header.source = header.destination;
            difference
        }
    };
    header.destination = pod;
    Ok(difference)
}

/// Replaces the source address of a TCP segment; returns `None` and changes nothing if the headers are incomplete.
#[inline(always)]
pub fn restore_source<F: FrameMut>(frame: &mut F, restore: &RestoreSource) -> Option<()> {
    let RestoreSource {
        l3,
        l4,
        family,
        source,
    } = *restore;
    // This check comes first, so that a frame is changed as a whole or not at all.
    frame.view::<Tcp>(l4)?;
    let renew = |(_, destination)| (source, destination);
    let (difference, _) = translate::set_addresses(frame, family, l3, renew).ok()?;
    let header: &mut Tcp = frame.view_mut(l4)?;
    let check = u16::from_be_bytes(header.checksum);
    header.checksum = csum::update(check, difference).to_be_bytes();
    Some(())
}
