//! Frame -> [`Packet`]: the offsets and the contents of its headers.
//!
//! The parser follows up to [`MAX_VLAN_TAGS`] VLAN tags, IPv4 options, and up to [`MAX_EXTENSIONS`] IPv6 extension
//! headers. It checks every length before it uses it, because lengths come from the network. It drops nothing: a
//! frame that does not parse yields a [`PassReason`], and the stack handles the frame unless its caller knows better.

pub mod quote;

use crate::{
    abi::Tag,
    flow::{FlowKey, V4, V6},
    frame::Frame,
    reason::PassReason,
    wire::{
        ethernet::{self, Ethernet, VlanTag},
        ipv4::Ipv4,
        ipv6::{Extension, Ipv6},
        protocol,
        transport::{Ports, Sctp, Tcp, Udp},
    },
};

/// Largest number of VLAN tags that the parser follows (802.1ad: a service tag and a customer tag).
pub const MAX_VLAN_TAGS: usize = 2;
/// Largest number of IPv6 extension headers that the parser follows.
pub const MAX_EXTENSIONS: usize = 4;
/// A power of two beyond the offsets of all headers that the parser follows.
const LONGEST_CHAIN: usize = 0x8000;

/// The payload's type and place, as the Ethernet header and the VLAN tags give them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// EtherType of the payload.
    pub ether_type: u16,
    /// Offset of the payload: 14, 18 or 22.
    pub l3: usize,
}

/// A fragment's place: the datagram that it belongs to, and the offset there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The datagram's identification in memory order: four bytes of IPv6; for IPv4 two zeros, then its two bytes.
    pub identification: u32,
    /// Offset within the datagram in units of eight bytes.
    pub offset: u16,
}

/// An IP packet whose headers have been checked against its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<A> {
    /// Offset of the IP header in the frame.
    pub l3: usize,
    /// Offset of the transport header: behind the IP header, its options and extension headers.
    pub l4: usize,
    /// Length of the IP packet in bytes, as its header states it; the frame is at least that long.
    pub length: usize,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Protocol number of the header at `l4`; in a later fragment, of the header that the first fragment has there.
    pub protocol: u8,
    /// The pod's tag, if this is an outer header: the IPv4 identification, or the low bits of the IPv6 flow label.
    pub tag: Tag,
    /// Whether the packet is a fragment, the first one included. A later fragment has no transport header at `l4`.
    pub is_fragment: bool,
    /// The fragment's place in its datagram; meaningless unless `is_fragment`.
    pub piece: Piece,
    /// Source address.
    pub source: A,
    /// Destination address.
    pub destination: A,
}

impl<A> Packet<A> {
    /// Tells whether this is a fragment other than the first: it has no transport header.
    #[inline(always)]
    pub const fn is_later_fragment(&self) -> bool {
        self.is_fragment && self.piece.offset != 0
    }
}

impl<A: Copy> Packet<A> {
    /// Returns the packet's flow with these ports, which are in wire order, the source's first.
    #[inline(always)]
    pub const fn flow_of(&self, ports: u32) -> FlowKey<A> {
        let [a, b, c, d] = ports.to_ne_bytes();
        FlowKey {
            source: self.source,
            destination: self.destination,
            source_port: [a, b],
            destination_port: [c, d],
            protocol: self.protocol,
        }
    }
}

/// Follows the Ethernet header and the VLAN tags of a frame for this machine.
///
/// # Errors
///
/// [`PassReason::RuntFrame`] if the frame ends early, [`PassReason::GroupAddress`] if its destination is a multicast
/// or broadcast MAC, [`PassReason::VlanDepth`] behind more than [`MAX_VLAN_TAGS`] tags.
#[inline(always)]
pub fn link<F: Frame>(frame: &F) -> Result<Link, PassReason> {
    let header: &Ethernet = frame.view(0).ok_or(PassReason::RuntFrame)?;
    if header.is_group() {
        return Err(PassReason::GroupAddress);
    }
    follow_tags(frame, u16::from_be_bytes(header.ether_type))
}

/// Follows the Ethernet header and the VLAN tags of a frame for any destination MAC.
///
/// # Errors
///
/// As [`link`], but never [`PassReason::GroupAddress`].
#[inline(always)]
pub fn any_link<F: Frame>(frame: &F) -> Result<Link, PassReason> {
    let header: &Ethernet = frame.view(0).ok_or(PassReason::RuntFrame)?;
    follow_tags(frame, u16::from_be_bytes(header.ether_type))
}

