//! The veth pair by which mended frames go back to XDP.
//!
//! The agent sends into one end. The program `guideway_mended` is native at the other end, and what XDP passes there
//! goes to the stack as what the uplinks get. The pair outlives the agent, whose successor adopts it; without an agent
//! nothing is in it.

use std::{fs, io, net::Ipv4Addr};

use super::worker::Back;
use crate::{
    announce::{Announcer, Link, LinksError, links},
    facts::{
        self, InterfaceError, RequestError,
        connection::{Connection, text},
    },
    netlink::{
        FAMILY_V4, NLA_F_NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Request, put_attribute,
    },
};

/// The end that the agent sends into.
const SENDING_END: &str = "guideway-mend";
/// The end at which mended frames come back.
pub const MENDED_END: &str = "guideway-mended";
const KIND: &str = "veth";
/// MACs of the ends, of those that nobody assigns (RFC 9542 section 2.1). Without MACs of ours, udev would give others
/// to both after they were read.
const SENDING_MAC: [u8; 6] = [0x02, 0x67, 0x77, 0x6d, 0, 1];
const MENDED_MAC: [u8; 6] = [0x02, 0x67, 0x77, 0x6d, 0, 2];
/// What the longest punted frame takes, rounded up.
const MTU: u32 = 4000;

/// An IPv4 address that no other machine can have (RFC 7600): the reverse path filter refuses all packets of a device
/// without any.
const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const SCOPE_HOST: u8 = 254;

