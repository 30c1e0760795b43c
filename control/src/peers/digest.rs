//! Digests of owners: equal ones need no exchange.

use fastpath::tables::{FormerOwner, SlotOwners};
use imbl::OrdMap;
use ring::digest::{SHA256, digest};

use super::message::encode;
use crate::desired::ServiceKey;
use crate::hash::fingerprint;

/// The first half of a SHA-256.
pub(crate) type Digest = u128;

/// Four hexadecimal digits.
pub(super) type SeedFingerprint = [u8; 4];

/// The digests of all services that edges share. A clone shares everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(super) services: OrdMap<ServiceKey, Digest>,
    /// The sum of them all.
    pub(super) whole: Digest,
    /// The fingerprint of the hash seed. Edges with another seed have other owners in all slots.
    pub(super) seed: SeedFingerprint,
}

impl Summary {
    /// Returns 16 hexadecimal digits that are equal on edges where a service has the same owners; `None` if edges do not
    /// share it.
    pub(crate) fn fingerprint(&self, key: &ServiceKey) -> Option<String> {
        let digest = self.services.get(key)?;
        Some(format!("{:016x}", digest >> 64))
    }

    /// Returns the digest of all.
    #[cfg(test)]
    pub(crate) const fn whole(&self) -> Digest {
        self.whole
    }

    /// Tells whether nothing has changed since another summary of this edge.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        (self.whole, self.seed) == (other.whole, other.seed)
    }

    /// Sets the hash seed with which the owners were computed.
    pub(crate) fn set_seed(&mut self, seed: u64) {
        let digits = fingerprint(seed).into_bytes();
        self.seed = digits.try_into().unwrap_or_default();
    }

    /// Replaces the owners of a service; `None` if edges do not share it.
    pub(crate) fn set(&mut self, key: ServiceKey, owners: Option<&SlotOwners>) {
        let new = owners.map(|owners| digest_of(&key, owners));
        let old = match new {
            Some(new) => self.services.insert(key, new),
            None => self.services.remove(&key),
        };
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        self.whole = self.whole.wrapping_sub(old).wrapping_add(new);
    }
}

/// Returns the digest of a service's key, length, owners and past owners. The moments of past owners do not count, nor
/// their order.
fn digest_of(key: &ServiceKey, owners: &SlotOwners) -> Digest {
    let members = |list: &Vec<FormerOwner>| {
        let mut members: Vec<u32> = list.iter().map(|former| former.backend).collect();
        members.sort_unstable();
        members.dedup();
        members
    };
    let lists: Vec<Vec<u32>> = owners.lists.iter().map(members).collect();
    let mut different: Vec<&Vec<u32>> = lists.iter().collect();
    different.sort_unstable();
    different.dedup();
    let places = lists.iter();
    let places: Vec<usize> = places
        .map(|list| different.partition_point(|other| *other < list))
        .collect();
    let slots = owners.slots.iter().map(|slot| {
        let past = slot.past.and_then(|list| places.get(list as usize));
        (slot.owner, past)
    });
    let slots: Vec<(Option<u32>, Option<&usize>)> = slots.collect();
    let form = encode(&(key, owners.log2, &owners.backends, different, slots));
    let hash = digest(&SHA256, &form);
    let mut half = [0; size_of::<Digest>()];
    half.copy_from_slice(&hash.as_ref()[..size_of::<Digest>()]);
    Digest::from_be_bytes(half)
}
