//! Exchanges over streams in memory, with honest peers and others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::tables::{BackendKey, FormerOwner, OwnedSlot, SlotOwners, TakenOwners};
use parking_lot::Mutex;
use proptest::prelude::{any, prop, proptest};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::answer::answer;
use super::ask::{Heard, Question, ask};
use super::digest::Summary;
use super::frame::{Connection, Instance, VERSION};
use super::key::{Key, Side};
use super::message::{
    MOST_ANSWER_BYTES, MOST_REQUEST_BYTES, Request, ServicesPage, decode_owners, encode_digest,
    encode_owners,
};
use super::refusal::Refusal;
use super::turns::{Connect, Turns};
use super::{Owners, PeerStates, Told};
use crate::api::PeersStatus;
use crate::desired::ServiceKey;

const BUFFER: usize = 64 << 10;

fn key() -> Key {
    Key::new(&[7; 32]).unwrap()
}

fn service(number: u8) -> ServiceKey {
    format!("10.99.0.{number}:80/tcp").parse().unwrap()
}

fn backend(number: u8) -> BackendKey {
    BackendKey {
        address: [10, 0, 0, number].into(),
        pod: Some(SocketAddr::from(([10, 244, 0, number], 8080))),
        nat: false,
    }
}

/// Two slots of one owner, of which the second has a past owner.
fn owners(owner: u8, past: u8) -> SlotOwners {
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
struct Fake {
    services: Arc<BTreeMap<ServiceKey, SlotOwners>>,
    asked: Arc<Mutex<Vec<ServiceKey>>>,
    taken: Arc<Mutex<Told>>,
    /// Slots that change with each service that is taken.
    changes: u32,
}

impl Fake {
    fn new(services: impl IntoIterator<Item = (ServiceKey, SlotOwners)>) -> Self {
        Self {
            services: Arc::new(services.into_iter().collect()),
            ..Self::default()
        }
    }

    fn with(numbers: std::ops::Range<u8>, owner: u8) -> Self {
        Self::new(numbers.map(|number| (service(number), owners(owner, 9))))
    }

    fn taken(&self) -> Vec<ServiceKey> {
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

const ASKER: Instance = [1; 16];
const ANSWERER: Instance = [2; 16];

/// Asks an honest peer; returns how many requests it answered too.
async fn ask_honest(question: &Question, peer: &Fake) -> (Result<Option<Heard>, Refusal>, u64) {
    let (near, far) = duplex(BUFFER);
    let peer = peer.clone();
    let answered = tokio::spawn(async move { answer(far, &key(), &ANSWERER, &peer, || {}).await });
    let heard = ask(near, &key(), &ASKER, question).await;
    (heard, answered.await.unwrap().unwrap_or_default())
}

fn question(own: &Fake) -> Question {
    Question {
        own: own.summary(),
        ..Question::default()
    }
}

fn told(heard: &Heard) -> Told {
    let pages = heard.pages.iter();
    pages.flat_map(|page| page.told().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn equal_owners_cost_one_digest() {
    let own = Fake::with(1..200, 1);
    let (heard, answers) = ask_honest(&question(&own), &own.clone()).await;
    assert!(heard.unwrap().unwrap().pages.is_empty());
    assert_eq!(answers, 1);
}

#[tokio::test(start_paused = true)]
async fn only_services_that_differ_are_told() {
    let own = Fake::with(1..200, 1);
    let mut others = BTreeMap::clone(&own.services);
    others.insert(service(7), owners(2, 9));
    others.insert(service(100), owners(1, 8));
    others.insert(service(201), owners(1, 8));
    others.remove(&service(150));
    let peer = Fake::new(others.clone());
    let (heard, _) = ask_honest(&question(&own), &peer).await;
    let heard = heard.unwrap().unwrap();
    let expected = [7, 100].map(|number| (service(number), others[&service(number)].clone()));
    assert_eq!(told(&heard), expected);
    assert_eq!((heard.rest_after, heard.was_settled), (None, false));
    assert_eq!(heard.whole, peer.summary().whole);

    let question = Question {
        settled: Some((heard.whole, own.summary().whole)),
        ..question(&own)
    };
    let (heard, answers) = ask_honest(&question, &peer).await;
    assert_eq!(answers, 1);
    assert!(heard.unwrap().unwrap().was_settled);
}

#[test]
fn digest_is_of_members_and_not_of_moments_or_their_order() {
    let whole = |owners: &SlotOwners| {
        let mut summary = Summary::default();
        summary.set(service(1), Some(owners));
        summary.whole
    };
    let plain = owners(1, 9);
    let mut other = plain.clone();
    other.lists[0][0].seconds_ago = 500;
    other.needs.clear();
    // A second list with the same members.
    other.lists.push(other.lists[0].clone());
    other.slots[1].past = Some(1);
    assert_eq!(whole(&plain), whole(&other));
    for other in [owners(2, 9), owners(1, 8), SlotOwners::default()] {
        assert_ne!(whole(&plain), whole(&other));
    }
    let mut summary = Summary::default();
    summary.set(service(1), Some(&plain));
    summary.set(service(2), Some(&plain));
    summary.set(service(1), None);
    summary.set(service(2), Some(&owners(2, 9)));
    summary.set(service(2), None);
    assert_eq!(summary, Summary::default());
}

#[tokio::test(start_paused = true)]
async fn services_for_which_there_was_no_time_come_first_next_time() {
    let own = Fake::with(1..101, 1);
    let peer = Fake::with(1..101, 2);
    let first = question(&own);
    let (near, far) = duplex(BUFFER);
    // It takes a second for each answer.
    let slow = peer.clone();
    tokio::spawn(async move {
        let key = key();
        let opened = Connection::open(far, &key, Side::Answerer, &ANSWERER).await;
        let mut asker = opened.unwrap();
        while let Ok(Some(body)) = asker.next_request(MOST_REQUEST_BYTES).await {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let body = honest_answer(&slow, &body).await;
            asker.answer(&body).await.unwrap();
        }
    });
    let heard = ask(near, &key(), &ASKER, &first).await.unwrap().unwrap();
    let first_part = told(&heard);
    assert_eq!(first_part.len(), 50);
    assert_eq!(heard.rest_after, Some(service(50)));
    let second = Question {
        after: heard.rest_after,
        ..first
    };
    let (heard, _) = ask_honest(&second, &peer).await;
    let told = told(&heard.unwrap().unwrap());
    assert_eq!(told[0].0, service(51));
    assert_eq!(told.len(), 100);
}

async fn honest_answer(tables: &Fake, body: &[u8]) -> Vec<u8> {
    match Request::decode(body).unwrap() {
        Request::Digest => encode_digest(tables.summary().whole, [0; 4]),
        Request::Services(_) => ServicesPage::of(tables.summary().services.iter()).encode(),
        Request::Owners(keys) => encode_owners(&tables.owners(keys).await.unwrap()),
    }
}

/// A peer that has the key and lies.
type Lie = fn(Request) -> Vec<u8>;

fn lies() -> Vec<(&'static str, &'static str, Lie)> {
    fn page(numbers: &[u8], has_more: bool) -> Vec<u8> {
        let services = numbers.iter().map(|number| (service(*number), 1));
        ServicesPage {
            services: services.collect(),
            has_more,
        }
        .encode()
    }
    fn with_owners(request: &Request, owners: &[u8]) -> Vec<u8> {
        match request {
            Request::Digest => encode_digest(1, [0; 4]),
            Request::Services(_) => page(&[1, 2], false),
            Request::Owners(_) => owners.to_vec(),
        }
    }
    fn forged(request: &Request, forge: fn(&mut SlotOwners)) -> Vec<u8> {
        let mut owners = owners(1, 9);
        forge(&mut owners);
        with_owners(request, &encode_owners(&[Some(owners)]))
    }
    vec![
        ("no digest", "contradictory", |_| vec![1, 2, 3]),
        ("another seed", "other_seed", |_| encode_digest(1, *b"3fa1")),
        ("an empty answer", "contradictory", |_| Vec::new()),
        (
            "services in circles",
            "contradictory",
            |request| match request {
                Request::Digest => encode_digest(1, [0; 4]),
                _ => page(&[1, 2], true),
            },
        ),
        (
            "services out of order",
            "contradictory",
            |request| match request {
                Request::Digest => encode_digest(1, [0; 4]),
                _ => page(&[2, 1], false),
            },
        ),
        (
            "more services, and none of them",
            "contradictory",
            |request| match request {
                Request::Digest => encode_digest(1, [0; 4]),
                _ => page(&[], true),
            },
        ),
        (
            "services without end",
            "too_large",
            |request| match request {
                Request::Digest => encode_digest(1, [0; 4]),
                Request::Services(after) => endless(after),
                Request::Owners(_) => Vec::new(),
            },
        ),
        ("owners cut short", "contradictory", |request| {
            let whole = encode_owners(&[Some(owners(1, 9))]);
            with_owners(&request, &whole[..whole.len() - 1])
        }),
        ("no owners", "contradictory", |request| {
            with_owners(&request, &[])
        }),
        ("more services than asked for", "contradictory", |request| {
            with_owners(&request, &[0, 0, 0])
        }),
        ("a slot of no backend", "contradictory", |request| {
            forged(&request, |told| told.slots[0].owner = Some(2))
        }),
        ("a slot of no list", "contradictory", |request| {
            forged(&request, |told| told.slots[0].past = Some(1))
        }),
        ("a length without slots", "contradictory", |request| {
            forged(&request, |told| told.log2 = 9)
        }),
        ("a length beyond all", "contradictory", |request| {
            forged(&request, |told| told.log2 = 40)
        }),
        ("a backend twice", "contradictory", |request| {
            forged(&request, |told| told.backends[1] = told.backends[0])
        }),
        (
            "a backend at a loopback address",
            "contradictory",
            |request| {
                forged(&request, |told| {
                    told.backends[0].address = [127, 0, 0, 1].into()
                })
            },
        ),
        ("a list that is too long", "contradictory", |request| {
            forged(&request, |told| told.lists[0] = vec![told.lists[0][0]; 15])
        }),
        ("a list without owners", "contradictory", |request| {
            forged(&request, |told| told.lists[0].clear())
        }),
    ]
}

/// Pages of services that go on for ever, in order.
fn endless(after: Option<ServiceKey>) -> Vec<u8> {
    let begin = after.map_or(0, |key| match key.address {
        IpAddr::V4(v4) => v4.to_bits() + 1,
        IpAddr::V6(_) => 0,
    });
    let services = (begin..begin + (16 << 10)).map(|number| {
        let key = ServiceKey {
            address: Ipv4Addr::from_bits(number).into(),
            ..service(1)
        };
        (key, 1)
    });
    ServicesPage {
        services: services.collect(),
        has_more: true,
    }
    .encode()
}

/// A network in memory, with what each peer does with a connection.
#[derive(Clone, Default)]
struct Lines {
    peers: Arc<BTreeMap<SocketAddr, Behaviour>>,
}

type Behaviour = Box<dyn Fn(DuplexStream) + Send + Sync>;

impl Lines {
    fn of(peers: impl IntoIterator<Item = Behaviour>) -> Self {
        let peers = peers.into_iter().zip(1..);
        let peers = peers.map(|(peer, number)| (address(number), peer));
        Self {
            peers: Arc::new(peers.collect()),
        }
    }
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 9754))
}

impl Connect for Lines {
    type Stream = DuplexStream;

    fn peers(&self) -> Vec<SocketAddr> {
        self.peers.keys().copied().collect()
    }

    async fn connect(&self, peer: SocketAddr) -> std::io::Result<DuplexStream> {
        let (near, far) = duplex(BUFFER);
        self.peers[&peer](far);
        Ok(near)
    }
}

fn honest(tables: Fake, instance: Instance) -> Behaviour {
    Box::new(move |stream| {
        let tables = tables.clone();
        tokio::spawn(async move { answer(stream, &key(), &instance, &tables, || {}).await });
    })
}

/// A peer that answers as it likes, with the key.
fn liar(lie: Lie) -> Behaviour {
    Box::new(move |stream| {
        tokio::spawn(async move {
            let key = key();
            let opened = Connection::open(stream, &key, Side::Answerer, &ANSWERER).await;
            let Ok(mut asker) = opened else { return };
            while let Ok(Some(body)) = asker.next_request(MOST_REQUEST_BYTES).await {
                let answer = lie(Request::decode(&body).unwrap());
                if asker.answer(&answer).await.is_err() {
                    return;
                }
            }
        });
    })
}

/// A peer that sends these bytes behind a proper greeting, and then keeps silent.
fn raw(greeting: Vec<u8>, rest: Vec<u8>) -> Behaviour {
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

fn greeting(version: u16) -> Vec<u8> {
    let version = version.to_be_bytes();
    [&b"gw-peers"[..], &version, &[3; 32], &ANSWERER].concat()
}

fn turns(own: &Fake, network: Lines) -> Turns<Fake, Lines> {
    Turns::new(key(), own.clone(), network, PeerStates::new())
}

fn refused(status: &PeersStatus) -> Vec<&str> {
    let refused = status.refused.iter().filter(|(_, count)| **count > 0);
    refused.map(|(label, _)| label.as_str()).collect()
}

/// Asks one peer, who must be refused for a reason and change nothing.
async fn is_refused(what: &str, reason: &str, peer: Behaviour) {
    let own = Fake::with(1..3, 1);
    let mut turns = turns(&own, Lines::of([peer]));
    turns.turn().await;
    let status = turns.states.status();
    assert_eq!(refused(&status), [reason], "{what}: {status:?}");
    assert_eq!(status.peers[0].address, "192.0.2.1:9754", "{what}");
    assert!(status.peers[0].refused.is_some(), "{what}");
    assert_eq!((status.asked, status.slots_taken), (1, 0), "{what}");
    assert!(own.taken().is_empty(), "{what}");
}

#[tokio::test(start_paused = true)]
async fn peer_that_lies_is_refused_and_changes_nothing() {
    for (what, reason, lie) in lies() {
        is_refused(what, reason, liar(lie)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn peer_without_the_key_or_of_another_kind_is_refused() {
    let tables = Fake::with(1..3, 2);
    let other_key: Behaviour = Box::new(move |stream| {
        let tables = tables.clone();
        tokio::spawn(async move {
            let key = Key::new(&[8; 32]).unwrap();
            answer(stream, &key, &ANSWERER, &tables, || {}).await
        });
    });
    // It closes the connection, because the request is not authentic for it either.
    is_refused("another key", "unreachable", other_key).await;
    let tag = [0; 32];
    let frame = |length: u32| [&length.to_be_bytes()[..], &tag, &[0; 16]].concat();
    let proper = greeting(VERSION);
    for (what, reason, greeting, rest) in [
        (
            "a tag of nothing",
            "not_authentic",
            proper.clone(),
            frame(16),
        ),
        ("1 GiB", "too_large", proper.clone(), frame(1 << 30)),
        (
            "a frame that never ends",
            "timed_out",
            proper.clone(),
            frame(1 << 20),
        ),
        (
            "silence behind the greeting",
            "timed_out",
            proper,
            Vec::new(),
        ),
        ("silence", "timed_out", Vec::new(), Vec::new()),
        (
            "another version",
            "version",
            greeting(VERSION + 1),
            Vec::new(),
        ),
        ("a web server", "version", vec![b'H'; 58], Vec::new()),
    ] {
        is_refused(what, reason, raw(greeting, rest)).await;
    }
    let closes: Behaviour = Box::new(drop);
    is_refused("a closed connection", "unreachable", closes).await;
}

#[tokio::test(start_paused = true)]
async fn answer_of_an_earlier_session_is_not_authentic() {
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let (near, far) = duplex(BUFFER);
    let (mut near_relay, relayed) = duplex(BUFFER);
    let tables = Fake::with(1..3, 1);
    tokio::spawn(async move { answer(far, &key(), &ANSWERER, &tables, || {}).await });
    let record = Arc::clone(&recorded);
    let relay = tokio::spawn(async move {
        let (mut from, mut to) = tokio::io::split(near);
        let (mut back, mut forth) = tokio::io::split(relayed);
        let there = tokio::io::copy(&mut back, &mut to);
        let here = async {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer).await {
                record.lock().extend(&buffer[..length]);
                forth.write_all(&buffer[..length]).await.unwrap();
            }
        };
        tokio::select! {
            _ = there => {}
            () = here => {}
        }
    });
    let own = Fake::with(1..3, 1);
    ask(&mut near_relay, &key(), &ASKER, &question(&own))
        .await
        .unwrap();
    drop(near_relay);
    relay.await.unwrap();
    let recorded = recorded.lock().clone();
    is_refused("a replay", "not_authentic", raw(recorded, Vec::new())).await;
}

#[tokio::test(start_paused = true)]
async fn asker_without_the_key_gets_no_answer() {
    let tables = Fake::with(1..3, 1);
    let digest = Request::Digest.encode();
    for (what, bytes, expected) in [
        ("another key", digest.clone(), Refusal::NotAuthentic),
        (
            "no request",
            vec![9],
            Refusal::Contradictory("no such request"),
        ),
        (
            "too long",
            vec![0; MOST_REQUEST_BYTES + 1],
            Refusal::TooLarge(65_537),
        ),
        ("silence", Vec::new(), Refusal::TimedOut),
    ] {
        let (near, far) = duplex(BUFFER);
        let tables = tables.clone();
        let answered =
            tokio::spawn(async move { answer(far, &key(), &ANSWERER, &tables, || {}).await });
        let key = Key::new(&[if what == "another key" { 8 } else { 7 }; 32]).unwrap();
        let mut peer = Connection::open(near, &key, Side::Asker, &ASKER)
            .await
            .unwrap();
        let outcome = match bytes.is_empty() {
            true => answered.await,
            false => {
                let answer = peer.ask(&bytes, MOST_ANSWER_BYTES).await;
                assert!(answer.is_err(), "{what}");
                answered.await
            }
        };
        assert_eq!(outcome.unwrap(), Err(expected), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_tells_is_taken_and_counted() {
    let own = Fake {
        changes: 2,
        ..Fake::with(1..5, 1)
    };
    let peer = Fake::with(3..9, 2);
    let mut turns = turns(&own, Lines::of([honest(peer.clone(), ANSWERER)]));
    turns.turn().await;
    assert_eq!(own.taken(), [3, 4].map(service));
    let status = turns.states.status();
    assert_eq!((status.asked, status.slots_taken), (1, 4));
    assert!(!status.peers[0].agrees && status.peers[0].answered_seconds_ago == Some(0));
    assert!(refused(&status).is_empty());
}

#[tokio::test(start_paused = true)]
async fn exchange_that_left_nothing_to_take_is_not_repeated() {
    let own = Fake::with(1..5, 1);
    let peer = Fake::with(1..5, 2);
    let mut turns = turns(&own, Lines::of([honest(peer.clone(), ANSWERER)]));
    for _ in 0..3 {
        turns.turn().await;
        assert!(turns.states.status().peers[0].agrees);
    }
    let asked = peer.asked.lock().len();
    assert_eq!(own.taken().len(), 4);
    assert!(asked >= 4, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn edge_does_not_ask_itself() {
    let own = Fake::with(1..3, 1);
    let network = Lines::of([]);
    let mut alone = turns(&own, network);
    let itself = alone.states.instance();
    alone.network = Lines::of([
        honest(Fake::with(1..3, 2), itself),
        honest(Fake::with(1..3, 3), ANSWERER),
        honest(Fake::with(1..3, 2), itself),
    ]);
    for _ in 0..8 {
        alone.turn().await;
    }
    let status = alone.states.status();
    assert_eq!(status.asked, 8);
    assert_eq!(status.peers.len(), 1);
    assert_eq!(status.peers[0].address, "192.0.2.2:9754");
}

#[tokio::test(start_paused = true)]
async fn edge_without_a_past_begins_with_the_first_that_tells() {
    let own = Fake {
        changes: 1,
        ..Fake::with(1..3, 1)
    };
    let silent = || raw(Vec::new(), Vec::new());
    let lies: Behaviour = liar(|_| Vec::new());
    let tells = honest(Fake::with(1..3, 2), ANSWERER);
    let network = Lines::of([silent(), lies, tells, silent(), silent()]);
    let mut turns = turns(&own, network);
    let begin = tokio::time::Instant::now();
    turns.begin(false).await;
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!(own.taken(), [1, 2].map(service));
    assert_eq!(turns.states.status().begun, "from_peer");
}

#[tokio::test(start_paused = true)]
async fn edge_begins_without_a_past_after_5_seconds() {
    let own = Fake::with(1..3, 1);
    let silent = || raw(Vec::new(), Vec::new());
    let mut turns = turns(&own, Lines::of([silent(), silent()]));
    let begin = tokio::time::Instant::now();
    turns.begin(false).await;
    assert_eq!(begin.elapsed().as_secs(), 5);
    assert_eq!(turns.states.status().begun, "without");

    let mut alone = self::turns(&own, Lines::of([]));
    let begin = tokio::time::Instant::now();
    alone.begin(false).await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    alone.begin(true).await;
    assert_eq!(alone.states.status().begun, "own_past");
}

#[test]
fn messages_come_back_as_they_were() {
    let six = ServiceKey {
        address: "fd00::7".parse().unwrap(),
        ..service(1)
    };
    for request in [
        Request::Digest,
        Request::Services(None),
        Request::Services(Some(six)),
        Request::Owners(vec![service(1), six]),
    ] {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
    }
    let mut long = owners(200, 9);
    long.lists[0][0].seconds_ago = u32::MAX;
    long.backends[1].pod = None;
    let all = [Some(long), None, Some(owners(1, 2))];
    assert_eq!(decode_owners(&encode_owners(&all), 3).unwrap(), all);
}

proptest! {
    #[test]
    fn no_bytes_break_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::decode(&bytes);
        let _ = ServicesPage::decode(&bytes, None);
        let _ = decode_owners(&bytes, 9);
    }

    #[test]
    fn changed_bytes_are_refused_or_consistent(place in 0..80_usize, byte in any::<u8>()) {
        let mut bytes = encode_owners(&[Some(owners(1, 9))]);
        let place = place % bytes.len();
        bytes[place] = byte;
        if let Ok(all) = decode_owners(&bytes, 1) {
            assert!(all.iter().flatten().all(SlotOwners::is_consistent));
        }
    }
}
