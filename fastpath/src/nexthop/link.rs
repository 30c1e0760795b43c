//! The facts of devices that next hops depend on.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::netlink::{
    Attributes, FAMILY_ANY, Message, NLM_F_DUMP, Request, read_mac, read_u16, read_u32,
};

const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const IFF_UP: u32 = 0x1;
const IFF_RUNNING: u32 = 0x40;
const IFF_NOARP: u32 = 0x80;
/// Leaves the counters out of the answer; they are its largest part.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

/// Kinds of Ethernet devices whose drivers have no `ndo_xdp_xmit` up to Linux 6.18. Before Linux 6.3, only their names
/// tell.
const NO_REDIRECT_TARGETS: [&[u8]; 6] =
    [b"bridge", b"ipvlan", b"macvlan", b"team", b"vlan", b"vxlan"];

/// The EtherType of an 802.1Q tag.
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;

/// `struct ifinfomsg`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Fixed {
    family: u8,
    reserved: u8,
    device_type: u16,
    ifindex: u32,
    flags: u32,
    change: u32,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) ifindex: u32,
    /// The device is up, has carrier, and is operational (`IFF_RUNNING` follows the operational state of RFC 2863).
    pub(crate) running: bool,
    /// The device uses neither ARP nor neighbour discovery.
    pub(crate) no_arp: bool,
    /// `None` for devices that are not Ethernet.
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu: u32,
    pub(crate) vlan: Option<Vlan>,
    /// The device is of a kind that takes no frames from XDP on any kernel.
    pub(crate) is_no_redirect_target: bool,
}

/// The tag that a VLAN device adds to frames, and the device below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vlan {
    pub(crate) id: u16,
    pub(crate) ethertype: u16,
    /// Interface index of the device below, if it is in this namespace.
    pub(crate) lower: Option<u32>,
}

/// Returns the request that lists all devices.
pub(crate) fn list() -> Request {
    Request::new(libc::RTM_GETLINK, NLM_F_DUMP, &Fixed::default())
        .attribute(libc::IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes())
}

/// Reads a device; `None` if the message is about something else.
pub(crate) fn decode(message: &Message<'_>) -> Option<Link> {
    if message.kind != libc::RTM_NEWLINK {
        return None;
    }
    let (fixed, attributes) = message.split::<Fixed>()?;
    // Bridge ports are listed once more under their bridge's family.
    if fixed.family != FAMILY_ANY {
        return None;
    }
    let mut link = Link {
        ifindex: fixed.ifindex,
        running: fixed.flags & IFF_UP != 0 && fixed.flags & IFF_RUNNING != 0,
        no_arp: fixed.flags & IFF_NOARP != 0,
        mac: None,
        mtu: 0,
        vlan: None,
        is_no_redirect_target: false,
    };
    let mut lower = None;
    let mut lower_elsewhere = false;
    for (kind, value) in attributes {
        match kind {
            libc::IFLA_ADDRESS if fixed.device_type == libc::ARPHRD_ETHER => {
                link.mac = read_mac(value);
            }
            libc::IFLA_MTU => link.mtu = read_u32(value)?,
            libc::IFLA_LINK => lower = read_u32(value),
            libc::IFLA_LINK_NETNSID => lower_elsewhere = true,
            libc::IFLA_LINKINFO => {
                let kind = kind_of(value);
                link.vlan = decode_vlan(kind, value);
                link.is_no_redirect_target =
                    kind.is_some_and(|kind| NO_REDIRECT_TARGETS.contains(&kind));
            }
            _ => {}
        }
    }
    if let Some(vlan) = &mut link.vlan {
        vlan.lower = lower.filter(|_| !lower_elsewhere);
    }
    Some(link)
}

/// Returns the name of the device's kind.
fn kind_of(info: &[u8]) -> Option<&[u8]> {
    let (_, name) = Attributes(info).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND)?;
    Some(name.strip_suffix(&[0]).unwrap_or(name))
}

