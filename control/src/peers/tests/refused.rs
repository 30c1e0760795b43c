//! Peers that are refused: liars, strangers, and those that hang. Nothing changes by them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use fastpath::tables::SlotOwners;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::support::*;
use crate::desired::ServiceKey;
use crate::peers::answer::answer;
use crate::peers::ask::ask;
use crate::peers::frame::{Connection, VERSION};
use crate::peers::key::{Key, Side};
use crate::peers::message::{
    MOST_ANSWER_BYTES, MOST_REQUEST_BYTES, Request, ServicesPage, decode, encode, encode_owners,
};
use crate::peers::refusal::Refusal;

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
    assert!(own.taken_services().is_empty(), "{what}");
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
    is_refused("a closed connection", "unreachable", closed()).await;
}

#[tokio::test(start_paused = true)]
async fn peer_with_another_seed_is_named_with_both_fingerprints() {
    let own = Fake::with(1..3, 1);
    let other = liar(|_| digest(1, *b"3fa1"));
    let mut turns = turns(&own, Lines::of([other]));
    turns.turn().await;
    let told = turns.states.status().peers[0].refused.clone().unwrap();
    let expected =
        "its hash_seed has the fingerprint 3fa1, this edge's \0\0\0\0: set the same on all edges";
    assert_eq!(told, expected);
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
    let digest = encode(&Request::Digest);
    for (what, bytes, expected) in [
        ("another key", digest.clone(), Refusal::NotAuthentic),
        (
            "no request",
            vec![9],
            Refusal::Contradictory("no such message, or cut short"),
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

/// A peer that has the key and lies.
pub(super) type Lie = fn(Request) -> Vec<u8>;

fn lies() -> Vec<(&'static str, &'static str, Lie)> {
    fn page(numbers: &[u8], has_more: bool) -> Vec<u8> {
        let services = numbers.iter().map(|number| (service(*number), 1));
        let page = ServicesPage {
            services: services.collect(),
            has_more,
        };
        encode(&page)
    }
    fn with_owners(request: &Request, owners: &[u8]) -> Vec<u8> {
        match request {
            Request::Digest => digest(1, [0; 4]),
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
        ("another seed", "other_seed", |_| digest(1, *b"3fa1")),
        ("an empty answer", "contradictory", |_| Vec::new()),
        (
            "services in circles",
            "contradictory",
            |request| match request {
                Request::Digest => digest(1, [0; 4]),
                _ => page(&[1, 2], true),
            },
        ),
        (
            "services out of order",
            "contradictory",
            |request| match request {
                Request::Digest => digest(1, [0; 4]),
                _ => page(&[2, 1], false),
            },
        ),
        (
            "more services, and none of them",
            "contradictory",
            |request| match request {
                Request::Digest => digest(1, [0; 4]),
                _ => page(&[], true),
            },
        ),
        (
            "services without end",
            "too_large",
            |request| match request {
                Request::Digest => digest(1, [0; 4]),
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
    encode(&ServicesPage {
        services: services.collect(),
        has_more: true,
    })
}

/// A peer that answers as it likes, with the key.
pub(super) fn liar(lie: Lie) -> Behaviour {
    Box::new(move |stream| {
        tokio::spawn(async move {
            let key = key();
            let opened = Connection::open(stream, &key, Side::Answerer, &ANSWERER).await;
            let Ok(mut asker) = opened else { return };
            while let Ok(Some(body)) = asker.next_request(MOST_REQUEST_BYTES).await {
                let answer = lie(decode(&body).unwrap());
                if asker.answer(&answer).await.is_err() {
                    return;
                }
            }
        });
    })
}