#[inline(always)]
fn follow_tags<F: Frame>(frame: &F, mut ether_type: u16) -> Result<Link, PassReason> {
    let mut l3 = Ethernet::LENGTH;
    for _ in 0..MAX_VLAN_TAGS {
        if !ethernet::announces_vlan(ether_type) {
            let l3 = frame.opaque::<32>(l3);
            return Ok(Link { ether_type, l3 });
        }
        let tag: &VlanTag = frame.view(l3).ok_or(PassReason::RuntFrame)?;
        ether_type = u16::from_be_bytes(tag.ether_type);
        l3 += VlanTag::LENGTH;
    }
    if ethernet::announces_vlan(ether_type) {
        return Err(PassReason::VlanDepth);
    }
    let l3 = frame.opaque::<32>(l3);
    Ok(Link { ether_type, l3 })
}

/// Reads an IPv4 header with its options.
///
/// # Errors
///
/// [`PassReason::TruncatedIp`] if the frame ends before the packet, [`PassReason::MalformedIp`] if the header
/// contradicts itself.
#[inline(always)]
pub fn ipv4<F: Frame>(frame: &F, l3: usize) -> Result<Packet<V4>, PassReason> {
    let header: &Ipv4 = frame.view(l3).ok_or(PassReason::TruncatedIp)?;
    let header_length = header.header_length();
    let length = header.total_length();
    if header.version() != 4 || header_length < Ipv4::LENGTH || length < header_length {
        return Err(PassReason::MalformedIp);
    }
    if !frame.holds(l3 + length) {
        return Err(PassReason::TruncatedIp);
    }
    Ok(Packet {
        l3,
        l4: l3 + header_length,
        length,
        traffic_class: header.tos,
        hop_limit: header.ttl,
        protocol: header.protocol,
        tag: Tag(u16::from_be_bytes(header.identification)),
        is_fragment: header.is_fragment(),
        piece: {
            let [a, b] = header.identification;
            Piece {
                identification: u32::from_ne_bytes([0, 0, a, b]),
                offset: header.fragment_offset(),
            }
        },
        source: V4(header.source()),
        destination: V4(header.destination()),
    })
}

/// Reads an IPv6 header and follows its extension headers.
///
/// # Errors
///
/// As [`ipv4`]; also [`PassReason::RoutingHeader`] for a source route that is not finished, and
/// [`PassReason::ExtensionDepth`] behind more than [`MAX_EXTENSIONS`] extension headers.
#[inline(always)]
pub fn ipv6<F: Frame>(frame: &F, l3: usize) -> Result<Packet<V6>, PassReason> {
    let header: &Ipv6 = frame.view(l3).ok_or(PassReason::TruncatedIp)?;
    let length = header.total_length();
    if header.version() != 6 {
        return Err(PassReason::MalformedIp);
    }
    if !frame.holds(l3 + length) {
        return Err(PassReason::TruncatedIp);
    }
    let end = follow_extensions(frame, header.next_header, l3 + Ipv6::LENGTH)?;
    if end.l4 > l3 + length {
        return Err(PassReason::MalformedIp);
    }
    Ok(Packet {
        l3,
        l4: end.l4,
        length,
        traffic_class: header.traffic_class(),
        hop_limit: header.hop_limit,
        protocol: end.protocol,
        tag: Tag(header.label_tag()),
        is_fragment: end.is_fragment,
        piece: end.piece,
        source: V6(header.source),
        destination: V6(header.destination),
    })
}

/// The header behind the last extension header.
pub(crate) struct ChainEnd {
    pub(crate) protocol: u8,
    pub(crate) l4: usize,
    pub(crate) is_fragment: bool,
    pub(crate) piece: Piece,
    /// Whether more fragments follow this one in the datagram.
    pub(crate) more_fragments: bool,
}

#[inline(always)]
pub(crate) fn follow_extensions<F: Frame>(
    frame: &F,
    mut protocol: u8,
    mut offset: usize,
) -> Result<ChainEnd, PassReason> {
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(protocol) {
            break;
        }
        let header: &Extension = frame.view(offset).ok_or(PassReason::TruncatedIp)?;
        if protocol == protocol::ROUTING && header.segments_left() != 0 {
            return Err(PassReason::RoutingHeader);
        }
        if protocol == protocol::FRAGMENT && header.is_fragment() {
            // Only the first fragment has its transport header behind this one.
            return Ok(ChainEnd {
                protocol: header.next_header,
                l4: frame.opaque_aside::<LONGEST_CHAIN>(offset + Extension::LENGTH),
                is_fragment: true,
                piece: Piece {
                    identification: u32::from_ne_bytes(header.rest),
                    offset: header.fragment_offset(),
                },
                more_fragments: header.more_fragments(),
            });
        }
        let length = match protocol {
            protocol::FRAGMENT => Extension::LENGTH,
            protocol::AUTHENTICATION => header.authentication_length(),
            _ => header.option_length(),
        };
        offset = frame.opaque_aside::<LONGEST_CHAIN>(offset + length);
        protocol = header.next_header;
    }
    if is_extension(protocol) {
        return Err(PassReason::ExtensionDepth);
    }
    Ok(ChainEnd {
        protocol,
        l4: frame.opaque::<LONGEST_CHAIN>(offset),
        is_fragment: false,
        piece: Piece::default(),
        more_fragments: false,
    })
}

