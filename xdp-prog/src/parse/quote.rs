//! The packet that an ICMP error quotes.
//!
//! An error of either version carries the beginning of the packet that it is about behind its own eight bytes. RFC
//! 792 promises the IP header and eight bytes more.

use crate::{
    flow::{FlowKey, V4, V6},
    frame::Frame,
    wire::{
        ipv4::Ipv4,
        ipv6::{Extension, Ipv6},
        protocol,
        transport::Ports,
    },
};

/// Bytes of the transport header that every quote has.
pub const QUOTED_TRANSPORT: usize = 8;

/// A quoted packet whose ports can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote<A> {
    /// Offset of the quoted IP header in the frame.
    pub l3: usize,
    /// Offset of the quoted transport header in the frame.
    pub l4: usize,
    /// The flow in the direction of the error: source and destination of the quoted packet are swapped.
    pub flow: FlowKey<A>,
}

/// Reads a quoted IPv4 packet between `l3` and `end`.
///
/// Returns `None` if the quote is cut short, or is a later fragment, which has no ports.
#[inline(always)]
pub fn ipv4<F: Frame>(frame: &F, l3: usize, end: usize) -> Option<Quote<V4>> {
    let header: &Ipv4 = frame.view(l3)?;
    let l4 = l3 + header.header_length();
    if header.version() != 4
        || header.header_length() < Ipv4::LENGTH
        || header.fragment_offset() != 0
    {
        return None;
    }
    if l4 + QUOTED_TRANSPORT > end {
        return None;
    }
    let ports: &Ports = frame.view(l4)?;
    Some(Quote {
        l3,
        l4,
        flow: FlowKey {
            source: V4(header.source()),
            destination: V4(header.destination()),
            source_port: ports.source,
            destination_port: ports.destination,
            protocol: header.protocol,
        }
        .reversed(),
    })
}

/// Reads a quoted IPv6 packet between `l3` and `end`.
///
/// It follows only one extension header, a fragment header, because servers send no other. Returns `None` as [`ipv4`]
/// does.
#[inline(always)]
pub fn ipv6<F: Frame>(frame: &F, l3: usize, end: usize) -> Option<Quote<V6>> {
    let header: &Ipv6 = frame.view(l3)?;
    if header.version() != 6 {
        return None;
    }
    let mut protocol = header.next_header;
    let mut l4 = l3 + Ipv6::LENGTH;
    if protocol == protocol::FRAGMENT {
        let fragment: &Extension = frame.view(l4)?;
        if fragment.fragment_offset() != 0 {
            return None;
        }
        protocol = fragment.next_header;
        l4 += Extension::LENGTH;
    }
    if l4 + QUOTED_TRANSPORT > end {
        return None;
    }
    let ports: &Ports = frame.view(l4)?;
    Some(Quote {
        l3,
        l4,
        flow: FlowKey {
            source: V6(header.source),
            destination: V6(header.destination),
            source_port: ports.source,
            destination_port: ports.destination,
            protocol,
        }
        .reversed(),
    })
}
