//! One echo to one node.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use fastpath::echo::Echo;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, setsockopt, socket,
    sockopt,
};

use super::probe::ProbeError;

/// Sends an echo request and waits for its reply.
///
/// # Errors
///
/// Why there is none.
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
        nonce: RandomState::new().build_hasher().finish(),
    };
    socket.send(&echo.request()).await?;
    // The socket gets all ICMP that comes from the node; the caller's timeout ends the wait.
    let mut received = [0; 256];
    loop {
        let length = socket.recv(&mut received).await?;
        if echo.is_answered_by(&received[..length]) {
            return Ok(());
        }
    }
}

/// Opens a raw socket that sends to the node and hears from it alone. Not one of those that any user may open:
/// `net.ipv4.ping_group_range` usually allows them to nobody.
fn open(node: IpAddr, mark: u32) -> io::Result<tokio::net::UdpSocket> {
    let (family, protocol) = match node {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Raw, flags, Some(protocol))?;
    if mark != 0 {
        setsockopt(&socket, sockopt::Mark, &mark)?;
    }
    let peer = SockaddrStorage::from(SocketAddr::new(node, 0));
    connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &peer)?;
    // Of the type only what every connected socket has is used: send and recv.
    tokio::net::UdpSocket::from_std(UdpSocket::from(socket))
}
