//! Rows, bars, and the two ways to print them.

use std::fmt;

use serde_json::{Value, json};

use super::{FLOWS, Family, KNOWN_FLOWS, Protocol, Samples, System};
use crate::{
    host::Facts,
    stats::{Estimate, Spread, bootstrap, median},
};

/// The end-to-end rate must not fall below this share of the floor.
const LEAST_OF_FLOOR: f64 = 0.72;
/// The net cost must not exceed this many units.
const MOST_UNITS: f64 = 3.0;
/// The net cost on a node must not exceed this many units, to the pod and back.
const MOST_NODE_UNITS: f64 = 4.0;
/// The net cost of NAT mode must not exceed this many units, in each direction.
const MOST_NAT_UNITS: f64 = 7.0;
/// The net cost must not grow by more than this factor from 10 k to 1 M flows.
const MOST_GROWTH: f64 = 1.10;

/// One system with one kind of traffic.
#[derive(Clone, Debug)]
pub struct Row {
    /// The system.
    pub system: System,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Flows in the cycle.
    pub flows: u32,
    /// Rounds behind the figures.
    pub rounds: usize,
    /// Median frames per second on one core, generator and sink included.
    pub pps: f64,
    /// Spread of `pps` over the rounds.
    pub pps_spread: Spread,
    /// Rate over the floor's in the same round.
    pub pps_vs_floor: Estimate,
    /// What it costs.
    pub cost: Cost,
    /// The machine.
    pub host: Facts,
}

impl Row {
    /// Returns the row as one flat object; what surrounds its figures is under `spread`.
    ///
    /// Spreads over the rounds are objects of `min`, `iqr` and `max`, intervals
    /// pairs of the ends between which the figure lies with 95 % confidence.
    pub fn to_json(&self) -> Value {
        json!({
            "system": self.system,
            "family": self.family,
            "protocol": self.protocol,
            "flows": self.flows,
            "rounds": self.rounds,
            "pps": self.pps,
            "pps_vs_floor": self.pps_vs_floor.value,
            "ns": self.cost.ns,
            "net_ns": self.cost.net_ns.value,
            "units": self.cost.units.value,
            "unit_ns": self.cost.unit_ns,
            "spread": {
                "pps": self.pps_spread,
                "pps_vs_floor": interval_json(&self.pps_vs_floor),
                "ns": self.cost.ns_spread,
                "net_ns": interval_json(&self.cost.net_ns),
                "units": interval_json(&self.cost.units),
            },
            "host": self.host,
        })
    }
}

/// What a way beside the plain one costs.
#[derive(Clone, Debug)]
pub struct Way {
    /// The system.
    pub system: System,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Flows in the cycle.
    pub flows: u32,
    /// Rounds behind the figures.
    pub rounds: usize,
    /// What it costs.
    pub cost: Cost,
    /// The machine.
    pub host: Facts,
}

/// The cost of a system's program.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Median nanoseconds per run of the program, the overhead of timing included.
    pub ns: f64,
    /// Spread of `ns` over the rounds.
    pub ns_spread: Spread,
    /// `ns` minus the empty program's of the same round.
    pub net_ns: Estimate,
    /// Net cost over that of one hash look-up.
    pub units: Estimate,
    /// Nanoseconds of one unit in this run.
    pub unit_ns: f64,
}

impl Way {
    /// Returns the figures as one flat object, like [`Row::to_json`].
    pub fn to_json(&self) -> Value {
        let cost = &self.cost;
        json!({
            "system": self.system,
            "family": self.family,
            "protocol": self.protocol,
            "flows": self.flows,
            "rounds": self.rounds,
            "ns": cost.ns,
            "net_ns": cost.net_ns.value,
            "units": cost.units.value,
            "unit_ns": cost.unit_ns,
            "spread": {
                "ns": cost.ns_spread,
                "net_ns": interval_json(&cost.net_ns),
                "units": interval_json(&cost.units),
            },
            "host": self.host,
        })
    }
}

fn interval_json(estimate: &Estimate) -> Value {
    json!([estimate.low, estimate.high])
}

/// Whether a bound is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// With 95 % confidence.
    Holds,
    /// The interval contains the bound.
    Inconclusive,
    /// Not, with 95 % confidence.
    Fails,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::Inconclusive => "inconclusive",
            Self::Fails => "FAILS",
        })
    }
}

