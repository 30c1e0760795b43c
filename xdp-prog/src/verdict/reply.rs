//! Answers that this machine gives itself.

use crate::{
    family::Family,
    reason::ReplyReason,
    wire::ipv4::Ipv4,
    world::{Answer, OFFSETS, Relay},
};

/// An answer that shall be sent, and the packet that it answers.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Kind of the answer, and its MTU.
    pub answer: Answer,
    /// Protocol of the packet.
    pub protocol: u8,
    /// Family of the packet and of the answer.
    pub family: Family,
    /// Offset of the packet's IP header.
    pub l3: usize,
    /// Offset of the packet's transport header.
    pub l4: usize,
    /// Length of the packet in bytes.
    pub length: usize,
}

impl Reply {
    /// Returns the reason under which the answer is counted.
    #[inline(always)]
    pub const fn reason(&self) -> ReplyReason {
        self.answer.reason(self.protocol)
    }

    /// Tells whether the answer repeats IPv4 options: that to a whole echo request does.
    #[inline(always)]
    pub(crate) fn has_options(&self) -> bool {
        self.answer == Answer::ECHO
            && matches!(self.family, Family::V4)
            && self.l4 > self.l3 + Ipv4::LENGTH
    }

    /// Passes all fields through [`Relay`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes the fields apart")]
    pub(crate) fn relayed<T: Relay>(self, tables: &T) -> Option<Self> {
        let [answer, protocol, offsets, length] = tables.relay([
            u64::from(self.answer.0),
            u64::from(self.protocol) << 1 | self.family.bit(),
            (self.l3 as u64) << 32 | self.l4 as u64,
            self.length as u64,
        ])?;
        Some(Self {
            answer: Answer(answer as u32),
            protocol: (protocol >> 1) as u8,
            family: Family::of_bit(protocol),
            l3: (offsets >> 32) as usize & OFFSETS,
            l4: offsets as usize & OFFSETS,
            length: length as usize & 0xffff,
        })
    }
}

/// The path by which an answer leaves.
#[derive(Clone, Copy, Debug)]
pub struct ReplyPath<'t> {
    /// Destination MAC, then source MAC; `None` if the answer returns as the frame came.
    pub macs: Option<&'t [u8; 12]>,
    /// The tag to write, in wire order; zero writes none.
    pub vlan: [u8; 2],
    /// Offset of the answer's IP header: behind the written tag, behind the tags that the frame keeps, or behind the
    /// Ethernet header.
    pub l3: usize,
}

impl ReplyPath<'_> {
    /// Returns the way back to the frame's sender.
    #[inline(always)]
    pub(crate) const fn back(reply: &Reply) -> Self {
        Self {
            macs: None,
            vlan: [0; 2],
            l3: reply.l3,
        }
    }
}
