//! Requests and answers as bytes.
//!
//! Addresses and ports are in network order. Other numbers have 7 bits in a byte, the lowest first, and the top bit where
//! more bytes follow; an index is one more than it says, and 0 stands for none.

use std::net::{IpAddr, SocketAddr};

use fastpath::tables::{BackendKey, FormerOwner, OwnedSlot, Protocol, SlotOwners};
use xdp_prog::abi::MAX_PAST_OWNERS;
use xdp_prog::maglev::MAX_LOG2_LEN;

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

const DIGEST: u8 = 1;
const SERVICES: u8 = 2;
const OWNERS: u8 = 3;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The digest of all services.
    Digest,
    /// The services behind this one, or from the first one on, with their digests.
    Services(Option<ServiceKey>),
    /// The owners of these services.
    Owners(Vec<ServiceKey>),
}

/// An answer to [`Request::Services`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServicesPage {
    /// In order.
    pub(super) services: Vec<(ServiceKey, Digest)>,
    /// Whether there are more behind them.
    pub(super) has_more: bool,
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Digest => to.byte(DIGEST),
            Self::Services(after) => {
                to.byte(SERVICES);
                to.length(after.iter().len());
                after.iter().for_each(|key| to.key(key));
            }
            Self::Owners(keys) => {
                to.byte(OWNERS);
                to.length(keys.len());
                keys.iter().for_each(|key| to.key(key));
            }
        }
        to.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let mut from = Reader(bytes);
        let request = match from.byte()? {
            DIGEST => Self::Digest,
            SERVICES => match from.length(1)? {
                0 => Self::Services(None),
                _ => Self::Services(Some(from.key()?)),
            },
            OWNERS => {
                let count = from.length(MOST_KEYS)?;
                Self::Owners((0..count).map(|_| from.key()).collect::<Result<_, _>>()?)
            }
            _ => return Err(Refusal::Contradictory("no such request")),
        };
        from.end().map(|()| request)
    }
}

/// Encodes the digest of all services, and the fingerprint of the hash seed.
pub(super) fn encode_digest(whole: Digest, seed: SeedFingerprint) -> Vec<u8> {
    [&whole.to_be_bytes()[..], &seed].concat()
}

pub(super) fn decode_digest(bytes: &[u8]) -> Result<(Digest, SeedFingerprint), Refusal> {
    let mut from = Reader(bytes);
    let whole = from.array().map(Digest::from_be_bytes)?;
    let seed = from.array()?;
    from.end().map(|()| (whole, seed))
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

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.byte(self.has_more.into());
        to.length(self.services.len());
        for (key, digest) in &self.services {
            to.key(key);
            to.0.extend(digest.to_be_bytes());
        }
        to.0
    }

    /// Decodes an answer about the services behind `after`.
    pub(super) fn decode(bytes: &[u8], after: Option<&ServiceKey>) -> Result<Self, Refusal> {
        let mut from = Reader(bytes);
        let has_more = from.byte()? != 0;
        let count = from.length(MOST_DIGESTS)?;
        let mut services: Vec<(ServiceKey, Digest)> = Vec::new();
        for _ in 0..count {
            let key = from.key()?;
            let last = services.last().map(|(key, _)| key).or(after);
            if last.is_some_and(|last| *last >= key) {
                return Err(Refusal::Contradictory("services out of order"));
            }
            services.push((key, Digest::from_be_bytes(from.array()?)));
        }
        from.end()?;
        if has_more && services.is_empty() {
            return Err(Refusal::Contradictory("more services, and none of them"));
        }
        Ok(Self { services, has_more })
    }
}

/// Encodes the owners of services that were asked for, as far as an answer has room. What takes more than an answer by
/// itself is left out as if it were not shared.
pub(super) fn encode_owners(all: &[Option<SlotOwners>]) -> Vec<u8> {
    let mut to = Writer::default();
    for owners in all {
        let before = to.0.len();
        if before > PAGE_BYTES {
            break;
        }
        to.owners(owners.as_ref());
        if to.0.len() > MOST_ANSWER_BYTES {
            to.0.truncate(before);
            if before > 0 {
                break;
            }
            to.owners(None);
        }
    }
    to.0
}

/// Decodes an answer about at most `count` services.
pub(super) fn decode_owners(
    bytes: &[u8],
    count: usize,
) -> Result<Vec<Option<SlotOwners>>, Refusal> {
    let mut from = Reader(bytes);
    let mut all = Vec::new();
    while !from.0.is_empty() {
        if all.len() == count {
            return Err(Refusal::Contradictory("more services than were asked for"));
        }
        all.push(from.owners()?);
    }
    if all.is_empty() && count > 0 {
        return Err(Refusal::Contradictory("no service that was asked for"));
    }
    Ok(all)
}

