//! Pods behind a node, set up as a CNI plugin does.
//!
//! ```text
//!          +-- node0 ---------------------+
//!   fabric | eth0 10.0.1.101   node0-pod0 | ---- eth0 node0-pod0  10.2.0.1/32  fd00:2::1/128
//!   ------ |                   node0-pod1 | ---- eth0 node0-pod1  10.2.0.2/32  fd00:2::2/128
//!          +------------------------------+
//! ```
//!
//! A pod's only neighbour is its node. It has host addresses and link-local gateways: 169.254.1.1, for which
//! the node answers by proxy ARP, and fe80::1. The node has a route to each of its pods and forwards. Packets
//! from pods to anyone but pods are masqueraded with random ports. Both ends of a pod's cable keep their
//! offloads: what a pod sends reaches the node in segments larger than the MTU and with unfinished checksums.
//!
//! Pods may be behind a bridge instead, as the CNI plugin `bridge` has them. Then all pods of a node are one network:
//!
//! ```text
//!          +-- node0 ------------------------------------+
//!   fabric | eth0            cni0 -------+-- node0-pod0  | ---- eth0 node0-pod0  10.2.0.1/24  fd00:2::1/112
//!   ------ | 10.0.1.101      10.2.0.254  +-- node0-pod1  | ---- eth0 node0-pod1  10.2.0.2/24  fd00:2::2/112
//!          |                 fd00:2::254                 |
//!          +---------------------------------------------+
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    Cidr, Link, Machine, Namespace, Result, Route, Veth,
    machine::FarEnd,
    output,
    route::{cidr, decimal_as_hex},
};

const GATEWAY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
const GATEWAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// The bridge of a node's pods.
const BRIDGE: &str = "cni0";
/// Its number among the pods' addresses.
const BRIDGE_HOST: u8 = 254;

/// The prefixes of the pods of node `node`.
pub(crate) fn pods_of(node: u8) -> [Cidr; 2] {
    let number = decimal_as_hex(node);
    [
        cidr(Ipv4Addr::new(10, 2, node, 0), 24),
        cidr(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, number, 0), 112),
    ]
}

/// The prefixes of all pods.
pub(crate) fn all_pods() -> [Cidr; 2] {
    [
        cidr(Ipv4Addr::new(10, 2, 0, 0), 16),
        cidr(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 0), 96),
    ]
}

/// The addresses of pod `pod` of node `node`.
fn addresses(node: u8, pod: u8) -> [Cidr; 2] {
    hosts(node, pod + 1).map(Cidr::host)
}

/// Addresses of a node's pods, by their number.
fn hosts(node: u8, host: u8) -> [IpAddr; 2] {
    let [a, b] = [node, host].map(decimal_as_hex);
    [
        Ipv4Addr::new(10, 2, node, host).into(),
        Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, a, b).into(),
    ]
}

/// Returns the addresses that pod `pod` of node `node` has, IPv4 first.
pub fn pod_addresses(node: u8, pod: u8) -> [IpAddr; 2] {
    addresses(node, pod).map(|cidr| cidr.address)
}

/// Makes a machine a node that forwards for its pods.
pub(crate) fn prepare_node(node: &Namespace, number: u8) -> Result<()> {
    node.enable_forwarding()?;
    // A pod also sends to its node what is reached by the pod's own cable. The node must not answer with
    // redirects.
    for scope in ["all", "default"] {
        node.set_sysctl(&format!("net/ipv4/conf/{scope}/send_redirects"), "0")?;
    }
    let rules: String = ["ip", "ip6"]
        .into_iter()
        .zip(pods_of(number).into_iter().zip(all_pods()))
        .map(|(family, (own, all))| {
            format!(
                "table {family} pods {{
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    {family} saddr {own} {family} daddr != {all} masquerade fully-random
  }}
}}
"
            )
        })
        .collect();
    node.nft(&rules)
}

/// Makes pods that their node has a route to each.
pub(crate) fn add_routed(node: &Namespace, number: u8, pods: u8, mtu: u32) -> Result<Vec<Machine>> {
    (0..pods)
        .map(|pod| add(node, (number, pod), mtu, None))
        .collect()
}

