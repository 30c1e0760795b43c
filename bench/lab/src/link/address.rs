//! Addresses and neighbours of an interface.

use std::{net::IpAddr, time::Duration};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::LinkFlags,
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
};

use super::{Link, Mac};
use crate::{Cidr, Result, route::family, wait_for};

const ADDRESS_TIMEOUT: Duration = Duration::from_secs(30);

impl Link<'_> {
    /// Adds an address without duplicate address detection. If the interface is up, it accepts packets to the
    /// address when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel), for example when the interface already has the address.
    pub fn add_address(&self, address: Cidr) -> Result<()> {
        self.namespace.request(
            RouteNetlinkMessage::NewAddress(self.address_message(address)),
            NLM_F_CREATE | NLM_F_EXCL,
            || format!("add {address} to {}", self.name),
        )?;
        if !self.get()?.header.flags.contains(LinkFlags::Up) {
            return Ok(());
        }
        // IPv6 inserts the local route from a work queue, even without detection. Until then packets to the
        // address are dropped as not for this host.
        let awaited = format!("{address} on {} is local", self.name);
        wait_for(&awaited, ADDRESS_TIMEOUT, || {
            self.namespace.is_local(address.address)
        })
    }

    /// Removes an address.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel), for example when the interface does not have it.
    pub fn remove_address(&self, address: Cidr) -> Result<()> {
        self.namespace.request(
            RouteNetlinkMessage::DelAddress(self.address_message(address)),
            0,
            || format!("remove {address} from {}", self.name),
        )
    }

    /// Sets a permanent neighbour entry. It replaces a learnt one.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel).
    pub fn set_neighbour(&self, address: IpAddr, mac: Mac) -> Result<()> {
        let mut message = self.neighbour_message(address);
        message.header.state = NeighbourState::Permanent;
        let mac = NeighbourAttribute::LinkLayerAddress(mac.to_vec());
        message.attributes.push(mac);
        self.namespace.request(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            || format!("set the neighbour {address} on {}", self.name),
        )
    }

    /// Deletes a neighbour entry, learnt or permanent.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel) when there is none.
    pub fn delete_neighbour(&self, address: IpAddr) -> Result<()> {
        self.namespace.request(
            RouteNetlinkMessage::DelNeighbour(self.neighbour_message(address)),
            0,
            || format!("delete the neighbour {address} on {}", self.name),
        )
    }

    fn address_message(&self, Cidr { address, length }: Cidr) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = length;
        message.header.index = self.index;
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
        ];
        message
    }

    fn neighbour_message(&self, address: IpAddr) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = self.index;
        message.attributes = vec![NeighbourAttribute::Destination(address.into())];
        message
    }
}
