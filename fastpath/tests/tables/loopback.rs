//! The way on in test runs.

use std::net::Ipv4Addr;

use fastpath::nexthop::{NextHop, Resolution};

/// The address that packets are sent from.
pub(crate) const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);

/// A next hop on the device that test runs come in on, so that the action is `XDP_TX`.
pub(crate) fn next_hop() -> Resolution {
    Resolution::Resolved(NextHop {
        ifindex: 1,
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        is_carried: false,
        via_gateway: false,
        vlan: None,
        mtu: 1500,
        source: Some(OWN.into()),
    })
}
