//! Answers of this machine. Each is made in the frame that it answers.
//!
//! An ICMP error quotes the packet from its first byte: its headers go in front of the packet, and only the packet's
//! tail is cut. A RST and an echo reply overwrite the packet:
//!
//! ```text
//!            | Ethernet | tags | IP ...
//! | Ethernet | tags | IP | ICMP | IP ... |
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{TTL, decap::shift_link, ipv4_header, patch_checksum, view_mut};
use crate::{
    abi::AddressKey,
    csum::{self, Sum},
    family::Family,
    frame::{Frame, FrameMut, FrameSum, LONGEST_SUM},
    parse::TcpFlags,
    reason::{DropReason, ReplyReason},
    verdict::{Reply, ReplyPath},
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        icmp::{self, Icmp},
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp},
    },
    world::Answer,
};

/// DSCP of ICMP errors: network control (RFC 1812 section 4.3.2.5).
const ERROR_CLASS: u8 = 0xc0;
/// Largest ICMP error in bytes, IP header included (RFC 1812 section 4.3.2.3).
pub const LONGEST_ERROR_V4: usize = 576;
/// Largest ICMPv6 error in bytes, IP header included (RFC 4443 section 2.4(c)).
pub const LONGEST_ERROR_V6: usize = 1280;

/// Turns a frame into its answer.
///
/// A RST leaves by `way`. Every other answer returns as the frame came, with swapped MACs.
///
/// # Errors
///
/// [`DropReason::NoHeadroom`] if the answer cannot be made. The frame is then half edited and must be dropped.
#[inline(always)]
pub fn reply<F: FrameMut + FrameSum>(
    frame: &mut F,
    reply: &Reply,
    way: &ReplyPath<'_>,
) -> Result<(), DropReason> {
    match (reply.reason(), reply.family) {
        (ReplyReason::EchoReply, Family::V4) => echo_v4(frame, reply),
        (ReplyReason::EchoReply, Family::V6) => echo_v6(frame, reply),
        (ReplyReason::Reset, Family::V4) => reset_v4(frame, reply, way),
        (ReplyReason::Reset, Family::V6) => reset_v6(frame, reply, way),
        (_, Family::V4) => error_v4(frame, reply),
        (_, Family::V6) => error_v6(frame, reply),
    }
}

#[inline(always)]
fn echo_v4<F: FrameMut + FrameSum>(frame: &mut F, reply: &Reply) -> Result<(), DropReason> {
    let header = view_mut::<Ipv4, _>(frame, reply.l3)?;
    // Words that swap places leave the sum as it is.
    (header.source, header.destination) = (header.destination, header.source);
    let old = u16::from_be_bytes([header.ttl, header.protocol]);
    header.ttl = echo_ttl(reply, header.ttl);
    let new = u16::from_be_bytes([header.ttl, header.protocol]);
    patch_checksum(header, old, new);
    if !is_later_echo(reply) && set_kind(frame, reply, icmp::v4::ECHO_REPLY)? == 0 {
        set_checksum_of_zeros(frame, reply)?;
    }
    cut_padding(frame, reply)?;
    turn_back(frame)
}

/// Corrects the checksum of an echo reply that is all zeros. No other message leaves here with a sum of zero, the one
/// sum that [`csum::update`] gets wrong.
///
/// Only the first [`LONGEST_SUM`] bytes are looked at. All ones are right for any message whose checksum is zero.
#[inline(always)]
fn set_checksum_of_zeros<F: FrameMut + FrameSum>(
    frame: &mut F,
    reply: &Reply,
) -> Result<(), DropReason> {
    let length = (reply.l3 + reply.length).saturating_sub(reply.l4);
    let sum = frame.sum(reply.l4, length.min(LONGEST_SUM));
    if sum.ok_or(DropReason::NoHeadroom)?.fold() == 0 {
        view_mut::<Icmp, _>(frame, reply.l4)?.checksum = [0xff; 2];
    }
    Ok(())
}

