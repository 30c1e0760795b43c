//! The rows and bars of the report, as a table and as JSON.

use std::{fmt, ops::RangeInclusive};

use serde_json::{Map, Value, json};

use super::{Family, Order, Protocol, Samples, Stream, System};
use crate::{
    host::Facts,
    stats::{Estimate, Spread, bootstrap, median},
};

/// The figures of a system with one stream.
#[derive(Clone, Debug)]
pub struct Row {
    /// The system.
    pub system: System,
    /// Address family.
    pub family: Family,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Number and order of the flows.
    pub stream: Stream,
    /// Number of rounds behind the figures.
    pub rounds: usize,
    /// Frames per second; `None` if not measured.
    pub rate: Option<Rate>,
    /// Median time per run of the program in nanoseconds, with the overhead of timing.
    pub ns: f64,
    /// Spread of `ns` over the rounds.
    pub ns_spread: Spread,
    /// `ns` less that of the empty program in the same round.
    pub net_ns: Estimate,
    /// Net cost divided by that of one hash lookup.
    pub units: Estimate,
    /// One unit in nanoseconds, in this run.
    pub unit_ns: f64,
    /// Net cost divided by that of the plain path under the same stream; `None` if that was not measured.
    pub of_plain: Option<Estimate>,
    /// Net cost divided by that with 10 000 flows; only for a million flows on the plain path.
    pub growth: Option<Estimate>,
}

/// Frames per second on one core.
#[derive(Clone, Debug)]
pub struct Rate {
    /// Median over the rounds; generator and sink are included.
    pub pps: f64,
    /// Spread over the rounds.
    pub spread: Spread,
    /// Rate divided by that of `floor` in the same round.
    pub of_floor: Estimate,
}

impl Row {
    fn new(
        family: Family,
        protocol: Protocol,
        system: System,
        stream: Stream,
        samples: &Samples,
    ) -> Self {
        let empty = system.empty().unwrap_or(system);
        let cost = |system| &samples.ns[&(system, stream)];
        let (ns, empty, hit, floor) = (
            cost(system),
            cost(empty),
            cost(System::Hit),
            cost(System::Floor),
        );
        let rounds = ns.len();
        let net = |round: usize| ns[round] - empty[round];
        let unit = |round: usize| hit[round] - floor[round];
        let estimate =
            |figure: &dyn Fn(usize) -> f64| bootstrap(rounds, |sample| median_of(sample, figure));
        let plain = samples.ns.get(&(System::Guideway, stream));
        let plain = plain.filter(|_| system.empty() == Some(System::Floor));
        let few = &samples.ns[&(System::Guideway, FEW)];
        let floor_of_few = &samples.ns[&(System::Floor, FEW)];
        let grows = system == System::Guideway && stream == MANY;
        let rate = samples.pps.get(&(system, stream)).map(|pps| {
            let floor = &samples.pps[&(System::Floor, stream)];
            Rate {
                pps: median(pps),
                spread: Spread::of(pps),
                of_floor: estimate(&|round| pps[round] / floor[round]),
            }
        });
        Self {
            system,
            family,
            protocol,
            stream,
            rounds,
            rate,
            ns: median(ns),
            ns_spread: Spread::of(ns),
            net_ns: estimate(&net),
            units: bootstrap(rounds, |sample| {
                median_of(sample, net) / median_of(sample, unit)
            }),
            unit_ns: median_of(&(0..rounds).collect::<Vec<_>>(), unit),
            of_plain: plain
                .map(|plain| estimate(&|round| net(round) / (plain[round] - floor[round]))),
            growth: grows
                .then(|| estimate(&|round| net(round) / (few[round] - floor_of_few[round]))),
        }
    }

    /// Returns the row as a flat object. Spreads and intervals are under `spread`.
    ///
    /// A spread over the rounds is an object of `min`, `iqr` and `max`. An interval is a pair: the ends of the
    /// 95 % confidence interval.
    pub fn to_json(&self, host: &Facts) -> Value {
        let mut row = json!({
            "system": self.system,
            "family": self.family,
            "protocol": self.protocol,
            "flows": self.stream.flows,
            "order": self.stream.order,
            "rounds": self.rounds,
            "ns": self.ns,
            "unit_ns": self.unit_ns,
            "host": host,
        });
        let mut spread = Map::new();
        spread.insert("ns".to_owned(), json!(self.ns_spread));
        if let Some(rate) = &self.rate {
            row["pps"] = json!(rate.pps);
            spread.insert("pps".to_owned(), json!(rate.spread));
        }
        for (name, estimate) in [
            ("pps_vs_floor", self.rate.as_ref().map(|rate| rate.of_floor)),
            ("net_ns", Some(self.net_ns)),
            ("units", Some(self.units)),
            ("of_plain", self.of_plain),
            ("growth", self.growth),
        ] {
            if let Some(Estimate { value, low, high }) = estimate {
                row[name] = json!(value);
                spread.insert(name.to_owned(), json!([low, high]));
            }
        }
        row["spread"] = spread.into();
        row
    }

