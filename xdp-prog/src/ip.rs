//! What differs between the families, for code that is generic over them.

use crate::{
    abi::{AddressKey, ServiceKeyV4, ServiceKeyV6, Tuple},
    family::Family,
    flow::{Address, FlowKey, V4, V6},
    wire::{ipv4::Ipv4, ipv6::Ipv6, protocol},
    world::Tables,
};

/// What differs between the families.
pub trait Ip: Address {
    /// The family.
    const FAMILY: Family;
    /// Length of a header without options.
    const HEADER_LENGTH: usize;
    /// Protocol number of the family's ICMP.
    const ICMP: u8;
    /// Returns the address as the tables spell it.
    fn key(self) -> AddressKey;
    /// Looks a service up and returns its id and the check that its word must carry.
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(u32, u32)>;
}

impl Ip for V4 {
    const FAMILY: Family = Family::V4;
    const HEADER_LENGTH: usize = Ipv4::LENGTH;
    const ICMP: u8 = protocol::ICMP;

    #[inline(always)]
    fn key(self) -> AddressKey {
        AddressKey::v4(self.0)
    }

    #[inline(always)]
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(u32, u32)> {
        let key = ServiceKeyV4::new(flow.destination.0, flow.destination_port, flow.protocol);
        tables.service_v4(&key).map(|id| (id, key.check()))
    }
}

impl Ip for V6 {
    const FAMILY: Family = Family::V6;
    const HEADER_LENGTH: usize = Ipv6::LENGTH;
    const ICMP: u8 = protocol::ICMPV6;

    #[inline(always)]
    fn key(self) -> AddressKey {
        AddressKey::v6(self.0)
    }

    #[inline(always)]
    fn service<T: Tables>(tables: &T, flow: &FlowKey<Self>) -> Option<(u32, u32)> {
        let key = ServiceKeyV6::new(flow.destination.0, flow.destination_port, flow.protocol);
        tables.service_v6(&key).map(|id| (id, key.check()))
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

    /// Returns the flow as the tables spell it.
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

/// Reads the IP packet of a frame, and goes on with it in code that is generic over the family.
///
/// `$reason` is why there is none. The forms begin with the frame, behind its link header, or at the header of a known
/// family. A macro: a closure that is too large to be inlined becomes a function of its own, and the kernel refuses the
/// type information of what it returns.
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
