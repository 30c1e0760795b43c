//! Interfaces of a namespace: veth pairs, bridges, their addresses, neighbours
//! and counters.

use std::{
    fmt::Write as _,
    fs, io,
    net::IpAddr,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::PoisonError,
    time::Duration,
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{
        BridgeStpState, InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags,
        LinkInfo, LinkMessage,
    },
    neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState},
};

use crate::{Cidr, Error, Namespace, Result, route::family, wait_for};

const ADDRESS_TIMEOUT: Duration = Duration::from_secs(30);
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// An Ethernet address.
pub type Mac = [u8; 6];

/// An interface of a namespace.
#[derive(Debug, Clone)]
pub struct Link<'ns> {
    namespace: &'ns Namespace,
    name: String,
    index: u32,
    mac: Mac,
}

/// Counters of an interface, as netlink reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets dropped on their way in.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped on their way out.
    pub tx_dropped: u64,
}

/// A veth pair that is about to be created between two namespaces.
#[derive(Debug)]
pub struct Veth<'a, 'b> {
    a: End<'a>,
    b: End<'b>,
    queues: u32,
    mtu: u32,
}

#[derive(Debug)]
struct End<'ns> {
    namespace: &'ns Namespace,
    name: String,
    mac: Mac,
}

impl<'a, 'b> Veth<'a, 'b> {
    /// Plans a pair with one queue, an MTU of 1500, and MAC addresses that depend only on the namespaces'
    /// labels and the interfaces' names.
    pub fn between(a: (&'a Namespace, &str), b: (&'b Namespace, &str)) -> Self {
        Self {
            a: End::new(a),
            b: End::new(b),
            queues: 1,
            mtu: 1500,
        }
    }

    /// Sets the number of receive queues and of transmit queues of both ends.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Gives both ends this MTU.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = mtu;
        self
    }

    /// Creates the pair, with both ends up and ready.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], for example when a name is taken; otherwise as for [`Link::wait_until_ready`].
    pub fn create(self) -> Result<(Link<'a>, Link<'b>)> {
        let (a, b) = self.lay()?;
        a.wait_until_ready()?;
        b.wait_until_ready()?;
        Ok((a, b))
    }

    /// Creates the pair with both ends up. The caller waits until they are ready, for example for many pairs
    /// together.
    pub(crate) fn lay(self) -> Result<(Link<'a>, Link<'b>)> {
        let mut peer = self.end(&self.b);
        let fd = self.b.namespace.net().as_raw_fd();
        peer.attributes.push(LinkAttribute::NetNsFd(fd));
        let mut message = self.end(&self.a);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.a.namespace.add_link(message, &self.a.name)?;
        let a = self.a.namespace.link(&self.a.name)?;
        let b = self.b.namespace.link(&self.b.name)?;
        // Not in the request, because an end cannot be up before it has its peer.
        a.set_up()?;
        b.set_up()?;
        Ok((a, b))
    }

    fn end(&self, end: &End<'_>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(end.name.clone()),
            LinkAttribute::Address(end.mac.to_vec()),
            LinkAttribute::Mtu(self.mtu),
            LinkAttribute::NumTxQueues(self.queues),
            LinkAttribute::NumRxQueues(self.queues),
        ];
        message
    }
}

impl<'ns> End<'ns> {
    fn new((namespace, name): (&'ns Namespace, &str)) -> Self {
        Self {
            namespace,
            name: name.to_owned(),
            mac: stable_mac(namespace.label(), name),
        }
    }
}

impl Namespace {
    /// Finds an interface by name.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when there is none.
    pub fn link(&self, name: &str) -> Result<Link<'_>> {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        let message = self
            .get_link(message)
            .map_err(|source| self.error(format!("find the interface {name}"), source))?;
        let mac = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Address(mac) => mac.as_slice().try_into().ok(),
                _ => None,
            });
        Ok(Link {
            namespace: self,
            name: name.to_owned(),
            index: message.header.index,
            mac: mac.unwrap_or_default(),
        })
    }

    /// Creates a bridge that forwards at once: without spanning tree, multicast snooping and netfilter.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], for example when the kernel has no bridges.
    pub fn add_bridge(&self, name: &str) -> Result<Link<'_>> {
        let mut message = link_up();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(stable_mac(self.label(), name).to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                LinkInfo::Data(InfoData::Bridge(vec![
                    InfoBridge::StpState(BridgeStpState::Disabled),
                    InfoBridge::ForwardDelay(0),
                    InfoBridge::MulticastSnooping(false),
                ])),
            ]),
        ];
        self.add_link(message, name)?;
        // With br_netfilter, iptables and its IP header checks would see bridged packets. The keys are missing
        // if it is not built in.
        for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
            let key = format!("net/bridge/{key}");
            if self.sysctl(&key).is_ok() {
                self.set_sysctl(&key, "0")?;
            }
        }
        self.link(name)
    }

    fn add_link(&self, message: LinkMessage, name: &str) -> Result<()> {
        self.request(
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
            || format!("create the interface {name}"),
        )
    }

    fn get_link(&self, message: LinkMessage) -> io::Result<LinkMessage> {
        self.answers(RouteNetlinkMessage::GetLink(message), 0)?
            .into_iter()
            .find_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(message) => Some(message),
                _ => None,
            })
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn request(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        action: impl FnOnce() -> String,
    ) -> Result<()> {
        self.answers(message, flags)
            .map(drop)
            .map_err(|source| self.error(action(), source))
    }

    pub(crate) fn answers(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.rtnl()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .request(message, flags)
    }
}

