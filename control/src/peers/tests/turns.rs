//! Who is asked when, and how an edge begins.

use std::future::{pending, ready};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, advance, sleep};

use super::refused::liar;
use super::support::*;

/// Answers with what the edge lacks.
fn telling() -> Behaviour {
    honest(Fake::with(1..3, 2), ANSWERER)
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
async fn machines_that_are_no_edges_take_no_turn() {
    const MACHINES: u64 = 100;
    const TURNS: u64 = 50;
    let own = Fake::with(1..3, 1);
    let machines = (0..MACHINES).map(|_| closed());
    let mut turns = turns(&own, Lines::of(machines.chain([telling()])));
    let mut refused = Vec::new();
    for _ in 0..2 {
        for _ in 0..TURNS {
            turns.turn().await;
        }
        let status = turns.states.status();
        refused.push(status.refused["unreachable"]);
        assert_eq!(
            status.asked - refused[refused.len() - 1],
            TURNS * refused.len() as u64
        );
        advance(Duration::from_secs(61)).await;
    }
    assert!(
        refused[0] <= MACHINES,
        "each is asked once a minute: {refused:?}"
    );
    assert!(
        refused[1] > refused[0],
        "one may have become an edge: {refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn edge_without_a_past_begins_with_the_first_that_tells() {
    let own = Fake {
        changes: 1,
        ..Fake::with(1..3, 1)
    };
    let lies = liar(|_| Vec::new());
    let network = Lines::of([silent(), lies, telling(), silent(), silent()]);
    let mut turns = turns(&own, network);
    let begin = Instant::now();
    turns.begin(false).await;
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!(own.taken_services(), [1, 2].map(service));
    assert_eq!(turns.states.status().begun, "from_peer");
}

#[tokio::test(start_paused = true)]
async fn machines_that_are_no_edges_do_not_delay_the_begin() {
    let own = Fake::with(1..3, 1);
    let others = (0..100).map(|_| closed());
    let mut turns = turns(&own, Lines::of(others.chain([telling()])));
    let begin = Instant::now();
    turns.begin(false).await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(turns.states.status().begun, "from_peer");
}

#[tokio::test(start_paused = true)]
async fn edge_begins_without_a_past_after_5_seconds() {
    let own = Fake::with(1..3, 1);
    let mut turns = turns(&own, Lines::of([silent(), silent()]));
    let begin = Instant::now();
    turns.begin(false).await;
    assert_eq!(begin.elapsed().as_secs(), 5);
    assert_eq!(turns.states.status().begun, "without");

    let mut alone = self::turns(&own, Lines::of([]));
    let begin = Instant::now();
    alone.begin(false).await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    alone.begin(true).await;
    assert_eq!(alone.states.status().begun, "own_past");
}

#[tokio::test(start_paused = true)]
async fn edge_waits_for_the_key_and_begins_without_it_after_5_seconds() {
    let own = Fake::with(1..3, 1);
    let never = pending().boxed().shared();
    let mut keyless = turns_with(never, &own, Lines::of([telling()]));
    let begin = Instant::now();
    keyless.begin(false).await;
    assert_eq!(begin.elapsed().as_secs(), 5);
    assert_eq!(keyless.states.status().begun, "without");

    let late = sleep(Duration::from_secs(3)).then(|()| ready(key()));
    let mut turns = turns_with(late.boxed().shared(), &own, Lines::of([telling()]));
    let begin = Instant::now();
    turns.begin(false).await;
    assert_eq!(begin.elapsed().as_secs(), 3);
    assert_eq!(turns.states.status().begun, "from_peer");
}
