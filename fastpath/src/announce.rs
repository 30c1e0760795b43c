//! Announcements: frames that tell all neighbours on a link the MAC of an address at once.
//!
//! The datapath answers those who ask; an announcement updates those who have cached another MAC. For IPv4 it is a
//! gratuitous ARP request and a reply, because some neighbours accept only one of them (RFC 5227 section 3). For IPv6
//! it is an unsolicited neighbour advertisement (RFC 4861 section 7.2.6).

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket},
};
use xdp_prog::{
    rewrite::neighbour::fill_checksum,
    wire::{
        ethernet::{self, Ethernet},
        icmp::{self, Icmp},
        ipv6::Ipv6,
        neighbour::{ALL_NODES, ALL_NODES_MAC, Advertisement, Arp, Discovery},
        protocol,
    },
};
use zerocopy::IntoBytes;

use crate::{
    facts::{self, RequestError, connection::Connection},
    nexthop::link,
};

const BROADCAST: [u8; 6] = [0xff; 6];

/// An Ethernet interface whose neighbours get announcements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub mac: [u8; 6],
    /// Where its frames come in: interface indices of the devices below it, each with the VLAN id of the frames
    /// there, or 0.
    pub arrivals: BTreeSet<(u32, u16)>,
    address: LinkAddr,
}

/// Reasons why the interfaces could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum LinksError {
    #[error("cannot list the MACs of interfaces")]
    Macs(#[source] io::Error),
    #[error("cannot list interfaces")]
    Interfaces(#[source] RequestError),
}

/// Returns those of the named interfaces that exist and are Ethernet.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn links(names: &BTreeSet<String>) -> Result<Vec<Link>, LinksError> {
    let interfaces = facts::links().map_err(LinksError::Interfaces)?;
    let vlans = vlans().map_err(LinksError::Interfaces)?;
    let addresses = getifaddrs().map_err(|errno| LinksError::Macs(errno.into()))?;
    let mut links = Vec::new();
    for entry in addresses.filter(|entry| names.contains(&entry.interface_name)) {
        let Some(address) = entry
            .address
            .and_then(|address| address.as_link_addr().copied())
        else {
            continue;
        };
        let Some(mac) = address
            .addr()
            .filter(|_| address.hatype() == libc::ARPHRD_ETHER)
        else {
            continue;
        };
        let Ok(index) = u32::try_from(address.ifindex()) else {
            continue;
        };
        let (carrier, vlan) = vlans.get(&index).copied().unwrap_or((index, 0));
        // A bond's frames come in by its members.
        let members = interfaces
            .iter()
            .filter(|other| other.controller == Some(carrier))
            .map(|member| member.index);
        links.push(Link {
            name: entry.interface_name,
            mac,
            arrivals: members
                .chain([carrier])
                .map(|index| (index, vlan))
                .collect(),
            address,
        });
    }
    Ok(links)
}

/// Returns the index of the device below each VLAN device, and the VLAN id.
fn vlans() -> Result<BTreeMap<u32, (u32, u16)>, RequestError> {
    let devices = Connection::route()?.list(&link::list(), link::decode)?;
    let vlan_of = |link: link::Link| {
        let vlan = link.vlan?;
        let is_plain = vlan.ethertype == link::ETHERTYPE_VLAN;
        Some((link.ifindex, (vlan.lower.filter(|_| is_plain)?, vlan.id)))
    };
    Ok(devices.into_iter().filter_map(vlan_of).collect())
}

/// Sends announcements.
#[derive(Debug)]
pub struct Announcer {
    socket: OwnedFd,
}

impl Announcer {
    /// Opens a socket that sends frames and receives none.
    ///
    /// # Errors
    ///
    /// Fails if the process may not open it (`CAP_NET_RAW`), or has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
        Ok(Self { socket })
    }

    /// Tells all neighbours on a link that an address has the link's MAC.
    ///
    /// # Errors
    ///
    /// Fails if the interface is down or gone, or if its queue is full.
    pub fn announce(&self, address: IpAddr, link: &Link) -> io::Result<()> {
        match address {
            IpAddr::V4(address) => {
                for operation in [Arp::REQUEST, Arp::REPLY] {
                    self.send(&gratuitous(operation, address, link.mac), link)?;
                }
                Ok(())
            }
            IpAddr::V6(address) => self.send(&unsolicited(address, link.mac), link),
        }
    }

    pub(crate) fn send(&self, frame: &[u8], link: &Link) -> io::Result<()> {
        let flags = MsgFlags::empty();
        sendto(self.socket.as_raw_fd(), frame, &link.address, flags)?;
        Ok(())
    }
}

fn frame(destination: [u8; 6], source: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&destination);
    macs[6..].copy_from_slice(&source);
    let header = Ethernet {
        macs,
        ether_type: ether_type.to_be_bytes(),
    };
    [header.as_bytes(), payload].concat()
}

fn gratuitous(operation: [u8; 8], address: Ipv4Addr, mac: [u8; 6]) -> Vec<u8> {
    let message = Arp {
        operation,
        sender_mac: mac,
        sender: address.octets(),
        target_mac: if operation == Arp::REQUEST {
            [0; 6]
        } else {
            BROADCAST
        },
        target: address.octets(),
    };
    frame(BROADCAST, mac, ethernet::ARP, message.as_bytes())
}

fn unsolicited(address: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    const PAYLOAD: [u8; 2] = [0, Advertisement::PAYLOAD.to_le_bytes()[0]];
    let mut message = Advertisement {
        discovery: Discovery {
            ip: Ipv6 {
                class_label: [0x60, 0, 0, 0],
                payload_length: PAYLOAD,
                next_header: protocol::ICMPV6,
                hop_limit: Discovery::HOP_LIMIT,
                source: address.octets(),
                destination: ALL_NODES,
            },
            icmp: Icmp {
                kind: icmp::v6::NEIGHBOUR_ADVERTISEMENT,
                rest: [Advertisement::OVERRIDE, 0, 0, 0],
                ..Icmp::default()
            },
            target: address.octets(),
        },
        option: Advertisement::TARGET_MAC,
        mac,
    };
    fill_checksum(&mut message);
    frame(ALL_NODES_MAC, mac, ethernet::IPV6, message.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x17];

    #[test]
    fn gratuitous_arp_is_as_rfc_5227_has_it() {
        let address = Ipv4Addr::new(192, 0, 2, 9);
        let request = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0x17, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 1, // request for an Ethernet address
            2, 0, 0, 0, 0, 0x17, 192, 0, 2, 9, // sender
            0, 0, 0, 0, 0, 0, 192, 0, 2, 9, // target
        ];
        assert_eq!(gratuitous(Arp::REQUEST, address, MAC), request);
        let mut reply = request;
        reply[21] = 2;
        reply[32..38].fill(0xff);
        assert_eq!(gratuitous(Arp::REPLY, address, MAC), reply);
    }

    #[test]
    fn unsolicited_advertisement_is_as_rfc_4861_has_it() {
        let address: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let [a @ .., _] = address.octets();
        let expected = [
            &[0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0x17, 0x86, 0xdd][..],
            &[0x60, 0, 0, 0, 0, 32, 58, 255],
            &a,
            &[9],
            &[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            // Sum by hand: addresses 2001 0db8 0009 (twice, one of them the target), ff02 0001, length
            // 0020, protocol 003a, 8800, 2000, 0201 0200 0000 0017.
            &[136, 0, 0xf9, 0x04, 0x20, 0, 0, 0],
            &a,
            &[9],
            &[2, 1],
            &MAC,
        ]
        .concat();
        assert_eq!(unsolicited(address, MAC), expected);
    }
}