impl<'ns> Link<'ns> {
    /// Returns the interface's namespace.
    pub fn namespace(&self) -> &'ns Namespace {
        self.namespace
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface's index in its namespace.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the MAC address at the time of the lookup.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Brings the interface up.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when the interface is gone; the same holds for all changes below.
    pub fn set_up(&self) -> Result<()> {
        self.set(link_up(), || "bring up".to_owned())
    }

    /// Takes the interface down. The kernel forgets its routes and IPv6 addresses.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn set_down(&self) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.change_mask = LinkFlags::Up;
        self.set(message, || "take down".to_owned())
    }

    /// Changes the MTU.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], also when the interface does not support the MTU (more than 3506 on veth with XDP).
    pub fn set_mtu(&self, mtu: u32) -> Result<()> {
        self.set_attribute(LinkAttribute::Mtu(mtu), || format!("set MTU {mtu} on"))
    }

    /// Makes the interface a port of a bridge in the same namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn set_bridge(&self, bridge: &Link<'_>) -> Result<()> {
        self.set_attribute(LinkAttribute::Controller(bridge.index), || {
            format!("add to {}", bridge.name)
        })
    }

    /// Adds an address without duplicate address detection. If the interface is up, it accepts packets to the
    /// address when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], for example when the interface already has the address.
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
    /// [`Error::Kernel`], for example when the interface does not have it.
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
    /// [`Error::Kernel`].
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
    /// [`Error::Kernel`] when there is none.
    pub fn delete_neighbour(&self, address: IpAddr) -> Result<()> {
        self.namespace.request(
            RouteNetlinkMessage::DelNeighbour(self.neighbour_message(address)),
            0,
            || format!("delete the neighbour {address} on {}", self.name),
        )
    }

    /// Reads the interface's counters.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn stats(&self) -> Result<Stats> {
        let message = self.get()?;
        let counters = message
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Stats64(counters) => Some(counters),
                _ => None,
            });
        let counters = counters
            .ok_or_else(|| self.error("count on".to_owned(), io::ErrorKind::Other.into()))?;
        Ok(Stats {
            rx_packets: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            rx_dropped: counters.rx_dropped,
            tx_packets: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
            tx_dropped: counters.tx_dropped,
        })
    }

    /// Makes kernel threads process received packets, so that the scheduler spreads them over the cores. By
    /// default the core of the sender does it (Linux `Documentation/networking/napi.rst`, "Threaded NAPI").
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn receive_in_threads(&self) -> Result<()> {
        self.namespace
            .run(|| fs::write(self.sysfs().join("threaded"), "1"))
            .map_err(|source| self.error("have threads receive on".to_owned(), source))
    }

    /// Returns whether the interface is up and has a carrier and, if it is a bridge port, forwards.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn is_ready(&self) -> Result<bool> {
        let flags = self.get()?.header.flags;
        Ok(flags.contains(LinkFlags::Up | LinkFlags::Running) && self.forwards_if_port())
    }

    /// Waits until the interface is ready. After it was brought up, it drops packets until a work queue of the
    /// kernel has seen the carrier.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] when it is not within 30 s.
    pub fn wait_until_ready(&self) -> Result<()> {
        let awaited = format!("{} of {} is ready", self.name, self.namespace.name());
        wait_for(&awaited, READY_TIMEOUT, || match self.is_ready() {
            Ok(true) => Ok(()),
            Ok(false) => Err(String::new()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Returns the interface's directory in sysfs, for use inside [`Namespace::run`].
    pub fn sysfs(&self) -> PathBuf {
        Path::new("/sys/class/net").join(&self.name)
    }

    pub(crate) fn error(&self, action: String, source: io::Error) -> Error {
        self.namespace
            .error(format!("{action} the interface {}", self.name), source)
    }

    /// Returns whether the interface forwards (BR_STATE_FORWARDING is 3) or is no bridge port; then the file
    /// does not exist.
    fn forwards_if_port(&self) -> bool {
        let state = self.sysfs().join("brport/state");
        self.namespace
            .run(|| std::fs::read_to_string(state))
            .map_or(true, |state| state.trim_end() == "3")
    }

    fn get(&self) -> Result<LinkMessage> {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        self.namespace
            .get_link(message)
            .map_err(|source| self.error("read".to_owned(), source))
    }

    pub(crate) fn set_attribute(
        &self,
        attribute: LinkAttribute,
        action: impl FnOnce() -> String,
    ) -> Result<()> {
        let mut message = LinkMessage::default();
        message.attributes.push(attribute);
        self.set(message, action)
    }

    fn set(&self, mut message: LinkMessage, action: impl FnOnce() -> String) -> Result<()> {
        message.header.index = self.index;
        self.namespace
            .request(RouteNetlinkMessage::SetLink(message), 0, || {
                let mut action = action();
                let _ = write!(action, " the interface {}", self.name);
                action
            })
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

fn link_up() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

/// Returns a locally administered address, hashed from the names by FNV-1a, so that it is the same in every run.
fn stable_mac(label: &str, interface: &str) -> Mac {
    let hash = [label, "/", interface]
        .iter()
        .flat_map(|part| part.bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_macs_are_local_unicast_and_differ_by_label_and_interface() {
        let mac = stable_mac("edge0", "eth0");
        assert_eq!(mac[0], 0x02);
        assert_eq!(mac, stable_mac("edge0", "eth0"));
        assert_ne!(mac, stable_mac("edge1", "eth0"));
        assert_ne!(mac, stable_mac("edge0", "eth1"));
    }
}
