//! The standard network carries real traffic of both families. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use lab::{Machine, Offload, Topology, vip_v4, vip_v6, wait_for};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a transfer.
const LENGTH: usize = 100_000;

/// Sends a datagram from one machine to an address of another and back;
/// returns the source the server saw.
fn udp_exchange(client: &Machine, server: &Machine, address: IpAddr) -> SocketAddr {
    let listener = server
        .namespace()
        .run(|| UdpSocket::bind((address, 9)).unwrap());
    listener.set_read_timeout(Some(TIMEOUT)).unwrap();
    let from = client.address_like(address);
    let socket = client
        .namespace()
        .run(|| UdpSocket::bind((from, 0)).unwrap());
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.send_to(b"ping", (address, 9)).unwrap();

    let mut buffer = [0; 16];
    let (length, source) = listener.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"ping");
    listener.send_to(b"pong", source).unwrap();
    let (length, replier) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"pong");
    assert_eq!(replier.ip(), address);
    source
}

/// Sends more than one segment by TCP and has it echoed.
fn tcp_exchange(client: &Machine, server: &Machine, address: IpAddr) {
    let listener = server
        .namespace()
        .run(|| TcpListener::bind((address, 80)).unwrap());
    let sent: Vec<u8> = (0..=u8::MAX).cycle().take(LENGTH).collect();
    let mut received = vec![0; LENGTH];
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut buffer = vec![0; LENGTH];
            stream.read_exact(&mut buffer).unwrap();
            stream.write_all(&buffer).unwrap();
        });
        let mut stream = client
            .namespace()
            .run(|| TcpStream::connect_timeout(&(address, 80).into(), TIMEOUT).unwrap());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut received).unwrap();
    });
    assert!(received == sent, "the echo differs");
}

#[test]
fn clients_reach_nodes_by_udp_and_tcp_over_both_families() {
    let net = Topology::builder()
        .clients(2)
        .nodes(1)
        .routed_nodes(1)
        .queues(2)
        .build()
        .unwrap();
    for client in net.clients() {
        for node in net.nodes() {
            for address in [node.v4(), node.v6()] {
                let source = udp_exchange(client, node, address);
                assert_eq!(source.ip(), client.address_like(address), "no NAT");
                tcp_exchange(client, node, address);
            }
        }
    }
}

#[test]
fn edges_reach_nodes_on_the_segment_without_the_router() {
    let net = Topology::builder().build().unwrap();
    let (edge, node) = (&net.edges()[0], &net.nodes()[0]);
    let router = net.router().link("fabric").unwrap();
    // Broadcasts of the address resolution still reach the router.
    udp_exchange(edge, node, node.v4());
    let before = router.stats().unwrap().tx_bytes;
    tcp_exchange(edge, node, node.v4());
    // Now and then the kernel says something by itself.
    let sent = router.stats().unwrap().tx_bytes - before;
    assert!(sent < LENGTH as u64 / 10, "{sent} bytes");
}

#[test]
fn vips_go_to_the_chosen_edge_and_replies_straight_to_the_client() {
    let net = Topology::builder().edges(2).build().unwrap();
    let client = &net.clients()[0];
    for vip in [IpAddr::from(vip_v4(1)), IpAddr::from(vip_v6(1))] {
        for (index, edge) in net.edges().iter().enumerate() {
            net.route_vips(&[index]).unwrap();
            edge.add_vip(vip).unwrap();
            udp_exchange(client, edge, vip);
            tcp_exchange(client, edge, vip);
            edge.remove_vip(vip).unwrap();
        }
    }
}

#[test]
fn flows_to_vips_spread_over_several_edges() {
    let net = Topology::builder().edges(2).build().unwrap();
    net.route_vips(&[0, 1]).unwrap();
    for vip in [IpAddr::from(vip_v4(1)), IpAddr::from(vip_v6(1))] {
        let counts = || {
            [0, 1].map(|index: usize| {
                let link = net.edges()[index].link().unwrap();
                link.stats().unwrap().rx_packets
            })
        };
        let before = counts();
        net.clients()[0].namespace().run(|| {
            let from = net.clients()[0].address_like(vip);
            let socket = UdpSocket::bind((from, 0)).unwrap();
            for port in 1000..1200 {
                // An edge without the VIP answers with an ICMP error, which
                // the next call reports.
                let _ = socket.send_to(b"spread", (vip, port));
            }
        });
        // The last ones may still be on their way.
        wait_for(
            &format!("both edges get a share for {vip}"),
            TIMEOUT,
            || {
                let after = counts();
                let received = [0, 1].map(|index| after[index] - before[index]);
                let is_shared = received.iter().all(|count| *count >= 30);
                is_shared
                    .then_some(())
                    .ok_or(format!("{received:?} of 200"))
            },
        )
        .unwrap();
    }
}

#[test]
fn senders_have_offloads_off() {
    let net = Topology::builder().routed_nodes(1).build().unwrap();
    for machine in net.clients().iter().chain(net.edges()).chain(net.nodes()) {
        for link in [machine.link().unwrap(), net.far_end(machine).unwrap()] {
            for offload in [Offload::Tx, Offload::Tso, Offload::Gso, Offload::TxVlan] {
                assert!(!link.offload(offload).unwrap(), "{link:?} {offload:?}");
            }
        }
    }
}
