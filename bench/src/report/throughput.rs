//! Rates of live frames against their size, and against the number of Services. The latter takes results of several runs: a
//! scenario has one number.

use std::collections::BTreeMap;

use super::{
    chart::{Axis, Curve, chart},
    curves::{Figure, Group, groups},
};
use crate::{
    result::{Files, Run},
    scenario::{Load, Segment},
    stats::median,
};

/// Returns the figures of all results that are of the same machine as the first one.
pub(super) fn figures(results: &[Files]) -> Vec<Figure> {
    let Some(first) = results.first() else {
        return Vec::new();
    };
    let runs = results.iter().map(|files| &files.run);
    let runs: Vec<&Run> = runs
        .filter(|run| machine(run) == machine(&first.run))
        .collect();
    let sizes = |_: &Run, load: &Load| match load.frame_bytes.as_slice() {
        [size] => Some(size.bytes),
        _ => None,
    };
    let without_sizes = |load: &Load| Load {
        frame_bytes: Vec::new(),
        ..load.clone()
    };
    let services = |run: &Run, _: &Load| Some(run.scenario.services);
    let by_size = figure(
        "rate-size",
        "size of frames, bytes",
        &runs,
        sizes,
        without_sizes,
    );
    let by_services = figure("rate-services", "Services", &runs, services, Load::clone);
    by_size.into_iter().chain(by_services).collect()
}

/// Returns the facts of a machine that decide whether results can be compared, without those of the scenario.
fn machine(run: &Run) -> BTreeMap<&str, &str> {
    let facts = run.comparability.facts.iter();
    let of_machine = facts.filter(|(name, _)| !name.starts_with("scenario."));
    of_machine
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

/// Draws medians of rates against a quantity; `None` where it has one value alone. Series of one system are a curve if `kind`
/// makes their loads equal.
fn figure(
    name: &str,
    label: &str,
    runs: &[&Run],
    quantity: impl Fn(&Run, &Load) -> Option<u32>,
    kind: impl Fn(&Load) -> Load,
) -> Option<Figure> {
    let series = runs
        .iter()
        .flat_map(|run| run.series.iter().map(move |series| (*run, series)));
    let measured = series.filter(|(_, series)| series.measures_rate());
    let mut groups = groups(measured.filter_map(|(run, series)| {
        let value = quantity(run, &series.load)?;
        let point = (f64::from(value), median(&series.rates()) / 1e6);
        Some((series, kind(&series.load), Some(point)))
    }));
    groups.retain(|Group { points, .. }| points.iter().any(|point| point.0 != points[0].0));
    let points = groups.iter().flat_map(|group| &group.points);
    let mut values: Vec<f64> = points.clone().map(|point| point.0).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let [low, .., high] = values[..] else {
        return None;
    };
    let y = Axis::of_rates(points.map(|point| point.1).fold(0.0, f64::max));
    let x = Axis {
        low: low.log10(),
        high: high.log10(),
        ticks: values
            .iter()
            .map(|value| (value.log10(), value.to_string()))
            .collect(),
        label: label.to_owned(),
    };
    let curve = |(style, group): (usize, &Group<'_>)| {
        let points = group.points.iter();
        Curve {
            label: label_of(group.system, &group.load),
            style,
            runs: vec![points.map(|&(value, rate)| (value.log10(), rate)).collect()],
        }
    };
    let curves: Vec<Curve> = groups.iter().enumerate().map(curve).collect();
    let caption = format!("Million frames a second against the {label}: medians of the rounds.");
    Some(Figure {
        name: name.to_owned(),
        drawing: chart(&caption, &x, &y, &curves, &[]),
        caption,
    })
}

/// Says of a load what its series may differ in, besides the quantity.
fn label_of(system: &str, load: &Load) -> String {
    let mut label = format!(
        "{system}, {}, {} {}",
        load.generator, load.family, load.protocol
    );
    if load.segment != Segment::Data {
        label += &format!(" {}", load.segment);
    }
    if load.new_flow_share > 0.0 {
        label += &format!(", {} % of new flows", load.new_flow_share * 100.0);
    }
    if !load.frame_bytes.is_empty() {
        label += &format!(", {} bytes", load.frame_sizes());
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{drawings, render},
        result::tests::rates,
        scenario::FrameSize,
    };

    /// A result with other numbers of Services, or with other sizes of frames.
    fn changed(change: impl Fn(&mut Run)) -> Files {
        let mut files = rates();
        change(&mut files.run);
        files
    }

    fn names(results: &[Files]) -> Vec<String> {
        figures(results).into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn rates_are_drawn_against_what_differs() {
        assert_eq!(names(&[]), [""; 0]);
        assert_eq!(names(&[rates()]), [""; 0]);
        let many = changed(|run| run.scenario.services = 10_000);
        let results = [rates(), many];
        assert_eq!(names(&results), ["rate-services"]);
        let page = render(&results);
        assert!(
            page.contains("Million frames a second against the Services"),
            "{page}"
        );
        assert!(
            drawings(&results)
                .iter()
                .any(|(name, _)| name == "rate-services.svg")
        );
        // Each system has a curve from 1 to 10 000.
        let drawing = figures(&results).remove(0).drawing.into_string();
        assert_eq!(drawing.matches("<polyline").count(), 3, "{drawing}");
        assert!(drawing.contains(">10000<"), "{drawing}");

        let sizes = changed(|run| {
            let mut long = run.series.clone();
            for series in &mut long {
                series.load.frame_bytes = vec![FrameSize {
                    bytes: 1_518,
                    weight: 1,
                }];
            }
            run.series.extend(long);
        });
        assert_eq!(names(&[sizes]), ["rate-size"]);
    }

    #[test]
    fn results_of_other_machines_are_in_no_curve() {
        let mut other = changed(|run| run.scenario.services = 10_000);
        let facts = &mut other.run.comparability.facts;
        facts.insert("cpu.model".to_owned(), "another one".to_owned());
        assert_eq!(names(&[rates(), other]), [""; 0]);
    }
}
