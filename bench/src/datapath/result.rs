//! The rates and costs of a run in the form that `guideway-bench run` gives results: for reports and comparisons.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::{
    Family, Figures, Options, Order, Protocol, Report, Samples, Stream, System, frames,
    report::lower,
};
use crate::{
    bars::Outcome,
    probe::Tally,
    result::{Files, Measurement, Series, Streams, Trial, figures},
    run,
    scenario::{FlowOrder, FrameSize, Load, Scenario, WireKind},
    stats::rounded,
};

/// Bytes of a frame's FCS.
const FCS: u32 = 4;

impl Figures for Report {
    fn rows(&self) -> Vec<Value> {
        let rows = self.rows.iter();
        rows.map(|row| row.to_json(&self.host)).collect()
    }

    fn outcome(&self) -> Outcome {
        Outcome::worst(self.bars().iter().map(|bar| bar.outcome))
    }

    fn files(&self, options: &Options, command: String, started: Duration) -> Result<Files> {
        let all = self.samples.iter();
        let all = all.flat_map(|(family, protocol, samples)| {
            let rates = samples.pps.iter();
            rates.map(move |((system, stream), rates)| {
                let load = load(*family, *protocol, *stream);
                series(*system, load, samples, rates)
            })
        });
        files(options, all.collect(), costs(self), command, started)
    }
}

/// Makes a result of series and figures of a pair of devices.
pub(super) fn files(
    options: &Options,
    series: Vec<Series>,
    measurements: Vec<Measurement>,
    command: String,
    started: Duration,
) -> Result<Files> {
    let mut loads: Vec<Load> = Vec::new();
    for one in &series {
        if !loads.contains(&one.load) {
            loads.push(one.load.clone());
        }
    }
    let scenario = Scenario {
        name: "datapath".to_owned(),
        wire: WireKind::Pair,
        systems: Vec::new(),
        services: 1,
        loads,
        seconds: options.seconds,
        rounds: u32::try_from(options.rounds)?,
        seed: 1,
        event: None,
        ports: None,
        under_test: Vec::new(),
    };
    let mut run = run::ended_run(scenario, command, started);
    run.measurements = measurements;
    let streams = series.iter().map(|one| (one.name.clone(), Streams::new()));
    let streams = streams.collect();
    run.series = series;
    Ok(Files::make(run, started.as_secs_f64(), streams)?)
}

/// Returns what each system costs beyond the program that it is built upon, and what one hash look-up does: the unit.
fn costs(report: &Report) -> Vec<Measurement> {
    let mut all = Vec::new();
    for (family, protocol, samples) in &report.samples {
        for ((system, stream), own) in &samples.ns {
            let empty = match system {
                System::Hit => Some(System::Floor),
                _ => system.empty(),
            };
            let Some(empty) = empty.and_then(|empty| samples.ns.get(&(empty, *stream))) else {
                continue;
            };
            let net: Vec<f64> = own
                .iter()
                .zip(empty)
                .map(|(own, empty)| own - empty)
                .collect();
            let order = match stream.order {
                Order::InTurn => "in turn",
                Order::Random => "in random order",
            };
            let subject = format!(
                "{}, {}, {}, {} flows {order}",
                system.name(),
                lower(*family),
                lower(*protocol),
                stream.flows
            );
            all.push(Measurement::of(
                subject,
                "net cost of a packet",
                "ns",
                &net,
                0.5,
                None,
            ));
        }
    }
    all
}

fn series(system: System, load: Load, samples: &Samples, rates: &[f64]) -> Series {
    let name = system.name();
    let frames = u64::from(samples.frames);
    let tally = Tally {
        offered: frames,
        sent: frames,
        received: frames,
        ..Tally::default()
    };
    let trials = rates
        .iter()
        .map(|rate| (f64::from(samples.frames) / rate, tally));
    series_of(
        name,
        format!("the program {name} of `guideway-bench datapath`, at one end of a veth pair"),
        load,
        trials,
    )
}

