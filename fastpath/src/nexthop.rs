//! Next hops: the device, MAC addresses, VLAN and MTU by which frames reach a node.
//!
//! The kernel decides: one `RTM_GETROUTE` per target is a FIB lookup that honours policy rules,
//! VRFs, metrics and path MTUs. Links and neighbours are dumped once per refresh, and the three are
//! joined here into what XDP needs to send a frame.
//!
//! ```text
//!   Watcher: "something changed" --> Tracker::refresh --> only the targets whose answer changed
//!                                      |  links, neighbours (one dump each)
//!                                      |  route of each target
//!                                      '- asks the kernel to keep the neighbours in use resolved
//! ```
//!
//! The loop has no memory of events. An event, an overrun of the event socket or a timer all lead to the same full
//! refresh, so a missed change lasts only until the next of these.
//!
//! The kernel itself keeps neighbours fresh. `NTF_EXT_MANAGED` (Linux 5.16) makes it resolve an entry, confirm it
//! again before it goes stale and retry it after a failure, although the kernel's stack sends no packet to it. Our
//! entries carry our own `NDA_PROTOCOL`, so a restarted agent recognises them and withdraws those that no target
//! needs. Entries that are permanent, or that another daemon manages or learnt, are used and left alone. Older kernels
//! are asked with each refresh for every neighbour in use, as by a packet of their own (`NTF_USE`).
//!
//! Kinds of routes and their results:
//!
//! - ECMP: the kernel picks one live path by its hash of the target address. All flows to one node
//!   share that path; different nodes spread over the paths.
//! - VLAN device: frames leave on the device below it, with a tag and the VLAN device's MAC. One
//!   802.1Q tag; stacked tags and 802.1ad are unresolved, unless the agent carries frames.
//! - Bond: the bond's own index, whose driver picks the member.
//! - Devices that take no frames from XDP (bridges, stacked VLANs, a veth whose peer has no program): where the agent
//!   carries frames, it sends them by the device itself.
//! - Devices without Ethernet addresses (tun, WireGuard, IPIP) are unresolved: there is no frame to
//!   write.
//!
//! This module decodes netlink itself because only a dozen attributes matter. Crates that decode everything fail a
//! whole message when a newer kernel or an odd driver adds an attribute that they do not know.

pub(crate) mod link;
mod neighbour;
mod resolver;
mod route;
mod tracker;
mod view;
mod watcher;

use std::io;
use std::net::IpAddr;

use crate::netlink::connection::RequestError;
pub use resolver::{Resolver, Snapshot};
pub use tracker::{Refresh, Tracker};
pub use watcher::{Wake, Waker, Watcher};

/// All that is needed to write and send a frame to one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// Interface index of the egress device; for a VLAN device, that of the device below it.
    pub ifindex: u32,
    /// Whether the device takes no frames from XDP, so that the agent sends them.
    pub is_carried: bool,
    /// Source MAC of the frames.
    pub source_mac: [u8; 6],
    /// Destination MAC of the frames: the gateway's, or the target's if it is on the link.
    pub destination_mac: [u8; 6],
    /// Whether the frame goes to a gateway, and so passes a router.
    pub via_gateway: bool,
    /// VLAN id of the 802.1Q tag to write, if the route leaves through a VLAN device.
    pub vlan: Option<u16>,
    /// The largest packet that this way takes, in bytes, IP header included.
    pub mtu: u32,
    /// The source address that the kernel would use; `None` if the machine has none in this family.
    pub source: Option<IpAddr>,
}

/// Where frames leave that are for a device which does not send them from XDP itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkBelow {
    /// Interface index of the device below it, or its own.
    pub ifindex: u32,
    /// VLAN id of the 802.1Q tag to write; 0 for none.
    pub vlan: u16,
    /// Whether that device takes no frames from XDP, so that the agent sends them.
    pub is_carried: bool,
}

/// The result for one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// Frames can reach the target by this next hop.
    Resolved(NextHop),
    /// The target is an address of this machine.
    Local,
    /// No frame can be sent to the target, for this reason.
    Unresolved(Reason),
}

