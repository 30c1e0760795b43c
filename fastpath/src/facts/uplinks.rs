//! The devices by which packets of other machines come in, and those by which the default routes leave.

use std::collections::{BTreeMap, BTreeSet};

use super::connection::{Connection, find};
use super::{Interface, RequestError, cables::CABLES, device_name, links};
use crate::netlink::{Attributes, NLM_F_DUMP, Request, read_u16, read_u32};

/// Length of `struct rtmsg`, which begins with the family. The route's prefix length, table and type follow at these
/// places.
const ROUTE_HEADER: usize = 12;
const PREFIX_LENGTH: usize = 1;
const TABLE: usize = 4;
const TYPE: usize = 7;

/// Length of `struct rtnexthop`, and where it has the interface index.
const HOP_HEADER: usize = 8;
const HOP_INDEX: usize = 4;

/// Names the devices by which packets of other machines may come in: not loopback, not the members of a bond, bridge or
/// other device, and not cables to pods.
///
/// A cable (veth, netkit) leads to a pod, unless it is among `networked`, the devices that have a network: then this
/// machine is a container itself.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn uplinks(networked: &BTreeSet<String>) -> Result<BTreeSet<String>, RequestError> {
    Ok(choose(&links()?, networked))
}

/// Names the devices by which the default routes of the main table leave, of both families.
///
/// # Errors
///
/// Fails if the kernel does not answer.
pub fn default_route_devices() -> Result<BTreeSet<String>, RequestError> {
    let request = Request::new(libc::RTM_GETROUTE, NLM_F_DUMP, &[0u8; ROUTE_HEADER]);
    let routes = Connection::route()?.list(&request, |message| default_route(message.payload))?;
    let devices: BTreeSet<u32> = routes.into_iter().flatten().collect();
    Ok(devices.into_iter().filter_map(device_name).collect())
}

fn choose(devices: &[Interface], networked: &BTreeSet<String>) -> BTreeSet<String> {
    let kinds = devices
        .iter()
        .filter_map(|one| Some((one.index, one.kind.as_deref()?)));
    let kinds: BTreeMap<u32, &str> = kinds.collect();
    let is_uplink = |device: &&Interface| {
        // What a VRF's member receives is not the VRF's, unlike with bonds and bridges.
        let is_member = device
            .controller
            .is_some_and(|controller| kinds.get(&controller) != Some(&"vrf"));
        let is_cable = device
            .kind
            .as_deref()
            .is_some_and(|kind| CABLES.contains(&kind));
        device.name != "lo" && !is_member && (!is_cable || networked.contains(&device.name))
    };
    let uplinks = devices.iter().filter(is_uplink);
    uplinks.map(|device| device.name.clone()).collect()
}

/// Reads the interface indices of a default route; `None` if the message is about another route.
fn default_route(message: &[u8]) -> Option<Vec<u32>> {
    let (header, attributes) = message.split_at_checked(ROUTE_HEADER)?;
    let is_default = header[PREFIX_LENGTH] == 0
        && header[TABLE] == libc::RT_TABLE_MAIN
        && header[TYPE] == libc::RTN_UNICAST;
    is_default.then(|| {
        let hops = find(attributes, libc::RTA_MULTIPATH).unwrap_or_default();
        let device = Attributes(attributes).find(|(kind, _)| *kind == libc::RTA_OIF);
        let device = device.and_then(|(_, index)| read_u32(index));
        device.into_iter().chain(hop_indices(hops)).collect()
    })
}

/// Iterates over the interface indices of a route with several next hops.
fn hop_indices(mut hops: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let length = usize::from(read_u16(hops)?).max(HOP_HEADER);
        let index = read_u32(hops.get(HOP_INDEX..)?)?;
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::cables::testing::device;
    use crate::netlink::connection::run;

    #[test]
    fn uplinks_are_neither_loopback_nor_members_nor_cables_to_pods() {
        let devices = [
            device(1, "lo", None, None),
            device(2, "nic", None, None),
            device(3, "bond0", Some("bond"), None),
            device(4, "member", None, Some(3)),
            device(5, "vlan", Some("vlan"), None),
            device(6, "vrf0", Some("vrf"), None),
            device(7, "in-vrf", None, Some(6)),
            device(8, "pod", Some("veth"), None),
            device(9, "eth0", Some("veth"), None),
        ];
        let networked = ["eth0".to_owned()].into();
        let uplinks: Vec<String> = choose(&devices, &networked).into_iter().collect();
        assert_eq!(uplinks, ["bond0", "eth0", "in-vrf", "nic", "vlan", "vrf0"]);
    }

    fn route(prefix_length: u8, table: u8, route_type: u8, attributes: &[u8]) -> Vec<u8> {
        let mut message = vec![0; ROUTE_HEADER];
        message[PREFIX_LENGTH] = prefix_length;
        message[TABLE] = table;
        message[TYPE] = route_type;
        [message, attributes.to_vec()].concat()
    }

    #[test]
    fn default_routes_have_one_device_or_one_for_each_next_hop() {
        let (main, unicast) = (libc::RT_TABLE_MAIN, libc::RTN_UNICAST);
        let one = run(&[(libc::RTA_OIF, &7u32.to_ne_bytes())]);
        assert_eq!(default_route(&route(0, main, unicast, &one)), Some(vec![7]));
        let hop = |index: u32| {
            let gateway = run(&[(libc::RTA_GATEWAY, &[10, 0, 0, 1])]);
            [&[16, 0, 0, 0][..], &index.to_ne_bytes(), &gateway].concat()
        };
        let two = run(&[(libc::RTA_MULTIPATH, &[hop(3), hop(4)].concat())]);
        assert_eq!(
            default_route(&route(0, main, unicast, &two)),
            Some(vec![3, 4])
        );
        let others = [
            route(24, main, unicast, &one),
            route(0, main + 1, unicast, &one),
            route(0, main, libc::RTN_UNREACHABLE, &one),
        ];
        assert!(others.iter().all(|other| default_route(other).is_none()));
    }
}
