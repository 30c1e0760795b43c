//! The differences between the IP families, as a trait for generic code.

use crate::{
    abi::{AddressKey, IndexEntry, ServiceKeyV4, ServiceKeyV6, Tuple},
    family::Family,
    flow::{Address, FlowKey, V4, V6},
    wire::{ipv4::Ipv4, ipv6::Ipv6, protocol},
    world::Tables,
};

/// An IP family, named by its address type.
pub trait Ip: Address {
    /// The family.
    const FAMILY: Family;
    /// Length of the IP header without options, in bytes.
    const HEADER_LENGTH: usize;
    /// Length of the header that fragments alone have, in bytes; 0 if the IP header says it.
    const FRAGMENT_HEADER_LENGTH: usize;
    /// Protocol number of ICMP or ICMPv6.
    const ICMP: u8;
    /// Returns the address as a table key.
    fn key(self) -> AddressKey;
    /// Looks the destination's service up; returns what the index says of it, and the check that the service must
    /// carry.
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(IndexEntry, u32)>;
}

impl Ip for V4 {
    const FAMILY: Family = Family::V4;
    const HEADER_LENGTH: usize = Ipv4::LENGTH;
    const FRAGMENT_HEADER_LENGTH: usize = 0;
    const ICMP: u8 = protocol::ICMP;

    #[inline(always)]
    fn key(self) -> AddressKey {
        AddressKey::v4(self.0)
    }

    #[inline(always)]
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(IndexEntry, u32)> {
        let key = ServiceKeyV4::new(flow.destination.0, flow.destination_port, flow.protocol);
        tables.service_v4(&key).map(|entry| (entry, key.check()))
    }
}

impl Ip for V6 {
    const FAMILY: Family = Family::V6;
    const HEADER_LENGTH: usize = Ipv6::LENGTH;
    const FRAGMENT_HEADER_LENGTH: usize = 8;
    const ICMP: u8 = protocol::ICMPV6;

    #[inline(always)]
    fn key(self) -> AddressKey {
        AddressKey::v6(self.0)
    }

    #[inline(always)]
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(IndexEntry, u32)> {
        let key = ServiceKeyV6::new(flow.destination.0, flow.destination_port, flow.protocol);
        tables.service_v6(&key).map(|entry| (entry, key.check()))
    }
}

impl<A: Ip> FlowKey<A> {
    /// Returns both ports in wire order, the source's first.
    #[inline(always)]
    pub const fn ports(&self) -> u32 {
        let [a, b] = self.source_port;
        let [c, d] = self.destination_port;
        u32::from_ne_bytes([a, b, c, d])
    }

    /// Returns the flow as a table key.
    #[inline(always)]
    pub fn tuple(&self) -> Tuple {
        Tuple::new(
            self.source.key(),
            self.destination.key(),
            self.source_port,
            self.destination_port,
            self.protocol,
        )
    }
}

/// Reads the IP packet of a frame and runs an expression that is generic over the family.
///
/// `$go_on` sees the packet as `$packet`; `$end` sees the reason why there is none as `$reason`. The three forms
/// begin at the frame, behind its link header, or at the IP header of a known family. This is a macro because the
/// compiler makes a function of a closure that is too large to be inlined, and the kernel refuses the type
/// information of its result.
macro_rules! with_packet {
    ($frame:expr, $packet:ident => $go_on:expr, $reason:ident => $end:expr $(,)?) => {
        match $crate::parse::link($frame) {
            Ok(link) => with_packet!($frame, behind link, $packet => $go_on, $reason => $end),
            Err($reason) => $end,
        }
    };
    ($frame:expr, behind $link:expr, $packet:ident => $go_on:expr, $reason:ident => $end:expr $(,)?) => {
        match $link.ether_type {
            $crate::wire::ethernet::IPV4 => match $crate::parse::ipv4($frame, $link.l3) {
                Ok($packet) => $go_on,
                Err($reason) => $end,
            },
            $crate::wire::ethernet::IPV6 => match $crate::parse::ipv6($frame, $link.l3) {
                Ok($packet) => $go_on,
                Err($reason) => $end,
            },
            _ => {
                let $reason = $crate::reason::PassReason::NotIp;
                $end
            }
        }
    };
    ($frame:expr, $family:expr, at $l3:expr, $packet:ident => $go_on:expr, $reason:pat => $end:expr $(,)?) => {
        match $family {
            $crate::family::Family::V4 => match $crate::parse::ipv4($frame, $l3) {
                Ok($packet) => $go_on,
                Err($reason) => $end,
            },
            $crate::family::Family::V6 => match $crate::parse::ipv6($frame, $l3) {
                Ok($packet) => $go_on,
                Err($reason) => $end,
            },
        }
    };
}
pub(crate) use with_packet;
