//! Probes against impairments that are not ours, the kernel's netem. deploy/kernel-matrix runs it on a machine whose clock
//! counts instructions: nothing is late there because the host is busy.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use bench::{
    load::{
        Arrivals, Asked, Trial,
        sockets::{self, Backends, Flow, Requests, Way},
    },
    probe::Key,
    scenario::Scenario,
    stats::median,
    wire::Responder,
};
use lab::{Machine, Topology, output};

const SCENARIO: &str =
    "name: netem\nsystems: [direct]\nloads: [{ rate: 1000, flows: 3 }]\nseconds: 10\n";
const PORT: u16 = 7_000;
const DELAY_NS: f64 = 5e6;
const LOSS: f64 = 0.01;
/// Standard deviations on each side of the 99 % interval of a binomial distribution, which is nearly normal here.
const DEVIATIONS: f64 = 2.576;
/// Trials, of which one must be within that interval: chance leaves it in all of them once in a million times.
const TRIALS: usize = 3;

/// Sends to a backend for some seconds.
fn measure(net: &Topology, seconds: f64) -> Result<Trial> {
    let (client, node) = (&net.clients()[0], &net.nodes()[0]);
    let backends = Backends {
        marks: Key::random()?,
        number: 1,
        arrivals: Arrivals::default(),
    };
    let at = SocketAddr::new(node.v4(), PORT);
    let _responder = Responder::start(
        node.namespace(),
        &[at],
        0,
        backends.marks,
        &backends.arrivals,
    )?;
    let load = &Scenario::parse(SCENARIO)?.loads[0];
    let open = |_| {
        let socket = client
            .namespace()
            .run(|| UdpSocket::bind((client.v4(), 0)))?;
        socket.connect(at)?;
        socket.set_nonblocking(true)?;
        Ok(Flow {
            way: Way::Udp(socket),
            backend: Some(0),
        })
    };
    let flows: Vec<Flow> = (0..load.flows).map(open).collect::<Result<_>>()?;
    let asked = Asked {
        rate: load.rate,
        seconds,
        seed: 1,
    };
    Ok(sockets::run(&flows, &Requests::of(load, asked), &backends)?.0)
}

fn median_round_trip(trial: &Trial) -> f64 {
    let round_trips = trial.requests.iter().filter_map(|sent| sent.round_trip());
    let round_trips: Vec<f64> = round_trips.map(|ns| ns as f64).collect();
    median(&round_trips)
}

/// Has the client's cable delay and lose requests, once each.
fn impair(client: &Machine) -> Result<()> {
    const NETEM: &str = "root netem limit 10000 delay 5ms loss 1%";
    let mut tc = client.namespace().command("tc");
    tc.args(["qdisc", "replace", "dev", Machine::INTERFACE]);
    output(tc.args(NETEM.split(' ')))?;
    Ok(())
}

/// Returns how many packets netem says that it has sent on and dropped.
fn counts(client: &Machine) -> Result<[u64; 2]> {
    let mut tc = client.namespace().command("tc");
    let shown = output(tc.args(["-s", "qdisc", "show", "dev", Machine::INTERFACE]))?;
    let (sent, dropped) = shown
        .split_once(" pkt (dropped ")
        .context("no statistics")?;
    let (_, sent) = sent.rsplit_once(' ').context("no number")?;
    let (dropped, _) = dropped.split_once(',').context("no number")?;
    Ok([sent.parse()?, dropped.parse()?])
}

#[test]
fn delay_and_loss_of_netem_are_measured_as_they_are() {
    let net = Topology::builder().nodes(1).build().unwrap();
    let client = &net.clients()[0];
    let undelayed = measure(&net, 2.0).unwrap();
    assert_eq!(undelayed.tally.received, 2_000, "{:?}", undelayed.tally);
    impair(client).unwrap();

    let impaired = || {
        let before = counts(client)?;
        let trial = measure(&net, 10.0)?;
        let after = counts(client)?;
        let [passed, dropped] = [after[0] - before[0], after[1] - before[1]];
        let tally = &trial.tally;
        // Those of the kernel's own, such as to see whether the neighbour is still there. They are lost as well.
        let others = (passed + dropped)
            .checked_sub(tally.sent)
            .context("fewer packets than requests")?;
        let added = median_round_trip(&trial) - median_round_trip(&undelayed);
        ensure!(
            (added / DELAY_NS - 1.0).abs() < 0.01,
            "{added} ns of delay were measured"
        );
        ensure!(
            (tally.sent, tally.received) == (10_000, 10_000 - tally.lost)
                && (dropped.saturating_sub(others)..=dropped).contains(&tally.lost)
                && (tally.duplicates, tally.corrupt) == (0, 0),
            "of requests and {others} others, netem dropped {dropped}: {tally:?}"
        );
        Ok(tally.lost as f64)
    };
    let trials: Result<Vec<f64>> = (0..TRIALS).map(|_| impaired()).collect();
    let lost = trials.unwrap();
    let interval = DEVIATIONS * (10_000.0 * LOSS * (1.0 - LOSS)).sqrt();
    let is_within = |lost: &f64| (lost - 10_000.0 * LOSS).abs() <= interval;
    assert!(lost.iter().any(is_within), "{lost:?} of 10 000 were lost");
}