#[inline(always)]
fn echo_v6<F: FrameMut>(frame: &mut F, reply: &Reply) -> Result<(), DropReason> {
    let header = view_mut::<Ipv6, _>(frame, reply.l3)?;
    (header.source, header.destination) = (header.destination, header.source);
    header.hop_limit = echo_ttl(reply, header.hop_limit);
    if !is_later_echo(reply) {
        set_kind(frame, reply, icmp::v6::ECHO_REPLY)?;
    }
    cut_padding(frame, reply)?;
    turn_back(frame)
}

/// Tells whether a fragment is answered that has no ICMP header.
#[inline(always)]
fn is_later_echo(reply: &Reply) -> bool {
    reply.answer == Answer::ECHO_LATER
}

/// Returns the TTL or hop limit of the echo reply to a packet with this one.
#[inline(always)]
fn echo_ttl(reply: &Reply, came_with: u8) -> u8 {
    if is_later_echo(reply) {
        came_with.saturating_sub(1)
    } else {
        TTL
    }
}

/// Sets the type of an ICMP message and returns its new checksum.
#[inline(always)]
fn set_kind<F: FrameMut>(frame: &mut F, reply: &Reply, kind: u8) -> Result<u16, DropReason> {
    let header = view_mut::<Icmp, _>(frame, reply.l4)?;
    let old = u16::from_be_bytes([header.kind, header.code]);
    header.kind = kind;
    let new = u16::from_be_bytes([header.kind, header.code]);
    let check = u16::from_be_bytes(header.checksum);
    let check = csum::update(check, Sum::ZERO.replace_u16(old, new));
    header.checksum = check.to_be_bytes();
    Ok(check)
}

/// Cuts the Ethernet padding, so that an answer is no larger than the packet that it answers.
#[inline(always)]
fn cut_padding<F: FrameMut>(frame: &mut F, reply: &Reply) -> Result<(), DropReason> {
    if frame.truncate(reply.l3 + reply.length) {
        Ok(())
    } else {
        Err(DropReason::NoHeadroom)
    }
}

/// Swaps the MACs, so that the frame returns to its sender.
#[inline(always)]
pub(super) fn turn_back<F: FrameMut>(frame: &mut F) -> Result<(), DropReason> {
    let header = view_mut::<Ethernet, _>(frame, 0)?;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = header.macs;
    header.macs = [g, h, i, j, k, l, a, b, c, d, e, f];
    Ok(())
}

/// Type, code and last four bytes of an ICMP error.
struct Message {
    kind_code: u16,
    rest: u32,
}

#[inline(always)]
const fn message(reply: &Reply) -> Message {
    let (kind, code) = match (reply.family, reply.reason()) {
        (Family::V4, ReplyReason::PacketTooBig) => {
            (icmp::v4::UNREACHABLE, icmp::v4::FRAGMENTATION_NEEDED)
        }
        (Family::V4, ReplyReason::TimeExceeded) => (icmp::v4::TIME_EXCEEDED, 0),
        (Family::V4, _) => (icmp::v4::UNREACHABLE, icmp::v4::PORT_UNREACHABLE),
        (Family::V6, ReplyReason::PacketTooBig) => (icmp::v6::PACKET_TOO_BIG, 0),
        (Family::V6, ReplyReason::TimeExceeded) => (icmp::v6::TIME_EXCEEDED, 0),
        (Family::V6, _) => (icmp::v6::UNREACHABLE, icmp::v6::PORT_UNREACHABLE),
    };
    Message {
        kind_code: u16::from_be_bytes([kind, code]),
        rest: reply.answer.mtu(),
    }
}

/// Cuts the packet to its first `length` bytes and makes `room` bytes in front of it.
///
/// Returns the sum of the quoted bytes.
#[inline(always)]
fn make_quote<F: FrameMut + FrameSum>(
    frame: &mut F,
    reply: &Reply,
    length: usize,
    room: i32,
) -> Result<Sum, DropReason> {
    let sum = frame.sum(reply.l3, length).ok_or(DropReason::NoHeadroom)?;
    if !frame.truncate(reply.l3 + length) {
        return Err(DropReason::NoHeadroom);
    }
    shift_link(frame, reply.l3, -room, reply.family.ether_type())?;
    turn_back(frame)?;
    Ok(sum)
}

