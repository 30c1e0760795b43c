//! Requests to the kernel over netlink, one at a time, and the attributes inside them.
//!
//! Kept to what a preflight needs: no subscriptions, no dumps that may be interrupted and repeated.

use std::io;

use netlink_sys::{
    Socket,
    protocols::{NETLINK_GENERIC, NETLINK_ROUTE},
};

const MESSAGE_HEADER: usize = 16;
const ALIGN: usize = 4;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_CAPPED: u16 = 0x100;
/// Asks for every object there is.
pub(crate) const NLM_F_DUMP: u16 = 0x300;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;

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
        let mut attributes = Attributes::default();
        attributes.put_str(CTRL_ATTR_FAMILY_NAME, name);
        let body = generic_body(CTRL_CMD_GETFAMILY, &attributes);
        match self.request(GENL_ID_CTRL, 0, &body) {
            Ok(answers) => Ok(answers
                .iter()
                .flat_map(|answer| generic_attributes(answer))
                .find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)
                .and_then(|(_, value)| u16_of(value))),
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends one request and returns the bodies of the answers.
    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
    ) -> Result<Vec<Vec<u8>>, RequestError> {
        self.sequence += 1;
        let message = self.encode(kind, flags, body)?;
        self.socket
            .send(&message, 0)
            .map_err(RequestError::Socket)?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full().map_err(RequestError::Socket)?;
            if self.collect(&datagram, &mut answers)? {
                return Ok(answers);
            }
        }
    }

    fn encode(&self, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<u8>, RequestError> {
        let length =
            u32::try_from(MESSAGE_HEADER + body.len()).map_err(|_| RequestError::Malformed)?;
        let mut message = Vec::with_capacity(MESSAGE_HEADER + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        Ok(message)
    }

    /// Takes the messages of one datagram apart; true when the last one has come.
    fn collect(&self, datagram: &[u8], answers: &mut Vec<Vec<u8>>) -> Result<bool, RequestError> {
        let mut rest = datagram;
        while rest.len() >= MESSAGE_HEADER {
            let length = u32_of(rest).unwrap_or(0) as usize;
            let message = rest.get(..length).ok_or(RequestError::Malformed)?;
            let body = message
                .get(MESSAGE_HEADER..)
                .ok_or(RequestError::Malformed)?;
            let kind = u16_of(&message[4..]).unwrap_or(0);
            let flags = u16_of(&message[6..]).unwrap_or(0);
            let ours = u32_of(&message[8..]) == Some(self.sequence);
            match kind {
                NLMSG_ERROR if ours => return acknowledgement(flags, body).map(|()| true),
                NLMSG_DONE if ours => return Ok(true),
                _ if ours => answers.push(body.to_vec()),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or(&[]);
        }
        Ok(false)
    }
}

fn acknowledgement(flags: u16, body: &[u8]) -> Result<(), RequestError> {
    let code = u32_of(body).ok_or(RequestError::Malformed)?.cast_signed();
    if code == 0 {
        return Ok(());
    }
    // The refused request follows the code: whole, or its header only.
    let echoed = if flags & NLM_F_CAPPED != 0 {
        MESSAGE_HEADER
    } else {
        body.get(4..).and_then(u32_of).unwrap_or(0) as usize
    };
    let message = body
        .get((4 + echoed).next_multiple_of(ALIGN)..)
        .and_then(|tail| find(tail, NLMSGERR_ATTR_MSG).and_then(str_of));
    Err(RequestError::Refused {
        message,
        source: io::Error::from_raw_os_error(code.saturating_neg()),
    })
}

/// Attributes under construction.
#[derive(Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    /// Appends an attribute.
    pub(crate) fn put(&mut self, kind: u16, value: &[u8]) {
        // Longer than an attribute can be: only by a mistake in this crate.
        let length = u16::try_from(value.len() + 4).expect("an attribute is shorter than 64 KiB");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
    }

    /// Appends a string with its terminator.
    pub(crate) fn put_str(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.put(kind, &bytes);
    }

    /// Appends attributes inside an attribute.
    pub(crate) fn put_nested(&mut self, kind: u16, inner: &Self) {
        self.put(kind | NLA_F_NESTED, &inner.0);
    }

    /// Returns the encoded bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Iterates over the attributes in `buffer`, up to the first malformed one.
pub(crate) fn attributes(mut buffer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_of(buffer)?);
        let kind = u16_of(buffer.get(2..)?)? & NLA_TYPE_MASK;
        let value = buffer.get(4..length)?;
        buffer = buffer.get(length.next_multiple_of(ALIGN)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// Returns the value of the first attribute of a kind.
pub(crate) fn find(buffer: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(buffer)
        .find(|(candidate, _)| *candidate == kind)
        .map(|(_, value)| value)
}

/// Puts the header of a generic family before attributes.
pub(crate) fn generic_body(command: u8, attributes: &Attributes) -> Vec<u8> {
    const VERSION: u8 = 1;
    let mut body = vec![command, VERSION, 0, 0];
    body.extend(attributes.bytes());
    body
}

/// Iterates over the attributes behind the header of a generic family.
pub(crate) fn generic_attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(body.get(4..).unwrap_or(&[]))
}

/// Reads a number in host order from the front of `bytes`.
pub(crate) fn u16_of(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// Reads a number in host order from the front of `bytes`.
pub(crate) fn u32_of(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Reads a number in host order from the front of `bytes`.
pub(crate) fn u64_of(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

/// Reads a string up to its terminator.
pub(crate) fn str_of(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8(bytes[..end.unwrap_or(bytes.len())].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_encoding() {
        let mut inner = Attributes::default();
        inner.put_str(3, "rx-gro");
        let mut outer = Attributes::default();
        outer.put(1, &7u32.to_ne_bytes());
        outer.put_nested(2, &inner);
        let found: Vec<_> = attributes(outer.bytes()).collect();
        assert_eq!(found[0], (1, 7u32.to_ne_bytes().as_slice()));
        assert_eq!(found[1].0, 2);
        assert_eq!(
            find(found[1].1, 3).and_then(str_of).as_deref(),
            Some("rx-gro")
        );
    }

    #[test]
    fn attribute_longer_than_the_buffer_ends_the_list() {
        let mut good = Attributes::default();
        good.put(1, &[0; 4]);
        let mut bytes = good.bytes().to_vec();
        bytes.extend([200, 0, 2, 0]);
        assert_eq!(attributes(&bytes).count(), 1);
        assert_eq!(attributes(&[2, 0, 1, 0]).count(), 0);
    }

    #[test]
    fn refusal_carries_the_kernels_words() {
        let mut tail = Attributes::default();
        tail.put_str(NLMSGERR_ATTR_MSG, "Peer MTU is too large to set XDP");
        let mut body = (-libc::ERANGE).to_ne_bytes().to_vec();
        body.extend([0; MESSAGE_HEADER]);
        body.extend(tail.bytes());
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
