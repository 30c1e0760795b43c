//! The answers that this machine gives itself, and their rate limits.

use super::Clock;
use crate::{abi::AddressKey, family::Family, reason::ReplyReason, wire::protocol};

/// An answer that is due, in one word: its kind, and the facts for it.
///
/// A word is as wide as the contents of the other verdicts. So no register of the program is filled on some paths
/// only.
///
/// ```text
/// 31                                               16 15              8 7    0
/// | MTU, or 1 for a later fragment of an echo request | inner IP version | kind |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer(pub u32);

impl Answer {
    pub(crate) const KIND_TOO_BIG: u32 = 1;
    pub(crate) const KIND_TIME_EXCEEDED: u32 = 2;
    pub(crate) const KIND_REFUSE: u32 = 3;
    pub(crate) const KIND_ECHO: u32 = 4;

    /// The packet's TTL or hop limit is used up: time exceeded.
    pub const TIME_EXCEEDED: Self = Self(Self::KIND_TIME_EXCEEDED);
    /// No backend serves the packet: RST or port unreachable.
    pub const REFUSE: Self = Self(Self::KIND_REFUSE);
    /// The packet is an echo request: echo reply.
    pub const ECHO: Self = Self(Self::KIND_ECHO);
    /// The packet is a later fragment of an echo request: the same fragment of the reply.
    pub const ECHO_LATER: Self = Self(1 << 16 | Self::KIND_ECHO);

    /// The packet is larger than `mtu` bytes, the MTU of its path: packet too big. `mtu` must fit into 16 bits.
    #[inline(always)]
    pub const fn too_big(mtu: u32) -> Self {
        Self(mtu << 16 | Self::KIND_TOO_BIG)
    }

    /// No backend serves the packet of this family inside an outer header. Only TCP gets an answer, a RST.
    #[inline(always)]
    pub const fn refuse_inner(inner: Family) -> Self {
        let version = match inner {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        Self(version << 8 | Self::KIND_REFUSE)
    }

    /// Returns the reply to a packet of this protocol.
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

    /// Returns the packet's family if it lies inside an outer header.
    pub(crate) const fn inner(self) -> Option<Family> {
        match self.0 >> 8 & 0xff {
            4 => Some(Family::V4),
            6 => Some(Family::V6),
            _ => None,
        }
    }

    /// Returns the MTU in bytes that the answer states; 0 if it states none.
    pub const fn mtu(self) -> u32 {
        self.0 >> 16
    }
}

/// The rate limits of answers.
///
/// An allowance is one word: the time at which it is full again (the theoretical arrival time of the generic cell
/// rate algorithm). If two CPUs update it at once, one answer too many is sent.
pub trait Answers: Clock {
    /// Returns when the allowance of `source` is full again, in ns.
    fn full_at(&self, source: &AddressKey) -> u64;
    /// Sets when the allowance of `source` is full again, in ns.
    fn set_full_at(&self, source: &AddressKey, time: u64);
    /// Returns when this CPU's allowance for all sources is full again, in ns.
    fn all_full_at(&self) -> u64;
    /// Sets when this CPU's allowance for all sources is full again, in ns.
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
