//! What a machine answers that has no NAT mode, announces nothing, checks no backends, and notes no look-ups.

use super::{
    Announcements, Clock, Inserted, NatFlows, NatState, Origin, Probes, Shortcuts, Taken,
    Translation,
};
use crate::abi::{
    AddressKey, EdgeMac, NatBegun, NatCount, NatForward, NatMark, NatReverse, TaggedLink, Tuple,
};

/// A world without these: its type needs no maps for them. Frames that would ask for them find nothing.
pub trait MinimalWorld: Clock {}

impl<T: MinimalWorld> Shortcuts for T {
    fn shortcut(&self, _: &Tuple, _: u32) -> Option<u64> {
        None
    }

    fn note_shortcut(&self, _: &Tuple, _: u32, _: u64) {}

    fn note_untrusted(&self, _: &AddressKey) {}
}

impl<T: MinimalWorld> Probes for T {
    fn probe_peer(&self, _: &Tuple) -> Option<AddressKey> {
        None
    }
}

impl<T: MinimalWorld> Announcements for T {
    fn is_announced(&self, _: &AddressKey) -> bool {
        false
    }

    fn announce_stamp(&self) -> u64 {
        0
    }

    fn announcing_mac(&self, _: TaggedLink) -> Option<EdgeMac> {
        None
    }

    fn note_claim(&self, _: &AddressKey, _: EdgeMac) {}
}

impl<T: MinimalWorld> NatFlows for T {
    fn see_nat_forward(
        &self,
        _: &Tuple,
        _: impl FnOnce(&NatForward) -> Option<NatMark>,
    ) -> Option<NatForward> {
        None
    }

    fn replace_nat_mark(&self, _: &Tuple, _: NatMark, _: NatMark) -> bool {
        false
    }

    fn see_nat_reverse(&self, _: &Tuple) -> Option<NatReverse> {
        None
    }

    fn note_nat_reverse(&self, _: &Tuple, _: NatState) {}

    fn insert_nat_forward(&self, _: &Tuple, _: &NatForward) -> Inserted {
        Inserted::Full
    }

    fn insert_nat_reverse(&self, _: &Tuple, _: &Tuple, _: &Origin, _: NatMark) -> Inserted {
        Inserted::Full
    }

    fn remove_nat_forward(&self, _: &Tuple) {}

    fn remove_nat_reverse(&self, _: &Tuple) {}

    fn move_nat_client(&self, _: &Tuple, _: &Tuple, _: &Origin) {}

    fn claim_nat(&self, _: &Tuple) -> bool {
        false
    }

    fn release_nat(&self, _: &Tuple) {}

    fn nat_count(&self, _: u32) -> NatCount {
        NatCount::default()
    }

    fn count_nat(&self, _: u32, _: i64, _: i64) {}

    fn nat_begun(&self, _: u32) -> NatBegun {
        NatBegun::default()
    }

    fn note_nat_begun(&self, _: u32, _: NatBegun) {}

    fn taken(&self) -> Option<&Taken> {
        None
    }

    fn device_mtu(&self, _: u32) -> Option<u16> {
        None
    }

    fn device_word(&self, ifindex: u32) -> u32 {
        ifindex
    }

    fn keep(&self, _: Translation) -> Option<&Translation> {
        None
    }
}
