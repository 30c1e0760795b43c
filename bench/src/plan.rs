//! What a scenario would send: flows, frames, backends and the time that it takes. Nothing is made or sent.
//!
//! All of it follows from the scenario and its seed alone, except what is drawn for each run: MAC addresses, the keys of
//! probes and the tags of live frames. The capture has zeros or fixed values in their place.

use std::{
    fmt::Write as _,
    io::{self, Write},
    iter,
    net::SocketAddr,
};

use anyhow::{Context, Result};
use xdp_prog::bench::NUMBER_LENGTH;

use crate::{
    datapath::Protocol,
    load::{
        Asked,
        frame::Framing,
        message::Form,
        numbered::{self, Dealt},
        pktgen,
        sockets::Requests,
    },
    probe::{Key, Ledger, PROBE_LENGTH},
    scenario::{GeneratorKind, Load, Scenario},
    wire::{PlannedSeries, planned},
};

/// Frames of a capture.
pub const CAPTURED: u32 = 1_000;
/// The round whose trials are shown.
const ROUND: u64 = 1;
/// Destination and source MAC address in captures: those of the lab are drawn.
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
/// Flows of a series that are shown.
const SHOWN_FLOWS: usize = 4;

/// Says what a scenario would send.
///
/// # Errors
///
/// When it has more flows than a client has ports.
pub fn text(scenario: &Scenario) -> Result<String> {
    let series = planned(scenario)?;
    let mut text = format!(
        "{}: {} series in {} rounds and one to warm up, whose trials take {:.1} minutes.\n",
        scenario.name,
        series.len(),
        scenario.rounds,
        scenario.trial_seconds() / 60.0
    );
    for rate in scenario.reference_rates() {
        let trials = rate.usual_trials();
        let _ = writeln!(
            text,
            "Before the first round, some {trials} trials find {rate}."
        );
    }
    for one in &series {
        text += &describe(one, &PlannedTrial::of(one, scenario));
    }
    Ok(text)
}

/// The requests of a trial of a series.
struct PlannedTrial {
    /// How many they are; `None` if as many as can be sent.
    requests: Option<usize>,
    /// When the first ones are due, in nanoseconds from the begin of the trial.
    due: Vec<u64>,
    /// Their flows.
    flows: Vec<u32>,
    /// Sizes of frames, which take turns.
    sizes: Vec<u32>,
}

impl PlannedTrial {
    fn of(series: &PlannedSeries, scenario: &Scenario) -> Self {
        let load = &series.load;
        let sizes = load.sizes();
        if load.generator.makes_frames() {
            return Self::of_live(load, scenario, sizes);
        }
        let asked = Asked {
            rate: load.rate,
            seconds: scenario.seconds,
            seed: scenario.seed.wrapping_add(ROUND),
        };
        let Requests { due, flows, .. } = Requests::of(load, asked);
        Self {
            requests: Some(due.len()),
            due,
            flows,
            sizes,
        }
    }

    /// The list of flows repeats: shares of more frames would say nothing new. Threads take turns, as with a rate; each has the
    /// sizes in turn.
    fn of_live(load: &Load, scenario: &Scenario, sizes: Vec<u32>) -> Self {
        let requests = load
            .rate
            .map(|rate| numbered::frames_in(scenario.seconds, rate));
        let interval = load.rate.map_or(0, numbered::interval);
        let listed = numbered::listed(load);
        let shown = listed.max(CAPTURED).min(requests.unwrap_or(u32::MAX));
        let Dealt { flows, mut paces } = numbered::deal(load, 1, scenario.seed);
        let threads = paces.len();
        let flow = |number: u32| {
            let pace = &mut paces[number as usize % threads];
            let listed = flows[pace.next_flow as usize];
            pace.advance(listed).map_or(listed, |(flow, _)| flow)
        };
        let of_threads = |size| iter::repeat_n(size, threads);
        Self {
            requests: requests.map(|requests| requests as usize),
            flows: (0..shown).map(flow).collect(),
            due: (0..u64::from(shown))
                .map(|number| number * interval)
                .collect(),
            sizes: sizes.into_iter().flat_map(of_threads).collect(),
        }
    }
}

fn describe(series: &PlannedSeries, trial: &PlannedTrial) -> String {
    let PlannedSeries {
        name, load, flows, ..
    } = series;
    let mut text = format!("\n{name}: {load}\n");
    let bytes: f64 = trial.sizes.iter().map(|&size| f64::from(size)).sum();
    let mean = bytes / trial.sizes.len() as f64;
    let number = trial.requests;
    let number = number.map_or("as many frames as can be sent".to_owned(), |number| {
        format!("{number} frames a trial")
    });
    let _ = writeln!(
        text,
        "  {number}, of {mean:.1} bytes on average with their FCS"
    );
    for flow in flows.iter().take(SHOWN_FLOWS) {
        let backend = flow
            .backend
            .and_then(|backend| series.backends.get(usize::from(backend)));
        let backend = backend.map_or("drawn by the system", String::as_str);
        let _ = writeln!(text, "  {} -> {}: {backend}", flow.client, flow.to);
    }
    if flows.len() > SHOWN_FLOWS {
        let _ = writeln!(text, "  and {} flows more", flows.len() - SHOWN_FLOWS);
    }
    let shares = shares(series, trial);
    if !shares.is_empty() {
        let first = trial.flows.len();
        let _ = writeln!(
            text,
            "  expected of the first {first}: {}",
            shares.join(", ")
        );
    }
    text
}

