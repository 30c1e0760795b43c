//! Sends and receives whole frames, past the network stack.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use crate::{Link, Result};

// linux/if_packet.h; libc has no such option for glibc.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// A packet socket on one interface. It receives the frames that arrive there, and sends past the queueing
/// disciplines.
#[derive(Debug)]
pub struct RawSocket(OwnedFd);

impl RawSocket {
    /// Opens a socket for frames of one EtherType, in host order. `ETH_P_ALL` receives every frame, 0 none.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`](crate::Error::Kernel), usually because the caller is not root.
    pub fn open(link: &Link<'_>, ether_type: u16) -> Result<Self> {
        Self::try_open(link, ether_type)
            .map_err(|source| link.error("open a packet socket on".to_owned(), source))
    }

    fn try_open(link: &Link<'_>, ether_type: u16) -> io::Result<Self> {
        let protocol = ether_type.to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let fd = link.namespace().run(|| {
            // SAFETY: takes no pointers.
            checked(unsafe { libc::socket(libc::AF_PACKET, kind, protocol.into()) })
        })?;
        // SAFETY: the descriptor was opened above and nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        for option in [libc::PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING] {
            let on: libc::c_int = 1;
            // SAFETY: the value is readable for the length given with it.
            checked(unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_PACKET,
                    option,
                    (&raw const on).cast(),
                    length_of(&on),
                )
            })?;
        }
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET.try_into().map_err(io::Error::other)?,
            sll_protocol: protocol,
            sll_ifindex: link.index().try_into().map_err(io::Error::other)?,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is a `sockaddr_ll` of the length given.
        checked(unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                length_of(&address),
            )
        })?;
        Ok(Self(socket))
    }

    /// Sends a frame. Returns whether the device had room for it.
    ///
    /// # Errors
    ///
    /// The kernel's error, for example when the interface is down.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        let (start, length) = (frame.as_ptr().cast(), frame.len());
        // SAFETY: the frame is readable for its length.
        match unsafe { libc::send(self.0.as_raw_fd(), start, length, 0) } {
            -1 => match io::Error::last_os_error() {
                full if full.raw_os_error() == Some(libc::ENOBUFS) => Ok(false),
                error => Err(error),
            },
            _ => Ok(true),
        }
    }

    /// Receives the next frame; `None` after `timeout`.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn receive(&self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let milliseconds = timeout.as_millis().try_into().map_err(io::Error::other)?;
        // SAFETY: `poll` is one entry, and the count is 1.
        if checked(unsafe { libc::poll(&raw mut poll, 1, milliseconds) })? == 0 {
            return Ok(None);
        }
        let mut frame = vec![0; 1 << 16];
        let (start, room) = (frame.as_mut_ptr().cast(), frame.len());
        // SAFETY: the buffer is writable for its length.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), start, room, 0) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        frame.truncate(length);
        Ok(Some(frame))
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

#[expect(clippy::cast_possible_truncation, reason = "a few bytes")]
const fn length_of<T>(_: &T) -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}