#[inline(always)]
pub(crate) const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION_OPTIONS
            | protocol::MOBILITY
    )
}

/// Reads the ports of a TCP, UDP or SCTP packet, or of the first fragment of one.
///
/// # Errors
///
/// [`PassReason::TruncatedTransport`] if the IP packet or the frame's linear part ends inside the transport header.
#[inline(always)]
pub fn flow<F: Frame, A: Copy>(frame: &F, packet: &Packet<A>) -> Result<FlowKey<A>, PassReason> {
    if packet.l4 + transport_length(packet.protocol) > packet.l3 + packet.length {
        return Err(PassReason::TruncatedTransport);
    }
    let ports: &Ports = frame
        .view(packet.l4)
        .ok_or(PassReason::TruncatedTransport)?;
    Ok(FlowKey {
        source: packet.source,
        destination: packet.destination,
        source_port: ports.source,
        destination_port: ports.destination,
        protocol: packet.protocol,
    })
}

/// Returns the length in bytes of a transport header without options; for unknown protocols, that of UDP.
#[inline(always)]
pub const fn transport_length(protocol: u8) -> usize {
    match protocol {
        protocol::TCP => Tcp::LENGTH,
        protocol::SCTP => Sctp::LENGTH,
        _ => Udp::LENGTH,
    }
}

/// Flags and numbers of a TCP header, in host order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// TCP flags.
    pub flags: TcpFlags,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
}

impl Segment {
    /// Reads a TCP header.
    #[inline(always)]
    pub const fn of(header: &Tcp) -> Self {
        Self {
            flags: TcpFlags(header.flags),
            sequence: u32::from_be_bytes(header.sequence),
            acknowledgement: u32::from_be_bytes(header.acknowledgement),
        }
    }
}

/// The flags of a TCP header; zero for other protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    const FIN: u8 = 0x01;
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    const PSH: u8 = 0x08;
    const ACK: u8 = 0x10;

    /// Tells whether the sender has no more data (FIN).
    #[inline(always)]
    pub const fn fin(self) -> bool {
        self.0 & Self::FIN != 0
    }

    /// Tells whether the sender aborts the connection.
    #[inline(always)]
    pub const fn rst(self) -> bool {
        self.0 & Self::RST != 0
    }

    /// Tells whether the receiver shall deliver the data at once.
    #[inline(always)]
    pub const fn psh(self) -> bool {
        self.0 & Self::PSH != 0
    }

    /// Tells whether the acknowledgement number is valid.
    #[inline(always)]
    pub const fn has_acknowledgement(self) -> bool {
        self.0 & Self::ACK != 0
    }

    /// Tells whether the segment acknowledges data of an open connection: an ACK without SYN and RST.
    #[inline(always)]
    pub const fn acknowledges(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::ACK
    }

    /// Tells whether the sender opens or accepts a connection.
    #[inline(always)]
    pub const fn syn(self) -> bool {
        self.0 & Self::SYN != 0
    }

    /// Tells whether this is a client's first segment: a SYN without ACK.
    #[inline(always)]
    pub const fn begins_connection(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }

    /// Tells whether this is a server's first segment: a SYN+ACK.
    #[inline(always)]
    pub const fn accepts_connection(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST) == Self::SYN | Self::ACK
    }

    /// Tells whether this neither begins a connection nor ends its sender's half.
    #[inline(always)]
    pub const fn goes_on(self) -> bool {
        !self.fin() && !self.begins_connection()
    }
}

/// Reads the flags of a packet whose ports have been read; zero unless it is TCP.
#[inline(always)]
pub fn tcp_flags<F: Frame, A>(frame: &F, packet: &Packet<A>) -> TcpFlags {
    if packet.protocol != protocol::TCP {
        return TcpFlags::default();
    }
    frame
        .view::<Tcp>(packet.l4)
        .map_or(TcpFlags::default(), |header| TcpFlags(header.flags))
}