/// Writes values behind each other.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, mut number: u32) {
        while number > 0x7f {
            let [low, ..] = number.to_le_bytes();
            self.byte(low | 0x80);
            number >>= 7;
        }
        let [low, ..] = number.to_le_bytes();
        self.byte(low);
    }

    /// Writes a length; none is beyond 32 bits.
    pub(super) fn length(&mut self, length: usize) {
        self.number(u32::try_from(length).unwrap_or(u32::MAX));
    }

    pub(super) fn index(&mut self, index: Option<u32>) {
        self.number(index.map_or(0, |index| index.saturating_add(1)));
    }

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => {
                self.byte(4);
                self.0.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                self.byte(6);
                self.0.extend(v6.octets());
            }
        }
    }

    fn port(&mut self, port: u16) {
        self.0.extend(port.to_be_bytes());
    }

    pub(super) fn key(&mut self, key: &ServiceKey) {
        self.address(key.address);
        self.port(key.port);
        self.byte(key.protocol.number());
    }

    pub(super) fn backends(&mut self, backends: &[BackendKey]) {
        self.length(backends.len());
        for backend in backends {
            self.address(backend.address);
            self.byte(backend.pod.is_some().into());
            if let Some(pod) = backend.pod {
                self.address(pod.ip());
                self.port(pod.port());
            }
        }
    }

    fn owners(&mut self, owners: Option<&SlotOwners>) {
        self.byte(owners.is_some().into());
        let Some(owners) = owners else {
            return;
        };
        self.byte(owners.log2);
        self.length(owners.needs.len());
        for (length, seconds_ago) in &owners.needs {
            self.byte(*length);
            self.number(*seconds_ago);
        }
        self.backends(&owners.backends);
        self.length(owners.lists.len());
        for list in &owners.lists {
            self.length(list.len());
            for former in list {
                self.number(former.backend);
                self.number(former.seconds_ago);
            }
        }
        for slot in &owners.slots {
            self.index(slot.owner);
            self.index(slot.past);
        }
    }
}

/// Reads values from what is left of a message.
#[derive(Debug)]
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8], Refusal> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(Refusal::Contradictory("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Refusal> {
        let mut array = [0; LENGTH];
        array.copy_from_slice(self.take(LENGTH)?);
        Ok(array)
    }

    fn end(&self) -> Result<(), Refusal> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Refusal::Contradictory("longer than it says")),
        }
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        self.array().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u32, Refusal> {
        let mut number = 0_u32;
        for shift in (0..u32::BITS).step_by(7) {
            let byte = self.byte()?;
            let part = u32::from(byte & 0x7f);
            if part.leading_zeros() < shift {
                break;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Refusal::Contradictory("a number beyond 32 bits"))
    }

    /// Reads a length of at most `most`.
    fn length(&mut self, most: usize) -> Result<usize, Refusal> {
        let length = self.number()? as usize;
        if length > most {
            return Err(Refusal::Contradictory("a list longer than it can be"));
        }
        Ok(length)
    }

    fn index(&mut self) -> Result<Option<u32>, Refusal> {
        Ok(self.number()?.checked_sub(1))
    }

    fn address(&mut self) -> Result<IpAddr, Refusal> {
        match self.byte()? {
            4 => Ok(self.array::<4>()?.into()),
            6 => Ok(self.array::<16>()?.into()),
            _ => Err(Refusal::Contradictory("an address of no family")),
        }
    }

    fn port(&mut self) -> Result<u16, Refusal> {
        self.array().map(u16::from_be_bytes)
    }

    fn key(&mut self) -> Result<ServiceKey, Refusal> {
        let (address, port) = (self.address()?, self.port()?);
        let protocol = Protocol::from_number(self.byte()?);
        Ok(ServiceKey {
            address,
            port,
            protocol: protocol.ok_or(Refusal::Contradictory("no such protocol"))?,
        })
    }

    fn backend(&mut self) -> Result<BackendKey, Refusal> {
        let address = self.address()?;
        let pod = match self.byte()? {
            0 => None,
            1 => Some(SocketAddr::new(self.address()?, self.port()?)),
            _ => return Err(Refusal::Contradictory("half a backend")),
        };
        let of_pod = pod.map(|pod| pod.ip());
        let is_bad = |address: IpAddr| unusable(address).is_some();
        if is_bad(address) || of_pod.is_some_and(is_bad) || pod.is_some_and(|pod| pod.port() == 0) {
            return Err(Refusal::Contradictory("a backend that cannot be one"));
        }
        Ok(BackendKey {
            address,
            pod,
            nat: false,
        })
    }

    fn former(&mut self) -> Result<FormerOwner, Refusal> {
        Ok(FormerOwner {
            backend: self.number()?,
            seconds_ago: self.number()?,
        })
    }

    fn owners(&mut self) -> Result<Option<SlotOwners>, Refusal> {
        match self.byte()? {
            0 => return Ok(None),
            1 => {}
            _ => return Err(Refusal::Contradictory("half a service")),
        }
        let log2 = self.byte()?;
        if log2 > MAX_LOG2_LEN {
            return Err(Refusal::Contradictory("a table longer than any"));
        }
        let count = self.length(usize::from(MAX_LOG2_LEN) + 1)?;
        let needs = (0..count).map(|_| Ok((self.byte()?, self.number()?)));
        let needs = needs.collect::<Result<_, Refusal>>()?;
        let slots = 1 << log2;
        let most = slots * (1 + MAX_PAST_OWNERS as usize);
        let count = self.length(most)?;
        let backends = (0..count).map(|_| self.backend());
        let backends = backends.collect::<Result<_, _>>()?;
        let count = self.length(slots)?;
        let lists = (0..count).map(|_| {
            let count = self.length(MAX_PAST_OWNERS as usize)?;
            (0..count).map(|_| self.former()).collect()
        });
        let lists = lists.collect::<Result<_, _>>()?;
        let slots = (0..slots).map(|_| {
            Ok(OwnedSlot {
                owner: self.index()?,
                past: self.index()?,
            })
        });
        let owners = SlotOwners {
            log2,
            needs,
            backends,
            lists,
            slots: slots.collect::<Result<_, Refusal>>()?,
        };
        if !owners.is_consistent() {
            return Err(Refusal::Contradictory("owners that do not fit together"));
        }
        Ok(Some(owners))
    }
}
