//! The figures of a run in the form that `guideway-bench run` gives results, for reports.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;

use super::Report;
use crate::{
    result::Files,
    run,
    scenario::{Scenario, WireKind},
};

/// Makes a result of the figures. `started` is the start of the run since the epoch, `command` repeats it.
///
/// # Errors
///
/// When a number has no form in JSON.
pub fn of(report: &Report, command: String, started: Duration) -> Result<Files> {
    let services = |figures: &super::ScenarioFigures| figures.scenario.cluster.services;
    let scenario = Scenario {
        name: "control".to_owned(),
        wire: WireKind::Lab,
        systems: Vec::new(),
        services: report.scenarios.iter().map(services).max().unwrap_or(0),
        loads: Vec::new(),
        seconds: 0.0,
        rounds: 1,
        seed: 1,
        event: None,
        ports: None,
        under_test: Vec::new(),
    };
    let mut run = run::ended_run(scenario, command, started);
    let all = report.scenarios.iter().flat_map(|one| &one.figures);
    run.measurements = all.cloned().collect();
    Ok(Files::make(run, started.as_secs_f64(), BTreeMap::new())?)
}