fn decode_vlan(kind: Option<&[u8]>, info: &[u8]) -> Option<Vlan> {
    if kind != Some(b"vlan") {
        return None;
    }
    let (_, data) = Attributes(info).find(|(kind, _)| *kind == libc::IFLA_INFO_DATA)?;
    let mut vlan = Vlan {
        id: 0,
        ethertype: ETHERTYPE_VLAN,
        lower: None,
    };
    for (kind, value) in Attributes(data) {
        match kind {
            IFLA_VLAN_ID => vlan.id = read_u16(value)?,
            IFLA_VLAN_PROTOCOL => vlan.ethertype = u16::from_be(read_u16(value)?),
            _ => {}
        }
    }
    Some(vlan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// A message as the kernel's `rtnl_fill_ifinfo` writes it, with what the caller appends.
    fn written(device_type: u16, flags: u32, rest: impl Fn(Request) -> Request) -> Vec<u8> {
        let fixed = Fixed {
            device_type,
            ifindex: 7,
            flags,
            ..Fixed::default()
        };
        let request = Request::new(libc::RTM_NEWLINK, 0, &fixed)
            .attribute(libc::IFLA_IFNAME, b"eth0.42\0")
            .attribute(libc::IFLA_MTU, &1500u32.to_ne_bytes())
            .attribute(libc::IFLA_ADDRESS, &MAC);
        rest(request).into_bytes(1)
    }

    fn read(bytes: &[u8]) -> Link {
        decode(&messages(bytes).next().unwrap()).unwrap()
    }

    /// `IFLA_LINKINFO` of a VLAN device: kind, and data {id, flags, protocol}.
    fn vlan_info(kind: &[u8], ethertype: u16) -> Vec<u8> {
        let mut data = vec![6, 0, 1, 0, 42, 0, 0, 0];
        data.extend([12, 0, 2, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        data.extend([6, 0, 5, 0]);
        data.extend(ethertype.to_be_bytes());
        data.extend([0, 0]);
        let mut info = vec![9, 0, 1, 0];
        info.extend(kind);
        info.extend([0, 0, 0, 0]);
        info.extend([4 + 28, 0, 2, 0]);
        info.extend(data);
        info
    }

    #[test]
    fn a_vlan_device_is_read() {
        let bytes = written(libc::ARPHRD_ETHER, IFF_UP | IFF_RUNNING, |request| {
            request
                .attribute(libc::IFLA_LINK, &3u32.to_ne_bytes())
                .attribute(libc::IFLA_LINKINFO, &vlan_info(b"vlan", 0x8100))
        });
        let expected = Link {
            ifindex: 7,
            running: true,
            no_arp: false,
            mac: Some(MAC),
            mtu: 1500,
            vlan: Some(Vlan {
                id: 42,
                ethertype: 0x8100,
                lower: Some(3),
            }),
            is_no_redirect_target: true,
        };
        assert_eq!(read(&bytes), expected);
    }

    #[test]
    fn a_vlan_over_another_namespaces_device_has_none_below() {
        let bytes = written(libc::ARPHRD_ETHER, IFF_UP, |request| {
            request
                .attribute(libc::IFLA_LINK, &3u32.to_ne_bytes())
                .attribute(libc::IFLA_LINKINFO, &vlan_info(b"vlan", 0x88a8))
                .attribute(libc::IFLA_LINK_NETNSID, &0u32.to_ne_bytes())
        });
        let vlan = read(&bytes).vlan.unwrap();
        assert_eq!((vlan.lower, vlan.ethertype), (None, 0x88a8));
    }

    #[test]
    fn another_kinds_data_is_not_taken_for_a_vlans() {
        let bytes = written(libc::ARPHRD_ETHER, IFF_UP, |request| {
            request.attribute(libc::IFLA_LINKINFO, &vlan_info(b"veth", 0x8100))
        });
        let link = read(&bytes);
        assert_eq!((link.vlan, link.is_no_redirect_target), (None, false));
    }

    #[test]
    fn a_device_without_carrier_is_not_running() {
        let running = |flags| read(&written(libc::ARPHRD_ETHER, flags, |request| request)).running;
        assert!(running(IFF_UP | IFF_RUNNING));
        assert!(!running(IFF_UP));
        assert!(!running(IFF_RUNNING));
    }

    #[test]
    fn only_ethernet_devices_have_a_mac() {
        let mac = |device_type| read(&written(device_type, IFF_UP, |request| request)).mac;
        assert_eq!(mac(libc::ARPHRD_ETHER), Some(MAC));
        assert_eq!(mac(libc::ARPHRD_INFINIBAND), None);
    }
}
