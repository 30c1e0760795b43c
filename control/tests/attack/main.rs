//! Connections, held and new ones, while somebody floods; and one client that uses each of its ports for many
//! addresses. Needs root.
//!
//! `GUIDEWAY_ATTACK_SECONDS` floods for longer than the tests do by themselves, at the same rate; then, the share of
//! new connections within 3 s is a claim too.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]
#![allow(
    dead_code,
    unused_imports,
    reason = "the support module is the end-to-end tests', of which this is a part"
)]

#[path = "../e2e/support/mod.rs"]
mod support;

mod flood;
mod frames;
mod held;
mod network;
mod reuse;

use std::{
    env,
    net::TcpListener,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{
    flood::{Kind, Target, cable_of, end, frames, send},
    held::{Held, broken},
    network::{Attempts, Network, Way},
};

/// Connections held by each way.
const HELD: usize = 2000;
/// Frames a second.
const RATE: u32 = 300_000;
/// How long a flood of one kind lasts, unless the environment says otherwise.
const SECONDS: u64 = 10;

/// One test at a time: a flood would be the others' too.
static ALONE: Mutex<()> = Mutex::new(());

/// How long floods last, where somebody has said so.
fn asked_for() -> Option<u64> {
    let seconds = env::var("GUIDEWAY_ATTACK_SECONDS").ok()?;
    Some(
        seconds
            .parse()
            .expect("GUIDEWAY_ATTACK_SECONDS is a number of seconds"),
    )
}

fn connections_survive(way: Way) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let net = network::topology();
    let network = Network::start(&net);
    let client = &net.clients()[0];
    let service = network.held(way);
    let listener: TcpListener = network.listen(way);
    let ports = network::HELD_PORTS..;
    let mut held = Held::open_many(client, service, &listener, ports.take(HELD));
    let spoken = |held: &mut Vec<Held>, word| {
        broken(
            held.iter_mut()
                .enumerate()
                .filter(|(number, _)| number % 2 == 0),
            word,
        )
    };
    assert_eq!(
        spoken(&mut held, 0),
        Vec::<String>::new(),
        "before any flood"
    );

    let (socket, wire) = cable_of(&net, network.entry(way));
    let target = Target {
        service: end(service.ip(), service.port()),
        datagrams: network.datagrams(way),
        others: network.others(way),
        victims: (network::HELD_PORTS..)
            .take(HELD)
            .map(|port| end(client.v4(), port))
            .collect(),
    };
    let seconds = asked_for().unwrap_or(SECONDS);
    let astray = network.count_replies_astray(HELD);
    for (word, kind) in (1..).zip(Kind::ALL) {
        let frames = frames(kind, &wire, &target);
        let attempts = Attempts::begin(&network, way);
        let count = seconds * u64::from(RATE);
        let sent = send(&socket, &frames, count, RATE, Duration::from_secs(seconds));
        let attempts = attempts.end();
        println!(
            "{way:?}, {kind:?}: {} frames, {:.0} a second; {attempts}",
            sent.frames,
            sent.rate()
        );
        assert_eq!(
            spoken(&mut held, word),
            Vec::<String>::new(),
            "{way:?}, {kind:?}"
        );
        assert!(attempts.failed.is_empty(), "{way:?}, {kind:?}: {attempts}");
        if asked_for().is_some() {
            assert!(
                attempts.share_in_time() >= 0.99,
                "{way:?}, {kind:?}: {attempts}"
            );
        }
    }
    let all = held.iter_mut().enumerate();
    assert_eq!(
        broken(all, 99),
        Vec::<String>::new(),
        "those silent since the handshake"
    );
    assert_eq!(
        astray.packets(),
        0,
        "replies to held connections from other ends than these talk to"
    );
}

#[test]
fn connections_through_a_node_survive_floods() {
    connections_survive(Way::Node);
}

#[test]
fn connections_by_a_node_port_survive_floods() {
    connections_survive(Way::NodePort);
}

#[test]
fn connections_in_nat_mode_survive_floods() {
    connections_survive(Way::Nat);
}

#[test]
fn clients_far_away_connect_in_nat_mode_under_a_flood_of_handshakes() {
    const SLOW_RATE: u32 = 10_000;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let net = network::topology();
    let network = Network::start(&net);
    let far = network.far_client(Duration::from_millis(25));
    let (socket, wire) = cable_of(&net, network.entry(Way::Nat));
    let service = network.asked(Way::Nat).address;
    let target = Target {
        service: end(service.ip(), service.port()),
        datagrams: network.datagrams(Way::Nat),
        others: Vec::new(),
        victims: Vec::new(),
    };
    let frames = frames(Kind::Syn, &wire, &target);
    let seconds = asked_for().unwrap_or(SECONDS);
    let attempts = Attempts::begin_from(&far, &network, Way::Nat);
    let count = seconds * u64::from(SLOW_RATE);
    let sent = send(
        &socket,
        &frames,
        count,
        SLOW_RATE,
        Duration::from_secs(seconds),
    );
    let attempts = attempts.end();
    println!(
        "{} frames, {:.0} a second; {attempts}",
        sent.frames,
        sent.rate()
    );
    assert!(attempts.failed.is_empty(), "{attempts}");
    if asked_for().is_some() {
        assert!(attempts.share_in_time() >= 0.99, "{attempts}");
    }
}