/// A bound and the figure that comes closest to breaking it.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What is bounded.
    pub name: &'static str,
    /// The bound, in words.
    pub bound: String,
    /// The worst figure.
    pub worst: Estimate,
    /// The traffic that it belongs to.
    pub traffic: String,
    /// Whether all traffic keeps it.
    pub outcome: Outcome,
}

/// A figure of ours that a bar applies to.
#[derive(Clone, Debug)]
struct Candidate {
    estimate: Estimate,
    traffic: String,
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine.
    pub host: Facts,
    /// The core that everything ran on.
    pub core: usize,
    /// Rounds that count.
    pub rounds: usize,
    /// The figures.
    pub rows: Vec<Row>,
    /// The figures of the ways beside the plain one.
    pub ways: Vec<Way>,
    growth: Vec<Candidate>,
}

impl Report {
    pub(super) fn new(host: Facts, core: usize, rounds: usize) -> Self {
        Self {
            host,
            core,
            rounds,
            rows: Vec::new(),
            ways: Vec::new(),
            growth: Vec::new(),
        }
    }

    /// Turns the rounds of one family and protocol into rows.
    pub(super) fn add(&mut self, family: Family, protocol: Protocol, samples: &Samples) {
        for flows in FLOWS {
            for system in System::WITH_RATE {
                self.rows
                    .push(row(system, family, protocol, flows, samples, &self.host));
            }
        }
        for flows in KNOWN_FLOWS {
            for (system, empty) in System::WAYS {
                self.ways.push(Way {
                    system,
                    family,
                    protocol,
                    flows,
                    rounds: samples.ns[&(system, flows)].len(),
                    cost: cost(system, empty, flows, samples),
                    host: self.host.clone(),
                });
            }
        }
        self.growth.push(Candidate {
            estimate: growth(samples),
            traffic: format!("{} {}", lower(family), lower(protocol)),
        });
    }

    /// Judges the figures.
    pub fn bars(&self) -> Vec<Bar> {
        let ours = |figure: fn(&Row) -> Estimate| {
            self.rows
                .iter()
                .filter(|row| row.system == System::Guideway)
                .map(|row| Candidate {
                    estimate: figure(row),
                    traffic: traffic(row.family, row.protocol, row.flows),
                })
                .collect::<Vec<_>>()
        };
        let way = |systems: &[System]| {
            self.ways
                .iter()
                .filter(|way| systems.contains(&way.system))
                .map(|way| Candidate {
                    estimate: way.cost.units,
                    traffic: traffic(way.family, way.protocol, way.flows),
                })
                .collect::<Vec<_>>()
        };
        vec![
            at_least(
                "end-to-end rate, share of the floor",
                LEAST_OF_FLOOR,
                &ours(|row| row.pps_vs_floor),
            ),
            at_most(
                "net cost per packet, units",
                MOST_UNITS,
                &ours(|row| row.cost.units),
            ),
            at_most(
                "growth of the net cost, 10 k to 1 M flows",
                MOST_GROWTH,
                &self.growth,
            ),
            at_most(
                "net cost from edge to pod, units",
                MOST_NODE_UNITS,
                &way(&[System::Node]),
            ),
            at_most(
                "net cost of a pod's reply, units",
                MOST_NODE_UNITS,
                &way(&[System::Reply]),
            ),
            at_most(
                "net cost of NAT mode either way, units",
                MOST_NAT_UNITS,
                &way(&[System::Nat, System::NatReply]),
            ),
        ]
    }

    /// Returns the worst outcome of all bars.
    pub fn outcome(&self) -> Outcome {
        self.bars()
            .iter()
            .map(|bar| bar.outcome)
            .max()
            .unwrap_or(Outcome::Holds)
    }
}

fn at_least(name: &'static str, bound: f64, candidates: &[Candidate]) -> Bar {
    let outcome = |e: &Estimate| judge(e.low >= bound, e.high < bound);
    let worst = candidates
        .iter()
        .min_by(|a, b| a.estimate.value.total_cmp(&b.estimate.value));
    bar(name, format!(">= {bound:.2}"), candidates, worst, outcome)
}

