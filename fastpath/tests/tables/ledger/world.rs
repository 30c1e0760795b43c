//! An edge, a node with pods, and packets of clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use xdp_prog::abi::{
    ADDRESS_LOCAL, ADDRESS_VIP, BACKEND_LOCAL, BACKEND_POD, BACKEND_V4, BACKEND_V6, Backend,
    CONFIG_NODE, MODE_IPIP, NextHop, SERVICE_PODS, Tag,
};

use super::mutate::Random;
use crate::support::{
    kernel::INGRESS,
    packet::{Link, Packet},
    tables::{TableSet, address_key, padded},
};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Port that every pod listens on.
pub(crate) const TARGET_PORT: u16 = 8080;
const PODS_PER_SERVICE: u32 = 4;

const TO_EDGE: Link<'static> = Link {
    destination: [0x02, 0, 0, 0, 0, 0x01],
    source: [0x02, 0, 0, 0, 0, 0xc1],
    tags: &[],
};
const NODE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x11];

const fn v4(c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, c, d))
}

const fn v6(network: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, host))
}

const VIP_V4: IpAddr = v4(2, 10);
const VIP_V6: IpAddr = v6(0xf, 10);
const EDGE_V4: IpAddr = v4(0, 1);
const EDGE_V6: IpAddr = v6(0xe, 1);
const NODE_V4: IpAddr = v4(0, 11);
const NODE_V6: IpAddr = v6(0xe, 11);

/// A service: VIP, port, protocol, and the node's address that its backends are reached by.
struct Service {
    vip: IpAddr,
    port: u16,
    protocol: u8,
    node: IpAddr,
}

/// All pairs of inner and outer family.
const SERVICES: [Service; 6] = [
    service(VIP_V4, 80, TCP, NODE_V4),
    service(VIP_V4, 53, UDP, NODE_V4),
    service(VIP_V6, 80, TCP, NODE_V6),
    service(VIP_V6, 53, UDP, NODE_V6),
    service(VIP_V4, 8006, TCP, NODE_V6),
    service(VIP_V6, 8004, UDP, NODE_V4),
];

const fn service(vip: IpAddr, port: u16, protocol: u8, node: IpAddr) -> Service {
    Service {
        vip,
        port,
        protocol,
        node,
    }
}