    fn traffic(&self) -> String {
        let Stream { flows, order } = self.stream;
        let (family, protocol) = (lower(self.family), lower(self.protocol));
        format!("{family} {protocol} {}{}", short(flows), mark(order))
    }
}

/// Streams between which the plain path's cost must hardly grow.
const FEW: Stream = Stream::in_turn(10_000);
/// See [`FEW`].
const MANY: Stream = Stream::in_turn(1_000_000);

/// A bound of a figure. It must hold for the whole interval of the figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The figure must not be lower.
    Least(f64),
    /// The figure must not be higher.
    Most(f64),
}

impl Limit {
    /// Compares a figure with the bound.
    pub fn judge(self, figure: &Estimate) -> Outcome {
        let (holds, fails) = match self {
            Self::Least(bound) => (figure.low >= bound, figure.high < bound),
            Self::Most(bound) => (figure.high <= bound, figure.low > bound),
        };
        match (holds, fails) {
            (true, _) => Outcome::Holds,
            (_, true) => Outcome::Fails,
            _ => Outcome::Inconclusive,
        }
    }

    /// Returns how far a figure exceeds the bound; negative if it is within.
    fn excess(self, figure: &Estimate) -> f64 {
        match self {
            Self::Least(bound) => bound - figure.value,
            Self::Most(bound) => figure.value - bound,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Least(bound) => f.pad(&format!(">= {bound:.2}")),
            Self::Most(bound) => f.pad(&format!("<= {bound:.2}")),
        }
    }
}

/// A bound for systems, with a range of flows in turn.
struct Bound(
    &'static str,
    &'static [System],
    RangeInclusive<u32>,
    fn(&Row) -> Option<Estimate>,
    Limit,
);

const BOUNDS: [Bound; 18] = {
    use Limit::{Least, Most};
    use System::{Guideway, L2Dsr, Miss, Nat, NatReply, Node, NodePort, OtherEgress, Reply, Slots};
    /// With so few flows, the memory that packets touch in tables of flows stays in a core's own caches.
    const FEW: RangeInclusive<u32> = 1..=1_000;
    const TO_10_K: RangeInclusive<u32> = 1..=10_000;
    const FROM_10_K: RangeInclusive<u32> = 10_000..=u32::MAX;
    const MILLION: RangeInclusive<u32> = 1_000_000..=1_000_000;
    [
        Bound(
            "plain, of the floor",
            &[Guideway],
            TO_10_K,
            of_floor,
            Least(0.80),
        ),
        Bound(
            "plain and L2 DSR, units",
            &[Guideway, L2Dsr],
            TO_10_K,
            units,
            Most(1.9),
        ),
        Bound(
            "plain, 1 M flows, of the floor",
            &[Guideway],
            MILLION,
            of_floor,
            Least(0.76),
        ),
        Bound(
            "plain, 1 M flows, units",
            &[Guideway],
            MILLION,
            units,
            Most(2.4),
        ),
        Bound(
            "131 072 slots, of the floor",
            &[Slots],
            1..=u32::MAX,
            of_floor,
            Least(0.76),
        ),
        Bound(
            "131 072 slots, units",
            &[Slots],
            1..=u32::MAX,
            units,
            Most(2.4),
        ),
        Bound(
            "growth of the net cost, 10 k to 1 M flows",
            &[Guideway],
            MILLION,
            growth,
            Most(1.10),
        ),
        Bound(
            "NodePort to another node, of plain",
            &[NodePort],
            FROM_10_K,
            of_plain,
            Most(1.10),
        ),
        Bound("edge to pod, units", &[Node], FEW, units, Most(2.0)),
        Bound(
            "edge to pod, 10 k flows, units",
            &[Node],
            FROM_10_K,
            units,
            Most(3.0),
        ),
        Bound("a pod's reply, units", &[Reply], FEW, units, Most(1.8)),
        Bound(
            "a pod's reply, 10 k flows, units",
            &[Reply],
            FROM_10_K,
            units,
            Most(2.6),
        ),
        Bound("NAT to the backend, units", &[Nat], FEW, units, Most(3.2)),
        Bound(
            "NAT to the backend, 10 k flows, units",
            &[Nat],
            FROM_10_K,
            units,
            Most(4.4),
        ),
        Bound(
            "NAT to the client, units",
            &[NatReply],
            FEW,
            units,
            Most(2.4),
        ),
        Bound(
            "NAT to the client, 10 k flows, units",
            &[NatReply],
            FROM_10_K,
            units,
            Most(3.4),
        ),
        Bound(
            "other traffic at egress, units",
            &[OtherEgress],
            FROM_10_K,
            units,
            Most(0.3),
        ),
        Bound(
            "a miss at the edge, units",
            &[Miss],
            FROM_10_K,
            units,
            Most(0.6),
        ),
    ]
};

