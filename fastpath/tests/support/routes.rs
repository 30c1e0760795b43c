//! What the kernel knows of ways in the packet cases: the same for the model, and in the namespace of the second
//! engine.
//!
//! ```text
//!                    +-- ABOVE ---- an edge, and others
//! frames come in by  |
//! INGRESS, whose MAC-+-- BESIDE --- another VLAN
//! both have too
//!                        APART ---- another cable, with a MAC of its own
//!                        TAGGED --- a VLAN device above the ingress device, of which user space has told
//!                        TAGGED_APART --- one above APART
//! ```

use std::{
    collections::HashMap,
    fs,
    io::Write as _,
    net::IpAddr,
    process::{Command, Stdio},
    sync::LazyLock,
};

use anyhow::{Context as _, ensure};
use xdp_prog::abi::{AddressKey, HOP_CARRIED, NextHop};

use super::{
    cases::{IN, v4, v6},
    kernel::INGRESS,
    tables::address_key,
};

/// A device that routes name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    name: &'static str,
    pub(crate) ifindex: u32,
    pub(crate) mac: [u8; 6],
}

/// The ingress device itself. The kernel has no IPv6 routes by a loopback device.
pub(crate) const LOOPBACK: Device = Device {
    name: "lo",
    ifindex: INGRESS,
    mac: IN.destination,
};
/// As a VLAN device, bond or bridge above the ingress device.
pub(crate) const ABOVE: Device = Device {
    name: "above",
    ifindex: 10,
    mac: IN.destination,
};
/// A device that takes no frames from XDP.
pub(crate) const BESIDE: Device = Device {
    name: "beside",
    ifindex: 11,
    mac: IN.destination,
};
pub(crate) const APART: Device = Device {
    name: "apart",
    ifindex: 12,
    mac: [0x02, 0, 0, 0, 0, 0xa9],
};

/// Stand-ins: what makes them VLAN devices is what [`VLANS`] says of them.
pub(crate) const TAGGED: Device = Device {
    name: "vlan",
    ifindex: 13,
    mac: IN.destination,
};
pub(crate) const TAGGED_APART: Device = Device {
    name: "vlan-apart",
    ifindex: 14,
    mac: APART.mac,
};
/// VLAN devices with the devices below and the tags, and a device that takes no frames from XDP.
pub(crate) const VLANS: [(u32, u32, u16); 3] = [
    (BESIDE.ifindex, BESIDE.ifindex | HOP_CARRIED, 0),
    (TAGGED.ifindex, INGRESS, 0x064),
    (TAGGED_APART.ifindex, APART.ifindex, 0xabc),
];

/// An address that the kernel has a way to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) to: IpAddr,
    pub(crate) device: Device,
    /// Its MAC, where the kernel knows that.
    pub(crate) neighbour: Option<[u8; 6]>,
}

const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x77];
/// Routes to an edge, and to addresses named after the device that leads there; of each family.
pub(crate) const TO_EDGE: [Route; 2] = [
    route(v4(192, 0, 2, 4), ABOVE, None),
    route(v6(0xe, 4), ABOVE, None),
];
pub(crate) const BY_ABOVE: [Route; 2] = [
    route(v4(198, 51, 100, 21), ABOVE, Some(MAC)),
    route(v6(0xc, 21), ABOVE, Some(MAC)),
];
pub(crate) const BY_BESIDE: [Route; 2] = [
    route(v4(198, 51, 100, 22), BESIDE, Some(MAC)),
    route(v6(0xc, 22), BESIDE, Some(MAC)),
];
pub(crate) const BY_APART: [Route; 2] = [
    route(v4(198, 51, 100, 23), APART, Some(MAC)),
    route(v6(0xc, 23), APART, Some(MAC)),
];
pub(crate) const BY_TAGGED: [Route; 2] = [
    route(v4(198, 51, 100, 26), TAGGED, Some(MAC)),
    route(v6(0xc, 26), TAGGED, Some(MAC)),
];
pub(crate) const BY_TAGGED_APART: [Route; 2] = [
    route(v4(198, 51, 100, 27), TAGGED_APART, Some(MAC)),
    route(v6(0xc, 27), TAGGED_APART, Some(MAC)),
];
/// To an edge behind [`TAGGED`].
pub(crate) const TO_TAGGED_EDGE: [Route; 2] = [
    route(v4(192, 0, 2, 5), TAGGED, None),
    route(v6(0xe, 5), TAGGED, None),
];
pub(crate) const BY_LOOPBACK: Route = route(v4(198, 51, 100, 24), LOOPBACK, Some(MAC));
/// Of which the kernel does not know the neighbour.
pub(crate) const UNRESOLVED: [Route; 2] = [
    route(v4(198, 51, 100, 25), ABOVE, None),
    route(v6(0xc, 25), ABOVE, None),
];

