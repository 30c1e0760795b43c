//! What the product may ask of a machine and no segment of the simulation does: NAT mode, fragments, checks,
//! announcements. There are no notes, which only save look-ups, and no limits of answers.

use xdp_prog::{
    abi::{AddressKey, Datagram, PathReport, Tuple},
    world::{Answers, Fragments, MinimalWorld, Paths},
};

use super::world::Network;

impl MinimalWorld for Network {}

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

impl Paths for Network {
    fn note_path(&self, _: &AddressKey, _: PathReport) -> bool {
        false
    }
}
