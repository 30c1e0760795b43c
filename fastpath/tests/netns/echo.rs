//! Echoes through sockets of a real kernel.

use std::{
    io::{ErrorKind, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use fastpath::echo::{Echo, hear_only};
use lab::Namespace;
use socket2::{Domain, Protocol, Socket, Type};

const UPPER: u32 = 0x1234_5678;

#[test]
fn socket_hears_replies_to_its_own_echoes_only() {
    let machine = Namespace::new("echo").unwrap();
    let v4 = (Domain::IPV4, Protocol::ICMPV4, Ipv4Addr::LOCALHOST.into());
    let v6 = (Domain::IPV6, Protocol::ICMPV6, Ipv6Addr::LOCALHOST.into());
    for (domain, protocol, own) in [v4, v6] {
        let own: IpAddr = own;
        let is_v6 = own.is_ipv6();
        let open = || Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
        let [mut hears_own, mut hears_all] = machine.run(|| [open(), open()]);
        hear_only(&hears_own, is_v6, UPPER).unwrap();
        let nonces = [UPPER ^ 1, UPPER].map(|upper| u64::from(upper) << 32 | 7);
        for nonce in nonces {
            let request = Echo { is_v6, nonce }.request();
            let to = SocketAddr::new(own, 0).into();
            hears_own.send_to(&request, &to).unwrap();
        }
        // The other socket has all there was: requests and replies.
        let echoes = nonces.map(|nonce| Echo { is_v6, nonce });
        let mut replies = Vec::new();
        while replies.len() < echoes.len() {
            replies.extend(Echo::of_reply(is_v6, &received(&mut hears_all)));
        }
        assert_eq!(replies, echoes);
        assert_eq!(
            Echo::of_reply(is_v6, &received(&mut hears_own)),
            Some(echoes[1])
        );
        hears_own.set_nonblocking(true).unwrap();
        let rest = hears_own.read(&mut [0; 256]);
        assert!(rest.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    }
}

/// Waits for the next packet.
fn received(socket: &mut Socket) -> Vec<u8> {
    let mut packet = vec![0; 256];
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let length = socket.read(&mut packet).unwrap();
    packet.truncate(length);
    packet
}
