//! What `result.json` holds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Distribution, Measurement, digest, distribution::merge, log::Interval};
use crate::{
    load::Passed,
    probe::Tally,
    scenario::{Load, Scenario},
};

/// Version of the format. A result of another version is refused, because its fields may mean something else.
pub const SCHEMA_VERSION: u32 = 9;

/// Returns the name of the schema, which has the version in it.
fn schema_id() -> String {
    format!("urn:guideway:bench:result:{SCHEMA_VERSION}")
}

/// A run of a scenario: what was asked for, where it ran and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("$id" = schema_id()))]
pub struct Run {
    /// Version of this format.
    #[schemars(extend("const" = SCHEMA_VERSION))]
    pub schema_version: u32,
    /// The program that measured.
    pub tool: Tool,
    /// The command that repeats the run, with the scenario in a file of this name.
    pub command: String,
    /// Begin of the run, in UTC (RFC 3339).
    pub started: String,
    /// End of the last round, in UTC (RFC 3339).
    pub ended: String,
    /// Whether the run ended before its last round.
    pub interrupted: bool,
    /// The scenario, with all defaults filled in.
    pub scenario: Scenario,
    /// The text of the scenario's file.
    pub scenario_text: String,
    /// Facts about the machine before the run, by name.
    pub environment: BTreeMap<String, String>,
    /// Facts that another value was found for after the run: the later value, by name.
    pub environment_changes: BTreeMap<String, String>,
    /// What must agree for two results to be compared.
    pub comparability: Comparability,
    /// How quiet the machine was before each round and after the last.
    pub quietness: Vec<Quietness>,
    /// What was measured: one series for each load and system.
    pub series: Vec<Series>,
    /// Figures that belong to no load.
    pub measurements: Vec<Measurement>,
    /// SHA-256 of each file with histograms, in hexadecimal, by name.
    pub files: BTreeMap<String, String>,
}

/// The program that made a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Name of the program.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Facts that must agree for two results to be compared, and a key made of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Comparability {
    /// The first 16 hexadecimal digits of the facts' SHA-256.
    pub key: String,
    /// The facts, by name.
    pub facts: BTreeMap<String, String>,
}

impl Comparability {
    /// Makes the key of facts.
    pub fn of(facts: BTreeMap<String, String>) -> Self {
        let text: String = facts
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        let mut key = digest(text.as_bytes());
        key.truncate(16);
        Self { key, facts }
    }

    /// Names each fact that differs: name, own value, other value.
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let names = self.facts.keys().chain(other.facts.keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        let value = |facts: &BTreeMap<String, String>, name: &String| {
            facts.get(name).map_or("absent", String::as_str).to_owned()
        };
        names
            .into_iter()
            .map(|name| {
                (
                    name.clone(),
                    value(&self.facts, name),
                    value(&other.facts, name),
                )
            })
            .filter(|(_, own, other)| own != other)
            .collect()
    }
}

/// What a thread that reads the clock in a loop found: in each gap, something else had its core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quietness {
    /// Seconds from the start of the run.
    pub at: f64,
    /// Length of the loop in seconds.
    pub seconds: f64,
    /// Gaps of more than 10 microseconds.
    pub gaps_over_10_us: u64,
    /// Gaps of more than 100 microseconds.
    pub gaps_over_100_us: u64,
    /// Gaps of more than a millisecond.
    pub gaps_over_1_ms: u64,
    /// The longest gap, in nanoseconds.
    pub longest_ns: u64,
    /// Share of the time (0 to 1) that was lost in gaps of more than 10 microseconds.
    pub lost: f64,
    /// Share of the CPUs' time (0 to 1) that a hypervisor took since the look before; absent for the first look.
    pub stolen: Option<f64>,
    /// Share of the time (0 to 1) since the look before in which something waited for a CPU (pressure stall
    /// information); absent for the first look, and where the kernel does not tell.
    pub waited: Option<f64>,
}

/// A system under a load, in all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Name of the series; its files begin with it.
    pub name: String,
    /// The system, by its name in scenarios.
    pub system: String,
    /// What the system is, and the way of a packet.
    pub description: String,
    /// The load.
    pub load: Load,
    /// Frames a second of which the live frames beside the requests are a share; `null` if they are none. The rate was found
    /// before the first trial, and is the same in all series with a share of it.
    pub reference_rate: Option<f64>,
    /// The backends, by the numbers that answers carry.
    pub backends: Vec<String>,
    /// The trials that count, one a round. The first trial of each series was thrown away.
    pub trials: Vec<Trial>,
    /// The figures of all rounds together, from merged histograms. There are none if the series is overloaded, or a round
    /// contradicts Little's law.
    pub figures: Figures,
}

/// Share of the offered requests that must be answered. With fewer, the system has not kept up: the latency of those that
/// were answered is not that of the load.
pub const KEPT_UP: f64 = 0.99;