fn at_most(name: &'static str, bound: f64, candidates: &[Candidate]) -> Bar {
    let outcome = |e: &Estimate| judge(e.high <= bound, e.low > bound);
    let worst = candidates
        .iter()
        .max_by(|a, b| a.estimate.value.total_cmp(&b.estimate.value));
    bar(name, format!("<= {bound:.2}"), candidates, worst, outcome)
}

fn judge(holds: bool, fails: bool) -> Outcome {
    match (holds, fails) {
        (true, _) => Outcome::Holds,
        (_, true) => Outcome::Fails,
        _ => Outcome::Inconclusive,
    }
}

fn bar(
    name: &'static str,
    bound: String,
    candidates: &[Candidate],
    worst: Option<&Candidate>,
    outcome: impl Fn(&Estimate) -> Outcome,
) -> Bar {
    const NOTHING: Estimate = Estimate {
        value: f64::NAN,
        low: f64::NAN,
        high: f64::NAN,
    };
    Bar {
        name,
        bound,
        worst: worst.map_or(NOTHING, |worst| worst.estimate),
        traffic: worst.map(|worst| worst.traffic.clone()).unwrap_or_default(),
        outcome: candidates
            .iter()
            .map(|candidate| outcome(&candidate.estimate))
            .max()
            .unwrap_or(Outcome::Inconclusive),
    }
}

fn row(
    system: System,
    family: Family,
    protocol: Protocol,
    flows: u32,
    samples: &Samples,
    host: &Facts,
) -> Row {
    let pps = &samples.pps[&(system, flows)];
    let floor_pps = &samples.pps[&(System::Floor, flows)];
    let rounds = pps.len();
    Row {
        system,
        family,
        protocol,
        flows,
        rounds,
        pps: median(pps),
        pps_spread: Spread::of(pps),
        pps_vs_floor: bootstrap(rounds, |sample| {
            median_of(sample, |i| pps[i] / floor_pps[i])
        }),
        cost: cost(system, System::Floor, flows, samples),
        host: host.clone(),
    }
}

/// What a system's program costs beyond an empty one.
fn cost(system: System, empty: System, flows: u32, samples: &Samples) -> Cost {
    let [ns, empty, hit, floor] =
        [system, empty, System::Hit, System::Floor].map(|system| &samples.ns[&(system, flows)]);
    let rounds = ns.len();
    Cost {
        ns: median(ns),
        ns_spread: Spread::of(ns),
        net_ns: bootstrap(rounds, |sample| median_of(sample, |i| ns[i] - empty[i])),
        units: bootstrap(rounds, |sample| {
            median_of(sample, |i| ns[i] - empty[i]) / median_of(sample, |i| hit[i] - floor[i])
        }),
        unit_ns: median_of(&(0..rounds).collect::<Vec<_>>(), |i| hit[i] - floor[i]),
    }
}

fn growth(samples: &Samples) -> Estimate {
    let net = |flows: u32, round: usize| {
        samples.ns[&(System::Guideway, flows)][round] - samples.ns[&(System::Floor, flows)][round]
    };
    let [_, few, many] = FLOWS;
    let rounds = samples.ns[&(System::Guideway, few)].len();
    bootstrap(rounds, |sample| {
        median_of(sample, |round| net(many, round) / net(few, round))
    })
}

fn median_of(sample: &[usize], figure: impl Fn(usize) -> f64) -> f64 {
    median(&sample.iter().map(|&i| figure(i)).collect::<Vec<_>>())
}

fn traffic(family: Family, protocol: Protocol, flows: u32) -> String {
    format!("{} {} {}", lower(family), lower(protocol), short(flows))
}

