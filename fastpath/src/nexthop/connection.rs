//! The socket that questions are asked over, one at a time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::NetlinkError;
use crate::netlink::{
    Message, NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR, Request, messages, read_u32,
};

/// The kernel fills dump messages up to 32 KiB; a single message is smaller.
const BUFFER_LENGTH: usize = 64 << 10;

/// The kernel answers within the call that asks, so this only bounds the wait for an answer that
/// was lost to memory pressure.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// How often a dump is begun again because the table changed under it.
const DUMP_TRIES: u32 = 10;

/// Opens a routing netlink socket in the calling thread's network namespace.
pub(super) fn open(groups: u32, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags | SocketFlags::CLOEXEC,
        // NETLINK_ROUTE is protocol 0, the default.
        None,
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A socket, and the number of the question asked last.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn open() -> Result<Self, NetlinkError> {
        let socket = open(0, SocketFlags::empty()).map_err(NetlinkError::Open)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_DEADLINE))
            .map_err(|error| NetlinkError::Open(error.into()))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER_LENGTH],
        })
    }

    /// Lists a table: returns what `decode` makes of each message, without those it rejects.
    pub(super) fn dump<T>(
        &mut self,
        attempt: &'static str,
        request: impl Fn() -> Request,
        decode: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_TRIES {
            let mut entries = Vec::new();
            let changed = self
                .exchange(request(), |message| entries.extend(decode(message)))
                .map_err(|source| NetlinkError::Ask { attempt, source })?;
            if !changed {
                return Ok(entries);
            }
        }
        Err(NetlinkError::Ask {
            attempt,
            source: io::Error::other(format!(
                "the table changed during each of {DUMP_TRIES} attempts"
            )),
        })
    }

    /// Asks a question and hands each message of the answer to `each`.
    ///
    /// Returns whether the table changed while it was dumped. A datagram that is lost or cut is
    /// reported at the end: the kernel takes no new dump before the old one is read.
    pub(super) fn exchange(
        &mut self,
        request: Request,
        mut each: impl FnMut(&Message<'_>),
    ) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request.into_bytes(self.sequence);
        retry(|| send(&self.socket, &request, SendFlags::empty()))?;

        let mut changed = false;
        let mut lost = None;
        loop {
            let received =
                retry(|| recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC));
            let (kept, length) = match received {
                Ok(lengths) => lengths,
                Err(rustix::io::Errno::NOBUFS) => {
                    lost = Some(io::Error::from(rustix::io::Errno::NOBUFS));
                    continue;
                }
                Err(rustix::io::Errno::AGAIN) => {
                    return Err(lost.unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
                }
                Err(error) => return Err(error.into()),
            };
            if length > kept {
                lost = Some(invalid("a datagram is longer than the receive buffer"));
            }
            let datagram = self.buffer.get(..kept).unwrap_or_default();
            for message in messages(datagram) {
                if message.sequence != self.sequence {
                    continue;
                }
                changed |= message.flags & NLM_F_DUMP_INTR != 0;
                if is_last(&message, &mut each)? {
                    return lost.map_or(Ok(changed), Err);
                }
            }
        }
    }
}

/// Hands an answer to `each`, or reads the status that ends it; returns whether it ended.
fn is_last(message: &Message<'_>, each: &mut impl FnMut(&Message<'_>)) -> io::Result<bool> {
    if matches!(message.kind, NLMSG_ERROR | NLMSG_DONE) {
        return status(message.payload).map(|()| true);
    }
    each(message);
    Ok(message.flags & NLM_F_MULTI == 0)
}

/// Reads the negated error number in front of an error or end message; zero is success.
fn status(payload: &[u8]) -> io::Result<()> {
    let code = read_u32(payload).ok_or_else(|| invalid("a status message is too short"))?;
    match code.cast_signed() {
        0.. => Ok(()),
        negated => Err(io::Error::from_raw_os_error(negated.saturating_neg())),
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Repeats a call that a signal interrupts.
fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_a_negated_error_number() {
        assert!(status(&0i32.to_ne_bytes()).is_ok());
        let error = status(&(-libc::ENETUNREACH).to_ne_bytes()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
        let extreme = status(&i32::MIN.to_ne_bytes()).unwrap_err();
        assert_eq!(extreme.raw_os_error(), Some(i32::MAX));
    }

    #[test]
    fn a_short_status_is_an_error() {
        let error = status(&[0, 0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