impl Run {
    /// Returns the series with latencies.
    pub fn timed(&self) -> impl Iterator<Item = &Series> {
        let is_timed = |series: &&Series| series.is_timed();
        self.series.iter().filter(is_timed)
    }

    /// Returns the series with latencies of the load: those that have kept up with it, and were measured right.
    pub fn kept_up(&self) -> impl Iterator<Item = &Series> {
        self.timed().filter(|series| series.has_latencies())
    }
}

impl Series {
    /// Tells whether its requests have been timed.
    pub fn is_timed(&self) -> bool {
        !self.load.generator.streams().is_empty()
    }

    /// Tells whether it has latencies: those of a load that was kept up with, and that were measured right.
    pub fn has_latencies(&self) -> bool {
        self.figures.lateness.count > 0
    }

    /// Tells whether it has a rate that was measured, and not only that of its load.
    pub fn measures_rate(&self) -> bool {
        let is_given = self.load.rate.is_some() && !self.load.search.finds_a_rate();
        !self.is_timed() && !is_given
    }

    /// Returns what became of the requests of all trials: offered, sent, received.
    pub fn totals(&self) -> [u64; 3] {
        self.trials
            .iter()
            .fold([0; 3], |[offered, sent, received], trial| {
                let tally = trial.tally;
                [
                    offered + tally.offered,
                    sent + tally.sent,
                    received + tally.received,
                ]
            })
    }

    /// Tells whether fewer requests were answered than [`KEPT_UP`] asks for.
    pub fn is_overloaded(&self) -> bool {
        let [offered, _, received] = self.totals();
        is_overloaded(offered, received)
    }

    /// Returns the live frames a second that were offered beside the requests.
    pub fn background_rate(&self) -> Option<f64> {
        self.load.background.rate(self.reference_rate)
    }

    /// Returns all that is offered in a second on average: requests, and live frames beside them. `None` if as many
    /// are sent as can be.
    pub fn mean_rate(&self) -> Option<f64> {
        Some(self.load.mean_rate()? + self.background_rate().unwrap_or(0.0))
    }

    /// Returns the requests a second that were received in each trial.
    pub fn rates(&self) -> Vec<f64> {
        self.trials.iter().map(Trial::rate).collect()
    }
}

impl Trial {
    /// Makes a trial of which the counts are known; the rest is empty.
    pub fn new(round: u32, at: f64, seconds: f64, tally: Tally) -> Self {
        Self {
            round,
            place: 0,
            at,
            seconds,
            tally,
            shares: Vec::new(),
            under_way_ns: None,
            longest_gap_ns: None,
            event: None,
            background: None,
            losses: Vec::new(),
            drops: BTreeMap::new(),
            queues: BTreeMap::new(),
            carrier_changes: BTreeMap::new(),
            figures: figures(&BTreeMap::new(), None),
            doubts: Vec::new(),
        }
    }

    /// Returns the requests a second that were received.
    pub fn rate(&self) -> f64 {
        self.tally.received as f64 / self.seconds
    }

    /// Tells whether fewer requests were answered than [`KEPT_UP`] asks for.
    pub fn is_overloaded(&self) -> bool {
        is_overloaded(self.tally.offered, self.tally.received)
    }
}

fn is_overloaded(offered: u64, received: u64) -> bool {
    (received as f64) < offered as f64 * KEPT_UP
}

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// The round, from 1; the tag of its histograms is `round-N`.
    pub round: u32,
    /// Place among the trials of the round, from 1.
    pub place: u32,
    /// Begin of the trial, in seconds from the start of the run.
    pub at: f64,
    /// How long requests were sent, in seconds; for the schedule `max` the time that the core had for it.
    pub seconds: f64,
    /// What became of the requests.
    pub tally: Tally,
    /// Answers by backend; empty if the generator does not know who answers.
    pub shares: Vec<u64>,
    /// Time for which requests were under way, summed up in nanoseconds, until the last was sent or answered: from when
    /// something was sent and something came alone, whichever request it belongs to. Absent without latencies.
    pub under_way_ns: Option<u64>,
    /// The longest time in which no answer came, in nanoseconds, from when the first request was due; absent without
    /// latencies.
    pub longest_gap_ns: Option<u64>,
    /// When the event of the scenario happened to the system, and how long that took; absent if none did.
    pub event: Option<Happened>,
    /// What became of the live frames beside the requests; absent if there were none.
    pub background: Option<Passed>,
    /// What became of the frames at the rate of the load, at 90 % of it and so on, with the search `rfc2544-loss`; empty with
    /// others. The first is the trial itself.
    pub losses: Vec<Passed>,
    /// Packets that machines threw away meanwhile, by machine and place. Others' packets count too: for those of the
    /// trial, see the tally.
    pub drops: BTreeMap<String, u64>,
    /// Frames that each queue of the system's device received meanwhile, by machine and the driver's name of the counter.
    pub queues: BTreeMap<String, u64>,
    /// Times that devices on the way got or lost their carrier meanwhile, by machine and device.
    pub carrier_changes: BTreeMap<String, u64>,
    /// The figures of this trial. There are none if it is overloaded, or contradicts Little's law.
    pub figures: Figures,
    /// Findings that make the trial's figures doubtful.
    pub doubts: Vec<String>,
}

