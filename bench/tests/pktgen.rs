//! The generator `pktgen` with the kernel's own pktgen, on two CPUs. deploy/kernel-matrix runs it, on a machine whose clock
//! counts instructions: nothing is late there because the host is busy.

use std::{fs, net::SocketAddr};

use anyhow::{Context, Result};
use bench::{
    load::{
        Asked, Generator, Trial,
        live::{Live, Path},
        pktgen::ROOT,
    },
    scenario::{Load, Scenario},
};
use lab::{Link, Namespace, Veth};

/// How far the rate may be from what was asked for.
const TOLERANCE: f64 = 0.02;

/// A cable of two queues, from where pktgen sends to the sink.
struct Cable {
    sender: Namespace,
    sink: Namespace,
}

impl Cable {
    fn new() -> Result<Self> {
        let cable = Self {
            sender: Namespace::new("sender")?,
            sink: Namespace::new("sink")?,
        };
        let ends = [(&cable.sender, "eth0"), (&cable.sink, "eth0")];
        let (out, _) = Veth::between(ends[0], ends[1]).queues(2).create()?;
        out.disable_tx_offloads()?;
        Ok(cable)
    }

    fn ends(&self) -> Result<(Link<'_>, Link<'_>)> {
        Ok((self.sender.link("eth0")?, self.sink.link("eth0")?))
    }

    /// Runs a trial of a load, as a scenario has it.
    fn run(&self, load: &str, seconds: f64) -> Result<Trial> {
        let load = load_of(load)?;
        let (out, sink) = self.ends()?;
        let service = match load.family {
            bench::scenario::AddressFamily::Ipv4 => "10.99.0.1:80",
            bench::scenario::AddressFamily::Ipv6 => "[fd00:99::1]:80",
        };
        let service: SocketAddr = service.parse()?;
        let macs = [sink.mac(), out.mac()].concat();
        let path = Path {
            macs: *macs.first_chunk().context("two addresses")?,
            out,
            entry: None,
            sink,
            replaces_pass: false,
            from_stack: false,
            services: vec![service],
            outer: 0,
            untags: false,
        };
        let asked = Asked {
            rate: load.rate,
            seconds,
            seed: 1,
        };
        Live::new(path, &load, 1)?.run(asked)
    }

    /// Returns the devices that pktgen's threads have.
    fn devices(&self) -> Result<String> {
        self.sender.run(|| {
            let read = |cpu| fs::read_to_string(format!("{ROOT}/kpktgend_{cpu}"));
            let texts = [read(0)?, read(1)?].concat();
            let names = texts
                .lines()
                .filter_map(|line| line.split_once("ed: ").or(line.split_once("ing: ")));
            Ok(names.map(|(_, names)| names.trim()).collect())
        })
    }
}

fn load_of(text: &str) -> Result<Load> {
    let scenario =
        format!("name: pktgen\nsystems: [direct]\nloads: [{{ generator: pktgen, {text} }}]\n");
    Ok(Scenario::parse(&scenario)?.loads.remove(0))
}

#[test]
fn what_two_threads_have_sent_is_counted_to_the_frame() {
    let cable = Cable::new().unwrap();
    for load in [
        "threads: 2, rate: 4000",
        "threads: 2, rate: 4000, family: ipv6, flows: 100, flow_order: uniform",
        "threads: 2, rate: 4000, vlan: 7, frame_bytes: imix",
        "threads: 2, schedule: max",
        "threads: 1, flows: 1, rate: 4000",
    ] {
        let tally = cable.run(load, 0.5).unwrap().tally;
        println!("{load}: {tally:?}");
        assert!(tally.sent > 0, "{load}: {tally:?}");
        assert_eq!(tally.received, tally.sent, "{load}: {tally:?}");
        assert_eq!(
            (tally.offered, tally.reordered),
            (tally.sent, 0),
            "{load}: {tally:?}"
        );
        assert_eq!(cable.devices().unwrap(), "", "{load}");
    }
}

#[test]
fn the_rate_is_kept_within_two_percent() {
    let cable = Cable::new().unwrap();
    for (threads, rate) in [(1, 1_000.0), (2, 10_000.0)] {
        let trial = cable
            .run(&format!("threads: {threads}, rate: {rate}"), 1.0)
            .unwrap();
        let kept = trial.tally.sent as f64 / trial.seconds;
        println!("{threads} threads, {rate}/s: {kept:.1}/s");
        assert!(
            (kept / rate - 1.0).abs() <= TOLERANCE,
            "{threads}: {kept} of {rate}"
        );
    }
}

#[test]
fn what_a_killed_run_has_left_is_removed_by_the_next() {
    let cable = Cable::new().unwrap();
    let left = cable
        .sender
        .run(|| fs::write(format!("{ROOT}/kpktgend_1"), "add_device eth0@guideway7\n"));
    left.unwrap();
    assert_eq!(cable.devices().unwrap(), "eth0@guideway7");
    let tally = cable.run("rate: 1000", 0.1).unwrap().tally;
    assert_eq!((tally.sent, tally.received), (100, 100));
    assert_eq!(cable.devices().unwrap(), "");
}
