//! Requests to the kernel over netlink, one at a time, of the routing, netfilter and generic families.
//!
//! Other than the connection of [`nexthop`](crate::nexthop), this one asks the kernel to explain
//! its refusals in words (`NETLINK_EXT_ACK`).

use std::io;

use netlink_sys::{
    Socket,
    protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE},
};

use crate::netlink::{
    Attributes, NLM_F_ACK, NLMSG_DONE, NLMSG_ERROR, Request, messages, put_attribute, read_string,
    read_u16, read_u32,
};

const MESSAGE_HEADER: usize = 16;
const NLM_F_CAPPED: u16 = 0x100;
const NLMSGERR_ATTR_MSG: u16 = 1;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Why a request had no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The socket could not be used.
    #[error("netlink socket")]
    Socket(#[source] io::Error),
    /// The kernel said no, mostly with a reason in words.
    #[error("the kernel refused{}", .message.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
    Refused {
        /// The kernel's own words (extended acknowledgement).
        message: Option<String>,
        /// The error number.
        #[source]
        source: io::Error,
    },
    /// The answer is not a netlink message.
    #[error("malformed netlink answer")]
    Malformed,
}

impl RequestError {
    /// Returns the kernel's error number.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Socket(source) | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Malformed => None,
        }
    }
}

/// A netlink socket in the network namespace of the thread that opened it.
pub(crate) struct Connection {
    socket: Socket,
    sequence: u32,
}

impl Connection {
    /// Opens a socket for links, addresses and routes.
    pub(crate) fn route() -> Result<Self, RequestError> {
        Self::open(NETLINK_ROUTE).map_err(RequestError::Socket)
    }

    /// Opens a socket for the families that have a name instead of a number.
    pub(crate) fn generic() -> Result<Self, RequestError> {
        Self::open(NETLINK_GENERIC).map_err(RequestError::Socket)
    }

    /// Opens a socket for what netfilter does.
    pub(crate) fn netfilter() -> Result<Self, RequestError> {
        Self::open(NETLINK_NETFILTER).map_err(RequestError::Socket)
    }

    fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(Self {
            socket,
            sequence: 0,
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

    /// Sends one request, made with [`NLM_F_ACK`], and returns the bodies of the answers.
    pub(crate) fn ask(&mut self, request: Request) -> Result<Vec<Vec<u8>>, RequestError> {
        self.sequence += 1;
        self.socket
            .send(&request.into_bytes(self.sequence), 0)
            .map_err(RequestError::Socket)?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full().map_err(RequestError::Socket)?;
            for message in messages(&datagram) {
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    NLMSG_ERROR => {
                        acknowledgement(message.flags, message.payload)?;
                        return Ok(answers);
                    }
                    NLMSG_DONE => return Ok(answers),
                    _ => answers.push(message.payload.to_vec()),
                }
            }
        }
    }
}

fn acknowledgement(flags: u16, body: &[u8]) -> Result<(), RequestError> {
    let code = read_u32(body).ok_or(RequestError::Malformed)?.cast_signed();
    if code == 0 {
        return Ok(());
    }
    // The refused request follows the code: whole, or its header only.
    let echoed = if flags & NLM_F_CAPPED != 0 {
        MESSAGE_HEADER
    } else {
        body.get(4..).and_then(read_u32).unwrap_or(0) as usize
    };
    let message = body
        .get((4 + echoed).next_multiple_of(4)..)
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

/// Iterates over the attributes behind the header of a generic family.
pub(crate) fn generic_attributes(body: &[u8]) -> Attributes<'_> {
    Attributes(body.get(4..).unwrap_or(&[]))
}

/// Encodes attributes, to be the value of another.
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
mod tests {
    use super::*;

    #[test]
    fn nested_attributes_are_found_again() {
        let inner = run(&[(3, &text("rx-gro"))]);
        let outer = run(&[(1, &7u32.to_ne_bytes()), (2, &inner)]);
        assert_eq!(find(&outer, 1).and_then(read_u32), Some(7));
        let name = find(&outer, 2).and_then(|inner| find(inner, 3));
        assert_eq!(name.and_then(read_string).as_deref(), Some("rx-gro"));
        assert_eq!(find(&outer, 3), None);
    }

    #[test]
    fn refusal_carries_the_kernels_words() {
        let words = text("Peer MTU is too large to set XDP");
        let mut body = (-libc::ERANGE).to_ne_bytes().to_vec();
        body.extend([0; MESSAGE_HEADER]);
        body.extend(run(&[(NLMSGERR_ATTR_MSG, &words)]));
        let error = acknowledgement(NLM_F_CAPPED, &body).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ERANGE));
        assert_eq!(
            error.to_string(),
            "the kernel refused: Peer MTU is too large to set XDP"
        );
    }

    #[test]
    fn unknown_family_is_none() {
        let mut generic = Connection::generic().unwrap();
        assert_eq!(generic.family("nosuchfamily").unwrap(), None);
        assert!(generic.family("nlctrl").unwrap().is_some());
    }
}
