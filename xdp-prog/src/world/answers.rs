//! The memory of answers that this machine gives itself.

use super::Clock;
use crate::{abi::AddressKey, family::Family, reason::ReplyReason, wire::protocol};

/// What is to be answered, in one word.
///
/// As wide as what other verdicts carry, which spares the program a register that
/// only some of its paths have filled.
///
/// ```text
/// 31  16 15              8 7    0
/// | MTU | inner IP version | kind |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer(pub u32);

impl Answer {
    pub(crate) const KIND_TOO_BIG: u32 = 1;
    pub(crate) const KIND_TIME_EXCEEDED: u32 = 2;
    pub(crate) const KIND_REFUSE: u32 = 3;
    pub(crate) const KIND_ECHO: u32 = 4;

    /// The packet's TTL or hop limit is used up.
    pub const TIME_EXCEEDED: Self = Self(Self::KIND_TIME_EXCEEDED);
    /// Nobody serves the packet.
    pub const REFUSE: Self = Self(Self::KIND_REFUSE);
    /// An echo request.
    pub const ECHO: Self = Self(Self::KIND_ECHO);

    /// The packet is larger than `mtu`, which the path takes and 16 bits can state.
    #[inline(always)]
    pub const fn too_big(mtu: u32) -> Self {
        Self(mtu << 16 | Self::KIND_TOO_BIG)
    }

    /// Nobody serves the packet of this family that an outer header carries.
    #[inline(always)]
    pub const fn refuse_inner(inner: Family) -> Self {
        let version = match inner {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        Self(version << 8 | Self::KIND_REFUSE)
    }

    /// Returns what a packet of this protocol gets, if it may be answered at all.
    #[inline(always)]
    pub const fn reason(self, protocol: u8) -> ReplyReason {
        match self.kind() {
            Self::KIND_TOO_BIG => ReplyReason::PacketTooBig,
            Self::KIND_TIME_EXCEEDED => ReplyReason::TimeExceeded,
            Self::KIND_ECHO => ReplyReason::EchoReply,
            _ if protocol == protocol::TCP => ReplyReason::Reset,
            _ => ReplyReason::PortUnreachable,
        }
    }

    pub(crate) const fn kind(self) -> u32 {
        self.0 & 0xff
    }

    /// Returns the family of the packet where an outer header carries it.
    pub(crate) const fn inner(self) -> Option<Family> {
        match self.0 >> 8 & 0xff {
            4 => Some(Family::V4),
            6 => Some(Family::V6),
            _ => None,
        }
    }

    /// Returns the MTU that is told; 0 where it is about something else.
    pub const fn mtu(self) -> u32 {
        self.0 >> 16
    }
}

/// The memory of answers.
///
/// An allowance is kept as the time at which it is full again (the generic cell
/// rate algorithm's theoretical arrival time): one word. Two CPUs that update it
/// at once give one answer too many.
pub trait Answers: Clock {
    /// Returns when a source's allowance is full again, in ns.
    fn full_at(&self, source: &AddressKey) -> u64;
    /// Notes when a source's allowance is full again.
    fn set_full_at(&self, source: &AddressKey, time: u64);
    /// Returns when the allowance of all sources on this CPU is full again, in ns.
    fn all_full_at(&self) -> u64;
    /// Notes when the allowance of all sources on this CPU is full again.
    fn set_all_full_at(&self, time: u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_keeps_its_fields_apart() {
        let answer = Answer::too_big(0xffff);
        assert_eq!(
            (answer.kind(), answer.inner(), answer.mtu()),
            (1, None, 0xffff)
        );
        let answer = Answer::refuse_inner(Family::V6);
        assert_eq!(
            (answer.kind(), answer.inner(), answer.mtu()),
            (3, Some(Family::V6), 0)
        );
    }
}