/// Returns a variant's name in lower case.
pub(super) fn lower(value: impl fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn short(flows: u32) -> String {
    match flows {
        1_000_000.. => format!("{} M", flows / 1_000_000),
        1_000.. => format!("{} k", flows / 1_000),
        _ => flows.to_string(),
    }
}

/// The table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { kernel, cpu, date } = &self.host;
        writeln!(f, "Linux {kernel}, {cpu}, CPU {}, {date}", self.core)?;
        writeln!(
            f,
            "veth, native XDP, shortest frames, one core for generator, program and sink; median of {} rounds",
            self.rounds
        )?;
        writeln!(f, "[ ] holds the true value with 95 % confidence\n")?;
        writeln!(
            f,
            "{:<3} {:<4} {:>5}  {:<9}{:>6} {:>6}  {:<18}{:>7} {:>7}  {:<17}",
            "ip",
            "l4",
            "flows",
            "system",
            "Mpps",
            "iqr %",
            "of the floor",
            "ns/run",
            "net ns",
            "units",
        )?;
        for row in &self.rows {
            write_row(f, row)?;
        }
        for way in &self.ways {
            write_way(f, way)?;
        }
        writeln!(f, "\n{:<43}{:<32}{:<9}verdict", "bar", "worst", "bound")?;
        for bar in self.bars() {
            let worst = format!("{} {}", interval(&bar.worst), bar.traffic);
            writeln!(
                f,
                "{:<43}{:<32}{:<9}{}",
                bar.name, worst, bar.bound, bar.outcome
            )?;
        }
        Ok(())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    let first = row.system == System::Floor;
    let blank = |text: String| if first { text } else { String::new() };
    let others = |text: String| if first { "-".to_owned() } else { text };
    writeln!(
        f,
        "{:<3} {:<4} {:>5}  {:<9}{:>6.2} {:>6.1}  {:<18}{:>7.1} {:>7}  {:<17}",
        blank(lower(row.family)),
        blank(lower(row.protocol)),
        blank(short(row.flows)),
        row.system.name(),
        row.pps / 1e6,
        row.pps_spread.iqr / row.pps * 100.0,
        others(interval(&row.pps_vs_floor)),
        row.cost.ns,
        others(format!("{:.1}", row.cost.net_ns.value)),
        others(interval(&row.cost.units)),
    )
}

fn write_way(f: &mut fmt::Formatter<'_>, way: &Way) -> fmt::Result {
    let first = way.system == System::Node;
    let blank = |text: String| if first { text } else { String::new() };
    writeln!(
        f,
        "{:<3} {:<4} {:>5}  {:<9}{:>6} {:>6}  {:<18}{:>7.1} {:>7.1}  {:<17}",
        blank(lower(way.family)),
        blank(lower(way.protocol)),
        blank(short(way.flows)),
        way.system.name(),
        "-",
        "-",
        "-",
        way.cost.ns,
        way.cost.net_ns.value,
        interval(&way.cost.units),
    )
}