/// Makes pods behind a bridge of their node.
pub(crate) fn add_bridged(
    node: &Namespace,
    number: u8,
    pods: u8,
    mtu: u32,
) -> Result<Vec<Machine>> {
    let bridge = node.add_bridge(BRIDGE)?;
    bridge.set_mtu(mtu)?;
    let pods = (0..pods)
        .map(|pod| add(node, (number, pod), mtu, Some(&bridge)))
        .collect::<Result<Vec<_>>>()?;
    // Without a port it has no carrier, and IPv6 addresses are not used until it has one.
    bridge.wait_until_ready()?;
    for gateway in in_prefix(number, hosts(number, BRIDGE_HOST)) {
        bridge.add_address(gateway)?;
    }
    Ok(pods)
}

/// Addresses of a node's pods with the lengths of the prefixes that they are in.
fn in_prefix(node: u8, addresses: [IpAddr; 2]) -> [Cidr; 2] {
    let [v4, v6] = pods_of(node);
    let [a, b] = addresses;
    [cidr(a, v4.length), cidr(b, v6.length)]
}

/// Makes a pod behind a node, or behind a bridge of it.
fn add(
    node: &Namespace,
    (number, pod): (u8, u8),
    mtu: u32,
    bridge: Option<&Link<'_>>,
) -> Result<Machine> {
    let label = format!("{}-pod{pod}", node.label());
    let namespace = Namespace::new(&label)?;
    let (link, far) = Veth::between((&namespace, Machine::INTERFACE), (node, &label))
        .mtu(mtu)
        .lay()?;
    let own = addresses(number, pod);
    let gateways = if let Some(bridge) = bridge {
        far.set_bridge(bridge)?;
        for address in in_prefix(number, own.map(|cidr| cidr.address)) {
            link.add_address(address)?;
        }
        hosts(number, BRIDGE_HOST)
    } else {
        prepare_far_end(&far)?;
        for address in own {
            node.add_route(&Route::to(address).through(&far))?;
            link.add_address(address)?;
        }
        namespace.add_route(&Route::to(Cidr::host(GATEWAY_V4)).through(&link))?;
        [GATEWAY_V4, GATEWAY_V6]
    };
    for (any, gateway) in [Cidr::ANY_V4, Cidr::ANY_V6].into_iter().zip(gateways) {
        namespace.add_route(&Route::to(any).via(gateway).through(&link))?;
    }
    let mac = link.mac();
    let far_end = FarEnd::Node(number.into());
    Ok(Machine::new(namespace, own, gateways, far_end, mac))
}

/// Makes the node's end answer for the pod's gateways.
fn prepare_far_end(far: &Link<'_>) -> Result<()> {
    let (node, name) = (far.namespace(), far.name());
    node.set_sysctl(&format!("net/ipv4/conf/{name}/proxy_arp"), "1")?;
    // By default a proxy waits up to 0.8 s, so that the owner of the address can answer first.
    node.set_sysctl(&format!("net/ipv4/neigh/{name}/proxy_delay"), "0")?;
    far.add_address(Cidr {
        address: GATEWAY_V6,
        length: 64,
    })
}

impl Namespace {
    /// Adds netfilter rules, written as `nft -f` reads them.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Start`] when there is no `nft`, [`crate::Error::Failed`] when it refuses the rules.
    pub fn nft(&self, rules: &str) -> Result<()> {
        let file = self.write_file("rules.nft", rules)?;
        output(self.command("nft").arg("-f").arg(file)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_in_the_prefix_of_their_node_and_read_alike() {
        assert_eq!(
            addresses(12, 9).map(|cidr| cidr.to_string()),
            ["10.2.12.10/32", "fd00:2::12:10/128"]
        );
        assert_eq!(
            in_prefix(12, hosts(12, BRIDGE_HOST)).map(|cidr| cidr.to_string()),
            ["10.2.12.254/24", "fd00:2::12:254/112"]
        );
        assert_eq!(
            pods_of(12).map(|cidr| cidr.to_string()),
            ["10.2.12.0/24", "fd00:2::12:0/112"]
        );
    }
}