/// `VETH_INFO_PEER`.
const PEER: u16 = 1;
const IFF_UP: u32 = 1;
/// `IFLA_INET_CONF`.
const INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_FORWARDING` and `IPV4_DEVCONF_RP_FILTER`.
const FORWARDING: u16 = 1;
const RP_FILTER: u16 = 8;
/// `IFLA_INET6_ADDR_GEN_MODE`, and its value for no link-local address.
const ADDR_GEN_MODE: u16 = 8;
const NO_ADDRESS: u8 = 1;

/// Reasons why the pair could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error("cannot {attempt} the veth pair {SENDING_END}, {MENDED_END}")]
    Request {
        attempt: &'static str,
        #[source]
        source: RequestError,
    },
    #[error(
        "there is an interface {name} that is no veth; rename it, for mended packets come back by one of this name"
    )]
    NameTaken { name: &'static str },
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("cannot read the pair's MACs")]
    Links(#[from] LinksError),
    #[error("cannot open a packet socket; mending takes the capability NET_RAW")]
    Socket(#[source] io::Error),
}

/// The way back, which is there.
#[derive(Debug)]
pub(crate) struct Pair {
    sending_end: Link,
    /// Index of the end at which mended frames come back.
    pub(crate) device: u32,
    pub(crate) mac: [u8; 6],
}

/// Sends into the pair.
#[derive(Debug)]
pub(crate) struct WayBack {
    announcer: Announcer,
    end: Link,
}

impl Back for WayBack {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.announcer.send(frame, &self.end)
    }
}

impl Pair {
    /// Makes the pair, or adopts that of an earlier agent.
    ///
    /// # Errors
    ///
    /// Each error names the cause.
    pub(crate) fn make() -> Result<Self, PairError> {
        if !is_there()? {
            create().map_err(failed("create"))?;
        }
        let device = facts::link(MENDED_END)?.index;
        let sending = facts::link(SENDING_END)?.index;
        set_up(device, sending).map_err(failed("set up"))?;
        let names = [SENDING_END, MENDED_END].map(str::to_owned).into();
        let found = links(&names)?;
        let of = |name: &'static str| {
            let link = found.iter().find(|link| link.name == name).cloned();
            link.ok_or_else(|| InterfaceError::NotFound {
                name: name.to_owned(),
            })
        };
        Ok(Self {
            sending_end: of(SENDING_END)?,
            device,
            mac: of(MENDED_END)?.mac,
        })
    }

    /// Opens a socket that sends into the pair. It takes the capability NET_RAW alone.
    ///
    /// # Errors
    ///
    /// Fails if the kernel opens no packet socket.
    pub(crate) fn sender(&self) -> Result<WayBack, PairError> {
        Ok(WayBack {
            announcer: Announcer::new().map_err(PairError::Socket)?,
            end: self.sending_end.clone(),
        })
    }
}

/// Removes the pair. Returns whether it was there.
///
/// # Errors
///
/// Fails if the kernel does not answer, or does not remove it.
pub fn remove_pair() -> Result<bool, PairError> {
    match is_there() {
        Ok(true) => {}
        // What is no veth is somebody else's.
        Ok(false) | Err(PairError::NameTaken { .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    let index = facts::link(MENDED_END)?.index;
    let request = Request::new(libc::RTM_DELLINK, NLM_F_ACK, &header(index, 0));
    ask(request).map_err(failed("remove"))?;
    Ok(true)
}

fn is_there() -> Result<bool, PairError> {
    match facts::link(MENDED_END) {
        Ok(link) if link.kind.as_deref() == Some(KIND) => Ok(true),
        Ok(_) => Err(PairError::NameTaken { name: MENDED_END }),
        Err(InterfaceError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn create() -> Result<(), RequestError> {
    let mut peer = header(0, 0).to_vec();
    put_attribute(&mut peer, libc::IFLA_IFNAME, &text(MENDED_END));
    put_attribute(&mut peer, libc::IFLA_MTU, &MTU.to_ne_bytes());
    put_attribute(&mut peer, libc::IFLA_ADDRESS, &MENDED_MAC);
    let data = nested(&[(PEER, &peer)]);
    let info = nested(&[
        (libc::IFLA_INFO_KIND, KIND.as_bytes()),
        (libc::IFLA_INFO_DATA | NLA_F_NESTED, &data),
    ]);
    let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    let request = Request::new(libc::RTM_NEWLINK, flags, &header(0, 0))
        .attribute(libc::IFLA_IFNAME, &text(SENDING_END))
        .attribute(libc::IFLA_MTU, &MTU.to_ne_bytes())
        .attribute(libc::IFLA_ADDRESS, &SENDING_MAC)
        .attribute(libc::IFLA_LINKINFO | NLA_F_NESTED, &info);
    ask(request)
}

/// Gives both ends their settings, and switches them on. The settings come by netlink, for a container must not write
/// to /proc/sys.
fn set_up(device: u32, sending: u32) -> Result<(), RequestError> {
    let filters = ["all", "default"].into_iter().any(|of| {
        let setting = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{of}/rp_filter"));
        setting.is_ok_and(|text| text.trim() != "0")
    });
    // Loose where the machine filters at all: the client's way back is never by this device.
    let filter: u32 = if filters { 2 } else { 0 };
    let forwards = u32::from(any_forwards());
    let no_address = nested(&[(ADDR_GEN_MODE, &[NO_ADDRESS])]);
    let conf = nested(&[
        (FORWARDING, &forwards.to_ne_bytes()),
        (RP_FILTER, &filter.to_ne_bytes()),
    ]);
    let v4 = nested(&[(INET_CONF | NLA_F_NESTED, &conf)]);
    let set = |index: u32, family: u16, settings: &[u8]| {
        let families = nested(&[(family | NLA_F_NESTED, settings)]);
        let request = Request::new(libc::RTM_SETLINK, NLM_F_ACK, &header(index, 0));
        ask(request.attribute(libc::IFLA_AF_SPEC | NLA_F_NESTED, &families))
    };
    set(device, V4, &v4)?;
    for index in [sending, device] {
        // Without IPv6, the kernel knows nothing of its addresses.
        match set(index, V6, &no_address) {
            Err(error) if error.errno() == Some(libc::EAFNOSUPPORT) => {}
            outcome => outcome?,
        }
        ask(Request::new(
            libc::RTM_SETLINK,
            NLM_F_ACK,
            &header(index, IFF_UP),
        ))?;
    }
    if filters {
        add_dummy(device)?;
    }
    Ok(())
}

/// Tells whether the machine forwards IPv4 packets of any interface. IPv6 is forwarded of all interfaces or of none,
/// and the pair has that from the machine's default.
fn any_forwards() -> bool {
    let Ok(interfaces) = fs::read_dir("/proc/sys/net/ipv4/conf") else {
        return false;
    };
    let mut settings = interfaces
        .flatten()
        .map(|entry| entry.path().join("forwarding"));
    settings.any(|path| fs::read_to_string(path).is_ok_and(|text| text.trim() == "1"))
}

const V4: u16 = 2;
const V6: u16 = 10;

/// Gives a device an address, if it has none.
fn add_dummy(device: u32) -> Result<(), RequestError> {
    let [a, b, c, d] = device.to_ne_bytes();
    let fixed = [FAMILY_V4, 32, 0, SCOPE_HOST, a, b, c, d];
    let request = Request::new(
        libc::RTM_NEWADDR,
        NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
        &fixed,
    )
    .attribute(libc::IFA_LOCAL, &DUMMY.octets())
    .attribute(libc::IFA_ADDRESS, &DUMMY.octets());
    match ask(request) {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
        outcome => outcome,
    }
}

fn ask(request: Request) -> Result<(), RequestError> {
    Connection::route()?.ask(request).map(drop)
}

fn failed(attempt: &'static str) -> impl Fn(RequestError) -> PairError {
    move |source| PairError::Request { attempt, source }
}

/// `struct ifinfomsg`, with these flags set.
fn header(index: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Makes a run of attributes.
fn nested(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut run = Vec::new();
    for (kind, value) in attributes {
        put_attribute(&mut run, *kind, value);
    }
    run
}
