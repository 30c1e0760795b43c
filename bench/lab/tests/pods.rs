//! Pods reach what pods reach in a cluster, the way they do there. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use lab::{Machine, Offload, Topology};

const TIMEOUT: Duration = Duration::from_secs(60);
const PORT: u16 = 80;
/// Bytes of a transfer.
const LENGTH: usize = 300_000;

/// Transfers some segments by TCP; returns the address that the server saw.
fn transfer(client: &Machine, server: &Machine, address: IpAddr) -> SocketAddr {
    let listener = server
        .namespace()
        .run(|| TcpListener::bind((address, PORT)).unwrap());
    let sent: Vec<u8> = (0..=u8::MAX).cycle().take(LENGTH).collect();
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let (mut stream, peer) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut received = vec![0; LENGTH];
            stream.read_exact(&mut received).unwrap();
            (received, peer)
        });
        let mut stream = client
            .namespace()
            .run(|| TcpStream::connect_timeout(&(address, PORT).into(), TIMEOUT).unwrap());
        stream.write_all(&sent).unwrap();
        let (received, peer) = serving.join().unwrap();
        assert!(received == sent, "bytes changed on the way");
        peer
    })
}

fn pods_reach_each_other(net: &Topology) {
    let [node0, node1] = net.nodes() else {
        panic!("two nodes");
    };
    let client = &node0.pods()[0];
    for server in [&node0.pods()[1], &node1.pods()[0]] {
        for address in [server.v4(), server.v6()] {
            let peer = transfer(client, server, address);
            assert_eq!(peer.ip(), client.address_like(address));
        }
    }
}

#[test]
fn pods_reach_each_other_under_their_own_addresses() {
    pods_reach_each_other(&Topology::builder().pods(2).build().unwrap());
}

fn node_reaches_its_pod_without_the_wire(net: &Topology) {
    let node = &net.nodes()[0];
    let pod = &node.pods()[0];
    for address in [pod.v4(), pod.v6()] {
        let sent = || node.link().unwrap().stats().unwrap().tx_bytes;
        let before = sent();
        transfer(node, pod, address);
        // Now and then the kernel says something by itself there.
        let sent = sent() - before;
        assert!(sent < LENGTH as u64 / 10, "{sent} bytes on the wire");
    }
}

#[test]
fn nodes_reach_their_pods_without_the_wire() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    node_reaches_its_pod_without_the_wire(&net);
}

fn outside_sees_nodes_in_place_of_pods(net: &Topology) {
    let outside = &net.clients()[0];
    for node in net.nodes() {
        let pod = &node.pods()[0];
        for address in [outside.v4(), outside.v6()] {
            let peer = transfer(pod, outside, address);
            assert_eq!(peer.ip(), node.address_like(address));
        }
    }
}

#[test]
fn outside_sees_the_node_in_place_of_its_pods() {
    let net = Topology::builder().nodes(1).routed_nodes(1).pods(1);
    outside_sees_nodes_in_place_of_pods(&net.build().unwrap());
}

#[test]
fn pods_behind_bridges_reach_what_others_reach() {
    let net = Topology::builder().pods(2).pods_behind_bridges();
    let net = net.build().unwrap();
    pods_reach_each_other(&net);
    node_reaches_its_pod_without_the_wire(&net);
    outside_sees_nodes_in_place_of_pods(&net);
}

#[test]
fn pods_behind_a_bridge_are_one_network() {
    let net = Topology::builder().nodes(1).pods(2).pods_behind_bridges();
    let net = net.build().unwrap();
    let node = &net.nodes()[0];
    // What passes from port to port is not routed.
    node.namespace()
        .set_sysctl("net/ipv4/ip_forward", "0")
        .unwrap();
    let [one, other] = node.pods() else {
        panic!("two pods");
    };
    transfer(one, other, other.v4());
}

#[test]
fn pods_keep_their_offloads() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let pod = &net.nodes()[0].pods()[0];
    for link in [pod.link().unwrap(), net.far_end(pod).unwrap()] {
        for offload in [Offload::Tx, Offload::Tso, Offload::Gso] {
            assert!(link.offload(offload).unwrap(), "{link:?} {offload:?}");
        }
    }
}

#[test]
fn outside_has_no_way_to_a_pod() {
    let net = Topology::builder().nodes(1).pods(1).build().unwrap();
    let pod = &net.nodes()[0].pods()[0];
    let client = net.clients()[0].namespace();
    let error = client
        .run(|| TcpStream::connect_timeout(&(pod.v4(), PORT).into(), TIMEOUT))
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable, "{error}");
}
