//! The figures with their bounds, as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::Scenario;
use crate::{datapath::Outcome, host::Facts, stats::Estimate};

/// Requirements of kube-proxy in its nftables mode, as published by its project.
const PUBLISHED: &str = "\
kube-proxy, nftables mode, as published (other machines, other clusters):
  5 006 services, 250 011 endpoints: one full sync 2 min 13 s to 13 min 15 s (kubernetes issue 135639)
  44 125 services, 44 152 endpoints, 1.36.1: full sync 16 min 44 s (kubernetes issue 139513)
  10 000 services, 2 endpoints each: one service more ~141 ms, memory ~260 MiB (kubernetes PR 126013)
";

/// A figure of a scenario.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub name: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// The value with its interval; for a single measurement the interval is the value itself.
    pub estimate: Estimate,
    /// The largest allowed value.
    pub bound: Option<f64>,
}

impl Figure {
    /// Compares the figure with its bound; `None` if it has none.
    pub fn outcome(&self) -> Option<Outcome> {
        let Estimate { low, high, .. } = self.estimate;
        self.bound.map(|bound| {
            if high <= bound {
                Outcome::Holds
            } else if low > bound {
                Outcome::Fails
            } else {
                Outcome::Inconclusive
            }
        })
    }
}

/// Returns the estimate of a single measurement.
pub(super) const fn once(value: f64) -> Estimate {
    Estimate {
        value,
        low: value,
        high: value,
    }
}

/// The figures of one scenario.
#[derive(Clone, Debug)]
pub struct ScenarioFigures {
    /// The scenario.
    pub scenario: Scenario,
    /// Its figures, in the order of measurement.
    pub figures: Vec<Figure>,
}

impl ScenarioFigures {
    pub(super) const fn new(scenario: &Scenario) -> Self {
        Self {
            scenario: *scenario,
            figures: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        name: &'static str,
        unit: &'static str,
        estimate: Estimate,
        bound: Option<f64>,
    ) {
        self.figures.push(Figure {
            name,
            unit,
            estimate,
            bound,
        });
    }

    /// Returns the title of the scenario.
    pub(super) fn title(&self) -> String {
        let Scenario {
            source, cluster, ..
        } = &self.scenario;
        format!(
            "{} services x {} endpoints, {}",
            cluster.services,
            cluster.endpoints,
            source.name()
        )
    }
}

/// All results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine.
    pub host: Facts,
    /// The scenarios.
    pub scenarios: Vec<ScenarioFigures>,
}

impl Report {
    pub(super) const fn new(host: Facts) -> Self {
        Self {
            host,
            scenarios: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, results: ScenarioFigures) {
        self.scenarios.push(results);
    }

    /// Returns the worst outcome.
    pub fn outcome(&self) -> Outcome {
        let figures = self.scenarios.iter().flat_map(|results| &results.figures);
        let outcomes = figures.filter_map(Figure::outcome);
        outcomes.max().unwrap_or(Outcome::Holds)
    }

    /// Returns each figure as a flat JSON object.
    pub fn to_json(&self) -> Vec<Value> {
        let row = |results: &ScenarioFigures, figure: &Figure| {
            let Scenario {
                source, cluster, ..
            } = &results.scenario;
            json!({
                "source": source,
                "services": cluster.services,
                "endpoints": cluster.endpoints,
                "nodes": cluster.nodes,
                "figure": figure.name,
                "unit": figure.unit,
                "value": figure.estimate.value,
                "interval": [figure.estimate.low, figure.estimate.high],
                "bound": figure.bound,
                "verdict": figure.outcome().map(|outcome| outcome.to_string()),
                "host": self.host,
            })
        };
        let scenarios = self.scenarios.iter();
        scenarios
            .flat_map(|results| {
                results
                    .figures
                    .iter()
                    .map(move |figure| row(results, figure))
            })
            .collect()
    }
}

/// Formats the results as a table.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { kernel, cpu, date } = &self.host;
        writeln!(f, "Linux {kernel}, {cpu}, {date}")?;
        writeln!(f, "[ ] holds the true value with 95 % confidence")?;
        for results in &self.scenarios {
            writeln!(
                f,
                "\n{}, {} nodes",
                results.title(),
                results.scenario.cluster.nodes
            )?;
            for figure in &results.figures {
                write_figure(f, figure)?;
            }
        }
        write!(f, "\n{PUBLISHED}")
    }
}

fn write_figure(f: &mut fmt::Formatter<'_>, figure: &Figure) -> fmt::Result {
    let Estimate { value, low, high } = figure.estimate;
    let interval = if low < high {
        format!(" [{low:.2} {high:.2}]")
    } else {
        String::new()
    };
    let text = format!("{value:.2} {}{interval}", figure.unit);
    let line = match (figure.bound, figure.outcome()) {
        (Some(bound), Some(outcome)) => {
            format!(
                "  {:<42}{text:<28}{:<12}{outcome}",
                figure.name,
                format!("<= {bound:.0}")
            )
        }
        _ => format!("  {:<42}{text}", figure.name),
    };
    writeln!(f, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(value: Estimate) -> Report {
        let mut results = ScenarioFigures::new(&Scenario::ALL[0]);
        results.add(
            "one change to its first packet, p99",
            "ms",
            value,
            Some(10.0),
        );
        results.add("memory, peak", "MiB", once(12_345.0), None);
        Report {
            host: Facts {
                kernel: "6.18.0".to_owned(),
                cpu: "Some CPU".to_owned(),
                date: "2026-11-21".to_owned(),
            },
            scenarios: vec![results],
        }
    }

    #[test]
    fn figures_are_judged_by_their_intervals() {
        let outcome = |low, high| {
            let value = Estimate {
                value: 9.5,
                low,
                high,
            };
            report(value).outcome()
        };
        assert_eq!(outcome(9.0, 10.0), Outcome::Holds);
        assert_eq!(outcome(9.0, 10.1), Outcome::Inconclusive);
        assert_eq!(outcome(10.1, 11.0), Outcome::Fails);
    }

    #[test]
    fn json_rows_carry_the_documented_fields() {
        let rows = report(once(12.0)).to_json();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["source"], "recorded");
        assert_eq!(rows[0]["services"], 10_000);
        assert_eq!(rows[0]["value"], 12.0);
        assert_eq!(rows[0]["verdict"], "FAILS");
        assert!(rows[1]["bound"].is_null() && rows[1]["verdict"].is_null());
    }

    #[test]
    fn table_fits_a_hundred_columns() {
        let value = Estimate {
            value: 1234.5,
            low: 1000.0,
            high: 2000.0,
        };
        for line in report(value).to_string().lines() {
            assert!(line.chars().count() <= 104, "{line}");
        }
    }
}
