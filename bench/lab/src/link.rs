//! Interfaces of a namespace: their state, their MTU and their counters.

mod address;
mod create;

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::PoisonError,
    time::Duration,
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
};

pub use self::create::Veth;
use crate::{Error, Namespace, Result, wait_for};

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

    /// Returns how often the interface has got or lost its carrier; `None` while it has none.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] when the interface is gone.
    pub fn carrier_changes(&self) -> Result<Option<u64>> {
        let read = |file: &str| fs::read_to_string(self.sysfs().join(file));
        // Of an interface that is down, the kernel refuses to tell whether it has one.
        let (has_carrier, changes) = self.namespace.run(|| {
            let carrier = read("carrier").is_ok_and(|carrier| carrier.trim() == "1");
            (carrier, read("carrier_changes"))
        });
        let changes = changes.and_then(|text| text.trim().parse().map_err(io::Error::other));
        let changes =
            changes.map_err(|source| self.error("read the carrier of".to_owned(), source))?;
        Ok(has_carrier.then_some(changes))
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
}

fn link_up() -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}
