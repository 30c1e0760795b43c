//! Tables that only remember, a network in memory, and peers in it.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use fastpath::tables::{BackendKey, FormerOwner, OwnedSlot, SlotOwners, TakenOwners};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::api::PeersStatus;
use crate::desired::ServiceKey;
use crate::peers::answer::answer;
use crate::peers::ask::Question;
use crate::peers::digest::Summary;
use crate::peers::frame::Instance;
use crate::peers::key::Key;
use crate::peers::message::{DigestOfAll, encode};
use crate::peers::turns::{Connect, Turns};
use crate::peers::{ComingKey, Owners, PeerStates, Told};

pub(super) const BUFFER: usize = 64 << 10;

pub(super) fn key() -> Key {
    Key::new(&[7; 32]).unwrap()
}

pub(super) fn service(number: u8) -> ServiceKey {
    format!("10.99.0.{number}:80/tcp").parse().unwrap()
}

pub(super) fn backend(number: u8) -> BackendKey {
    BackendKey {
        address: [10, 0, 0, number].into(),
        pod: Some(SocketAddr::from(([10, 244, 0, number], 8080))),
        nat: false,
    }
}

/// Two slots of one owner, of which the second has a past owner.
pub(super) fn owners(owner: u8, past: u8) -> SlotOwners {
    let mut numbers = [owner, past];
    numbers.sort_unstable();
    let place = |number: u8| u32::from(numbers[1] == number);
    SlotOwners {
        log2: 1,
        needs: vec![(1, 0)],
        backends: numbers.map(backend).to_vec(),
        lists: vec![vec![FormerOwner {
            backend: place(past),
            seconds_ago: 5,
        }]],
        slots: [None, Some(0)]
            .map(|past| OwnedSlot {
                owner: Some(place(owner)),
                past,
            })
            .to_vec(),
    }
}

/// Tables that only remember.
#[derive(Clone, Debug, Default)]
pub(super) struct Fake {
    pub(super) services: Arc<BTreeMap<ServiceKey, SlotOwners>>,
    pub(super) asked: Arc<Mutex<Vec<ServiceKey>>>,
    pub(super) taken: Arc<Mutex<Told>>,
    /// Slots that change with each service that is taken.
    pub(super) changes: u32,
}

impl Fake {
    pub(super) fn new(services: impl IntoIterator<Item = (ServiceKey, SlotOwners)>) -> Self {
        Self {
            services: Arc::new(services.into_iter().collect()),
            ..Self::default()
        }
    }

    pub(super) fn with(numbers: std::ops::Range<u8>, owner: u8) -> Self {
        Self::new(numbers.map(|number| (service(number), owners(owner, 9))))
    }

    pub(super) fn taken_services(&self) -> Vec<ServiceKey> {
        self.taken.lock().iter().map(|(key, _)| *key).collect()
    }
}

impl Owners for Fake {
    fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for (key, owners) in &*self.services {
            summary.set(*key, Some(owners));
        }
        summary
    }

    async fn owners(&self, keys: Vec<ServiceKey>) -> Option<Vec<Option<SlotOwners>>> {
        self.asked.lock().extend(&keys);
        // Half of them at one go.
        let some = keys.iter().take(keys.len().div_ceil(2));
        Some(some.map(|key| self.services.get(key).cloned()).collect())
    }

    async fn take(&self, told: Told, _: Instant) -> Option<TakenOwners> {
        let slots = u32::try_from(told.len()).unwrap() * self.changes;
        self.taken.lock().extend(told);
        Some(TakenOwners { slots, left_out: 0 })
    }
}

pub(super) const ASKER: Instance = [1; 16];
pub(super) const ANSWERER: Instance = [2; 16];

/// A network in memory, with what each peer does with a connection.
#[derive(Clone, Default)]
pub(super) struct Lines {
    peers: Arc<BTreeMap<SocketAddr, Behaviour>>,
}

pub(super) type Behaviour = Box<dyn Fn(DuplexStream) + Send + Sync>;

impl Lines {
    pub(super) fn of(peers: impl IntoIterator<Item = Behaviour>) -> Self {
        let peers = peers.into_iter().zip(1..);
        let peers = peers.map(|(peer, number)| (address(number), peer));
        Self {
            peers: Arc::new(peers.collect()),
        }
    }
}

pub(super) fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 9754))
}

impl Connect for Lines {
    type Stream = DuplexStream;

    fn peers(&self) -> BTreeSet<SocketAddr> {
        self.peers.keys().copied().collect()
    }

    async fn connect(&self, peer: SocketAddr) -> std::io::Result<DuplexStream> {
        let (near, far) = duplex(BUFFER);
        self.peers[&peer](far);
        Ok(near)
    }
}

pub(super) fn honest(tables: Fake, instance: Instance) -> Behaviour {
    Box::new(move |stream| {
        let tables = tables.clone();
        tokio::spawn(async move { answer(stream, &key(), &instance, &tables, || {}).await });
    })
}

/// A peer that sends these bytes behind a proper greeting, and then keeps silent.
pub(super) fn raw(greeting: Vec<u8>, rest: Vec<u8>) -> Behaviour {
    Box::new(move |mut stream| {
        let (greeting, rest) = (greeting.clone(), rest.clone());
        tokio::spawn(async move {
            let _ = stream.write_all(&greeting).await;
            let _ = stream.write_all(&rest).await;
            let mut sink = Vec::new();
            let _ = stream.read_to_end(&mut sink).await;
        });
    })
}

pub(super) fn greeting(version: u16) -> Vec<u8> {
    let version = version.to_be_bytes();
    [&b"gw-peers"[..], &version, &[3; 32], &ANSWERER].concat()
}

pub(super) fn digest(whole: u128, seed: [u8; 4]) -> Vec<u8> {
    encode(&DigestOfAll { whole, seed })
}

pub(super) fn question(own: &Fake) -> Question {
    Question {
        own: own.summary(),
        ..Question::default()
    }
}

/// A peer that closes each connection, as a machine does that is no edge.
pub(super) fn closed() -> Behaviour {
    Box::new(drop)
}

pub(super) fn silent() -> Behaviour {
    raw(Vec::new(), Vec::new())
}

pub(super) fn turns(own: &Fake, network: Lines) -> Turns<Fake, Lines> {
    turns_with(ready(key()).boxed().shared(), own, network)
}

pub(super) fn turns_with(key: ComingKey, own: &Fake, network: Lines) -> Turns<Fake, Lines> {
    Turns::new(key, own.clone(), network, PeerStates::new())
}

pub(super) fn refused(status: &PeersStatus) -> Vec<&str> {
    let refused = status.refused.iter().filter(|(_, count)| **count > 0);
    refused.map(|(label, _)| label.as_str()).collect()
}