fn interval(estimate: &Estimate) -> String {
    let Estimate { value, low, high } = estimate;
    format!("{value:.2} [{low:.2} {high:.2}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Facts {
        Facts {
            kernel: "6.18.0".to_owned(),
            cpu: "Some CPU".to_owned(),
            date: "2026-11-21".to_owned(),
        }
    }

    /// Rounds with the given rate share and units, disturbed by noise that a round's systems share.
    /// `beside`: units of the node, of a reply and of NAT mode.
    fn samples(share: f64, units: f64, growth: f64, beside: [f64; 3]) -> Samples {
        let mut samples = Samples::default();
        for noise in [1.0, 1.4, 0.9, 1.1, 2.0, 1.0, 1.2] {
            for flows in FLOWS.into_iter().chain([KNOWN_FLOWS[1]]) {
                let more = if flows == FLOWS[2] { growth } else { 1.0 };
                for (system, pps, ns) in [
                    (System::Floor, 4e6, 45.0),
                    (System::Static, 3.8e6, 55.0),
                    (System::Hit, 0.0, 65.0),
                    (System::Guideway, 4e6 * share, 45.0 + 20.0 * units * more),
                ] {
                    let pps_rounds = samples.pps.entry((system, flows)).or_default();
                    pps_rounds.push(pps / noise);
                    let ns_rounds = samples.ns.entry((system, flows)).or_default();
                    ns_rounds.push(ns * noise);
                }
                for (system, ns) in [
                    (System::Pass, 46.0),
                    (System::Node, 46.0 + 20.0 * beside[0]),
                    (System::PassSkb, 44.0),
                    (System::Reply, 44.0 + 20.0 * beside[1]),
                    (System::Nat, 45.0 + 20.0 * beside[2]),
                    (System::NatReply, 45.0 + 20.0 * beside[2]),
                ] {
                    let ns_rounds = samples.ns.entry((system, flows)).or_default();
                    ns_rounds.push(ns * noise);
                }
            }
        }
        samples
    }

    fn report(share: f64, units: f64, growth: f64) -> Report {
        report_of(&samples(share, units, growth, [3.0, 3.0, 5.0]))
    }

    fn report_of(samples: &Samples) -> Report {
        let mut report = Report::new(host(), 1, 7);
        report.add(Family::V4, Protocol::Udp, samples);
        report
    }

    #[test]
    fn shared_noise_does_not_reach_ratios_and_units() {
        let report = report(0.75, 2.5, 1.0);
        let ours = report
            .rows
            .iter()
            .find(|row| row.system == System::Guideway)
            .unwrap();
        assert!((ours.pps_vs_floor.value - 0.75).abs() < 1e-9);
        assert!((ours.cost.units.value - 2.5).abs() < 1e-9);
        assert!((ours.cost.units.high - ours.cost.units.low).abs() < 1e-9);
        assert_eq!(report.outcome(), Outcome::Holds);
    }

    #[test]
    fn each_bar_fails_by_its_own_figure() {
        let failed = |report: &Report| -> Vec<usize> {
            let bars = report.bars();
            let failed = bars.iter().enumerate();
            failed
                .filter_map(|(i, bar)| (bar.outcome == Outcome::Fails).then_some(i))
                .collect()
        };
        assert_eq!(failed(&report(0.71, 2.5, 1.0)), [0]);
        assert_eq!(failed(&report(0.75, 3.1, 1.0)), [1]);
        assert_eq!(failed(&report(0.75, 2.0, 1.2)), [2]);
        for (index, beside) in [[4.1, 3.0, 5.0], [3.0, 4.1, 5.0], [3.0, 3.0, 7.1]]
            .into_iter()
            .enumerate()
        {
            let samples = samples(0.75, 2.0, 1.0, beside);
            assert_eq!(failed(&report_of(&samples)), [3 + index]);
        }
        assert_eq!(report(0.75, 2.0, 1.2).outcome(), Outcome::Fails);
    }

    #[test]
    fn interval_around_the_bound_is_inconclusive() {
        let candidate = |low, value, high| {
            [Candidate {
                estimate: Estimate { value, low, high },
                traffic: String::new(),
            }]
        };
        let outcome = |low, value, high| at_most("", 3.0, &candidate(low, value, high)).outcome;
        assert_eq!(outcome(2.8, 2.9, 3.0), Outcome::Holds);
        assert_eq!(outcome(2.8, 2.9, 3.1), Outcome::Inconclusive);
        assert_eq!(outcome(3.1, 3.2, 3.3), Outcome::Fails);
        let outcome = |low, value, high| at_least("", 0.72, &candidate(low, value, high)).outcome;
        assert_eq!(outcome(0.72, 0.8, 0.9), Outcome::Holds);
        assert_eq!(outcome(0.71, 0.8, 0.9), Outcome::Inconclusive);
        assert_eq!(outcome(0.6, 0.7, 0.71), Outcome::Fails);
    }

    #[test]
    fn json_rows_carry_the_documented_fields() {
        let report = report(0.75, 2.5, 1.0);
        assert_eq!(report.rows.len(), FLOWS.len() * System::WITH_RATE.len());
        let row = report.rows.last().unwrap().to_json();
        assert_eq!(row["system"], "guideway");
        assert_eq!(row["family"], "v4");
        assert_eq!(row["protocol"], "udp");
        assert_eq!(row["flows"], 1_000_000);
        assert_eq!(row["rounds"], 7);
        for field in ["pps", "pps_vs_floor", "ns", "net_ns", "units", "unit_ns"] {
            assert!(row[field].is_f64(), "{field}");
        }
        for field in ["pps", "ns"] {
            for part in ["min", "iqr", "max"] {
                assert!(row["spread"][field][part].is_f64(), "{field}.{part}");
            }
        }
        for field in ["pps_vs_floor", "net_ns", "units"] {
            let interval = row["spread"][field].as_array().unwrap();
            assert!(
                interval.len() == 2 && interval.iter().all(Value::is_f64),
                "{field}"
            );
        }
        assert_eq!(row["host"]["kernel"], "6.18.0");
    }

    #[test]
    fn table_fits_a_hundred_columns() {
        let text = report(0.75, 2.5, 1.0).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
