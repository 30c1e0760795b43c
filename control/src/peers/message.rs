//! Requests and answers as bytes, in postcard's form.
//!
//! A list in memory takes ten times its bytes at most, whatever it says of its length. So past owners are told as one list
//! of all, beside the lengths of each.

use fastpath::tables::{BackendKey, FormerOwner, OwnedSlot, SlotOwners};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::digest::{Digest, SeedFingerprint};
use super::refusal::Refusal;
use crate::desired::{ServiceKey, unusable};

/// Most bytes of a request.
pub(super) const MOST_REQUEST_BYTES: usize = 64 << 10;
/// Most bytes of an answer: as many as the owners of the longest table take.
pub(super) const MOST_ANSWER_BYTES: usize = 16 << 20;
/// Bytes of an answer after which the rest is left to the next one.
const PAGE_BYTES: usize = 1 << 20;
/// Most services whose owners are asked for at a time.
pub(super) const MOST_KEYS: usize = 1024;
/// Most services of which an answer has digests.
const MOST_DIGESTS: usize = 16 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// The digest of all services.
    Digest,
    /// The services behind this one, or from the first one on, with their digests.
    Services(Option<ServiceKey>),
    /// The owners of these services.
    Owners(Vec<ServiceKey>),
}

/// An answer to [`Request::Digest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DigestOfAll {
    pub(super) whole: Digest,
    /// The fingerprint of the hash seed.
    pub(super) seed: SeedFingerprint,
}

/// An answer to [`Request::Services`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServicesPage {
    /// In order.
    pub(super) services: Vec<(ServiceKey, Digest)>,
    /// Whether there are more behind them.
    pub(super) has_more: bool,
}

/// A service's owners as they are told.
#[derive(Serialize, Deserialize)]
struct ToldOwners {
    log2: u8,
    needs: Vec<(u8, u32)>,
    backends: Vec<BackendKey>,
    lengths: Vec<u8>,
    /// The past owners of all lists.
    past: Vec<FormerOwner>,
    slots: Vec<OwnedSlot>,
}

/// Returns a message as bytes.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("memory takes what is written to it")
}

/// Reads the whole of a message.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    match decode_first(bytes)? {
        (message, []) => Ok(message),
        _ => Err(Refusal::Contradictory("longer than it says")),
    }
}

fn decode_first<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), Refusal> {
    let read = postcard::take_from_bytes(bytes);
    read.map_err(|_| Refusal::Contradictory("no such message, or cut short"))
}

impl ServicesPage {
    /// Takes the next services as far as an answer has room.
    pub(super) fn of<'s>(services: impl Iterator<Item = (&'s ServiceKey, &'s Digest)>) -> Self {
        let mut services = services.map(|(key, digest)| (*key, *digest));
        let page = services.by_ref().take(MOST_DIGESTS).collect();
        Self {
            services: page,
            has_more: services.next().is_some(),
        }
    }

    /// Decodes an answer about the services behind `after`.
    pub(super) fn decode(bytes: &[u8], after: Option<&ServiceKey>) -> Result<Self, Refusal> {
        let page: Self = decode(bytes)?;
        let keys = page.services.iter().map(|(key, _)| key);
        if !after
            .into_iter()
            .chain(keys)
            .is_sorted_by(|one, next| one < next)
        {
            return Err(Refusal::Contradictory("services out of order"));
        }
        if page.has_more && page.services.is_empty() {
            return Err(Refusal::Contradictory("more services, and none of them"));
        }
        Ok(page)
    }
}

/// Encodes the owners of services that were asked for, as far as an answer has room. What takes more than an answer by
/// itself is left out as if it were not shared.
pub(super) fn encode_owners(all: &[Option<SlotOwners>]) -> Vec<u8> {
    let mut page = Vec::new();
    for owners in all {
        if page.len() > PAGE_BYTES {
            break;
        }
        let mut told = encode(&owners.as_ref().map(ToldOwners::of));
        if page.len() + told.len() > MOST_ANSWER_BYTES {
            if !page.is_empty() {
                break;
            }
            told = encode(&None::<ToldOwners>);
        }
        page.append(&mut told);
    }
    page
}

/// Decodes an answer about at most `count` services.
pub(super) fn decode_owners(
    mut bytes: &[u8],
    count: usize,
) -> Result<Vec<Option<SlotOwners>>, Refusal> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        if all.len() == count {
            return Err(Refusal::Contradictory("more services than were asked for"));
        }
        let told: Option<ToldOwners>;
        (told, bytes) = decode_first(bytes)?;
        all.push(told.map(ToldOwners::read).transpose()?);
    }
    if all.is_empty() && count > 0 {
        return Err(Refusal::Contradictory("no service that was asked for"));
    }
    Ok(all)
}

impl ToldOwners {
    fn of(owners: &SlotOwners) -> Self {
        // A list has 14 past owners at most.
        let length = |list: &Vec<_>| u8::try_from(list.len()).unwrap_or(u8::MAX);
        Self {
            log2: owners.log2,
            needs: owners.needs.clone(),
            backends: owners.backends.clone(),
            lengths: owners.lists.iter().map(length).collect(),
            past: owners.lists.concat(),
            slots: owners.slots.clone(),
        }
    }

    fn read(self) -> Result<SlotOwners, Refusal> {
        let mut past = &self.past[..];
        let mut lists = Vec::new();
        if self.lengths.len() > self.slots.len() {
            return Err(Refusal::Contradictory("more lists than slots"));
        }
        for length in self.lengths {
            let (list, rest) = past
                .split_at_checked(length.into())
                .ok_or(Refusal::Contradictory("a list without its past owners"))?;
            lists.push(list.to_vec());
            past = rest;
        }
        if !self.backends.iter().all(can_be_told) {
            return Err(Refusal::Contradictory("a backend that cannot be one"));
        }
        let owners = SlotOwners {
            log2: self.log2,
            needs: self.needs,
            backends: self.backends,
            lists,
            slots: self.slots,
        };
        if !past.is_empty() || !owners.is_consistent() {
            return Err(Refusal::Contradictory("owners that do not fit together"));
        }
        Ok(owners)
    }
}

/// Tells whether a backend is one that edges tell each other: reached without NAT, at addresses that packets have.
fn can_be_told(backend: &BackendKey) -> bool {
    let is_good = |address| unusable(address).is_none();
    let is_pod = |pod: std::net::SocketAddr| is_good(pod.ip()) && pod.port() != 0;
    !backend.nat && is_good(backend.address) && backend.pod.is_none_or(is_pod)
}
