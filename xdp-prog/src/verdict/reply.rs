//! Answers on their way.

use crate::{
    family::Family,
    reason::ReplyReason,
    world::{Answer, OFFSETS, Relay},
};

/// An answer on its way.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// What it says.
    pub answer: Answer,
    /// Protocol of the packet that is answered.
    pub protocol: u8,
    /// Family of that packet, and of the answer.
    pub family: Family,
    /// Offset of that packet's IP header.
    pub l3: usize,
    /// Offset of its transport header.
    pub l4: usize,
    /// Length of the packet.
    pub length: usize,
}

impl Reply {
    /// Returns what it is counted under.
    #[inline(always)]
    pub const fn reason(&self) -> ReplyReason {
        self.answer.reason(self.protocol)
    }

    /// Carries it through [`Relay`].
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

/// A way that is not just the one by which the frame came.
#[derive(Clone, Copy, Debug)]
pub struct Way<'t> {
    /// Destination MAC, then source MAC.
    pub macs: &'t [u8; 12],
    /// The tag to write; zero to write none.
    pub vlan: [u8; 2],
    /// Where the IP header is written: behind that tag, or those that the frame came with and keeps, or without any.
    pub l3: usize,
}
