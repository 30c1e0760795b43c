//! Measures one exchange of a past of 10 000 services with 256 slots each, between the tables of two edges. Takes root:
//! `cargo test --workspace --lib peers::measure -- --ignored --nocapture`.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastpath::load::{Loaded, Loader};
use fastpath::tables::{BackendSpec, ServiceSpec, SlotOwners, Tables, TakenOwners};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use xdp_prog::abi::map;

use super::ask::{Question, ask};
use super::digest::Summary;
use super::key::Key;
use super::{Network, Owners, PeerStates, SLOTS_AT_ONCE, Told, Turns, serve};
use crate::desired::ServiceKey;

const SERVICES: u16 = 10_000;

/// Tables behind a lock in place of an agent.
#[derive(Clone)]
struct OfTables {
    tables: Arc<Mutex<Tables>>,
    summary: Arc<Mutex<Summary>>,
    /// The longest time for which an agent would have done nothing else.
    longest: Arc<Mutex<Duration>>,
}

fn key(number: u16) -> ServiceKey {
    let [high, low] = number.to_be_bytes();
    format!("10.99.{high}.{low}:80/tcp").parse().unwrap()
}

/// Four pods of a service; some of them change from one generation to the next.
fn spec(number: u16, generation: u16) -> ServiceSpec {
    let pods = (generation..generation + 4).map(|pod| {
        let [high, low] = number.to_be_bytes();
        let address = [10, 100 + u8::try_from(pod).unwrap(), high, low];
        let node = [10, 0, 0, 1 + low % 100];
        BackendSpec::pod(node.into(), SocketAddr::from((address, 8080)), 1)
    });
    ServiceSpec {
        owner: number.into(),
        backends: pods.collect(),
        ..ServiceSpec::default()
    }
}

impl OfTables {
    fn new(generations: std::ops::Range<u16>) -> (Self, Loaded) {
        let stubs = lab::stub_object(fastpath::object::bytes()).leak();
        let sizes = [(map::LUT, 1 << 21), (map::BACKENDS, 1 << 17)];
        let loader = sizes
            .into_iter()
            .fold(Loader::unpinned(), |loader, (map, size)| {
                loader.max_entries(map, size)
            });
        let loader = loader
            .object(stubs)
            .max_entries(map::BACKEND_TRAFFIC, 1 << 17);
        let loaded = loader.load().unwrap();
        let mut tables = Tables::open(&loaded).unwrap();
        for generation in generations {
            for number in 0..SERVICES {
                tables
                    .put_service(key(number), &spec(number, generation))
                    .unwrap();
            }
        }
        let mut summary = Summary::default();
        let begin = Instant::now();
        for number in 0..SERVICES {
            summary.set(key(number), tables.slot_owners(&key(number)).as_ref());
        }
        println!("digests of all services: {:?}", begin.elapsed());
        let new = Self {
            tables: Arc::new(Mutex::new(tables)),
            summary: Arc::new(Mutex::new(summary)),
            longest: Arc::default(),
        };
        (new, loaded)
    }

    fn note(&self, begin: Instant) {
        let mut longest = self.longest.lock();
        *longest = begin.elapsed().max(*longest);
    }
}

impl Owners for OfTables {
    fn summary(&self) -> Summary {
        self.summary.lock().clone()
    }

    async fn owners(&self, keys: Vec<ServiceKey>) -> Option<Vec<Option<SlotOwners>>> {
        let begin = Instant::now();
        let keys = keys.iter().take(SLOTS_AT_ONCE / 256);
        let tables = self.tables.lock();
        let owners = keys.map(|key| tables.slot_owners(key)).collect();
        self.note(begin);
        Some(owners)
    }

    async fn take(&self, told: Told, _: Instant) -> Option<TakenOwners> {
        let begin = Instant::now();
        let mut all = TakenOwners::default();
        let mut tables = self.tables.lock();
        for (key, owners) in &told {
            let taken = tables.take_slot_owners(key, owners, 1, |_| true);
            all.slots += taken.slots;
            all.left_out += taken.left_out;
        }
        let mut summary = self.summary.lock();
        for (key, _) in &told {
            summary.set(*key, tables.slot_owners(key).as_ref());
        }
        self.note(begin);
        Some(all)
    }
}

#[tokio::test(flavor = "current_thread")]
#[ignore = "measures for a minute, and takes half a gigabyte"]
async fn past_of_10_000_services() {
    let secret = || Key::new(&[7; 32]).unwrap();
    let (peer, _loaded) = OfTables::new(0..2);
    let (own, _also_loaded) = OfTables::new(1..2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let states = PeerStates::new();
    let key = ready(secret()).boxed().shared();
    tokio::spawn(serve(listener, key, peer.clone(), PeerStates::new()));

    let question = Question {
        own: own.summary(),
        ..Question::default()
    };
    let begin = Instant::now();
    let stream = TcpStream::connect(address).await.unwrap();
    let heard = ask(stream, &secret(), &[1; 16], &question).await;
    let heard = heard.unwrap().unwrap();
    let bytes: usize = heard.pages.iter().map(|page| page.size()).sum();
    let is_whole = heard.rest_after.is_none();
    println!(
        "asked and told: {:?}, {bytes} bytes, all of it: {is_whole}",
        begin.elapsed()
    );
    drop(heard);

    let (_sender, network) = watch::channel([address].into());
    let key = ready(secret()).boxed().shared();
    let mut turns = Turns::new(key, own.clone(), Network(network), states.clone());
    let begin = Instant::now();
    while own.summary().whole() != peer.summary().whole() {
        turns.turn().await;
    }
    let status = states.status();
    println!(
        "asked, told and taken: {:?}, {} exchanges, {} slots",
        begin.elapsed(),
        status.asked,
        status.slots_taken
    );
    assert!(status.slots_taken > 0 && status.owners_left_out == 0);
    for (side, tables) in [("telling", &peer), ("taking", &own)] {
        println!("longest at one go, {side}: {:?}", tables.longest.lock());
    }
    let begin = Instant::now();
    for _ in 0..100 {
        turns.turn().await;
    }
    println!("idle exchange: {:?}", begin.elapsed() / 100);
    assert!(states.status().peers[0].agrees);
}
