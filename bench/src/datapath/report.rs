//! The rows of the report, as a table and as JSON.

mod bounds;

use std::fmt;

use serde_json::{Map, Value, json};

pub use self::bounds::Bar;
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
    /// Units beyond the path without what this one does beside it; `None` if there is no such path.
    pub units_more: Option<Estimate>,
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
        let units_of = |figure: &dyn Fn(usize) -> f64| {
            bootstrap(rounds, |sample| {
                median_of(sample, figure) / median_of(sample, unit)
            })
        };
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
            units: units_of(&net),
            unit_ns: median_of(&(0..rounds).collect::<Vec<_>>(), unit),
            of_plain: plain
                .map(|plain| estimate(&|round| net(round) / (plain[round] - floor[round]))),
            growth: grows
                .then(|| estimate(&|round| net(round) / (few[round] - floor_of_few[round]))),
            units_more: system.without().map(cost).map(|without| {
                let more = |round: usize| ns[round] - without[round];
                units_of(&more)
            }),
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
            ("units_more", self.units_more),
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
    /// What they are made of, for each family and protocol.
    pub(super) samples: Vec<(Family, Protocol, Samples)>,
}

impl Report {
    pub(super) const fn new(host: Facts, core: usize, rounds: usize) -> Self {
        Self {
            host,
            core,
            rounds,
            rows: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Computes the rows of one family and protocol.
    pub(super) fn add(&mut self, family: Family, protocol: Protocol, samples: Samples) {
        let rows = System::rows(protocol);
        self.rows.extend(
            rows.map(|(system, stream)| Row::new(family, protocol, system, stream, &samples)),
        );
        self.samples.push((family, protocol, samples));
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
        write_bars(f, &self.bars())
    }
}

/// Writes bars as a table.
pub(super) fn write_bars(f: &mut fmt::Formatter<'_>, bars: &[Bar]) -> fmt::Result {
    writeln!(f, "\n{:<42} {:<33}{:<9}verdict", "bar", "worst", "bound")?;
    for bar in bars {
        let worst = bar.worst.as_ref().map_or_else(
            || "-".to_owned(),
            |(figure, traffic)| format!("{} {traffic}", interval(figure)),
        );
        writeln!(
            f,
            "{:<42} {:<33}{:<9}{}",
            bar.name, worst, bar.limit, bar.outcome
        )?;
    }
    Ok(())
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
mod tests;
