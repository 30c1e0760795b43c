//! One ICMP echo to one node, by a socket of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use fastpath::echo::Echo;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, setsockopt, socket,
    sockopt,
};

use super::probe::ProbeError;
use crate::random::random;

/// Sends an echo request and waits for its reply. `mark` marks the packet; 0 for none.
///
/// # Errors
///
/// When the request cannot be sent, the network reports an error, or no reply comes within `timeout`.
pub(super) async fn echo(node: IpAddr, mark: u32, timeout: Duration) -> Result<(), ProbeError> {
    match tokio::time::timeout(timeout, exchange(node, mark)).await {
        Ok(outcome) => outcome.map_err(ProbeError::Connect),
        Err(_) => Err(ProbeError::Timeout(timeout)),
    }
}

async fn exchange(node: IpAddr, mark: u32) -> io::Result<()> {
    let socket = open(node, mark)?;
    let echo = Echo {
        is_v6: node.is_ipv6(),
        nonce: random(),
    };
    socket.send(&echo.request()).await?;
    // The socket receives all ICMP from the node. The caller's timeout ends the wait.
    let mut received = [0; 256];
    loop {
        let length = socket.recv(&mut received).await?;
        if echo.is_answered_by(&received[..length]) {
            return Ok(());
        }
    }
}

/// Opens a raw socket connected to the node. It receives only from the node, and reports ICMP errors about its
/// packets.
fn open(node: IpAddr, mark: u32) -> io::Result<tokio::net::UdpSocket> {
    let socket = raw_socket(node.is_ipv6())?;
    if mark != 0 {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    let peer = SockaddrStorage::from(SocketAddr::new(node, 0));
    connect(socket.as_raw_fd(), &peer)?;
    // A `UdpSocket` only by type: send and recv work on every connected socket.
    tokio::net::UdpSocket::from_std(UdpSocket::from(socket))
}

/// Opens a raw ICMP socket. Unprivileged ICMP sockets are no alternative: `net.ipv4.ping_group_range` usually
/// allows them to nobody.
pub(super) fn raw_socket(is_v6: bool) -> io::Result<OwnedFd> {
    let (family, protocol) = if is_v6 {
        (AddressFamily::Inet6, SockProtocol::IcmpV6)
    } else {
        (AddressFamily::Inet, SockProtocol::Icmp)
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, SockType::Raw, flags, Some(protocol))?)
}
