//! The memory of NAT mode.

use core::cell::Cell;

use super::{Clock, Inserted};
use crate::abi::{AddressKey, NatBegun, NatCount, NatForward, NatLink, NatMark, NatReverse, Tuple};

/// The memory of NAT mode.
pub trait NatFlows: Clock {
    /// Reads a forward entry, and sets its mark where `renew` says so, unless another CPU has set it meanwhile.
    fn see_nat_forward(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward>;
    /// Sets the mark of a forward entry if it is the expected one; tells whether it was.
    fn replace_nat_mark(&self, key: &Tuple, expected: NatMark, mark: NatMark) -> bool;
    /// Reads a reverse entry.
    fn see_nat_reverse(&self, key: &Tuple) -> Option<NatReverse>;
    /// Reads what a reverse entry knows of its flow.
    fn nat_state(&self, key: &Tuple) -> Option<NatState>;
    /// Sets what a reverse entry knows of its flow, if it is there.
    fn note_nat_reverse(&self, key: &Tuple, state: NatState);
    /// Adds a forward entry, unless it is there.
    fn insert_nat_forward(&self, key: &Tuple, entry: &NatForward) -> Inserted;
    /// Adds the reverse entry that [`NatReverse::new`] makes of these, unless there is one with this key.
    fn insert_nat_reverse(
        &self,
        key: &Tuple,
        forward: &Tuple,
        client: &Origin,
        mark: NatMark,
    ) -> Inserted;
    /// Removes a forward entry.
    fn remove_nat_forward(&self, key: &Tuple);
    /// Removes a reverse entry.
    fn remove_nat_reverse(&self, key: &Tuple);
    /// Writes where a flow's client is to both of its entries, but not to the reverse one that another flow has by now.
    fn move_nat_client(&self, forward: &Tuple, reverse: &Tuple, client: &Origin);
    /// Claims the right to remove the flow with this forward key; false where another one has it.
    fn claim_nat(&self, forward: &Tuple) -> bool;
    /// Gives the right back.
    fn release_nat(&self, forward: &Tuple);
    /// Returns how many flows a service has, or for id 0, for how many there is room.
    fn nat_count(&self, service: u32) -> NatCount;
    /// Counts flows that a service has gained or lost, and half-open ones.
    fn count_nat(&self, service: u32, flows: i64, half_open: i64);
    /// Reads a place of the rings of flows that have begun.
    fn nat_begun(&self, index: u32) -> NatBegun;
    /// Writes one.
    fn note_nat_begun(&self, index: u32, flow: NatBegun);
    /// Returns the place for what a search for a port finds.
    fn taken(&self) -> Option<&Taken>;
    /// Returns the MTU of a device.
    fn device_mtu(&self, ifindex: u32) -> Option<u16>;
    /// Puts a translation where it stays while the packet is under way.
    fn keep(&self, translation: Translation) -> Option<&Translation>;
}

/// Where a client's packets come from, and its replies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// How frames to it begin.
    pub link: NatLink,
    /// The device.
    pub ifindex: u32,
}

impl Origin {
    /// Returns what tells it from other origins.
    #[inline(always)]
    pub const fn fingerprint(&self) -> u16 {
        self.link.fingerprint(self.ifindex)
    }
}

/// What a reverse entry knows of its flow, as far as it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatState {
    /// See [`NatReverse::mark`].
    pub mark: NatMark,
    /// See [`NatReverse::began_with`].
    pub began_with: u32,
    /// See [`NatReverse::expects`].
    pub expects: u32,
}

impl NatState {
    /// Takes it out of an entry.
    #[inline(always)]
    pub const fn of(entry: &NatReverse) -> Self {
        Self {
            mark: entry.mark,
            began_with: entry.began_with,
            expects: entry.expects,
        }
    }

    /// Puts it into an entry.
    #[inline(always)]
    pub const fn store(self, entry: &mut NatReverse) {
        entry.mark = self.mark;
        entry.began_with = self.began_with;
        entry.expects = self.expects;
    }

    /// Returns the same with another mark.
    #[inline(always)]
    pub const fn marked(self, mark: NatMark) -> Self {
        Self { mark, ..self }
    }
}

/// What a packet gets; too much for the BPF stack, so it lies where [`NatFlows::keep`] puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Translation {
    /// Source address.
    pub source: AddressKey,
    /// Destination address.
    pub destination: AddressKey,
    /// How the frame begins.
    pub link: NatLink,
    /// The ports, source first, in wire order.
    pub ports: u32,
    /// The transport protocol, which stays; 0 where the transport header is in another fragment.
    pub protocol: u32,
    /// Device by which it leaves.
    pub ifindex: u32,
    /// Service id, for the counters.
    pub service: u32,
    /// Backend id, for the counters; 0 towards the client.
    pub backend: u32,
    /// Always zero.
    pub reserved: u32,
}

/// What was found of the ports that are taken. The offset of one that is not known is `Taken::NONE`.
///
/// It lies where [`NatFlows::taken`] puts it, out of the verifier's sight: it would follow every port's state
/// through all that are tried.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Taken {
    /// Whether a port that is free may be had.
    pub(crate) has_room: Cell<u64>,
    pub(crate) half_open: Cell<u64>,
    pub(crate) oldest: Cell<u64>,
    pub(crate) oldest_idle: Cell<u64>,
    pub(crate) quietest: Cell<u64>,
    pub(crate) quietest_idle: Cell<u64>,
}
