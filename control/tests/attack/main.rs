//! Connections, held and new ones, while somebody floods; and one client that uses each of its ports for many
//! addresses. Needs root.
//!
//! `GUIDEWAY_ATTACK_SECONDS` floods for longer than the tests do by themselves; then, the rate of each flood and the
//! share of new connections within 3 s are claims too. `GUIDEWAY_ATTACK_RATE` is the number of frames a second, at the
//! most, over all ways, and `GUIDEWAY_ATTACK_KINDS` names the floods, such as `Syn,Reset`, that are meant alone.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

#[path = "../e2e/support/mod.rs"]
mod support;

mod flood;
mod frames;
mod held;
mod live;
mod network;
mod reuse;

use std::{
    env,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{
    flood::{Kind, Stream, Target, cable_of, end, frames},
    held::{Held, broken},
    live::send,
    network::{Attempts, Network, Way},
    support::number,
};

/// Connections held by each way.
const HELD: usize = 2000;
/// Frames a second, at the most, unless the environment says otherwise.
const RATE: u64 = 400_000;
/// Frames a second, at the least, of a flood that was asked for and that the machine has room for.
const FULL_RATE: u32 = 300_000;
/// How long a flood of one kind lasts, unless the environment says otherwise.
const DURATION: Duration = Duration::from_secs(10);

/// One test at a time: a flood would be the others' too.
static ALONE: Mutex<()> = Mutex::new(());

/// How long floods last, where somebody has said so.
fn asked_for() -> Option<Duration> {
    number("GUIDEWAY_ATTACK_SECONDS").map(Duration::from_secs)
}

/// The floods that somebody has named, or all.
fn kinds() -> Vec<Kind> {
    let Ok(names) = env::var("GUIDEWAY_ATTACK_KINDS") else {
        return Kind::ALL.to_vec();
    };
    let named = |name: &str| {
        Kind::ALL
            .into_iter()
            .find(|kind| format!("{kind:?}") == name)
    };
    let kinds: Option<Vec<Kind>> = names.split(',').map(named).collect();
    kinds.unwrap_or_else(|| panic!("GUIDEWAY_ATTACK_KINDS={names:?} is not of {:?}", Kind::ALL))
}

#[test]
fn connections_survive_floods() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let net = network::topology();
    let network = Network::start(&net);
    let client = &net.clients()[0];
    let (in_pod, on_host) = (network.listen_in_pod(), network.listen_on_host());
    // The same ports for each way, so that a node's connections of its two ways meet in one tuple of the pod.
    let mut held = Way::ALL.map(|way| {
        let listener = match way {
            Way::Node | Way::NodePort => &in_pod,
            Way::Nat => &on_host,
        };
        let ports = (network::HELD_PORTS..).take(HELD);
        let connections = Held::open_many(client, network.held(way), listener, ports);
        (way, connections)
    });
    let mut speak = |word| {
        for (way, held) in &mut held {
            let speaking = held.iter_mut().enumerate();
            let speaking = speaking.filter(|(number, _)| number % 2 == 0);
            assert_eq!(broken(speaking, word), Vec::<String>::new(), "{way:?}");
        }
    };
    speak(0);

    let aims = Way::ALL.map(|way| {
        let machine = network.entry(way);
        let service = network.held(way);
        let target = Target {
            service: end(service.ip(), service.port()),
            datagrams: network.datagrams(way),
            others: network.others(way),
            victims: (network::HELD_PORTS..)
                .take(HELD)
                .map(|port| end(client.v4(), port))
                .collect(),
        };
        (machine, target)
    });
    let duration = asked_for().unwrap_or(DURATION);
    let claims_more = asked_for().is_some();
    let rate = number("GUIDEWAY_ATTACK_RATE").unwrap_or(RATE);
    let astray = network.count_replies_astray(HELD);
    // Told at the end, so that a long run says something of each kind.
    let mut missed = Vec::new();
    for (word, kind) in (1..).zip(kinds()) {
        let streams = aims.each_ref().map(|(machine, target)| Stream {
            machine,
            frames: frames(kind, &cable_of(&net, machine), target),
        });
        let attempts = Way::ALL.map(|way| (way, Attempts::begin(&network, way)));
        let sent = send(&net, &streams, rate, duration);
        println!(
            "{kind:?}: {} frames, {:.0} a second",
            sent.frames,
            sent.rate()
        );
        let claims_rate = claims_more && kind.leaves_room_on_two_cores();
        if claims_rate && rate >= FULL_RATE.into() && sent.rate() < FULL_RATE.into() {
            missed.push(format!("{kind:?}: {:.0} frames a second", sent.rate()));
        }
        let outcomes = attempts.map(|(way, attempts)| (way, attempts.end()));
        for (way, outcome) in &outcomes {
            println!("  {way:?}: {outcome}");
        }
        speak(word);
        for (way, outcome) in outcomes {
            // Of the few of a short run, how many were late hangs on the machine.
            if claims_more && !outcome.is_nearly_all_in_time() {
                missed.push(format!("{kind:?}, {way:?}: {outcome}"));
            }
            network.wait_until_served(way);
        }
    }
    for (way, held) in &mut held {
        let all = held.iter_mut().enumerate();
        let silent = "those silent since the handshake too";
        assert_eq!(broken(all, 99), Vec::<String>::new(), "{way:?}, {silent}");
    }
    assert_eq!(
        astray.packets(),
        0,
        "replies to held connections from other ends than these talk to"
    );
    assert_eq!(missed, Vec::<String>::new());
}

#[test]
fn clients_far_away_connect_in_nat_mode_under_a_flood_of_handshakes() {
    const SLOW_RATE: u64 = 10_000;
    /// Of which all are late where no port is left for who comes from far away.
    const FLOODS: usize = 10;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let net = network::topology();
    let network = Network::start(&net);
    let far = network.far_client(Duration::from_millis(25));
    let machine = network.entry(Way::Nat);
    let service = network.asked(Way::Nat).address;
    let target = Target {
        service: end(service.ip(), service.port()),
        datagrams: network.datagrams(Way::Nat),
        others: Vec::new(),
        victims: Vec::new(),
    };
    let streams = [Stream {
        machine,
        frames: frames(Kind::Syn, &cable_of(&net, machine), &target),
    }];
    // So many rounds that a machine may stall once, and a flood again where it stalls for longer.
    let duration = asked_for().unwrap_or(2 * DURATION);
    let is_served = |_| {
        let attempts = Attempts::begin_from(&far, &network, Way::Nat);
        let sent = send(&net, &streams, SLOW_RATE, duration);
        let outcome = attempts.end();
        println!(
            "{} frames, {:.0} a second; {outcome}",
            sent.frames,
            sent.rate()
        );
        outcome.is_nearly_all_in_time()
    };
    assert!((0..FLOODS).any(is_served));
    network.wait_until_served(Way::Nat);
}