/// Returns the requests that each backend gets, as far as that is known beforehand.
fn shares(series: &PlannedSeries, trial: &PlannedTrial) -> Vec<String> {
    let mut counts = vec![0_u64; series.backends.len()];
    for &flow in &trial.flows {
        let planned = series.flows.get(flow as usize);
        if let Some(backend) = planned.and_then(|planned| planned.backend) {
            counts[usize::from(backend)] += 1;
        }
    }
    let known = series.flows.iter().any(|flow| flow.backend.is_some());
    let named = series.backends.iter().zip(counts).filter(|_| known);
    let whole = trial.flows.len().max(1) as f64;
    named
        .map(|(name, count)| format!("{name} {count} ({:.1} %)", 100.0 * count as f64 / whole))
        .collect()
}

/// Writes the first frames of the first round into a capture (pcap, with nanoseconds). Of requests by TCP, it has the
/// segments with the requests, without options.
///
/// # Errors
///
/// When it cannot be written.
pub fn write_pcap(scenario: &Scenario, out: &mut dyn Write) -> Result<()> {
    /// <https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/>: magic with nanoseconds, version 2.4, no time zone,
    /// longest frame, Ethernet.
    const HEADER: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 1 << 16, 1];
    write_words(out, &HEADER).context("writing the capture")?;
    let (mut left, mut begin) = (CAPTURED as usize, 0.0);
    for series in planned(scenario)? {
        let frames = frames(&series, &PlannedTrial::of(&series, scenario), left);
        left -= frames.len();
        for (due, frame) in frames {
            write_frame(out, begin, due, &frame).context("writing the capture")?;
        }
        begin += scenario.seconds;
    }
    out.flush().context("writing the capture")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "days at most"
)]
fn write_frame(out: &mut dyn Write, begin: f64, due: u64, frame: &[u8]) -> io::Result<()> {
    const BILLION: u64 = 1_000_000_000;
    let at = (begin * 1e9) as u64 + due;
    let length = frame.len() as u32;
    let head = [(at / BILLION) as u32, (at % BILLION) as u32, length, length];
    write_words(out, &head)?;
    out.write_all(frame)
}

fn write_words(out: &mut dyn Write, words: &[u32]) -> io::Result<()> {
    words
        .iter()
        .try_for_each(|word| out.write_all(&word.to_le_bytes()))
}

/// Returns the first frames of a trial, each with the time when it is due.
fn frames(series: &PlannedSeries, trial: &PlannedTrial, most: usize) -> Vec<(u64, Vec<u8>)> {
    let framing = Framing::of(MACS, &series.load);
    let mut payloads = Payloads::of(series);
    let sizes = trial.sizes.iter().cycle();
    let requests = trial.due.iter().zip(&trial.flows).zip(sizes).take(most);
    let frame = |((&due, &flow), &size): ((&u64, &u32), &u32)| {
        let (client, to) = payloads.ends(flow);
        let payload = payloads.next(flow, due, series.load.payload(size));
        (due, framing.frame(client, to, &payload))
    };
    requests.map(frame).collect()
}

/// Makes payloads of a series, as its generator does.
struct Payloads<'a> {
    series: &'a PlannedSeries,
    ledger: Ledger,
    number: u32,
}

impl<'a> Payloads<'a> {
    fn of(series: &'a PlannedSeries) -> Self {
        let backends = series.flows.iter().map(|flow| flow.backend);
        let backends: Vec<Option<u16>> = backends.collect();
        Self {
            series,
            ledger: Ledger::new(Key::KNOWN, Key::KNOWN, &backends),
            number: 0,
        }
    }

    /// Returns the ends of a flow.
    fn ends(&self, flow: u32) -> (SocketAddr, SocketAddr) {
        let PlannedSeries {
            flows,
            targets,
            load,
            ..
        } = self.series;
        let of_new = || {
            let to = targets[flow as usize % targets.len()];
            (numbered::client(load.family, flow), to)
        };
        let planned = flows.get(flow as usize);
        planned.map_or_else(of_new, |flow| (flow.client, flow.to))
    }