fn of_floor(row: &Row) -> Option<Estimate> {
    row.rate.as_ref().map(|rate| rate.of_floor)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "one of several figures, not all rows have the others"
)]
fn units(row: &Row) -> Option<Estimate> {
    Some(row.units)
}

fn of_plain(row: &Row) -> Option<Estimate> {
    row.of_plain
}

fn growth(row: &Row) -> Option<Estimate> {
    row.growth
}

/// Whether a figure keeps its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It does, with 95 % confidence.
    Holds,
    /// Unknown: the interval contains the bound.
    Inconclusive,
    /// It does not, with 95 % confidence.
    Fails,
}

impl Outcome {
    /// Returns the worst outcome. No outcome at all is inconclusive.
    pub fn worst(outcomes: impl IntoIterator<Item = Self>) -> Self {
        outcomes.into_iter().max().unwrap_or(Self::Inconclusive)
    }
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
    /// The bound.
    pub limit: Limit,
    /// The worst figure, with its system and stream.
    pub worst: Option<(Estimate, String)>,
    /// The outcome of all figures together.
    pub outcome: Outcome,
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine.
    pub host: Facts,
    /// The core that everything ran on.
    pub core: usize,
    /// Number of rounds that count.
    pub rounds: usize,
    /// The figures.
    pub rows: Vec<Row>,
}

impl Report {
    pub(super) const fn new(host: Facts, core: usize, rounds: usize) -> Self {
        Self {
            host,
            core,
            rounds,
            rows: Vec::new(),
        }
    }

    /// Computes the rows of one family and protocol.
    pub(super) fn add(&mut self, family: Family, protocol: Protocol, samples: &Samples) {
        let rows = System::rows();
        self.rows.extend(
            rows.map(|(system, stream)| Row::new(family, protocol, system, stream, samples)),
        );
    }

    /// Compares the figures with their bounds.
    pub fn bars(&self) -> Vec<Bar> {
        let judge = |Bound(name, systems, flows, figure, limit): &Bound| {
            let bounded = self.rows.iter().filter(|row| {
                systems.contains(&row.system)
                    && flows.contains(&row.stream.flows)
                    && row.stream.order == Order::InTurn
            });
            let figures: Vec<_> = bounded
                .filter_map(|row| Some((figure(row)?, row.traffic())))
                .collect();
            Bar {
                name,
                limit: *limit,
                outcome: Outcome::worst(figures.iter().map(|(figure, _)| limit.judge(figure))),
                worst: figures
                    .into_iter()
                    .max_by(|(a, _), (b, _)| limit.excess(a).total_cmp(&limit.excess(b))),
            }
        };
        BOUNDS.iter().map(judge).collect()
    }

    /// Returns the worst outcome of all bars.
    pub fn outcome(&self) -> Outcome {
        Outcome::worst(self.bars().iter().map(|bar| bar.outcome))
    }
}

fn median_of(sample: &[usize], figure: impl Fn(usize) -> f64) -> f64 {
    median(&sample.iter().map(|&i| figure(i)).collect::<Vec<_>>())
}

/// Returns the name of a variant in lower case.
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

/// Returns the mark after the number of flows that stands for the order.
const fn mark(order: Order) -> &'static str {
    match order {
        Order::InTurn => "",
        Order::Random => "*",
    }
}