/// The reason why a target has no next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    #[error("no route")]
    NoRoute,
    /// The route is of type `unreachable`, or the kernel finds no source address or device for it.
    #[error("unreachable route")]
    Unreachable,
    #[error("blackhole route")]
    Blackhole,
    #[error("prohibit route")]
    Prohibited,
    /// The target is a multicast, broadcast or anycast address.
    #[error("not a unicast address")]
    NotUnicast,
    /// The route adds an encapsulation of its own (MPLS, SRv6), which XDP cannot add.
    #[error("route with encapsulation")]
    Encapsulated,
    /// The device, or the device below a VLAN device, is down or has no carrier.
    #[error("link down")]
    LinkDown,
    /// The device vanished between the route lookup and the list of devices.
    #[error("no such device")]
    NoDevice,
    #[error("device without Ethernet address")]
    NoMac,
    /// The device is a VLAN over a VLAN, an 802.1ad VLAN, or a VLAN over another namespace's device.
    #[error("unsupported VLAN device")]
    VlanUnsupported,
    /// The neighbour has not answered. Once a tracker has refreshed, the kernel keeps asking.
    #[error("neighbour unresolved")]
    NeighbourUnresolved,
}

/// A failure to talk to the kernel about routes, links or neighbours.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a netlink socket")]
    Open(#[source] RequestError),
    #[error("cannot {attempt}")]
    Ask {
        attempt: &'static str,
        #[source]
        source: RequestError,
    },
    #[error("cannot look up the route to {target}")]
    Route {
        target: IpAddr,
        #[source]
        source: RequestError,
    },
    #[error(
        "cannot have the kernel keep neighbour {address} on device {ifindex} ({failed} in all)"
    )]
    Keep {
        /// The first neighbour that was refused.
        address: IpAddr,
        ifindex: u32,
        /// How many neighbours were refused in this refresh.
        failed: usize,
        #[source]
        source: RequestError,
    },
    #[error("cannot wait for network changes")]
    Watch(#[source] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Request, messages};

    /// Steps a linear congruential generator (Knuth's MMIX constants) and returns its high half.
    fn next(state: &mut u64) -> usize {
        *state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        usize::try_from(*state >> 32).unwrap()
    }

    #[test]
    fn mutated_messages_do_not_panic() {
        // Headers of 16, 12 and 12 bytes, then every attribute number that is read, nested ones
        // included: each value is again a run of attributes.
        let nested: Vec<u8> = (0..24)
            .flat_map(|kind| [8, 0, kind, 0, 1, 2, 3, 4])
            .collect();
        let seeds = [
            Request::new(libc::RTM_NEWLINK, 0, &[0u8; 16]),
            Request::new(libc::RTM_NEWNEIGH, 0, &[0u8; 12]),
            Request::new(libc::RTM_NEWROUTE, 0, &[0u8; 12]),
        ]
        .map(|seed| {
            (0..40)
                .fold(seed, |seed, kind| seed.attribute(kind, &nested))
                .into_bytes(1)
        });
        let mut heard = std::collections::HashMap::new();
        let mut state = 1;
        let mut read = 0;
        for round in 0..50_000 {
            let mut bytes = seeds[round % seeds.len()].clone();
            for _ in 0..1 + next(&mut state) % 8 {
                let position = next(&mut state) % bytes.len();
                bytes[position] = next(&mut state).to_le_bytes()[0];
            }
            // Cut half of them; the length in front stays true, or nothing would be read.
            bytes.truncate((next(&mut state) % (2 * bytes.len())).max(4));
            let length = u32::try_from(bytes.len()).unwrap();
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            for message in messages(&bytes) {
                read += 1;
                let _ = link::decode(&message);
                let _ = neighbour::decode(&message);
                let _ = route::decode(&message);
            }
            watcher::note(&mut heard, &bytes);
        }
        assert!(
            read > 40_000,
            "only {read} messages were whole enough to be read"
        );
    }
}
