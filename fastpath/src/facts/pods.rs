//! The addresses that pods of this machine have, as the kernel knows them.

use std::{collections::BTreeSet, net::IpAddr};

use super::RequestError;
use crate::netlink::{
    Message, NLM_F_DUMP, Request, connection::Connection, read_address, read_u32,
};

/// Length of `struct ifinfomsg`, and of `struct ifaddrmsg`.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
/// Attribute of a request for addresses: the namespace, by its id in this one.
const IFA_TARGET_NETNSID: u16 = 10;

/// Lists the addresses in the network namespaces at the other ends of this machine's cables. This includes pods behind
/// a bridge.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn pod_addresses() -> Result<BTreeSet<IpAddr>, RequestError> {
    let mut route = Connection::strict_route()?;
    let links = Request::new(libc::RTM_GETLINK, NLM_F_DUMP, &[0u8; LINK_HEADER]);
    let namespaces: BTreeSet<u32> = route.list(&links, namespace)?.into_iter().collect();
    let mut addresses = BTreeSet::new();
    for namespace in namespaces {
        let request = Request::new(libc::RTM_GETADDR, NLM_F_DUMP, &[0u8; ADDRESS_HEADER])
            .attribute(IFA_TARGET_NETNSID, &namespace.to_ne_bytes());
        match route.list(&request, address) {
            Ok(found) => addresses.extend(found),
            // The namespace has gone since the links were listed.
            Err(error) if error.errno() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(addresses)
}

/// Returns the id of the namespace that a cable leads to.
fn namespace(message: &Message<'_>) -> Option<u32> {
    let (_, mut attributes) = message.split::<[u8; LINK_HEADER]>()?;
    let (_, value) = attributes.find(|(kind, _)| *kind == libc::IFLA_LINK_NETNSID)?;
    read_u32(value)
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
