//! The figures of a run in the form that `guideway-bench run` gives results, for reports.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;

use super::{Report, Row};
use crate::{
    result::{Files, Measurement},
    run,
    scenario::{Scenario, WireKind},
};

/// Makes a result of the figures. `started` is the start of the run since the epoch, `command` repeats it.
///
/// # Errors
///
/// When a number has no form in JSON.
pub fn of(report: &Report, command: String, started: Duration) -> Result<Files> {
    let seed = report.rows.first().map_or(1, |row| row.scenario.seed);
    let scenario = Scenario {
        name: "consistency".to_owned(),
        wire: WireKind::Lab,
        systems: Vec::new(),
        services: 1,
        loads: Vec::new(),
        seconds: 0.0,
        rounds: 1,
        seed,
        event: None,
        ports: None,
        under_test: Vec::new(),
    };
    let mut run = run::ended_run(scenario, command, started);
    run.measurements = report.rows.iter().flat_map(figures).collect();
    Ok(Files::make(run, started.as_secs_f64(), BTreeMap::new())?)
}

fn figures(row: &Row) -> Vec<Measurement> {
    let figure = |quantity: &str, unit: &str, value: f64, bound| {
        Measurement::of(row.policy.name(), quantity, unit, &[value], 0.5, bound)
    };
    let count = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let mut figures = vec![
        figure("broken", "connections", row.broken.into(), None),
        figure(
            "connections or pins that an edge holds",
            "entries",
            count(row.entries),
            None,
        ),
        figure(
            "past owners that an edge holds",
            "entries",
            count(row.history),
            None,
        ),
        figure("look-ups", "per segment", row.look_ups_per_segment(), None),
        figure("returns", "per segment", row.returns_per_segment(), None),
    ];
    if let Some(why) = row.why {
        let claimed = why.within_claim.into();
        figures.push(figure(
            "broken within the claim",
            "connections",
            claimed,
            Some(0.0),
        ));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{consistency, report as page};

    #[test]
    fn the_figures_become_a_result_that_is_read_reported_and_verified() {
        let scenario = consistency::Scenario {
            seed: 7,
            ..consistency::Scenario::default()
        };
        let rows = consistency::Policy::ALL.map(|policy| Row::new(&scenario, policy));
        let report = Report {
            rows: rows.to_vec(),
        };
        let files = of(&report, "again".to_owned(), Duration::from_secs(9)).unwrap();
        let files = Files::of_texts(files.json, files.logs).unwrap();
        assert_eq!(files.run.scenario.seed, 7);
        let verdict = page::Verdict::of(&files);
        assert_eq!(
            verdict.sentence,
            "44 figures were measured. Of 4 with a bar, 4 keep it, 0 do not, and 0 cannot be told."
        );
        page::verify(&page::render(std::slice::from_ref(&files))).unwrap();
    }
}
