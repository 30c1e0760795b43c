//! The network namespaces and the addresses that pods of this machine have, as the kernel knows them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::RequestError;
use crate::netlink::{
    Message, NLM_F_ACK, NLM_F_DUMP, Request, connection::Connection, read_address, read_u32,
};

/// Length of `struct ifinfomsg`, and of `struct ifaddrmsg`.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
/// Offset of the device's index in `struct ifinfomsg`.
const LINK_INDEX: usize = 4;
/// Attribute of a request for addresses: the namespace, by its id in this one.
const IFA_TARGET_NETNSID: u16 = 10;

/// Devices of this machine whose other end is in another network namespace, by that namespace's id in this one.
pub type NamespaceDevices = BTreeMap<u32, BTreeSet<u32>>;

/// The namespaces that have an address, by the address. Two pods that have one address at different times differ by their
/// devices: the kernel never gives an index twice.
pub type PodAddresses = BTreeMap<IpAddr, NamespaceDevices>;

/// Lists the addresses in the network namespaces at the other ends of this machine's cables. This includes pods behind
/// a bridge.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn pod_addresses() -> Result<PodAddresses, RequestError> {
    addresses_in(&devices_to_namespaces()?)
}

/// Lists the devices of this machine that lead to other network namespaces.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn devices_to_namespaces() -> Result<NamespaceDevices, RequestError> {
    let links = Request::new(libc::RTM_GETLINK, NLM_F_DUMP, &[0u8; LINK_HEADER]);
    let mut found = NamespaceDevices::new();
    for (namespace, device) in Connection::route()?.list(&links, namespace_behind)? {
        found.entry(namespace).or_default().insert(device);
    }
    Ok(found)
}

/// Lists the addresses in network namespaces, by a request for each namespace.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn addresses_in(namespaces: &NamespaceDevices) -> Result<PodAddresses, RequestError> {
    let mut route = Connection::strict_route()?;
    let mut addresses = PodAddresses::new();
    for (namespace, devices) in namespaces {
        let request = Request::new(libc::RTM_GETADDR, NLM_F_DUMP, &[0u8; ADDRESS_HEADER])
            .attribute(IFA_TARGET_NETNSID, &namespace.to_ne_bytes());
        match route.list(&request, address) {
            Ok(found) => {
                for address in found {
                    let places = addresses.entry(address).or_default();
                    places.insert(*namespace, devices.clone());
                }
            }
            // The namespace has gone since the links were listed.
            Err(error) if error.errno() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(addresses)
}

/// Tells whether this machine has a device with this index. Where the kernel does not tell, it has.
pub fn has_device(index: u32) -> bool {
    let mut header = [0u8; LINK_HEADER];
    header[LINK_INDEX..][..size_of::<u32>()].copy_from_slice(&index.to_ne_bytes());
    let request = Request::new(libc::RTM_GETLINK, NLM_F_ACK, &header);
    let answer = Connection::route().and_then(|mut route| route.ask(request));
    !matches!(answer, Err(error) if error.errno() == Some(libc::ENODEV))
}

/// Returns the id of the namespace that a device leads to, and the device's index here.
fn namespace_behind(message: &Message<'_>) -> Option<(u32, u32)> {
    let (header, mut attributes) = message.split::<[u8; LINK_HEADER]>()?;
    let (_, value) = attributes.find(|(kind, _)| *kind == libc::IFLA_LINK_NETNSID)?;
    let index = header.get(LINK_INDEX..)?.get(..size_of::<u32>())?;
    Some((read_u32(value)?, read_u32(index)?))
}

fn address(message: &Message<'_>) -> Option<IpAddr> {
    let (_, attributes) = message.split::<[u8; ADDRESS_HEADER]>()?;
    let mut address = None;
    for (kind, value) in attributes {
        match kind {
            // Of a device with a peer, this one is its own.
            libc::IFA_LOCAL => return read_address(value),
            libc::IFA_ADDRESS => address = read_address(value),
            _ => {}
        }
    }
    address
}
