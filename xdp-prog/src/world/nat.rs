//! The memory of NAT mode's flows.

use core::cell::Cell;

use super::{Clock, Inserted};
use crate::abi::{AddressKey, NatBegun, NatCount, NatForward, NatLink, NatMark, NatReverse, Tuple};

/// The memory of NAT mode's flows.
pub trait NatFlows: Clock {
    /// Returns a forward entry. Sets its mark to what `renew` returns, unless another CPU has changed the mark
    /// meanwhile.
    fn see_nat_forward(
        &self,
        key: &Tuple,
        renew: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward>;
    /// Replaces the mark of a forward entry if it is `expected`; tells whether it was.
    fn replace_nat_mark(&self, key: &Tuple, expected: NatMark, mark: NatMark) -> bool;
    /// Returns a reverse entry.
    fn see_nat_reverse(&self, key: &Tuple) -> Option<NatReverse>;
    /// Returns the state that a reverse entry holds.
    #[inline(always)]
    fn nat_state(&self, key: &Tuple) -> Option<NatState> {
        let entry = self.see_nat_reverse(key)?;
        entry.is_for(key).then(|| NatState::of(&entry))
    }
    /// Sets the state of a reverse entry if the entry is there.
    fn note_nat_reverse(&self, key: &Tuple, state: NatState);
    /// Adds a forward entry unless its key is there.
    fn insert_nat_forward(&self, key: &Tuple, entry: &NatForward) -> Inserted;
    /// Adds the reverse entry that [`NatReverse::new`] makes of these, unless its key is there.
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
    /// Records a client's new link in both entries of its flow; leaves a reverse entry alone that belongs to another
    /// flow.
    fn move_nat_client(&self, forward: &Tuple, reverse: &Tuple, client: &Origin);
    /// Claims the right to remove the flow with this forward key; returns false if another holder has it.
    fn claim_nat(&self, forward: &Tuple) -> bool;
    /// Returns the right of [`Self::claim_nat`].
    fn release_nat(&self, forward: &Tuple);
    /// Returns the number of a service's flows; for id 0, the number for which the tables have room.
    fn nat_count(&self, service: u32) -> NatCount;
    /// Adds to the numbers of a service's flows and half-open flows.
    fn count_nat(&self, service: u32, flows: i64, half_open: i64);
    /// Returns an entry of the rings of flows that have begun.
    fn nat_begun(&self, index: u32) -> NatBegun;
    /// Writes an entry of those rings.
    fn note_nat_begun(&self, index: u32, flow: NatBegun);
    /// Returns the scratch space for a search of a port.
    fn taken(&self) -> Option<&Taken>;
    /// Returns the MTU of a device in bytes.
    fn device_mtu(&self, ifindex: u32) -> Option<u16>;
    /// Returns a device's index as [`NextHop::ifindex`](crate::abi::NextHop::ifindex) has it.
    fn device_word(&self, ifindex: u32) -> u32;
    /// Stores a translation for as long as the packet is processed.
    fn keep(&self, translation: Translation) -> Option<&Translation>;
}

/// The link that a client's packets come from and its replies go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Beginning of the frames to the client.
    pub link: NatLink,
    /// Interface index of the device, as [`NextHop::ifindex`](crate::abi::NextHop::ifindex) has it.
    pub ifindex: u32,
}

impl Origin {
    /// Returns a number that tells this origin from others.
    #[inline(always)]
    pub const fn fingerprint(&self) -> u16 {
        self.link.fingerprint(self.ifindex)
    }
}

/// The part of a reverse entry that changes.
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
    /// Reads the state from an entry.
    #[inline(always)]
    pub const fn of(entry: &NatReverse) -> Self {
        Self {
            mark: entry.mark,
            began_with: entry.began_with,
            expects: entry.expects,
        }
    }

    /// Writes the state to an entry.
    #[inline(always)]
    pub const fn store(self, entry: &mut NatReverse) {
        entry.mark = self.mark;
        entry.began_with = self.began_with;
        entry.expects = self.expects;
    }

    /// Returns this state with another mark.
    #[inline(always)]
    pub const fn marked(self, mark: NatMark) -> Self {
        Self { mark, ..self }
    }
}

/// The new addresses and ports of a packet, on one cache line. It is too large for the BPF stack and lies where
/// [`NatFlows::keep`] puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Translation {
    /// Source address.
    pub source: AddressKey,
    /// Destination address.
    pub destination: AddressKey,
    /// Beginning of the frame.
    pub link: NatLink,
    /// The ports, source first, in wire order.
    pub ports: u32,
    /// The transport protocol, which stays; 0 if the transport header is in another fragment.
    pub protocol: u32,
    /// Interface index of the egress device.
    pub ifindex: u32,
    /// Backend id, for the counters; 0 towards the client.
    pub backend: u32,
}

/// The taken ports that a search for a free one has seen. `Taken::NONE` stands for an offset that is not known.
///
/// It lies where [`NatFlows::taken`] puts it, so that the verifier does not see its contents. Otherwise the verifier
/// would follow the state of every port through all later tries.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Taken {
    /// Not 0 if the flow may take a free port.
    pub(crate) has_room: Cell<u64>,
    pub(crate) half_open: Cell<u64>,
    pub(crate) oldest: Cell<u64>,
    pub(crate) oldest_idle: Cell<u64>,
    pub(crate) quietest: Cell<u64>,
    pub(crate) quietest_idle: Cell<u64>,
}
