//! What the product may ask of a machine and no segment of the simulation does: NAT mode, fragments, checks,
//! announcements. There are no notes, which only save look-ups, and no limits of answers.

use xdp_prog::{
    abi::{
        AddressKey, Datagram, EdgeMac, NatBegun, NatCount, NatForward, NatMark, NatReverse,
        PathReport, TaggedLink, Tuple,
    },
    world::{
        Announcements, Answers, Fragments, Inserted, NatFlows, NatState, Origin, Paths, Probes,
        Shortcuts, Taken, Translation,
    },
};

use super::world::Network;

impl Shortcuts for Network {
    fn shortcut(&self, _: &Tuple, _: u32) -> Option<u64> {
        None
    }

    fn note_shortcut(&self, _: &Tuple, _: u32, _: u64) {}

    fn note_untrusted(&self, _: &AddressKey) {}
}

impl Answers for Network {
    fn full_at(&self, _: &AddressKey) -> u64 {
        0
    }

    fn set_full_at(&self, _: &AddressKey, _: u64) {}

    fn all_full_at(&self) -> u64 {
        0
    }

    fn set_all_full_at(&self, _: u64) {}
}

impl Fragments for Network {
    fn datagram(&self, _: &Tuple) -> Option<Datagram> {
        None
    }

    fn publish(&self, _: &Tuple, _: &Datagram) {}
}

impl Probes for Network {
    fn probe_peer(&self, _: &Tuple) -> Option<AddressKey> {
        None
    }
}

impl Paths for Network {
    fn note_path(&self, _: &AddressKey, _: PathReport) -> bool {
        false
    }
}

impl Announcements for Network {
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

impl NatFlows for Network {
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

    fn nat_state(&self, _: &Tuple) -> Option<NatState> {
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

    fn keep(&self, _: Translation) -> Option<&Translation> {
        None
    }
}