/// An ICMP error and the header that it quotes, in one type for one bounds check.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Error<I> {
    ip: I,
    icmp: Icmp,
    quoted: I,
}

/// A RST with its IP header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Reset<I> {
    ip: I,
    tcp: Tcp,
}

#[inline(always)]
const fn error_header(message: &Message, sum: Sum) -> Icmp {
    let sum = sum.add_u16(message.kind_code).add_u32(message.rest);
    let [kind, code] = message.kind_code.to_be_bytes();
    Icmp {
        kind,
        code,
        checksum: sum.checksum().to_be_bytes(),
        rest: message.rest.to_be_bytes(),
    }
}

#[inline(always)]
fn error_v4<F: FrameMut + FrameSum>(frame: &mut F, reply: &Reply) -> Result<(), DropReason> {
    const ROOM: usize = Ipv4::LENGTH + Icmp::LENGTH;
    let length = reply.length.min(LONGEST_ERROR_V4 - ROOM);
    let sum = make_quote(frame, reply, length, ROOM as i32)?;
    let error = view_mut::<Error<Ipv4>, _>(frame, reply.l3)?;
    let (client, service) = (error.quoted.source, error.quoted.destination);
    error.ip = ipv4_header(
        ERROR_CLASS,
        (length + ROOM) as u16,
        0,
        protocol::ICMP,
        service,
        client,
    );
    error.icmp = error_header(&message(reply), sum);
    Ok(())
}

#[inline(always)]
fn error_v6<F: FrameMut + FrameSum>(frame: &mut F, reply: &Reply) -> Result<(), DropReason> {
    const ROOM: usize = Ipv6::LENGTH + Icmp::LENGTH;
    let length = reply.length.min(LONGEST_ERROR_V6 - ROOM);
    let sum = make_quote(frame, reply, length, ROOM as i32)?;
    let payload = (length + Icmp::LENGTH) as u16;
    let error = view_mut::<Error<Ipv6>, _>(frame, reply.l3)?;
    let ends = ends_v6(&error.quoted);
    let pseudo_header = write_v6(&mut error.ip, ERROR_CLASS, payload, protocol::ICMPV6, ends);
    error.icmp = error_header(&message(reply), sum.add_sum(pseudo_header));
    Ok(())
}

/// Returns source and destination address.
#[inline(always)]
fn ends_v6(header: &Ipv6) -> (AddressKey, AddressKey) {
    (
        AddressKey::v6(header.source),
        AddressKey::v6(header.destination),
    )
}

/// Writes the IPv6 header of the answer to a packet with these addresses; returns the sum of the pseudo-header.
#[inline(always)]
fn write_v6(
    header: &mut Ipv6,
    class: u8,
    payload: u16,
    next_header: u8,
    (source, destination): (AddressKey, AddressKey),
) -> Sum {
    header.class_label = [0x60 | class >> 4, class << 4, 0, 0];
    header.payload_length = payload.to_be_bytes();
    header.next_header = next_header;
    header.hop_limit = TTL;
    header.source = destination.octets();
    header.destination = source.octets();
    csum::pseudo_header_v6(
        &header.source,
        &header.destination,
        next_header,
        u32::from(payload),
    )
}

/// The fields of a RST, from the segment that it answers (RFC 9293 section 3.10.7.1).
struct Segment {
    ports: Ports,
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
}

#[inline(always)]
fn segment_of_reset<F: Frame>(frame: &F, reply: &Reply) -> Result<Segment, DropReason> {
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    let header: &Tcp = frame.view(reply.l4).ok_or(DropReason::NoHeadroom)?;
    let flags = TcpFlags(header.flags);
    let ports = Ports {
        source: header.ports.destination,
        destination: header.ports.source,
    };
    if flags.0 & ACK != 0 {
        return Ok(Segment {
            ports,
            sequence: u32::from_be_bytes(header.acknowledgement),
            acknowledgement: 0,
            flags: RST,
        });
    }
    let header_length = usize::from(header.data_offset >> 4) * 4;
    let payload = (reply.l3 + reply.length).saturating_sub(reply.l4 + header_length);
    let length = payload as u32 + u32::from(flags.syn()) + u32::from(flags.fin());
    Ok(Segment {
        ports,
        sequence: 0,
        acknowledgement: u32::from_be_bytes(header.sequence).wrapping_add(length),
        flags: RST | ACK,
    })
}

