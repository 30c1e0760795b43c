//! An entry of a pool's `addresses`: a CIDR, a range or one address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The addresses of one family from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressRangeError {
    #[error("it is no CIDR, no range FIRST-LAST and no address")]
    Form,
    #[error("it has bits beyond its prefix length; write {0}")]
    HostBits(IpNet),
    #[error("its ends are of different families")]
    Families,
    #[error("its end comes before its begin")]
    Order,
    #[error("it has addresses of {0}, which is not unicast or not routed")]
    Special(IpNet),
}

impl AddressRange {
    pub(super) fn family(&self) -> Family {
        Family::of(self.first)
    }

    pub(super) fn first(&self) -> IpAddr {
        self.first
    }

    pub(super) fn last(&self) -> IpAddr {
        self.last
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        // `IpAddr` orders by family first, so an address of the other family is outside.
        (self.first..=self.last).contains(&address)
    }

    pub(super) fn size(&self) -> u128 {
        number(self.last) - number(self.first) + 1
    }

    /// Returns whether the ranges have an address in common.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl From<IpNet> for AddressRange {
    fn from(network: IpNet) -> Self {
        Self {
            first: network.network(),
            last: network.broadcast(),
        }
    }
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;

    fn from_str(text: &str) -> Result<Self, AddressRangeError> {
        let range = if let Ok(network) = text.parse::<IpNet>() {
            if network.addr() != network.network() {
                return Err(AddressRangeError::HostBits(network.trunc()));
            }
            Self::from(network)
        } else {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let address = |text: &str| text.trim().parse().map_err(|_| AddressRangeError::Form);
            Self {
                first: address(first)?,
                last: address(last)?,
            }
        };
        if Family::of(range.first) != Family::of(range.last) {
            return Err(AddressRangeError::Families);
        }
        if range.last < range.first {
            return Err(AddressRangeError::Order);
        }
        match special()
            .into_iter()
            .find(|net| range.meets(&Self::from(*net)))
        {
            Some(network) => Err(AddressRangeError::Special(network)),
            None => Ok(range),
        }
    }
}

/// Counts the addresses of ranges. An address in several ranges counts once.
pub(super) fn size(ranges: &[AddressRange]) -> u128 {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut size = 0;
    let mut counted: Option<IpAddr> = None;
    for range in sorted {
        match counted {
            Some(last) if range.last <= last => continue,
            Some(last) if range.first <= last => size += number(range.last) - number(last),
            _ => size += range.size(),
        }
        counted = Some(range.last);
    }
    size
}

/// Returns the parts of `ranges` that are in none of `others`.
pub(super) fn without<'a>(
    ranges: &[AddressRange],
    others: impl IntoIterator<Item = &'a AddressRange>,
) -> Vec<AddressRange> {
    let mut left = ranges.to_vec();
    for other in others {
        let parts = left.into_iter().flat_map(|range| {
            if !range.meets(other) {
                return [Some(range), None];
            }
            let before =
                previous(other.first).filter(|last| range.first <= *last && *last <= range.last);
            let behind =
                next(other.last).filter(|first| range.first <= *first && *first <= range.last);
            [
                before.map(|last| AddressRange { last, ..range }),
                behind.map(|first| AddressRange { first, ..range }),
            ]
        });
        left = parts.flatten().collect();
    }
    left
}

/// Returns the preceding address; `None` for the first of its family.
fn previous(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits().checked_sub(1)?).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits().checked_sub(1)?).into(),
    })
}

