//! The figures with their bounds, as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::Scenario;
use crate::{bars::Outcome, host::Facts, result::Measurement};

/// Requirements of kube-proxy in its nftables mode, as published by its project.
const PUBLISHED: &str = "\
kube-proxy, nftables mode, as published (other machines, other clusters):
  5 006 services, 250 011 endpoints: one full sync 2 min 13 s to 13 min 15 s (kubernetes issue 135639)
  44 125 services, 44 152 endpoints, 1.36.1: full sync 16 min 44 s (kubernetes issue 139513)
  10 000 services, 2 endpoints each: one service more ~141 ms, memory ~260 MiB (kubernetes PR 126013)
";

/// The figures of one scenario.
#[derive(Clone, Debug)]
pub struct ScenarioFigures {
    /// The scenario.
    pub scenario: Scenario,
    /// Its figures, in the order of measurement.
    pub figures: Vec<Measurement>,
}

impl ScenarioFigures {
    pub(super) const fn new(scenario: &Scenario) -> Self {
        Self {
            scenario: *scenario,
            figures: Vec::new(),
        }
    }

    /// Adds what was measured once, with its bar.
    pub(super) fn add(&mut self, quantity: &str, unit: &str, value: f64, bound: Option<f64>) {
        self.add_quantile(quantity, unit, &[value], 0.5, bound);
    }

    /// Adds a quantile of samples, with its bar.
    pub(super) fn add_quantile(
        &mut self,
        quantity: &str,
        unit: &str,
        samples: &[f64],
        quantile: f64,
        bound: Option<f64>,
    ) {
        let subject = format!("{}, {} nodes", self.title(), self.scenario.cluster.nodes);
        self.figures.push(Measurement::of(
            subject, quantity, unit, samples, quantile, bound,
        ));
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
        let outcomes = figures.filter_map(Measurement::outcome);
        outcomes.max().unwrap_or(Outcome::Holds)
    }

    /// Returns each figure as a flat JSON object.
    pub fn to_json(&self) -> Vec<Value> {
        let row = |results: &ScenarioFigures, figure: &Measurement| {
            let Scenario {
                source, cluster, ..
            } = &results.scenario;
            json!({
                "source": source,
                "services": cluster.services,
                "endpoints": cluster.endpoints,
                "nodes": cluster.nodes,
                "figure": figure.quantity,
                "unit": figure.unit,
                "value": figure.value,
                "interval": [figure.low, figure.high],
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

fn write_figure(f: &mut fmt::Formatter<'_>, figure: &Measurement) -> fmt::Result {
    let (quantity, text) = (&figure.quantity, figure.to_string());
    let line = match (figure.bound, figure.outcome()) {
        (Some(bound), Some(outcome)) => {
            format!(
                "  {quantity:<42}{text:<28}{:<12}{outcome}",
                format!("<= {bound:.0}")
            )
        }
        _ => format!("  {quantity:<42}{text}"),
    };
    writeln!(f, "{line}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{control::result, report as page, result::Files};

    fn report(samples: &[f64]) -> Report {
        let mut results = ScenarioFigures::new(&Scenario::ALL[0]);
        results.add_quantile(
            "one change to its first packet, p99",
            "ms",
            samples,
            0.99,
            Some(10.0),
        );
        results.add("memory, peak", "MiB", 12_345.0, None);
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
    fn json_rows_carry_the_documented_fields() {
        let rows = report(&[12.0]).to_json();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["source"], "recorded");
        assert_eq!(rows[0]["services"], 10_000);
        assert_eq!(rows[0]["value"], 12.0);
        assert_eq!(rows[0]["verdict"], "FAILS");
        assert!(rows[1]["bound"].is_null() && rows[1]["verdict"].is_null());
    }

    #[test]
    fn table_fits_a_hundred_columns() {
        for line in report(&[1000.0, 1234.5, 2000.0]).to_string().lines() {
            assert!(line.chars().count() <= 104, "{line}");
        }
    }

    #[test]
    fn the_figures_become_a_result_that_is_read_reported_and_verified() {
        let report = report(&[9.0, 9.5, 9.75]);
        let started = Duration::from_secs(9);
        let files = result::of(&report, "again".to_owned(), started).unwrap();
        let files = Files::of_texts(files.json, files.logs).unwrap();
        assert_eq!(files.run.measurements, report.scenarios[0].figures);
        let verdict = page::Verdict::of(&files);
        assert_eq!(
            verdict.sentence,
            "2 figures were measured. Of 1 with a bar, 1 keep it, 0 do not, and 0 cannot be told."
        );
        assert_eq!(verdict.reasons, Vec::<String>::new());
        let row = "10000 services x 2 endpoints, recorded, 500 nodes: one change to its first packet, p99: 9.74 ms";
        let text = page::text(&files);
        assert!(text.contains(row), "{text}");
        let html = page::render(std::slice::from_ref(&files));
        page::verify(&html).unwrap();
        assert!(html.contains("<h2>Figures and bars</h2>") && !html.contains("<h2>Packets</h2>"));
        let edited = files
            .json
            .replacen("\"value\": 12345.0", "\"value\": 12344.0", 1);
        assert_ne!(edited, files.json);
        let refused = Files::of_texts(edited, files.logs).unwrap_err().to_string();
        assert!(
            refused.contains("memory, peak of 10000 services"),
            "{refused}"
        );
    }
}