const fn route(to: IpAddr, device: Device, neighbour: Option<[u8; 6]>) -> Route {
    Route {
        to,
        device,
        neighbour,
    }
}

fn all() -> impl Iterator<Item = Route> {
    let pairs = [
        TO_EDGE,
        TO_TAGGED_EDGE,
        BY_ABOVE,
        BY_BESIDE,
        BY_APART,
        BY_TAGGED,
        BY_TAGGED_APART,
        UNRESOLVED,
    ];
    pairs.into_iter().flatten().chain([BY_LOOPBACK])
}

/// Returns the device that leads to an address.
pub(crate) fn device(to: &AddressKey) -> Option<u32> {
    all()
        .find(|route| address_key(route.to) == *to)
        .map(|route| route.device.ifindex)
}

/// Returns the way to an address whose neighbour is known.
pub(crate) fn hop(to: &AddressKey) -> Option<&'static NextHop> {
    static HOPS: LazyLock<HashMap<AddressKey, NextHop>> = LazyLock::new(|| {
        let hop = |route: Route| Some((address_key(route.to), route.hop()?));
        all().filter_map(hop).collect()
    });
    HOPS.get(to)
}

impl Route {
    fn hop(&self) -> Option<NextHop> {
        let mut macs = [0; 12];
        macs[..6].copy_from_slice(&self.neighbour?);
        macs[6..].copy_from_slice(&self.device.mac);
        let mut vlans = VLANS.iter();
        let vlan = vlans.find(|(device, ..)| *device == self.device.ifindex);
        let (ifindex, vlan) = vlan.map_or((self.device.ifindex, 0), |(_, below, id)| (*below, *id));
        Some(NextHop {
            ifindex,
            vlan: vlan.to_be_bytes(),
            mtu: 1500,
            macs,
            ..NextHop::default()
        })
    }
}

/// Gives the namespace that the thread is in these devices, routes and neighbours, and has it forward.
pub(crate) fn install() -> anyhow::Result<()> {
    let mut script = format!("link set lo address {} up\n", spelled(LOOPBACK.mac));
    for Device { name, ifindex, mac } in [ABOVE, BESIDE, APART, TAGGED, TAGGED_APART] {
        let mac = spelled(mac);
        script += &format!(
            "link add {name} index {ifindex} address {mac} type veth peer name {name}-end\n\
             link set {name} up\nlink set {name}-end up\n"
        );
    }
    for route in all() {
        let (to, name) = (route.to, route.device.name);
        script += &format!("route add {to} dev {name}\n");
        if let Some(mac) = route.neighbour {
            script += &format!("neigh add {to} lladdr {} dev {name}\n", spelled(mac));
        }
    }
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("starting ip")?;
    ip.stdin
        .take()
        .expect("it is piped")
        .write_all(script.as_bytes())?;
    ensure!(ip.wait()?.success(), "ip refuses:\n{script}");
    for forwarding in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        fs::write(format!("/proc/sys/net/{forwarding}"), "1").context(forwarding)?;
    }
    Ok(())
}

fn spelled(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
