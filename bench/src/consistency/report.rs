//! The figures of all policies, as a table and as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Policy, Scenario, broken::Reasons, clients::Flow, policy::Fate};
use crate::bars::Outcome;

/// Defects that are described; the others are counted.
const MOST_DESCRIBED: usize = 20;

/// What became of a scenario's connections with a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The policy.
    pub policy: Policy,
    /// What was simulated.
    pub scenario: Scenario,
    /// Changes of the set of backends.
    pub changes: u32,
    /// Connections that began.
    pub flows: u32,
    /// Segments that clients sent, without those that were returned on their way.
    pub segments: u64,
    /// Segments that were lost and sent again.
    pub resent: u64,
    /// Connections that went on to their end.
    pub ended: u32,
    /// Connections that ended with their backend.
    pub ended_with_backend: u32,
    /// Connections that broke while their backend lived.
    pub broken: u32,
    /// Why they broke; absent without lists.
    pub why: Option<Reasons>,
    /// Look-ups in tables of connections or pins at edges, and changes of them.
    pub look_ups: u64,
    /// Segments that nodes returned.
    pub returns: u64,
    /// Most connections or pins that an edge has held.
    pub entries: usize,
    /// Most entries of past owners that an edge has held, equal lists counted once.
    pub history: usize,
    /// What broke within the claim.
    #[serde(skip)]
    pub defects: Vec<String>,
}

impl Row {
    /// Returns how many connections broke for each reason, as text; empty where no reason is told.
    pub(super) fn reasons(&self) -> [String; 5] {
        self.why.map_or([const { String::new() }; 5], |why| {
            [
                why.overflow,
                why.old,
                why.half_open,
                why.no_past,
                why.within_claim,
            ]
            .map(|count| count.to_string())
        })
    }

    pub(super) fn new(scenario: &Scenario, policy: Policy) -> Self {
        Self {
            policy,
            scenario: *scenario,
            changes: 0,
            flows: 0,
            segments: 0,
            resent: 0,
            ended: 0,
            ended_with_backend: 0,
            broken: 0,
            why: policy.claimed_list().map(|_| Reasons::default()),
            look_ups: 0,
            returns: 0,
            entries: 0,
            history: 0,
            defects: Vec::new(),
        }
    }

    /// Describes a connection that should not have broken.
    pub(super) fn note_defect(&mut self, second: u32, edge: usize, flow: &Flow, fate: Fate) {
        if self.defects.len() < MOST_DESCRIBED {
            self.defects.push(format!(
                "{}, seed {}: connection {} of hash {:#010x} at backend {}, at edge {edge} in second {second}: {:?} was {fate:?}",
                self.policy, self.scenario.seed, flow.number, flow.hash, flow.pod.id, flow.kind,
            ));
        }
    }

    /// Returns the look-ups for each segment.
    pub fn look_ups_per_segment(&self) -> f64 {
        per(self.look_ups, self.segments)
    }

    /// Returns the returns for each segment.
    pub fn returns_per_segment(&self) -> f64 {
        per(self.returns, self.segments)
    }

    /// Judges the bar: nothing breaks that Guideway says it keeps. A policy without lists says nothing.
    pub fn outcome(&self) -> Option<Outcome> {
        let why = self.why?;
        Some(match why.within_claim {
            0 => Outcome::Holds,
            _ => Outcome::Fails,
        })
    }
}

fn per(count: u64, of: u64) -> f64 {
    count as f64 / of.max(1) as f64
}

/// All results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// A row of each policy.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns the worst outcome.
    pub fn outcome(&self) -> Outcome {
        Outcome::worst(self.rows.iter().filter_map(Row::outcome))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Row { scenario, .. }) = self.rows.first() {
            writeln!(
                f,
                "{} edges, {} backends, {} connections in {} minutes, seed {}",
                scenario.edges, scenario.backends, scenario.flows, scenario.minutes, scenario.seed
            )?;
        }
        writeln!(
            f,
            "{:<17}{:>7}  {:>8}{:>4}{:>10}{:>8}{:>8}  {:>8}{:>8}{:>9}{:>8}  verdict",
            "",
            "broken",
            "overflow",
            "old",
            "half-open",
            "no past",
            "claimed",
            "entries",
            "history",
            "look-ups",
            "returns"
        )?;
        for row in &self.rows {
            write_row(f, row)?;
        }
        let defects = self.rows.iter().flat_map(|row| &row.defects);
        for defect in defects {
            writeln!(f, "DEFECT: {defect}")?;
        }
        let outcomes = self.rows.iter().filter_map(Row::outcome);
        let (passed, failed): (Vec<Outcome>, Vec<Outcome>) =
            outcomes.partition(|outcome| *outcome == Outcome::Holds);
        writeln!(f, "\n{} passed, {} failed", passed.len(), failed.len())
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
    let [overflow, old, half_open, no_past, claimed] = row.reasons();
    let verdict = row
        .outcome()
        .map_or(String::new(), |outcome| outcome.to_string());
    let line = format!(
        "{:<17}{:>7}  {overflow:>8}{old:>4}{half_open:>10}{no_past:>8}{claimed:>8}  {:>8}{:>8}{:>9.3}{:>8.4}  {verdict}",
        row.policy.name(),
        row.broken,
        row.entries,
        row.history,
        row.look_ups_per_segment(),
        row.returns_per_segment(),
    );
    writeln!(f, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(within_claim: u32) -> Report {
        let scenario = Scenario::default();
        let mut rows = Policy::ALL
            .map(|policy| Row::new(&scenario, policy))
            .to_vec();
        rows[3].segments = 1000;
        rows[3].returns = 5;
        rows[3].why = Some(Reasons {
            overflow: 123_456,
            within_claim,
            ..Reasons::default()
        });
        Report { rows }
    }

    #[test]
    fn last_line_counts_the_bars() {
        let last = |report: &Report| report.to_string().lines().last().unwrap().to_owned();
        let good = report(0);
        assert_eq!(last(&good), "4 passed, 0 failed");
        assert_eq!(good.outcome(), Outcome::Holds);
        let bad = report(1);
        assert_eq!(last(&bad), "3 passed, 1 failed");
        assert_eq!(bad.outcome(), Outcome::Fails);
    }

    #[test]
    fn table_fits_110_columns() {
        let text = report(1).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
        assert!(text.contains("123456") && text.contains("0.0050"), "{text}");
    }

    #[test]
    fn row_of_json_is_read_again() {
        let row = report(0).rows.remove(3);
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
        assert!(text.contains(r#""policy":"lists1""#), "{text}");
    }
}