/// Makes the series of a system, of the duration of each round's trial in seconds and its counts.
pub(super) fn series_of(
    system: &str,
    description: String,
    load: Load,
    trials: impl IntoIterator<Item = (f64, Tally)>,
) -> Series {
    let order = match load.flow_order {
        FlowOrder::Uniform => "-random",
        FlowOrder::InTurn | FlowOrder::Zipf => "",
    };
    let (family, protocol) = (load.family, load.protocol);
    let trial = |(round, (seconds, tally))| Trial::new(round, 0.0, rounded(seconds), tally);
    Series {
        name: format!("{system}-{family}-{protocol}-{}{order}", load.flows),
        system: system.to_owned(),
        description,
        backends: Vec::new(),
        trials: (1..).zip(trials).map(trial).collect(),
        figures: figures(&Streams::new(), None),
        reference_rate: None,
        load,
    }
}

/// Returns the load of a stream of the shortest frames.
pub(super) fn load(family: Family, protocol: Protocol, stream: Stream) -> Load {
    let shortest = size(frames::frame(family, protocol, 0).len());
    Load {
        flows: stream.flows,
        flow_order: match stream.order {
            Order::InTurn => FlowOrder::InTurn,
            Order::Random => FlowOrder::Uniform,
        },
        ..Load::of_frames(family.into(), protocol, vec![shortest])
    }
}

/// Returns the load with other frames, of so many bytes without FCS.
pub(super) fn with_frames(load: Load, length: usize) -> Load {
    Load {
        frame_bytes: vec![size(length)],
        ..load
    }
}

fn size(length: usize) -> FrameSize {
    FrameSize {
        bytes: u32::try_from(length).unwrap_or(u32::MAX) + FCS,
        weight: 1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        compare::{Judgement, LEAST_DIFFERENCE, Side, compare},
        host::Facts,
        report as page,
    };

    #[test]
    fn rates_become_a_result_that_is_read_reported_and_compared() {
        let stream = Stream::in_turn(1);
        let samples = Samples {
            frames: 50_000,
            pps: BTreeMap::from([
                ((System::Floor, stream), vec![4e6; 6]),
                ((System::Guideway, stream), vec![3e6; 6]),
            ]),
            ns: BTreeMap::from([
                ((System::Floor, stream), vec![45.0; 6]),
                ((System::Guideway, stream), vec![105.5; 6]),
            ]),
        };
        let mut report = Report::new(Facts::collect(), 0, 6);
        report.samples = vec![(Family::V4, Protocol::Udp, samples)];
        let options = Options {
            families: vec![Family::V4],
            protocols: vec![Protocol::Udp],
            rounds: 6,
            seconds: 0.02,
            core: None,
        };
        let started = Duration::from_secs(9);
        let files = report.files(&options, "again".to_owned(), started).unwrap();
        let files = Files::of_texts(files.json, files.logs).unwrap();
        assert_eq!(files.run.started, "1970-01-01T00:00:09Z");
        let side = |name| Side::find(&files, Some(name)).unwrap();
        let [floor, ours] = ["floor-ipv4-udp-1", "guideway"].map(side);
        let comparison = compare(floor, ours, LEAST_DIFFERENCE).unwrap();
        assert_eq!(comparison.judgement(), Judgement::Worse);
        assert!((comparison.rows[0].ratio - 4.0 / 3.0).abs() < 1e-3);
        let [cost] = &files.run.measurements[..] else {
            panic!("the floor has no net cost: {:?}", files.run.measurements);
        };
        assert_eq!((cost.value, cost.samples.len()), (60.5, 6));
        let html = page::render(std::slice::from_ref(&files));
        page::verify(&html).unwrap();
        assert!(
            html.contains("3.000 [3.000 3.000]"),
            "{}",
            page::text(&files)
        );
    }
}