/// Cuts the frame to the length of a RST and writes the headers in front of its IP header.
///
/// Returns the offset of that IP header, which is `header_length` bytes long.
#[inline(always)]
fn make_room_for_reset<F: FrameMut>(
    frame: &mut F,
    reply: &Reply,
    way: &ReplyPath<'_>,
    header_length: usize,
) -> Result<usize, DropReason> {
    let l3 = way.l3;
    if !frame.truncate(l3 + header_length + Tcp::LENGTH) {
        return Err(DropReason::NoHeadroom);
    }
    match way.macs {
        Some(macs) => {
            let header = view_mut::<Ethernet, _>(frame, 0)?;
            header.macs = *macs;
            if way.vlan != [0; 2] {
                header.ether_type = ethernet::VLAN.to_be_bytes();
                view_mut::<VlanTag, _>(frame, Ethernet::LENGTH)?.control = way.vlan;
            }
            // The verifier does not know that `l3` is behind an Ethernet header.
            let place = frame.opaque::<32>(l3 - 2);
            *view_mut::<[u8; 2], _>(frame, place)? = reply.family.ether_type();
        }
        None => turn_back(frame)?,
    }
    Ok(l3)
}

#[inline(always)]
fn reset_header(segment: &Segment, pseudo_header: Sum) -> Tcp {
    const DATA_OFFSET: u8 = 5 << 4;
    let sum = pseudo_header
        .add_u16(u16::from_be_bytes(segment.ports.source))
        .add_u16(u16::from_be_bytes(segment.ports.destination))
        .add_u32(segment.sequence)
        .add_u32(segment.acknowledgement)
        .add_u16(u16::from_be_bytes([DATA_OFFSET, segment.flags]));
    Tcp {
        ports: segment.ports,
        sequence: segment.sequence.to_be_bytes(),
        acknowledgement: segment.acknowledgement.to_be_bytes(),
        data_offset: DATA_OFFSET,
        flags: segment.flags,
        window: [0; 2],
        checksum: sum.checksum().to_be_bytes(),
        urgent: [0; 2],
    }
}

#[inline(always)]
fn reset_v4<F: FrameMut>(
    frame: &mut F,
    reply: &Reply,
    way: &ReplyPath<'_>,
) -> Result<(), DropReason> {
    const TCP_LENGTH: u16 = Tcp::LENGTH as u16;
    let segment = segment_of_reset(frame, reply)?;
    let header: &Ipv4 = frame.view(reply.l3).ok_or(DropReason::NoHeadroom)?;
    let (client, service) = (header.source, header.destination);
    let l3 = make_room_for_reset(frame, reply, way, Ipv4::LENGTH)?;
    let length = Ipv4::LENGTH as u16 + TCP_LENGTH;
    let pseudo_header = csum::pseudo_header_v4(&service, &client, protocol::TCP, TCP_LENGTH);
    *view_mut(frame, l3)? = Reset {
        ip: ipv4_header(0, length, 0, protocol::TCP, service, client),
        tcp: reset_header(&segment, pseudo_header),
    };
    Ok(())
}

#[inline(always)]
fn reset_v6<F: FrameMut>(
    frame: &mut F,
    reply: &Reply,
    way: &ReplyPath<'_>,
) -> Result<(), DropReason> {
    let segment = segment_of_reset(frame, reply)?;
    let ends = ends_v6(view_mut(frame, reply.l3)?);
    let l3 = make_room_for_reset(frame, reply, way, Ipv6::LENGTH)?;
    let reset = view_mut::<Reset<Ipv6>, _>(frame, l3)?;
    let length = Tcp::LENGTH as u16;
    let pseudo_header = write_v6(&mut reset.ip, 0, length, protocol::TCP, ends);
    reset.tcp = reset_header(&segment, pseudo_header);
    Ok(())
}
