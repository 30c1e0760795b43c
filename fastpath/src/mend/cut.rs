//! Cuts an IPv4 packet into fragments (RFC 791 section 3.2).
//!
//! The fragments get outer headers of their own. So whoever gets them out of those joins them as any host does, and
//! nothing is joined on the way (RFC 4459 section 3.4).

use xdp_prog::{csum::Sum, wire::ipv4::Ipv4};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::Outcome;

/// Flag of [`Ipv4::fragment`] that says nothing.
const RESERVED: u16 = 0x8000;
/// Flag of [`Ipv4::fragment`]: this is not the datagram's end.
const MORE: u16 = 0x2000;
/// A fragment's length is a multiple of this, unless it is the last one.
const UNIT: usize = 8;
/// Longest packet.
const LONGEST: usize = 65_535;
/// Options: the end of the list, and one without length.
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
/// Bit of an option's type: each fragment has it, not the first one alone.
const COPIED: u8 = 0x80;

/// The fragments of a packet, the first one first.
#[derive(Debug)]
pub(super) struct Pieces<'p> {
    /// The packet's own header.
    header: Ipv4,
    options: &'p [u8],
    /// The options of all pieces but the first one.
    copied: Vec<u8>,
    payload: &'p [u8],
    size: usize,
    /// Bytes of the payload that have been written.
    at: usize,
}

impl<'p> Pieces<'p> {
    /// Prepares to cut a packet, which may be a fragment, into pieces of at most `size` bytes. `fresh` is the
    /// identification of a packet that is whole and has none.
    ///
    /// # Errors
    ///
    /// Returns what becomes of a packet that cannot be cut.
    pub(super) fn of(packet: &'p [u8], size: usize, fresh: u16) -> Result<Self, Outcome> {
        let (header, _) = Ipv4::read_from_prefix(packet).map_err(|_| Outcome::Unreadable)?;
        let (begin, end) = (header.header_length(), header.total_length());
        let is_readable = header.version() == 4 && begin >= Ipv4::LENGTH && end > size;
        let all = packet.get(..begin).filter(|_| is_readable);
        let (all, payload) = all.zip(packet.get(begin..end)).ok_or(Outcome::Unreadable)?;
        let offset = usize::from(header.fragment_offset()) * UNIT;
        if header.must_not_be_fragmented()
            || !Sum::ZERO.add_bytes(all).is_valid()
            || begin + offset + payload.len() > LONGEST
        {
            return Err(Outcome::Unreadable);
        }
        let options = &all[Ipv4::LENGTH..];
        let copied = copied(options).ok_or(Outcome::Unreadable)?;
        if size < begin + UNIT {
            return Err(Outcome::NoPieceFits);
        }
        let identification = if header.identification == [0; 2] && !header.is_fragment() {
            fresh.to_be_bytes()
        } else {
            header.identification
        };
        Ok(Self {
            header: Ipv4 {
                identification,
                ..header
            },
            options,
            copied,
            payload,
            size,
            at: 0,
        })
    }

    /// Appends the next piece to `into`. Returns false if there is none.
    pub(super) fn write_next(&mut self, into: &mut Vec<u8>) -> bool {
        let rest = &self.payload[self.at..];
        if rest.is_empty() {
            return false;
        }
        let options = if self.at == 0 {
            self.options
        } else {
            &self.copied
        };
        let begin = Ipv4::LENGTH + options.len();
        let length = if begin + rest.len() <= self.size {
            rest.len()
        } else {
            (self.size - begin) / UNIT * UNIT
        };
        let mut header = Ipv4 {
            version_ihl: 0x40 | low_byte(begin / 4),
            total_length: low_word(begin + length).to_be_bytes(),
            fragment: self.fragment(length == rest.len()).to_be_bytes(),
            checksum: [0; 2],
            ..self.header
        };
        let sum = Sum::ZERO.add_bytes(header.as_bytes()).add_bytes(options);
        header.checksum = sum.checksum().to_be_bytes();
        into.extend_from_slice(header.as_bytes());
        into.extend_from_slice(options);
        into.extend_from_slice(&rest[..length]);
        self.at += length;
        true
    }

    /// Returns flags and offset of the next piece.
    fn fragment(&self, is_last: bool) -> u16 {
        let own = u16::from_be_bytes(self.header.fragment);
        let more = if is_last { own & MORE } else { MORE };
        own & RESERVED | more | (self.header.fragment_offset() + low_word(self.at / UNIT))
    }
}

/// Returns those of a packet's options that each of its fragments has; `None` if the options cannot be read.
fn copied(options: &[u8]) -> Option<Vec<u8>> {
    let mut copied = Vec::new();
    let mut rest = options;
    while let [kind, behind @ ..] = rest {
        match *kind {
            END => break,
            NO_OPERATION => rest = behind,
            kind => {
                let length = usize::from(*behind.first()?);
                let (option, others) = rest.split_at_checked(length)?;
                if length < 2 {
                    return None;
                }
                if kind & COPIED != 0 {
                    copied.extend_from_slice(option);
                }
                rest = others;
            }
        }
    }
    copied.resize(copied.len().next_multiple_of(4), END);
    Some(copied)
}

#[expect(clippy::cast_possible_truncation, reason = "at most 15")]
const fn low_byte(number: usize) -> u8 {
    number as u8
}

#[expect(clippy::cast_possible_truncation, reason = "at most 65535")]
const fn low_word(number: usize) -> u16 {
    number as u16
}

#[cfg(test)]
mod tests;