    fn next(&mut self, flow: u32, due: u64, length: usize) -> Vec<u8> {
        let load = &self.series.load;
        let (mut payload, least) = if load.generator.makes_frames() {
            match load.generator {
                // Its numbers begin with 1; the time behind them is left out.
                GeneratorKind::Pktgen => {
                    let number = (self.number + 1).to_be_bytes();
                    ([pktgen::MAGIC, number].concat(), pktgen::HEADER_LENGTH)
                }
                _ => {
                    let number = self.number.to_be_bytes();
                    ([&[0; 2][..], &number].concat(), NUMBER_LENGTH)
                }
            }
        } else {
            (self.ledger.prepare(flow, due).to_vec(), PROBE_LENGTH)
        };
        self.number += 1;
        if load.generator.makes_frames() || load.protocol == Protocol::Udp {
            payload.resize(length.max(least), 0);
            return payload;
        }
        let form = Form::of(load.exchange);
        payload.resize(length.saturating_sub(form.overhead()).max(least), 0);
        form.request(&payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIO: &str = "\
name: both
systems: [direct, ours-ipip, kube-proxy-nftables]
services: 2
loads:
  - { rate: 100, flows: 3, frame_bytes: 64:1 128:1 }
  - { generator: live, family: ipv6, protocol: tcp, schedule: max, flows: 6, new_flow_share: 0.5 }
seconds: 2
rounds: 6
";

    fn scenario() -> Scenario {
        Scenario::parse(SCENARIO).unwrap()
    }

    #[test]
    fn a_plan_tells_frames_flows_backends_and_the_time() {
        let text = text(&scenario()).unwrap();
        for expected in [
            // 42 trials of 2.32 s.
            "both: 6 series in 6 rounds and one to warm up, whose trials take 1.6 minutes.",
            "direct-1: sockets, ipv4, udp, constant, 100/s, 3 flows in-turn, frames of 64:1 128:1 bytes\n  \
             200 frames a trial, of 96.0 bytes on average with their FCS\n  10.0.0.2:10000 -> 10.0.1.104:7000: node3\n",
            "expected of the first 200: node3 67 (33.5 %), node4 67 (33.5 %), node5 66 (33.0 %)",
            // Behind 3 flows of the direct wire.
            "10.0.0.2:10003 -> 10.99.0.1:10000: node",
            "10.99.0.2:10001: drawn by the system",
            "kube-proxy-nftables-2: live, ipv6, tcp, max, 6 flows in-turn and 50 % of new ones",
            "as many frames as can be sent, of 84.0 bytes",
            "[2001:2::]:32768 -> [fd00:1::104]:7000: node3",
            "and 2 flows more",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn a_plan_tells_which_rate_is_found_once_for_all_of_its_shares() {
        let text_of = "name: shares\nsystems: [direct]\nloads: [{ rate: 100, background: 10% 50% 90% of pdr }]\n";
        let text = text(&Scenario::parse(text_of).unwrap()).unwrap();
        let found = "Before the first round, some 25 trials find the pdr of direct (live, ipv4, udp, max, 16 flows in-turn, \
                     frames of 64 bytes).\n";
        assert_eq!(text.matches("Before the first round").count(), 1, "{text}");
        assert!(text.contains(found), "{text}");
        for (number, share) in [(1, 10), (2, 50), (3, 90)] {
            let series = format!(
                "\ndirect-{number}: sockets, ipv4, udp, constant, 100/s, 16 flows in-turn, frames of 64 bytes, \
                                  beside live frames at {share} % of its pdr\n"
            );
            assert!(text.contains(&series), "{text}");
        }
    }

    #[test]
    fn threads_of_live_take_turns_each_with_flows_and_sizes_of_its_own() {
        let text = "name: threads\nsystems: [direct]\nloads: [{ generator: live, threads: 2, rate: 9, flows: 5, \
                    frame_bytes: 64:1 128:1 }]\nseconds: 1\n";
        let scenario = Scenario::parse(text).unwrap();
        let trial = PlannedTrial::of(&planned(&scenario).unwrap()[0], &scenario);
        assert_eq!(trial.requests, Some(9));
        assert_eq!(trial.flows, [0, 1, 2, 3, 4, 1, 0, 3, 2]);
        assert_eq!(trial.sizes, [64, 64, 128, 128]);
    }

    #[test]
    fn a_capture_has_the_first_frames_of_the_first_round_in_order() {
        let mut capture = Vec::new();
        write_pcap(&scenario(), &mut capture).unwrap();
        let word = |at: usize| {
            let bytes = capture[at..].first_chunk().unwrap();
            u32::from_le_bytes(*bytes)
        };
        let (mut at, mut frames) = (24, Vec::new());
        while at < capture.len() {
            let length = word(at + 8) as usize;
            let time = (word(at), word(at + 4));
            frames.push((time, &capture[at + 16..at + 16 + length]));
            at += 16 + length;
        }
        assert_eq!(frames.len(), 1_000);
        let lengths: Vec<usize> = frames.iter().map(|(_, frame)| frame.len()).collect();
        assert_eq!(lengths[..3], [60, 124, 60]);
        assert_eq!(frames[1].0, (0, 10_000_000));
        // The second system's trial begins when the first one's ends.
        assert_eq!(frames[200].0, (2, 0));
        // After the sockets', frames of the other load: every second one is of a flow that is new.
        let ports = frames[600..604].iter().map(|(_, frame)| &frame[54..56]);
        let ports: Vec<u16> = ports
            .map(|port| u16::from_be_bytes([port[0], port[1]]))
            .collect();
        assert_eq!(ports, [32_768, 32_774, 32_769, 32_775]);
        assert!(frames.is_sorted_by_key(|(time, _)| *time));
    }
}