/// Returns the following address; `None` for the last of its family.
pub(super) fn next(address: IpAddr) -> Option<IpAddr> {
    Some(match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits().checked_add(1)?).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits().checked_add(1)?).into(),
    })
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Networks whose addresses cannot be assigned (RFC 6890), and IPv4-mapped addresses, which stand for others.
fn special() -> [IpNet; 8] {
    let v4 = |a, b, length| IpNet::new_assert(Ipv4Addr::new(a, b, 0, 0).into(), length);
    let v6 = |first, sixth, length| {
        IpNet::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, sixth, 0, 0).into(), length)
    };
    [
        v4(0, 0, 8),
        v4(127, 0, 8),
        v4(169, 254, 16),
        v4(224, 0, 3),
        v6(0, 0, 127),
        v6(0, 0xffff, 96),
        v6(0xfe80, 0, 10),
        v6(0xff00, 0, 8),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AddressRange, AddressRangeError> {
        text.parse()
    }

    #[test]
    fn a_block_is_a_cidr_a_range_or_an_address() {
        for (text, first, last, size) in [
            ("192.0.2.0/30", "192.0.2.0", "192.0.2.3", 4),
            ("192.0.2.250 - 192.0.3.4", "192.0.2.250", "192.0.3.4", 11),
            ("192.0.2.7", "192.0.2.7", "192.0.2.7", 1),
            (
                "2001:db8::/64",
                "2001:db8::",
                "2001:db8::ffff:ffff:ffff:ffff",
                1 << 64,
            ),
            ("2001:db8::1-2001:db8::a", "2001:db8::1", "2001:db8::a", 10),
        ] {
            let range = parse(text).unwrap();
            assert_eq!(range.first(), first.parse::<IpAddr>().unwrap(), "{text}");
            assert_eq!(range.last(), last.parse::<IpAddr>().unwrap(), "{text}");
            assert_eq!(range.size(), size, "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "-", "192.0.2.0/33", "192.0.2.1-", "192.0.2.1-3", "web"] {
            assert_eq!(parse(text), Err(AddressRangeError::Form), "{text}");
        }
        let network = "192.0.2.0/24".parse().unwrap();
        assert_eq!(
            parse("192.0.2.1/24"),
            Err(AddressRangeError::HostBits(network))
        );
        assert_eq!(
            parse("192.0.2.1-2001:db8::1"),
            Err(AddressRangeError::Families)
        );
        assert_eq!(parse("192.0.2.2-192.0.2.1"), Err(AddressRangeError::Order));
    }

    #[test]
    fn addresses_that_no_service_can_have_are_refused() {
        for text in [
            "0.0.0.0/0",
            "127.0.0.1",
            "169.254.0.0/24",
            "223.255.255.255-224.0.0.1",
            "255.255.255.255",
            "::1",
            "::ffff:192.0.2.1",
            "fe80::/64",
            "2001:db8::-ff02::1",
        ] {
            assert!(
                matches!(parse(text), Err(AddressRangeError::Special(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_blocks_have_in_common_counts_once() {
        let ranges = [
            "192.0.2.8/29",
            "192.0.2.0-192.0.2.9",
            "192.0.2.4",
            "192.0.2.100",
            "2001:db8::/126",
        ];
        let ranges: Vec<AddressRange> = ranges.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(size(&ranges), 16 + 1 + 4);
        assert_eq!(size(&[]), 0);
    }

    #[test]
    fn what_others_have_is_cut_out() {
        let ranges = |texts: &[&str]| -> Vec<AddressRange> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let all = ranges(&["192.0.2.0/28", "192.0.2.4-192.0.2.20", "2001:db8::/126"]);
        for (others, left) in [
            (
                &[][..],
                &["192.0.2.0/28", "192.0.2.4-192.0.2.20", "2001:db8::/126"][..],
            ),
            (
                &["192.0.2.6"],
                &[
                    "192.0.2.0-192.0.2.5",
                    "192.0.2.7-192.0.2.15",
                    "192.0.2.4-192.0.2.5",
                    "192.0.2.7-192.0.2.20",
                    "2001:db8::/126",
                ],
            ),
            (
                &["192.0.2.0/24", "2001:db8::-2001:db8::2"],
                &["2001:db8::3"],
            ),
            (
                &["192.0.2.8-192.0.2.255", "2001:db8::/32"],
                &["192.0.2.0/29", "192.0.2.4-192.0.2.7"],
            ),
        ] {
            assert_eq!(without(&all, &ranges(others)), ranges(left), "{others:?}");
        }
    }
}
