//! Route lookups for one address.

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Reason;
use crate::netlink::connection::RequestError;
use crate::netlink::{Attributes, Message, Request, family_of, read_address, read_u16, read_u32};

const RTAX_MTU: u16 = 2;

/// `struct rtmsg`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Fixed {
    family: u8,
    destination_length: u8,
    source_length: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    route_type: u8,
    flags: u32,
}

/// The kernel's route for one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) route_type: u8,
    pub(super) ifindex: u32,
    /// `None` if the target is on the link. An IPv4 target can have an IPv6 gateway.
    pub(super) gateway: Option<IpAddr>,
    pub(super) source: Option<IpAddr>,
    /// The MTU of the route or of the learnt path in bytes, if it differs from the device's.
    pub(super) mtu: Option<u32>,
    pub(super) encapsulated: bool,
}

/// Returns the request that looks up the route of packets from this machine to an address.
pub(super) fn lookup(target: IpAddr) -> Request {
    let fixed = Fixed {
        family: family_of(target),
        destination_length: match target {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        },
        ..Fixed::default()
    };
    Request::new(libc::RTM_GETROUTE, 0, &fixed).address(libc::RTA_DST, target)
}

/// Returns the reason that a failed lookup gives for the address; `None` if the failure is not about the address.
///
/// The numbers are those of the kernel's `fib_props` (IPv4) and `fib6_prop` (IPv6). A kernel that was booted with
/// `ipv6.disable=1` does not know the request: `EOPNOTSUPP`.
pub(super) fn refusal(error: &RequestError) -> Option<Reason> {
    let RequestError::Refused { source, .. } = error else {
        return None;
    };
    match source.raw_os_error()? {
        libc::ENETUNREACH | libc::ESRCH | libc::EAGAIN | libc::EOPNOTSUPP => Some(Reason::NoRoute),
        libc::EHOSTUNREACH => Some(Reason::Unreachable),
        libc::EINVAL => Some(Reason::Blackhole),
        libc::EACCES => Some(Reason::Prohibited),
        _ => None,
    }
}

/// Reads a route; `None` if the message is about something else.
pub(super) fn decode(message: &Message<'_>) -> Option<Route> {
    if message.kind != libc::RTM_NEWROUTE {
        return None;
    }
    let (fixed, attributes) = message.split::<Fixed>()?;
    let mut route = Route {
        route_type: fixed.route_type,
        ..Route::default()
    };
    for (kind, value) in attributes {
        match kind {
            libc::RTA_OIF => route.ifindex = read_u32(value)?,
            libc::RTA_GATEWAY => route.gateway = Some(read_address(value)?),
            // The attribute begins with a family, which the address's length implies.
            libc::RTA_VIA => route.gateway = Some(read_address(value.get(2..)?)?),
            libc::RTA_PREFSRC => route.source = read_address(value),
            libc::RTA_METRICS => route.mtu = decode_mtu(Attributes(value)),
            libc::RTA_ENCAP_TYPE => route.encapsulated = read_u16(value)? != 0,
            _ => {}
        }
    }
    Some(route)
}

fn decode_mtu(mut metrics: Attributes<'_>) -> Option<u32> {
    let (_, value) = metrics.find(|(kind, _)| *kind == RTAX_MTU)?;
    read_u32(value).filter(|mtu| *mtu != 0)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::netlink::messages;

    fn read(request: Request) -> Option<Route> {
        decode(&messages(&request.into_bytes(0)).next().unwrap())
    }

    fn unicast() -> Request {
        let fixed = Fixed {
            route_type: libc::RTN_UNICAST,
            ..Fixed::default()
        };
        Request::new(libc::RTM_NEWROUTE, 0, &fixed).attribute(libc::RTA_OIF, &3u32.to_ne_bytes())
    }

    #[test]
    fn a_gateway_of_the_other_family_is_read() {
        let gateway: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
        let via = [&[10, 0][..], &gateway.octets()].concat();
        let route = read(unicast().attribute(libc::RTA_VIA, &via)).unwrap();
        assert_eq!(route.gateway, Some(gateway.into()));
        assert_eq!(route.ifindex, 3);
    }

    #[test]
    fn the_mtu_is_found_among_the_metrics() {
        let metrics = [8, 0, 1, 0, 9, 0, 0, 0, 8, 0, 2, 0, 0x78, 5, 0, 0];
        let route = read(unicast().attribute(libc::RTA_METRICS, &metrics)).unwrap();
        assert_eq!(route.mtu, Some(1400));
        let without = read(unicast().attribute(libc::RTA_METRICS, &metrics[..8])).unwrap();
        assert_eq!(without.mtu, None);
    }

    #[test]
    fn a_route_with_a_malformed_gateway_is_none() {
        let wrong_length = unicast().attribute(libc::RTA_GATEWAY, &[1, 2, 3]);
        assert_eq!(read(wrong_length), None);
        let short_via = unicast().attribute(libc::RTA_VIA, &[10]);
        assert_eq!(read(short_via), None);
    }

    #[test]
    fn errors_of_the_lookup_are_told_from_errors_of_the_question() {
        let refused = |number| RequestError::Refused {
            message: None,
            source: io::Error::from_raw_os_error(number),
        };
        let reason = |number| refusal(&refused(number));
        assert_eq!(reason(libc::ENETUNREACH), Some(Reason::NoRoute));
        assert_eq!(reason(libc::EOPNOTSUPP), Some(Reason::NoRoute));
        assert_eq!(reason(libc::EHOSTUNREACH), Some(Reason::Unreachable));
        assert_eq!(reason(libc::EINVAL), Some(Reason::Blackhole));
        assert_eq!(reason(libc::EACCES), Some(Reason::Prohibited));
        assert_eq!(reason(libc::ENOBUFS), None);
        assert_eq!(refusal(&RequestError::Malformed), None);
    }
}
