//! Requests to the kernel over netlink, one at a time, for the routing, netfilter and generic families.
//!
//! An answer is complete or an error. If a list changes while the kernel sends it, entries may be missing that never
//! went away (`NLM_F_DUMP_INTR`); the list is then requested again. The kernel is asked to explain refusals in words
//! (`NETLINK_EXT_ACK`).

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::{self, SocketAddrNetlink},
        recv, send, socket_with,
        sockopt::{self, Timeout},
    },
};

use super::{
    Attributes, Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE,
    NLMSG_ERROR, Request, messages, put_attribute, read_string, read_u16, read_u32,
};

const MESSAGE_HEADER: usize = 16;
const NLM_F_CAPPED: u16 = 0x100;
const NLMSGERR_ATTR_MSG: u16 = 1;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// The kernel fills dump messages up to 32 KiB; a single message is smaller.
const BUFFER_LENGTH: usize = 64 << 10;

/// The kernel answers within the system call that asks, so this only bounds the wait for an answer that was lost to
/// memory pressure.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// How often a list is requested that changes while the kernel sends it.
const DUMP_TRIES: u32 = 10;

/// Reasons why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("netlink socket")]
    Socket(#[source] io::Error),
    #[error("the kernel refused{}", .message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Refused {
        /// The kernel's explanation (extended acknowledgement).
        message: Option<String>,
        #[source]
        source: io::Error,
    },
    #[error("malformed netlink answer")]
    Malformed,
    #[error("the list changed during each of {tries} attempts to read it")]
    Changing { tries: u32 },
}

impl RequestError {
    /// Returns the kernel's error number.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Socket(source) | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Malformed | Self::Changing { .. } => None,
        }
    }
}

/// Opens a netlink socket in the calling thread's network namespace.
pub(crate) fn open(
    protocol: Option<Protocol>,
    groups: u32,
    flags: SocketFlags,
) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// A netlink socket in the network namespace of the thread that opened it, and the sequence number of the last
/// request.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Connection {
    /// Opens a socket for links, addresses and routes.
    pub(crate) fn route() -> Result<Self, RequestError> {
        // NETLINK_ROUTE is protocol 0, the default.
        Self::to_kernel(None)
    }

    /// Opens a socket like [`Self::route`] whose requests the kernel checks strictly. It takes some filters of lists from
    /// such sockets only.
    pub(crate) fn strict_route() -> Result<Self, RequestError> {
        let connection = Self::route()?;
        switch_on(&connection.socket, libc::NETLINK_GET_STRICT_CHK)
            .map_err(RequestError::Socket)?;
        Ok(connection)
    }

    /// Opens a socket for the generic families, which have names instead of fixed numbers.
    pub(crate) fn generic() -> Result<Self, RequestError> {
        Self::to_kernel(Some(netlink::GENERIC))
    }

    /// Opens a socket for netfilter.
    pub(crate) fn netfilter() -> Result<Self, RequestError> {
        Self::to_kernel(Some(netlink::NETFILTER))
    }

    fn to_kernel(protocol: Option<Protocol>) -> Result<Self, RequestError> {
        let socket = open(protocol, 0, SocketFlags::empty()).map_err(RequestError::Socket)?;
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            switch_on(&socket, option).map_err(RequestError::Socket)?;
        }
        Self::over(socket).map_err(RequestError::Socket)
    }

    fn over(socket: OwnedFd) -> io::Result<Self> {
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_DEADLINE))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER_LENGTH],
        })
    }

    /// Looks up the number of a generic family; `None` if the kernel lacks it.
    pub(crate) fn family(&mut self, name: &str) -> Result<Option<u16>, RequestError> {
        let request =
            generic(GENL_ID_CTRL, CTRL_CMD_GETFAMILY).attribute(CTRL_ATTR_FAMILY_NAME, &text(name));
        match self.ask(request) {
            Ok(answers) => Ok(answers
                .iter()
                .flat_map(|answer| generic_attributes(answer))
                .find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)
                .and_then(|(_, value)| read_u16(value))),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends one request and returns the payloads of the answers.
    pub(crate) fn ask(&mut self, request: Request) -> Result<Vec<Vec<u8>>, RequestError> {
        self.list(&request, |message| Some(message.payload.to_vec()))
    }

    /// Sends one request and returns the results of `decode` for the messages of the answer, without its `None`s.
    pub(crate) fn list<T>(
        &mut self,
        request: &Request,
        decode: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, RequestError> {
        for _ in 0..DUMP_TRIES {
            let mut entries = Vec::new();
            let changed = self.exchange(request, |message| entries.extend(decode(message)))?;
            if !changed {
                return Ok(entries);
            }
        }
        Err(RequestError::Changing { tries: DUMP_TRIES })
    }

    /// Sends one request and hands each message of the answer to `each`.
    ///
    /// Returns whether the list changed while the kernel sent it. A lost or cut datagram is reported only at the end:
    /// the kernel accepts no new dump before the old one is read.
    pub(crate) fn exchange(
        &mut self,
        request: &Request,
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<bool, RequestError> {
        let failed = |error: Errno| RequestError::Socket(error.into());
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.clone().into_bytes(self.sequence);
        retry(|| send(&self.socket, &bytes, SendFlags::empty())).map_err(failed)?;

        let mut changed = false;
        let mut lost = None;
        loop {
            let received =
                retry(|| recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::TRUNC));
            let (kept, length) = match received {
                Ok(lengths) => lengths,
                Err(Errno::NOBUFS) => {
                    lost = Some(failed(Errno::NOBUFS));
                    continue;
                }
                Err(Errno::AGAIN) => {
                    let timed_out = || RequestError::Socket(io::ErrorKind::TimedOut.into());
                    return Err(lost.unwrap_or_else(timed_out));
                }
                Err(error) => return Err(failed(error)),
            };
            if length > kept {
                lost = Some(RequestError::Socket(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a datagram is longer than the receive buffer",
                )));
            }
            let datagram = self.buffer.get(..kept).unwrap_or_default();
            for message in messages(datagram) {
                if message.sequence != self.sequence {
                    continue;
                }
                changed |= message.flags & NLM_F_DUMP_INTR != 0;
                if is_last(&message, request, &mut each)? {
                    return lost.map_or(Ok(changed), Err);
                }
            }
        }
    }
}