/// The tables of both machines.
pub(crate) struct World {
    pub(crate) edge: TableSet,
    pub(crate) node: TableSet,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut edge = TableSet::default();
        let mut node = TableSet::default();
        node.config.flags = CONFIG_NODE;
        for vip in [VIP_V4, VIP_V6] {
            edge.address(vip, ADDRESS_VIP);
        }
        for own in [NODE_V4, NODE_V6] {
            node.address(own, ADDRESS_LOCAL);
        }
        node.trust(EDGE_V4, 32);
        node.trust(EDGE_V6, 128);
        for (id, (destination, source)) in [(1, (NODE_V4, EDGE_V4)), (2, (NODE_V6, EDGE_V6))] {
            assert_eq!(destination.is_ipv4(), source.is_ipv4());
            let mut macs = [0; 12];
            macs[..6].copy_from_slice(&NODE_MAC);
            macs[6..].copy_from_slice(&TO_EDGE.destination);
            edge.next_hops[id] = NextHop {
                ifindex: INGRESS,
                mtu: 1500,
                source: padded(source),
                own: padded(source),
                macs,
                ..NextHop::default()
            };
        }
        for (id, service) in (1..).zip(&SERVICES) {
            let pods: Vec<u32> = (0..PODS_PER_SERVICE)
                .map(|pod| (id - 1) * PODS_PER_SERVICE + pod + 1)
                .collect();
            for backend in &pods {
                let entry = backend_of(service, *backend);
                edge.backends[*backend as usize] = entry;
                node.backends[*backend as usize] = Backend {
                    next_hop: 0,
                    flags: entry.flags | BACKEND_LOCAL,
                    ..entry
                };
            }
            for tables in [&mut edge, &mut node] {
                let to = (service.vip, service.port);
                tables.service(id, to, service.protocol, MODE_IPIP, &pods);
                tables.service[id as usize].flags = SERVICE_PODS;
            }
            for backend in pods {
                node.pod(id, backend);
            }
        }
        Self { edge, node }
    }

    /// Returns a well-formed packet of a random client, mostly to a service.
    #[expect(clippy::unused_self, reason = "the addresses are the world's")]
    pub(crate) fn packet(&self, random: &mut Random) -> Vec<u8> {
        let service = random.choose(&SERVICES);
        let client = client(random, service.vip);
        let from = (client, u16::try_from(1024 + random.below(64_000)).unwrap());
        let port = match random.below(16) {
            0 => u16::try_from(random.below(65_536)).unwrap(),
            _ => service.port,
        };
        let length = match random.below(8) {
            0 => random.below(1_480),
            _ => random.below(200),
        };
        let payload = random.bytes(length);
        let to = (service.vip, port);
        let packet = match service.protocol {
            TCP => Packet::tcp(from, to, &payload),
            _ => Packet::udp(from, to, &payload),
        };
        let packet = match (random.below(8), service.vip) {
            (0, IpAddr::V4(_)) => packet.options(&[1; 8]),
            (0, IpAddr::V6(_)) => packet.extensions(&[(60, &[0, 1, 4, 0, 0, 0, 0])]),
            _ => packet,
        };
        TO_EDGE.carry(&packet)
    }

    /// Returns one packet for each service, to be mutated.
    pub(crate) fn samples(&self) -> Vec<Vec<u8>> {
        let mut random = Random::new(1);
        (0..64).map(|_| self.packet(&mut random)).collect()
    }

    /// Tells whether the edge sent this frame to the node.
    #[expect(clippy::unused_self, reason = "the addresses are the world's")]
    pub(crate) fn is_to_node(&self, frame: &[u8]) -> bool {
        frame.starts_with(&NODE_MAC)
    }

    /// Tells whether a frame claims to come from the node: an answer to it would look like one sent on.
    #[expect(clippy::unused_self, reason = "the addresses are the world's")]
    pub(crate) fn is_from_node(&self, frame: &[u8]) -> bool {
        frame[6..12] == NODE_MAC
    }

    /// Tells whether an address is a pod's that serves any port of this VIP.
    pub(crate) fn serves_some(&self, pod: IpAddr, vip: IpAddr) -> bool {
        SERVICES
            .iter()
            .any(|service| self.serves(pod, vip, service.port, service.protocol))
    }

    /// Tells whether an address is a pod's that serves this VIP and port.
    pub(crate) fn serves(&self, pod: IpAddr, vip: IpAddr, port: u16, protocol: u8) -> bool {
        (1..).zip(&SERVICES).any(|(id, service)| {
            (service.vip, service.port, service.protocol) == (vip, port, protocol)
                && (0..PODS_PER_SERVICE).any(|index| {
                    let backend = (id - 1) * PODS_PER_SERVICE + index + 1;
                    self.node.backends[backend as usize].pod == address_key(pod)
                })
        })
    }
}

fn backend_of(service: &Service, id: u32) -> Backend {
    let host = u16::try_from(id).unwrap();
    let pod = if service.vip.is_ipv4() {
        IpAddr::V4(Ipv4Addr::new(10, 244, 1, u8::try_from(id).unwrap()))
    } else {
        v6(0x244, host)
    };
    let (family, next_hop) = if service.node.is_ipv4() {
        (BACKEND_V4, 1)
    } else {
        (BACKEND_V6, 2)
    };
    Backend {
        address: padded(service.node),
        next_hop,
        flags: family | BACKEND_POD,
        pod: address_key(pod),
        port: TARGET_PORT.to_be_bytes(),
        tag: Tag::pod(address_key(pod)).0,
        ..Backend::default()
    }
}

fn client(random: &mut Random, vip: IpAddr) -> IpAddr {
    let bytes = random.bytes(4);
    if vip.is_ipv4() {
        IpAddr::V4(Ipv4Addr::new(198, 18 + (bytes[0] & 1), bytes[1], bytes[2]))
    } else {
        let host = u16::from_be_bytes([bytes[0], bytes[1]]);
        v6(0xc, host)
    }
}