/// An event that happened while a trial ran.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Happened {
    /// Seconds from when the first request was due.
    pub at: f64,
    /// How long it took until the event was over, in seconds: until another agent was started, or a backend taken out
    /// of the configuration.
    pub seconds: f64,
}

/// A quantity of which each probe gives one value.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Time from when a request was due to its answer. It is corrected at its source for requests that a
    /// stalled sender sent late, and must not be corrected again.
    RoundTrip,
    /// Time from when a request was sent to its answer: not corrected.
    RoundTripUncorrected,
    /// Time from when a request was due to its arrival at a backend: the way there alone. Corrected as the round trip is.
    Forward,
    /// How late requests were sent.
    Lateness,
    /// Time from the stamp of a request to that of its answer, both by one clock at the client: of the requests that have
    /// both. Not corrected.
    RoundTripStamped,
}

impl Stream {
    /// All streams.
    pub const ALL: [Self; 5] = [
        Self::RoundTrip,
        Self::RoundTripUncorrected,
        Self::Forward,
        Self::Lateness,
        Self::RoundTripStamped,
    ];

    /// Returns the name in file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundTrip => "round-trip",
            Self::RoundTripUncorrected => "round-trip-uncorrected",
            Self::Forward => "forward",
            Self::Lateness => "lateness",
            Self::RoundTripStamped => "round-trip-stamped",
        }
    }

    /// Returns the name for readers.
    pub fn words(self) -> &'static str {
        match self {
            Self::RoundTrip => "round trip",
            Self::RoundTripUncorrected => "round trip, uncorrected",
            Self::Forward => "way there",
            Self::Lateness => "lateness",
            Self::RoundTripStamped => "round trip by stamps",
        }
    }

    /// Says what a value is, and whether and how it is corrected.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::RoundTrip => {
                "from when a request was due to its answer; corrected at its source, not to be corrected again"
            }
            Self::RoundTripUncorrected => {
                "from when a request was sent to its answer; not corrected"
            }
            Self::Forward => {
                "from when a request was due to its arrival at a backend; corrected at its source, not to be corrected again"
            }
            Self::Lateness => "from when a request was due to when it was sent",
            Self::RoundTripStamped => {
                "from the stamp of a request to that of its answer; not corrected"
            }
        }
    }
}

/// The distributions of a trial or of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Time from when a request was due to its answer.
    pub round_trip: Distribution,
    /// Time from when a request was sent to its answer.
    pub round_trip_uncorrected: Distribution,
    /// Time from when a request was due to its arrival at a backend.
    pub forward: Distribution,
    /// How late requests were sent.
    pub lateness: Distribution,
    /// Time from the stamp of a request to that of its answer.
    pub round_trip_stamped: Distribution,
}

impl Figures {
    /// Returns the distribution of a stream.
    pub fn of(&self, stream: Stream) -> &Distribution {
        match stream {
            Stream::RoundTrip => &self.round_trip,
            Stream::RoundTripUncorrected => &self.round_trip_uncorrected,
            Stream::Forward => &self.forward,
            Stream::Lateness => &self.lateness,
            Stream::RoundTripStamped => &self.round_trip_stamped,
        }
    }
}

/// Computes figures from intervals: those of one round, or of all if `round` is `None`. A request without an answer has
/// no latency, which is longer than any; so has one that no backend received, on its way there.
pub fn figures(intervals: &BTreeMap<Stream, Vec<Interval>>, round: Option<u32>) -> Figures {
    let histogram = |stream| {
        let of_stream = intervals.get(&stream).map_or(&[][..], Vec::as_slice);
        let wanted = of_stream
            .iter()
            .filter(|interval| round.is_none_or(|round| interval.round == round));
        merge(wanted.map(|one| &one.histogram))
    };
    // Every request that was sent has a lateness.
    let lateness = histogram(Stream::Lateness);
    let distribution = |stream| {
        let histogram = histogram(stream);
        // What is not measured is not missing.
        let expected = if intervals.contains_key(&stream) {
            lateness.len()
        } else {
            0
        };
        Distribution::of(&histogram, expected.saturating_sub(histogram.len()))
    };
    let round_trip = distribution(Stream::RoundTrip);
    // A card stamps one datagram at a time: that it has left others out says nothing of their answers.
    let unanswered = if intervals.contains_key(&Stream::RoundTripStamped) {
        round_trip.unanswered
    } else {
        0
    };
    Figures {
        round_trip_stamped: Distribution::of(&histogram(Stream::RoundTripStamped), unanswered),
        round_trip,
        round_trip_uncorrected: distribution(Stream::RoundTripUncorrected),
        forward: distribution(Stream::Forward),
        lateness: Distribution::of(&lateness, 0),
    }
}
