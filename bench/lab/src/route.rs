//! Prefixes and routes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteNextHop, RouteProtocol,
        RouteScope, RouteType,
    },
};

use crate::{Error, Link, Namespace, Result};

/// An address with a prefix length, for an interface or a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address; for a route its host bits are zero.
    pub address: IpAddr,
    /// The prefix length.
    pub length: u8,
}

impl Cidr {
    /// The default route of IPv4.
    pub const ANY_V4: Self = Self {
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        length: 0,
    };
    /// The default route of IPv6.
    pub const ANY_V6: Self = Self {
        address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        length: 0,
    };

    /// Returns the prefix of one address.
    pub fn host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self {
            address,
            length: if address.is_ipv4() { 32 } else { 128 },
        }
    }
}

pub(crate) fn cidr(address: impl Into<IpAddr>, length: u8) -> Cidr {
    Cidr {
        address: address.into(),
        length,
    }
}

/// Converts 11 to 0x11, so that an IPv6 address reads like the IPv4 address.
pub(crate) fn decimal_as_hex(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
}

impl fmt::Display for Cidr {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let prefix = Self {
                address: address.parse().ok()?,
                length: length.parse().ok()?,
            };
            (prefix.length <= Self::host(prefix.address).length).then_some(prefix)
        };
        parse().ok_or_else(|| Error::Invalid {
            what: "prefix",
            value: text.to_owned(),
            expected: "an address, a slash and a length that the family has",
        })
    }
}

/// A route in the main table.
#[derive(Debug, Clone)]
pub struct Route {
    to: Cidr,
    gateways: Vec<IpAddr>,
    interface: Option<u32>,
    mtu: Option<u32>,
}

impl Route {
    /// Starts a route to a prefix; it needs a gateway or an interface.
    pub fn to(to: Cidr) -> Self {
        Self {
            to,
            gateways: Vec::new(),
            interface: None,
            mtu: None,
        }
    }

    /// Adds a gateway. With several gateways, flows are spread over them.
    #[must_use]
    pub fn via(mut self, gateway: impl Into<IpAddr>) -> Self {
        self.gateways.push(gateway.into());
        self
    }

    /// Sends by this interface. Without a gateway, packets go straight to the destination.
    #[must_use]
    pub fn through(mut self, link: &Link<'_>) -> Self {
        self.interface = Some(link.index());
        self
    }

    /// Sets the MTU of the path.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(self.to.address),
            destination_prefix_length: self.to.length,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope: if self.gateways.is_empty() {
                RouteScope::Link
            } else {
                RouteScope::Universe
            },
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Destination(self.to.address.into()));
        attributes.extend(self.interface.map(RouteAttribute::Oif));
        match self.gateways.as_slice() {
            [] => {}
            [gateway] => attributes.push(RouteAttribute::Gateway((*gateway).into())),
            several => attributes.push(RouteAttribute::MultiPath(
                several.iter().map(next_hop).collect(),
            )),
        }
        if let Some(mtu) = self.mtu {
            attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
        }
        message
    }
}

impl Namespace {
    /// Adds a route.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when the prefix has a route already, or a gateway is unreachable.
    pub fn add_route(&self, route: &Route) -> Result<()> {
        self.request(
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_EXCL,
            || format!("add the route to {}", route.to),
        )
    }

    /// Adds a route, replacing the one to the same prefix.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when a gateway is unreachable.
    pub fn replace_route(&self, route: &Route) -> Result<()> {
        self.request(
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_REPLACE,
            || format!("replace the route to {}", route.to),
        )
    }

    /// Deletes the route to a prefix.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when there is none.
    pub fn delete_route(&self, to: Cidr) -> Result<()> {
        let mut message = Route::to(to).message();
        // These values match a route of any scope and origin.
        message.header.scope = RouteScope::NoWhere;
        message.header.protocol = RouteProtocol::Unspec;
        self.request(RouteNetlinkMessage::DelRoute(message), 0, || {
            format!("delete the route to {to}")
        })
    }

    /// Returns `Ok` if packets to `address` are for this machine itself.
    pub(crate) fn is_local(&self, address: IpAddr) -> std::result::Result<(), String> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = Cidr::host(address).length;
        message.attributes = vec![RouteAttribute::Destination(address.into())];
        let answers = self
            .answers(RouteNetlinkMessage::GetRoute(message), 0)
            .map_err(|error| error.to_string())?;
        match answers.as_slice() {
            [RouteNetlinkMessage::NewRoute(route)] if route.header.kind == RouteType::Local => {
                Ok(())
            }
            _ => Err("no local route".to_owned()),
        }
    }
}

fn next_hop(gateway: &IpAddr) -> RouteNextHop {
    let mut hop = RouteNextHop::default();
    hop.attributes = vec![RouteAttribute::Gateway((*gateway).into())];
    hop
}

pub(crate) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_reads_as_it_prints() {
        for text in ["10.0.1.0/24", "fd00:99::/112", "0.0.0.0/0"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_prefix_longer_than_its_family_is_refused() {
        for text in ["10.0.0.1/33", "fd00::/129", "10.0.0.1", "x/8"] {
            let error = text.parse::<Cidr>().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
