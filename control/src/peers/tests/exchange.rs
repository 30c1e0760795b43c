//! What honest edges ask each other, and what one takes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use fastpath::tables::SlotOwners;
use tokio::io::duplex;

use super::support::*;
use crate::peers::answer::answer;
use crate::peers::ask::{Heard, Question, ask};
use crate::peers::digest::Summary;
use crate::peers::frame::Connection;
use crate::peers::key::Side;
use crate::peers::message::{
    MOST_REQUEST_BYTES, Request, ServicesPage, decode, encode, encode_owners,
};
use crate::peers::refusal::Refusal;
use crate::peers::{Owners, Told};

/// Asks an honest peer; returns how many requests it answered too.
async fn ask_honest(question: &Question, peer: &Fake) -> (Result<Option<Heard>, Refusal>, u64) {
    let (near, far) = duplex(BUFFER);
    let peer = peer.clone();
    let answered = tokio::spawn(async move { answer(far, &key(), &ANSWERER, &peer, || {}).await });
    let heard = ask(near, &key(), &ASKER, question).await;
    (heard, answered.await.unwrap().unwrap_or_default())
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
    match decode(body).unwrap() {
        Request::Digest => digest(tables.summary().whole, [0; 4]),
        Request::Services(_) => encode(&ServicesPage::of(tables.summary().services.iter())),
        Request::Owners(keys) => encode_owners(&tables.owners(keys).await.unwrap()),
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
    assert_eq!(own.taken_services(), [3, 4].map(service));
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
    assert_eq!(own.taken_services().len(), 4);
    assert!(asked >= 4, "{asked}");
}