/// Formats the report as a table.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { kernel, cpu, date } = &self.host;
        writeln!(f, "Linux {kernel}, {cpu}, CPU {}, {date}", self.core)?;
        writeln!(
            f,
            "veth, native XDP, shortest frames, one core for generator, program and sink; median of {} rounds",
            self.rounds
        )?;
        writeln!(
            f,
            "[ ] holds the true value with 95 % confidence; * flows in random order\n"
        )?;
        writeln!(
            f,
            "{:<3} {:<4} {:<15}{:>6} {:>6} {:>6}  {:<18}{:>6} {:>7}  {:<17}",
            "ip",
            "l4",
            "system",
            "flows",
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
        writeln!(f, "\n{:<42} {:<33}{:<9}verdict", "bar", "worst", "bound")?;
        for bar in self.bars() {
            let worst = bar.worst.map_or_else(
                || "-".to_owned(),
                |(figure, traffic)| format!("{} {traffic}", interval(&figure)),
            );
            writeln!(
                f,
                "{:<42} {:<33}{:<9}{}",
                bar.name, worst, bar.limit, bar.outcome
            )?;
        }
        Ok(())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    let dash = || "-".to_owned();
    let is_floor = row.system == System::Floor;
    let net = |text: String| if is_floor { dash() } else { text };
    let rate = row.rate.as_ref();
    let [pps, iqr, of_floor] = rate.map_or_else(
        || [dash(), dash(), dash()],
        |rate| {
            [
                format!("{:.2}", rate.pps / 1e6),
                format!("{:.1}", rate.spread.iqr / rate.pps * 100.0),
                net(interval(&rate.of_floor)),
            ]
        },
    );
    writeln!(
        f,
        "{:<3} {:<4} {:<15}{:>6} {:>6} {:>6}  {:<18}{:>6.1} {:>7}  {:<17}",
        lower(row.family),
        lower(row.protocol),
        row.system.name(),
        short(row.stream.flows) + mark(row.stream.order),
        pps,
        iqr,
        of_floor,
        row.ns,
        net(format!("{:.1}", row.net_ns.value)),
        net(interval(&row.units)),
    )
}