/// Hands a message to `each`, or reads the status that ends the answer; returns whether the answer ended.
fn is_last(
    message: &Message<'_>,
    request: &Request,
    each: &mut impl FnMut(&Message<'_>),
) -> Result<bool, RequestError> {
    match message.kind {
        NLMSG_ERROR => acknowledgement(message.flags, message.payload).map(|()| true),
        NLMSG_DONE => end_of_list(message.payload).map(|()| true),
        _ => {
            each(message);
            // The family `netdev` does not mark the entries of its lists as parts.
            let is_list = request.flags & NLM_F_DUMP == NLM_F_DUMP;
            let is_part = message.flags & NLM_F_MULTI != 0;
            let goes_on = is_list || is_part || request.flags & NLM_F_ACK != 0;
            Ok(!goes_on)
        }
    }
}

/// Repeats a call that a signal interrupted.
fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}

fn switch_on(socket: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    const LENGTH: libc::socklen_t = libc::c_int::BITS / u8::BITS;
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads an integer of the given length, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            LENGTH,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn acknowledgement(flags: u16, body: &[u8]) -> Result<(), RequestError> {
    // The refused request follows the error number: either all of it, or only its header.
    let echoed = if flags & NLM_F_CAPPED != 0 {
        MESSAGE_HEADER
    } else {
        body.get(4..).and_then(read_u32).unwrap_or(0) as usize
    };
    status(body, echoed)
}

/// Reads the message that ends a list; the kernel may have failed on the way.
fn end_of_list(body: &[u8]) -> Result<(), RequestError> {
    status(body, 0)
}

/// Reads the negated error number at the front, and the kernel's words `distance` bytes behind it. Zero is success.
fn status(body: &[u8], distance: usize) -> Result<(), RequestError> {
    let code = read_u32(body).ok_or(RequestError::Malformed)?.cast_signed();
    if code >= 0 {
        return Ok(());
    }
    let message = body
        .get((4 + distance).next_multiple_of(4)..)
        .and_then(|tail| find(tail, NLMSGERR_ATTR_MSG).and_then(read_string));
    Err(RequestError::Refused {
        message,
        source: io::Error::from_raw_os_error(code.saturating_neg()),
    })
}

/// Starts a request of a generic family.
pub(crate) fn generic(family: u16, command: u8) -> Request {
    const VERSION: u8 = 1;
    Request::new(family, NLM_F_ACK, &[command, VERSION, 0, 0])
}

/// Starts a request of a generic family for a list.
pub(crate) fn generic_list(family: u16, command: u8) -> Request {
    let mut request = generic(family, command);
    request.flags = (request.flags & !NLM_F_ACK) | NLM_F_DUMP;
    request
}

/// Iterates over the attributes behind the header of a generic family's message.
pub(crate) fn generic_attributes(body: &[u8]) -> Attributes<'_> {
    Attributes(body.get(4..).unwrap_or(&[]))
}

/// Encodes a run of attributes, for the value of another attribute.
pub(crate) fn run(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut run = Vec::new();
    for (kind, value) in attributes {
        put_attribute(&mut run, *kind, value);
    }
    run
}

/// Encodes a string with its terminator.
pub(crate) fn text(value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// Returns the value of the first attribute of a kind.
pub(crate) fn find(run: &[u8], kind: u16) -> Option<&[u8]> {
    Attributes(run)
        .find(|(candidate, _)| *candidate == kind)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests;
