//! The netlink format: encodes requests, and decodes messages and attributes. [`connection`] sends and receives them.
//!
//! Decoding never fails loudly. A length that does not fit ends the iteration, as the kernel's own
//! `nla_for_each_attr` does, and the decoders treat missing attributes as absent.

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) mod connection;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_MULTI: u16 = 0x2;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;

pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

pub(crate) const FAMILY_ANY: u8 = 0;
pub(crate) const FAMILY_V4: u8 = 2;
pub(crate) const FAMILY_V6: u8 = 10;

/// Marks an attribute whose value is a run of attributes.
pub(crate) const NLA_F_NESTED: u16 = 0x8000;

/// Removes `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` from an attribute's kind.
const KIND_MASK: u16 = 0x3fff;

const HEADER_LENGTH: usize = size_of::<Header>();
const ATTRIBUTE_HEADER_LENGTH: usize = 4;

/// `struct nlmsghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// A request to the kernel that is being built.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Request {
    /// Starts a request with the fixed header of its kind.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &(impl IntoBytes + Immutable)) -> Self {
        Self {
            kind,
            flags: flags | NLM_F_REQUEST,
            body: fixed.as_bytes().to_vec(),
        }
    }

    /// Appends an attribute; `value` must be shorter than 64 KiB.
    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        put_attribute(&mut self.body, kind, value);
        self
    }

    pub(crate) fn address(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    pub(crate) fn into_bytes(self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(HEADER_LENGTH + self.body.len())
            .expect("requests carry addresses and integers only");
        let header = Header {
            length,
            kind: self.kind,
            flags: self.flags,
            sequence,
            port: 0,
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Appends an attribute to a run of attributes; `value` must be shorter than 64 KiB.
pub(crate) fn put_attribute(run: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_HEADER_LENGTH + value.len())
        .expect("requests carry addresses, names and integers only");
    run.extend_from_slice(&length.to_ne_bytes());
    run.extend_from_slice(&kind.to_ne_bytes());
    run.extend_from_slice(value);
    run.resize(run.len().next_multiple_of(4), 0);
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Splits the payload into its fixed header and its attributes.
    pub(crate) fn split<T: FromBytes>(&self) -> Option<(T, Attributes<'a>)> {
        let (fixed, rest) = T::read_from_prefix(self.payload).ok()?;
        Some((fixed, Attributes(rest)))
    }
}

/// Iterates over the messages of one datagram.
pub(crate) fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages(datagram)
}

/// The undecoded rest of a datagram.
#[derive(Clone, Debug)]
pub(crate) struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (header, _) = Header::read_from_prefix(self.0).ok()?;
        let length = usize::try_from(header.length).ok()?;
        let payload = self.0.get(HEADER_LENGTH..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Message {
            kind: header.kind,
            flags: header.flags,
            sequence: header.sequence,
            payload,
        })
    }
}

/// The undecoded rest of a run of attributes; iterates over pairs of kind and value.
#[derive(Clone, Debug)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(read_u16(self.0)?);
        let kind = read_u16(self.0.get(2..)?)? & KIND_MASK;
        let value = self.0.get(ATTRIBUTE_HEADER_LENGTH..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

/// Reads a host-order integer from the front of an attribute's value.
pub(crate) fn read_u16(value: &[u8]) -> Option<u16> {
    value.first_chunk().copied().map(u16::from_ne_bytes)
}

/// Reads a host-order integer from the front of an attribute's value.
pub(crate) fn read_u32(value: &[u8]) -> Option<u32> {
    value.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Reads a host-order integer from the front of an attribute's value.
pub(crate) fn read_u64(value: &[u8]) -> Option<u64> {
    value.first_chunk().copied().map(u64::from_ne_bytes)
}

/// Reads a string up to its terminator.
pub(crate) fn read_string(value: &[u8]) -> Option<String> {
    let text = value.split(|byte| *byte == 0).next()?;
    String::from_utf8(text.to_vec()).ok()
}

/// Reads an address; the value's length tells its family.
pub(crate) fn read_address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}

/// Reads an Ethernet address; `None` if it is all zero.
pub(crate) fn read_mac(value: &[u8]) -> Option<[u8; 6]> {
    value.try_into().ok().filter(|mac| *mac != [0; 6])
}

/// Returns the kernel's number for an address's family.
pub(crate) fn family_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => FAMILY_V4,
        IpAddr::V6(_) => FAMILY_V6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_as_a_message() {
        let bytes = Request::new(26, NLM_F_ACK, &[1u8, 2, 3, 4])
            .attribute(5, b"abcde")
            .address(1, "192.0.2.1".parse().unwrap())
            .into_bytes(7);

        let all: Vec<_> = messages(&bytes).collect();

        assert_eq!(all.len(), 1);
        assert_eq!((all[0].kind, all[0].sequence), (26, 7));
        assert_eq!(all[0].flags, NLM_F_REQUEST | NLM_F_ACK);
        let (fixed, attributes) = all[0].split::<[u8; 4]>().unwrap();
        assert_eq!(fixed, [1, 2, 3, 4]);
        let attributes: Vec<_> = attributes.collect();
        assert_eq!(attributes, [(5, &b"abcde"[..]), (1, &[192, 0, 2, 1][..])]);
    }

    #[test]
    fn a_string_ends_at_its_terminator() {
        assert_eq!(read_string(b"veth\0\0").as_deref(), Some("veth"));
        assert_eq!(read_string(b"veth").as_deref(), Some("veth"));
        assert_eq!(read_string(b"\xff\0"), None);
    }

    #[test]
    fn flags_are_not_part_of_an_attribute_kind() {
        let bytes = [4, 0, 18, 0x80];
        assert_eq!(Attributes(&bytes).next(), Some((18, &[][..])));
    }

    #[test]
    fn a_length_beyond_the_end_ends_the_iteration() {
        let whole = Request::new(26, 0, &[0u8; 4]).into_bytes(1);
        for end in 0..whole.len() {
            assert_eq!(messages(&whole[..end]).count(), 0, "cut at {end}");
        }
        assert_eq!(Attributes(&[9, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn a_length_shorter_than_its_header_ends_the_iteration() {
        let mut bytes = Request::new(26, 0, &[0u8; 4]).into_bytes(1);
        bytes[0] = 3;
        assert_eq!(messages(&bytes).count(), 0);
        assert_eq!(Attributes(&[0, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(Attributes(&[3, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
    }
}
