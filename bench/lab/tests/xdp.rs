//! What the crate's documentation says about XDP on veth and bridges. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

mod support;

use std::{net::UdpSocket, time::Duration};

use lab::{Error, Link, Namespace, Offload, RawSocket, Topology, Veth, wait_until};

use support::{ETHERNET_LENGTH, EXPERIMENTAL, careless_forwarder, frame, reflector};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_frame_from_xdp_tx_arrives_at_a_peer_with_a_program_of_its_own() {
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let (sender, edge) = cable(&a, &b);
    edge.attach_xdp(&reflector()).unwrap();
    sender.attach_pass().unwrap();
    let socket = RawSocket::open(&sender, EXPERIMENTAL).unwrap();
    assert!(socket.send(&frame(edge.mac(), sender.mac())).unwrap());
    let back = frame(sender.mac(), edge.mac());
    assert_eq!(socket.receive(TIMEOUT).unwrap(), Some(back));

    sender.attach_pass().unwrap_err();
    sender.detach_xdp().unwrap();
    sender.attach_pass().unwrap();
}

#[test]
fn a_frame_from_xdp_tx_is_dropped_and_counted_where_the_peer_has_neither_program_nor_gro() {
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let (sender, edge) = cable(&a, &b);
    edge.attach_xdp(&reflector()).unwrap();
    let before = edge.stats().unwrap().tx_dropped;
    let socket = RawSocket::open(&sender, EXPERIMENTAL).unwrap();
    assert!(socket.send(&frame(edge.mac(), sender.mac())).unwrap());
    wait_until("the drop is counted", TIMEOUT, || {
        edge.stats().unwrap().tx_dropped == before + 1
    })
    .unwrap();
    assert_eq!(socket.receive(Duration::ZERO).unwrap(), None);
}

#[test]
fn a_frame_from_xdp_tx_waits_in_a_peer_with_gro_until_something_else_wakes_it() {
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let (sender, edge) = cable(&a, &b);
    // What the kernel itself sends is received by NAPI only without TSO.
    edge.disable_tx_offloads().unwrap();
    // The stack's own packets would wake the receiver.
    silence(&sender);
    silence(&edge);
    edge.attach_xdp(&reflector()).unwrap();
    sender.set_offload(Offload::Gro, true).unwrap();
    let socket = RawSocket::open(&sender, EXPERIMENTAL).unwrap();
    assert!(socket.send(&frame(edge.mac(), sender.mac())).unwrap());
    assert_eq!(socket.receive(Duration::from_millis(500)).unwrap(), None);

    let from_edge = RawSocket::open(&edge, EXPERIMENTAL).unwrap();
    let waker = frame(sender.mac(), [0x02; 6]);
    assert!(from_edge.send(&waker).unwrap());
    // One poll delivers both, in no particular order.
    let received = [(); 2].map(|()| socket.receive(TIMEOUT).unwrap().unwrap());
    assert!(received.contains(&waker), "{received:?}");
    let late = frame(sender.mac(), edge.mac());
    assert!(received.contains(&late), "{received:?}");
}

#[test]
fn an_interface_without_native_xdp_is_named() {
    let machine = Namespace::new("a").unwrap();
    let error = machine.link("lo").unwrap().attach_pass().unwrap_err();
    assert!(matches!(error, Error::NoNativeXdp { .. }), "{error:?}");
    assert!(error.to_string().contains("interface lo"), "{error}");
}

#[test]
fn a_bridge_forwards_frames_from_xdp_tx() {
    let net = Topology::builder().build().unwrap();
    let (edge, node) = (
        net.edges()[0].link().unwrap(),
        net.nodes()[0].link().unwrap(),
    );
    edge.attach_xdp(&reflector()).unwrap();
    let socket = RawSocket::open(&node, EXPERIMENTAL).unwrap();
    for _ in 0..100 {
        assert!(socket.send(&frame(edge.mac(), node.mac())).unwrap());
        assert_eq!(
            socket.receive(TIMEOUT).unwrap(),
            Some(frame(node.mac(), edge.mac()))
        );
    }
}

#[test]
fn a_source_mac_left_in_place_moves_its_owner_to_the_port_of_the_edge() {
    let net = Topology::builder().build().unwrap();
    let [edge, owner, other] =
        [&net.edges()[0], &net.nodes()[0], &net.nodes()[1]].map(|m| m.link().unwrap());
    // A report of its stack's (MLD) would bring the owner's MAC back to its port.
    silence(&owner);
    let at_owner = RawSocket::open(&owner, EXPERIMENTAL).unwrap();
    let at_other = RawSocket::open(&other, EXPERIMENTAL).unwrap();

    assert!(at_other.send(&frame(owner.mac(), other.mac())).unwrap());
    assert!(at_owner.receive(TIMEOUT).unwrap().is_some(), "before");

    edge.attach_xdp(&careless_forwarder(other.mac())).unwrap();
    assert!(at_owner.send(&frame(edge.mac(), owner.mac())).unwrap());
    let forwarded = at_other.receive(TIMEOUT).unwrap();
    assert_eq!(forwarded, Some(frame(other.mac(), owner.mac())));
    edge.detach_xdp().unwrap();

    let at_edge = RawSocket::open(&edge, EXPERIMENTAL).unwrap();
    assert!(at_other.send(&frame(owner.mac(), other.mac())).unwrap());
    let astray = at_edge.receive(TIMEOUT).unwrap();
    assert_eq!(astray, Some(frame(owner.mac(), other.mac())));
}

#[test]
fn datagrams_carry_finished_checksums_only_with_tx_offload_off() {
    let net = Topology::builder().build().unwrap();
    let (client, node) = (&net.clients()[0], &net.nodes()[0]);
    let link = client.link().unwrap();
    let port = net.far_end(client).unwrap();
    let socket = RawSocket::open(&port, libc::ETH_P_IP.try_into().unwrap()).unwrap();
    let sender = client
        .namespace()
        .run(|| UdpSocket::bind((client.v4(), 0)).unwrap());
    for finished in [true, false] {
        link.set_offload(Offload::Tx, !finished).unwrap();
        sender.send_to(b"payload", (node.v4(), 9)).unwrap();
        let frame = socket.receive(TIMEOUT).unwrap().unwrap();
        assert_eq!(udp_checksum_holds(&frame), finished);
    }
}

/// Ends what the IPv6 stack sends by itself; IPv4's sends nothing unasked.
fn silence(link: &Link<'_>) {
    let disable = format!("net/ipv6/conf/{}/disable_ipv6", link.name());
    link.namespace().set_sysctl(&disable, "1").unwrap();
}

/// Makes a pair of interfaces that carry.
fn cable<'n>(a: &'n Namespace, b: &'n Namespace) -> (Link<'n>, Link<'n>) {
    Veth::between((a, "eth0"), (b, "eth0")).create().unwrap()
}

/// Recomputes the checksum of a UDP datagram in an IPv4 packet without options (RFC 768).
fn udp_checksum_holds(frame: &[u8]) -> bool {
    let packet = &frame[ETHERNET_LENGTH..];
    assert_eq!((packet[0], packet[9]), (0x45, 17), "UDP over IPv4");
    let datagram = &packet[20..usize::from(u16::from_be_bytes([packet[2], packet[3]]))];
    let pseudo_header = u32::from(packet[9]) + u32::try_from(datagram.len()).unwrap();
    let mut sum = [&packet[12..20], datagram]
        .iter()
        .flat_map(|part| part.chunks(2))
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .fold(pseudo_header, |sum, word| sum + word);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}