/// Formats a figure with its interval.
pub(super) fn interval(estimate: &Estimate) -> String {
    let Estimate { value, low, high } = estimate;
    format!("{value:.2} [{low:.2} {high:.2}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of [`samples`] that keep all bounds.
    const GOOD: [(System, f64); 9] = [
        (System::Guideway, 1.5),
        (System::Slots, 2.0),
        (System::NodePort, 1.6),
        (System::Node, 1.5),
        (System::Reply, 1.5),
        (System::Nat, 3.0),
        (System::NatReply, 2.0),
        (System::OtherEgress, 0.2),
        (System::Miss, 0.5),
    ];

    /// Rounds with these units and this share of the floor, disturbed by noise that a round's systems share.
    fn samples(figures: &[(System, f64)], share: f64) -> Samples {
        let mut samples = Samples::default();
        for noise in [1.0, 1.4, 0.9, 1.1, 2.0, 1.0, 1.2] {
            for (stream, system) in super::super::plan::cost_trials(0) {
                let units = figures.iter().rev().find(|(named, _)| *named == system);
                let units = match system {
                    System::Hit => 1.0,
                    _ => units.map_or(0.0, |(_, units)| *units),
                };
                let rounds = samples.ns.entry((system, stream)).or_default();
                rounds.push((45.0 + 20.0 * units) * noise);
            }
            for (stream, system) in super::super::plan::rate_trials(0) {
                let share = if system == System::Floor { 1.0 } else { share };
                let rounds = samples.pps.entry((system, stream)).or_default();
                rounds.push(4e6 * share / noise);
            }
        }
        samples
    }

    fn report(samples: &Samples) -> Report {
        let host = Facts {
            kernel: "6.18.0".to_owned(),
            cpu: "Some CPU".to_owned(),
            date: "2026-11-21".to_owned(),
        };
        let mut report = Report::new(host, 1, 7);
        report.add(Family::V4, Protocol::Udp, samples);
        report
    }

    fn failed(report: &Report) -> Vec<&'static str> {
        let bars = report.bars().into_iter();
        bars.filter(|bar| bar.outcome == Outcome::Fails)
            .map(|bar| bar.name)
            .collect()
    }

    #[test]
    fn shared_noise_does_not_reach_ratios_and_units() {
        let report = report(&samples(&GOOD, 0.82));
        let is_plain = |row: &&Row| row.system == System::Guideway;
        let plain = report.rows.iter().find(is_plain).unwrap();
        assert!((plain.rate.as_ref().unwrap().of_floor.value - 0.82).abs() < 1e-9);
        assert!((plain.units.value - 1.5).abs() < 1e-9);
        assert!((plain.units.high - plain.units.low).abs() < 1e-9);
        assert_eq!(report.outcome(), Outcome::Holds, "{report}");
    }

    #[test]
    fn each_bar_fails_by_its_own_figure() {
        for (system, figure, bars) in [
            (System::Slots, 2.5, &["131 072 slots, units"][..]),
            (System::L2Dsr, 2.0, &["plain and L2 DSR, units"]),
            (
                System::NodePort,
                1.7,
                &["NodePort to another node, of plain"],
            ),
            (System::Node, 2.1, &["edge to pod, units"]),
            (System::Reply, 1.9, &["a pod's reply, units"]),
            (System::Nat, 3.3, &["NAT to the backend, units"]),
            (System::NatReply, 2.5, &["NAT to the client, units"]),
            (
                System::OtherEgress,
                0.4,
                &["other traffic at egress, units"],
            ),
            (System::Miss, 0.7, &["a miss at the edge, units"]),
        ] {
            let figures = [&GOOD[..], &[(system, figure)]].concat();
            let report = report(&samples(&figures, 0.82));
            assert_eq!(failed(&report), bars);
            assert_eq!(report.outcome(), Outcome::Fails);
        }
        assert_eq!(
            failed(&report(&samples(&GOOD, 0.79))),
            ["plain, of the floor"]
        );
        let mut grown = samples(&GOOD, 0.82);
        let many = grown.ns.get_mut(&(System::Guideway, MANY)).unwrap();
        many.iter_mut().for_each(|ns| *ns *= 1.05);
        assert_eq!(
            failed(&report(&grown)),
            ["growth of the net cost, 10 k to 1 M flows"]
        );
    }

    #[test]
    fn interval_around_the_bound_is_inconclusive() {
        let outcome = |limit: Limit, low, value, high| limit.judge(&Estimate { value, low, high });
        let most = Limit::Most(3.0);
        assert_eq!(outcome(most, 2.8, 2.9, 3.0), Outcome::Holds);
        assert_eq!(outcome(most, 2.8, 2.9, 3.1), Outcome::Inconclusive);
        assert_eq!(outcome(most, 3.1, 3.2, 3.3), Outcome::Fails);
        let least = Limit::Least(0.72);
        assert_eq!(outcome(least, 0.72, 0.8, 0.9), Outcome::Holds);
        assert_eq!(outcome(least, 0.71, 0.8, 0.9), Outcome::Inconclusive);
        assert_eq!(outcome(least, 0.6, 0.7, 0.71), Outcome::Fails);
        assert_eq!(Outcome::worst([]), Outcome::Inconclusive);
    }

    #[test]
    fn json_rows_carry_the_documented_fields() {
        let report = report(&samples(&GOOD, 0.82));
        assert_eq!(report.rows.len(), System::rows().count());
        let is_many = |row: &&Row| row.system == System::Guideway && row.stream == MANY;
        let row = report.rows.iter().find(is_many).unwrap();
        let row = row.to_json(&report.host);
        assert_eq!(row["system"], "guideway");
        assert_eq!(row["family"], "v4");
        assert_eq!(row["protocol"], "udp");
        assert_eq!(row["flows"], 1_000_000);
        assert_eq!(row["order"], "in_turn");
        assert_eq!(row["rounds"], 7);
        let estimates = ["pps_vs_floor", "net_ns", "units", "of_plain", "growth"];
        for field in ["pps", "ns", "unit_ns"].iter().chain(&estimates) {
            assert!(row[field].is_f64(), "{field}");
        }
        for field in ["pps", "ns"] {
            for part in ["min", "iqr", "max"] {
                assert!(row["spread"][field][part].is_f64(), "{field}.{part}");
            }
        }
        for field in estimates {
            let interval = row["spread"][field].as_array().unwrap();
            assert!(
                interval.len() == 2 && interval.iter().all(Value::is_f64),
                "{field}"
            );
        }
        assert_eq!(row["host"]["kernel"], "6.18.0");
    }

    #[test]
    fn systems_have_one_name_in_tables_and_json() {
        for system in System::ALL {
            assert_eq!(json!(system), system.name());
        }
    }

    #[test]
    fn table_fits_a_hundred_columns() {
        let text = report(&samples(&GOOD, 0.82)).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
