//! The facts of one interface: driver, size limits, queues, offloads, and the XDP programs that it runs.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, fs,
    path::Path,
};

use super::{
    Channels, Features, RequestError,
    connection::{Connection, find, generic, generic_attributes, generic_list, text},
    ethtool,
};
use crate::netlink::{
    Attributes, Message, NLM_F_ACK, NLM_F_DUMP, Request, read_string, read_u32, read_u64,
};

const LINK_HEADER: usize = 16;
const IFF_UP: u32 = 1;

const XDP_DRV_PROG_ID: u16 = 5;
const XDP_SKB_PROG_ID: u16 = 6;
const XDP_HW_PROG_ID: u16 = 7;

const NETDEV_FAMILY: &str = "netdev";
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`: the driver takes frames that XDP redirects.
const NDO_XMIT: u64 = 1 << 2;

/// Longest interface name (`IFNAMSIZ` without the terminator).
pub(super) const NAME_MAX: usize = 15;

/// Reasons why an interface could not be read.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    #[error(
        "interface {name}: not found; `ip link` lists those of this network namespace \
         (a container sees the host's only with host networking)"
    )]
    NotFound { name: String },
    #[error("interface {name}: cannot read its state")]
    Unreadable {
        name: String,
        #[source]
        source: RequestError,
    },
}

/// The way in which an XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel makes an skb of the packet.
    Native,
    /// In the stack, on an skb: works with every driver but is several times slower.
    Generic,
    /// On the NIC itself.
    Offloaded,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offloaded => "offloaded",
        })
    }
}

/// An XDP program on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpProgram {
    pub mode: XdpMode,
    /// The kernel's id of the program.
    pub id: u32,
}

/// The driver's support for XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeXdp {
    Supported {
        /// The device accepts redirected frames (`ndo_xdp_xmit`).
        redirect_target: bool,
        /// The driver runs AF_XDP without copying.
        zero_copy: bool,
        /// The driver runs XDP programs on frames of several buffers (jumbo frames).
        several_buffers: bool,
    },
    /// The driver does not run XDP programs.
    Unsupported,
    /// The kernel is too old to report this (before 6.3).
    Unknown,
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Interface index; an interface that is created anew gets a new one.
    pub index: u32,
    pub up: bool,
    pub mtu: u32,
    /// The largest MTU that the driver accepts, in bytes, if it reports one.
    pub mtu_max: Option<u32>,
    /// The kind of a virtual interface: `veth`, `bond`, `vlan`; `None` for a NIC.
    pub kind: Option<String>,
    /// The driver: a NIC's module, a virtual interface's kind.
    pub driver: Option<String>,
    /// Interface index of a VLAN's lower device, or of a veth's peer.
    pub lower: Option<u32>,
    /// Interface index of the bond, bridge or VRF that it belongs to.
    pub controller: Option<u32>,
    /// Receive queues in use; if the driver does not tell, the allocated ones.
    pub rx_queues: u32,
    /// Queue counts, if the driver reports them.
    pub channels: Option<Channels>,
    /// Offload features, if the kernel reports them.
    pub features: Option<Features>,
    pub native_xdp: NativeXdp,
    /// XDP programs that it runs: none, one, or one per mode.
    pub programs: Vec<XdpProgram>,
}

impl Interface {
    /// Returns the program attached in a mode.
    #[must_use]
    pub fn program(&self, mode: XdpMode) -> Option<XdpProgram> {
        self.programs
            .iter()
            .copied()
            .find(|program| program.mode == mode)
    }

    /// Tells whether it runs this program in any mode.
    #[must_use]
    pub fn runs(&self, program: u32) -> bool {
        self.programs.iter().any(|other| other.id == program)
    }
}

/// Reads all facts of an interface.
///
/// # Errors
///
/// Fails if there is no such interface, or if the kernel does not answer.
pub fn interface(name: &str) -> Result<Interface, InterfaceError> {
    let mut interface = link(name)?;
    let unreadable = |source| InterfaceError::Unreadable {
        name: name.to_owned(),
        source,
    };
    interface.channels = ethtool::channels(interface.index).map_err(unreadable)?;
    interface.features = ethtool::features(interface.index).map_err(unreadable)?;
    interface.native_xdp = native_xdp(interface.index).map_err(unreadable)?;
    if let Some(channels) = interface.channels {
        interface.rx_queues = channels.receive();
    }
    Ok(interface)
}

/// Lists the names of the interfaces that belong to a bond or another controller, sorted.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn members(controller: u32) -> Result<Vec<String>, RequestError> {
    let mut members: Vec<_> = links()?
        .into_iter()
        .filter(|link| link.controller == Some(controller))
        .map(|link| link.name)
        .collect();
    members.sort();
    Ok(members)
}

/// Returns the bonds and VLAN devices of this thread's network namespace by name, each with the names of what is below.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn above_others() -> Result<BTreeMap<String, String>, RequestError> {
    let links = links()?;
    let below = |above: &Interface| -> Option<String> {
        let is_below = |link: &&Interface| match above.kind.as_deref() {
            Some("bond") => link.controller == Some(above.index),
            Some("vlan") => above.lower == Some(link.index),
            _ => false,
        };
        let names: Vec<&str> = links
            .iter()
            .filter(is_below)
            .map(|l| l.name.as_str())
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let above = links
        .iter()
        .filter_map(|link| Some((link.name.clone(), below(link)?)));
    Ok(above.collect())
}

/// Returns the MTU in bytes of every interface of this thread's network namespace, by name.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn mtus() -> Result<BTreeMap<String, u32>, RequestError> {
    let links = links()?.into_iter();
    Ok(links.map(|link| (link.name, link.mtu)).collect())
}

/// Returns the name of the interface with this index in this thread's network namespace.
#[must_use]
pub fn device_name(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(socket, index).ok()
}

/// Reads the facts that rtnetlink reports of all interfaces, with one request.
pub(crate) fn links() -> Result<Vec<Interface>, RequestError> {
    links_over(&mut Connection::route()?)
}

pub(super) fn links_over(route: &mut Connection) -> Result<Vec<Interface>, RequestError> {
    let request = Request::new(
        libc::RTM_GETLINK,
        NLM_F_ACK | NLM_F_DUMP,
        &[0u8; LINK_HEADER],
    );
    route.list(&request, |message| parse(message.payload))
}

/// Tells whether an interface with this name and index exists and runs this program.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn is_attached(name: &str, index: u32, program: u32) -> Result<bool, InterfaceError> {
    match link(name) {
        Ok(link) => Ok(link.index == index && link.runs(program)),
        Err(InterfaceError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the facts that rtnetlink reports of one interface, with one request.
pub(crate) fn link(name: &str) -> Result<Interface, InterfaceError> {
    let not_found = || InterfaceError::NotFound {
        name: name.to_owned(),
    };
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(not_found());
    }
    let request = Request::new(libc::RTM_GETLINK, NLM_F_ACK, &[0u8; LINK_HEADER])
        .attribute(libc::IFLA_IFNAME, &text(name));
    let answers = Connection::route()
        .and_then(|mut route| route.ask(request))
        .map_err(|source| match source.errno() {
            Some(libc::ENODEV) => not_found(),
            _ => InterfaceError::Unreadable {
                name: name.to_owned(),
                source,
            },
        })?;
    answers
        .first()
        .and_then(|answer| parse(answer))
        .ok_or_else(not_found)
}

fn parse(answer: &[u8]) -> Option<Interface> {
    let header = answer.get(..LINK_HEADER)?;
    let mut interface = Interface {
        name: String::new(),
        index: read_u32(&header[4..])?,
        up: read_u32(&header[8..])? & IFF_UP != 0,
        mtu: 0,
        mtu_max: None,
        kind: None,
        driver: None,
        lower: None,
        controller: None,
        rx_queues: 0,
        channels: None,
        features: None,
        native_xdp: NativeXdp::Unknown,
        programs: Vec::new(),
    };
    let mut parent = (None, None);
    for (kind, value) in Attributes(&answer[LINK_HEADER..]) {
        match kind {
            libc::IFLA_IFNAME => interface.name = read_string(value)?,
            libc::IFLA_MTU => interface.mtu = read_u32(value)?,
            libc::IFLA_MAX_MTU => interface.mtu_max = read_u32(value).filter(|mtu| *mtu != 0),
            libc::IFLA_LINK => interface.lower = read_u32(value).filter(|index| *index != 0),
            libc::IFLA_MASTER => interface.controller = read_u32(value),
            libc::IFLA_NUM_RX_QUEUES => interface.rx_queues = read_u32(value)?,
            libc::IFLA_LINKINFO => {
                interface.kind = find(value, libc::IFLA_INFO_KIND).and_then(read_string);
            }
            libc::IFLA_PARENT_DEV_BUS_NAME => parent.0 = read_string(value),
            libc::IFLA_PARENT_DEV_NAME => parent.1 = read_string(value),
            libc::IFLA_XDP => interface.programs = programs(value),
            _ => {}
        }
    }
    interface.driver = match parent {
        (Some(bus), Some(device)) => driver(&bus, &device),
        _ => interface.kind.clone(),
    };
    Some(interface)
}

fn programs(xdp: &[u8]) -> Vec<XdpProgram> {
    let modes = [
        (XdpMode::Native, XDP_DRV_PROG_ID),
        (XdpMode::Generic, XDP_SKB_PROG_ID),
        (XdpMode::Offloaded, XDP_HW_PROG_ID),
    ];
    let program = |(mode, kind)| {
        let id = find(xdp, kind).and_then(read_u32)?;
        Some(XdpProgram { mode, id })
    };
    modes.into_iter().filter_map(program).collect()
}

fn driver(bus: &str, device: &str) -> Option<String> {
    // The bus directory, because /sys/class/net shows the namespace that mounted sysfs and not this thread's.
    let link = Path::new("/sys/bus").join(bus).join("devices").join(device);
    let target = fs::read_link(link.join("driver")).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Tells of each interface whether it takes frames that XDP redirects; of none where the kernel does not tell (before
/// Linux 6.3).
pub(crate) fn redirect_targets() -> Result<HashMap<u32, bool>, RequestError> {
    let mut connection = Connection::generic()?;
    let Some(family) = connection.family(NETDEV_FAMILY)? else {
        return Ok(HashMap::new());
    };
    let target = |message: &Message<'_>| {
        let read = |wanted| {
            let mut attributes = generic_attributes(message.payload);
            attributes.find(|(kind, _)| *kind == wanted)
        };
        let (_, index) = read(NETDEV_A_DEV_IFINDEX)?;
        let (_, features) = read(NETDEV_A_DEV_XDP_FEATURES)?;
        Some((read_u32(index)?, read_u64(features)? & NDO_XMIT != 0))
    };
    let request = generic_list(family, NETDEV_CMD_DEV_GET);
    Ok(connection.list(&request, target)?.into_iter().collect())
}

fn native_xdp(ifindex: u32) -> Result<NativeXdp, RequestError> {
    const BASIC: u64 = 1 << 0;
    const XSK_ZEROCOPY: u64 = 1 << 3;
    const RX_SG: u64 = 1 << 5;

    let mut connection = Connection::generic()?;
    let Some(family) = connection.family(NETDEV_FAMILY)? else {
        return Ok(NativeXdp::Unknown);
    };
    let request =
        generic(family, NETDEV_CMD_DEV_GET).attribute(NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let answers = connection.ask(request)?;
    let features = answers
        .iter()
        .flat_map(|answer| generic_attributes(answer))
        .find(|(kind, _)| *kind == NETDEV_A_DEV_XDP_FEATURES)
        .and_then(|(_, value)| read_u64(value));
    Ok(match features {
        None => NativeXdp::Unknown,
        Some(bits) if bits & BASIC == 0 => NativeXdp::Unsupported,
        Some(bits) => NativeXdp::Supported {
            redirect_target: bits & NDO_XMIT != 0,
            zero_copy: bits & XSK_ZEROCOPY != 0,
            several_buffers: bits & RX_SG != 0,
        },
    })
}
