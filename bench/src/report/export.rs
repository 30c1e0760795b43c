//! The report in formats for other programs: JSON, CSV, OpenMetrics, SVG, and a table for a page in Markdown.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{
    CHARTS, Verdict,
    curves::{self, Figure},
    duration, measurements, rates, shares, throughput, verdict,
};
use crate::{
    compare::Comparison,
    result::{Distribution, Files, ResultError, Run, Series, Stream, Trial},
};

/// Columns of a percentile in CSV and OpenMetrics.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Returns for each result its verdict, its comparisons, and `result.json` as it is.
///
/// # Errors
///
/// When a number has no form in JSON.
pub fn json(results: &[Files]) -> Result<String, ResultError> {
    let one = |files: &Files| -> serde_json::Result<Value> {
        let Verdict { sentence, reasons } = Verdict::of(files);
        let run = &files.run;
        let of_direct = run
            .series
            .iter()
            .filter_map(|series| verdict::against_direct(run, series));
        let of_proxies = run
            .series
            .iter()
            .flat_map(|series| verdict::against_proxies(run, series));
        let comparisons: Vec<Comparison> = of_direct.chain(of_proxies).collect();
        let result: Value = serde_json::from_str(&files.json)?;
        Ok(json!({
            "verdict": sentence, "reasons": reasons, "comparisons": comparisons, "result": result,
        }))
    };
    let all: serde_json::Result<Vec<Value>> = results.iter().map(one).collect();
    let text = all.and_then(|all| serde_json::to_string_pretty(&all));
    let text = text.map_err(|error| ResultError::Form {
        reason: error.to_string(),
    })?;
    Ok(text + "\n")
}

/// Returns one line for each stream of a series, over all rounds and for each: figures in nanoseconds, and counts.
pub fn csv(results: &[Files]) -> String {
    let counts = shares::COLUMNS.map(|(name, ..)| name.replace(' ', "_"));
    let percentiles = PERCENTILES.map(|one| format!("p{one}_ns"));
    let head = [
        "scenario",
        "started",
        "series",
        "system",
        "services",
        "rate",
        "background_rate",
        "flows",
        "frame_bytes",
        "stream",
        "round",
    ];
    let figures = ["count", "missing", "min_ns", "mean_ns", "max_ns"];
    let head = head.iter().chain(&figures).map(|name| (*name).to_owned());
    let mut text = head
        .chain(percentiles)
        .chain(counts)
        .collect::<Vec<_>>()
        .join(",")
        + "\n";
    for files in results {
        for series in &files.run.series {
            for stream in Stream::ALL {
                csv_row(&mut text, files, (series, stream), None);
                for trial in &series.trials {
                    csv_row(&mut text, files, (series, stream), Some(trial));
                }
            }
        }
    }
    text
}

fn csv_row(
    text: &mut String,
    files: &Files,
    (series, stream): (&Series, Stream),
    trial: Option<&Trial>,
) {
    let (run, load) = (&files.run, &series.load);
    let round = trial.map_or("all".to_owned(), |trial| trial.round.to_string());
    let of = trial
        .map_or(&series.figures, |trial| &trial.figures)
        .of(stream);
    let [rate, beside] = [load.rate, series.background_rate()]
        .map(|rate| rate.map(|rate| rate.to_string()).unwrap_or_default());
    // Names of scenarios may hold anything.
    let _ = write!(
        text,
        "\"{}\",{},{},{},{},{rate},{beside},{},{},{},{round},{},{},{},{},{}",
        run.scenario.name.replace('"', "\"\""),
        run.started,
        series.name,
        series.system,
        run.scenario.services,
        load.flows,
        load.frame_sizes(),
        stream.name(),
        of.count,
        of.unanswered,
        of.min,
        of.mean,
        of.max,
    );
    for percentile in PERCENTILES {
        let value = of.value(percentile).map(|ns| ns.to_string());
        let _ = write!(text, ",{}", value.unwrap_or_default());
    }
    for (_, count, _) in shares::COLUMNS {
        let trials = trial.map_or(&series.trials[..], std::slice::from_ref);
        let all: u64 = trials.iter().map(|trial| count(&trial.tally)).sum();
        let _ = write!(text, ",{all}");
    }
    text.push('\n');
}

/// Returns the figures of all rounds in the text format of OpenMetrics, which Prometheus reads too.
pub fn open_metrics(results: &[Files]) -> String {
    let mut text = "# HELP guideway_bench_latency_seconds Latency of requests over all rounds; without an answer they are not in it.\n\
                    # TYPE guideway_bench_latency_seconds summary\n"
        .to_owned();
    let all = || {
        results
            .iter()
            .flat_map(|files| files.run.series.iter().map(move |series| (files, series)))
    };
    let kept_up = results
        .iter()
        .flat_map(|files| files.run.kept_up().map(move |series| (files, series)));
    for (files, series) in kept_up {
        for stream in Stream::ALL {
            let labels = format!("{},stream=\"{}\"", labels(files, series), stream.name());
            summary(&mut text, &labels, series.figures.of(stream));
        }
    }
    text.push_str(
        "# HELP guideway_bench_probes What became of the probes of all rounds.\n\
         # TYPE guideway_bench_probes gauge\n",
    );
    for (files, series) in all() {
        for (outcome, count, _) in shares::COLUMNS {
            let labels = labels(files, series);
            let probes = shares::sum(series, count);
            let _ = writeln!(
                text,
                "guideway_bench_probes{{{labels},outcome=\"{outcome}\"}} {probes}"
            );
        }
    }
    text.push_str(
        "# HELP guideway_bench_measurement A figure that belongs to no load, in its unit.\n\
         # TYPE guideway_bench_measurement gauge\n",
    );
    for files in results {
        for one in &files.run.measurements {
            let labels = [
                ("scenario", &files.run.scenario.name),
                ("started", &files.run.started),
                ("subject", &one.subject),
                ("quantity", &one.quantity),
                ("unit", &one.unit),
            ];
            let labels = labels.map(|(name, value)| format!("{name}={}", json!(value)));
            let _ = writeln!(
                text,
                "guideway_bench_measurement{{{}}} {}",
                labels.join(","),
                one.value
            );
        }
    }
    text + "# EOF\n"
}

/// Escaped as strings of JSON are, of which OpenMetrics knows what matters: quotes, backslashes and ends of lines.
fn labels(files: &Files, series: &Series) -> String {
    format!(
        "scenario={},started={},series={},system={}",
        json!(files.run.scenario.name),
        json!(files.run.started),
        json!(series.name),
        json!(series.system)
    )
}

fn summary(text: &mut String, labels: &str, figures: &Distribution) {
    let name = "guideway_bench_latency_seconds";
    for percentile in PERCENTILES {
        if let Some(ns) = figures.value(percentile) {
            // 99.9 / 100 is no neat number.
            let (share, seconds) = ((percentile * 100.0).round() / 1e4, ns as f64 / 1e9);
            let _ = writeln!(text, "{name}{{{labels},quantile=\"{share}\"}} {seconds}");
        }
    }
    let sum = figures.mean * figures.count as f64 / 1e9;
    let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}");
    let _ = writeln!(text, "{name}_count{{{labels}}} {}", figures.count);
}

/// Returns all charts as files of SVG, with their names.
pub fn drawings(results: &[Files]) -> Vec<(String, String)> {
    let of_result = |(number, files): (usize, &Files)| {
        let figures = curves::figures(files).into_iter();
        let prefix = if results.len() > 1 {
            format!("{number}-")
        } else {
            String::new()
        };
        figures
            .map(|figure| as_file(figure, &prefix))
            .collect::<Vec<_>>()
    };
    let of_results = (1..).zip(results).flat_map(of_result);
    let of_all = throughput::figures(results).into_iter();
    of_results
        .chain(of_all.map(|figure| as_file(figure, "")))
        .collect()
}

/// Returns the name and the text of a chart's file.
fn as_file(figure: Figure, prefix: &str) -> (String, String) {
    let open = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" ";
    let drawing = figure.drawing.into_string().replacen("<svg ", open, 1);
    let style = format!("><style>{CHARTS}</style>");
    (
        format!("{prefix}{}.svg", figure.name),
        drawing.replacen('>', &style, 1) + "\n",
    )
}

/// Returns a table of the figures for a page in Markdown, with where they come from.
pub fn markdown(files: &Files) -> String {
    let run = &files.run;
    let fact = |name: &str| run.environment.get(name).map_or("unknown", String::as_str);
    let mut text = format!(
        "`{}`, {}, {}, Linux {}; {} Services for each load balancer, {} rounds of {} s:\n\n",
        run.command,
        &run.started[..run.started.len().min(10)],
        fact("cpu.model"),
        fact("kernel.release"),
        run.scenario.services,
        run.scenario.rounds,
        run.scenario.seconds
    );
    for (load, number) in run.scenario.loads.iter().zip(1..) {
        let _ = writeln!(text, "{number}. {load}");
    }
    text.push('\n');
    if run.timed().next().is_some() {
        text += &latencies(run);
    }
    text + &rates::as_markdown(run) + &measurements::as_markdown(run)
}

fn latencies(run: &Run) -> String {
    let mut text = "| system | load | round trip p50 | p99 | p50 against the direct wire | way there p50 | no answer |\n\
             |---|---|---|---|---|---|---|\n"
        .to_owned();
    for series in run.timed() {
        let value = |stream, percentile| {
            let noisy = verdict::noise_limited_from(run).is_some_and(|from| percentile >= from);
            let value = series.figures.of(stream).value(percentile);
            let mark = if noisy { "\\*" } else { "" };
            value.map_or("-".to_owned(), |ns| duration(ns as f64) + mark)
        };
        let ratio = verdict::against_direct(run, series)
            .and_then(|comparison| comparison.rows.into_iter().next())
            .map(|row| {
                format!(
                    "{:.2} [{:.2} {:.2}], {}",
                    row.ratio, row.low, row.high, row.judgement
                )
            });
        let beside = series.background_rate();
        let beside = beside
            .map(|rate| format!(" beside {rate}/s"))
            .unwrap_or_default();
        let no_answer = if series.is_overloaded() {
            "overloaded".to_owned()
        } else {
            series.figures.round_trip.unanswered.to_string()
        };
        let _ = writeln!(
            text,
            "| {} | {}/s{beside} | {} | {} | {} | {} | {} |",
            series.system,
            series.load.mean_rate().unwrap_or_default(),
            value(Stream::RoundTrip, 50.0),
            value(Stream::RoundTrip, 99.0),
            ratio.unwrap_or_default(),
            value(Stream::Forward, 50.0),
            no_answer
        );
    }
    if let Some(from) = verdict::noise_limited_from(run).filter(|_| text.contains("\\*")) {
        let _ = writeln!(
            text,
            "\n\\* From p{from} on, work beside it shows as much as the system."
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        result::tests::{rates, sample_of_loads},
        scenario::{Named, System},
    };

    #[test]
    fn csv_has_the_figures_of_each_stream_over_all_rounds_and_for_each() {
        let mut files = sample_of_loads(1);
        files.run.scenario.name = "of \"quotes\"".to_owned();
        let text = csv(&[files.clone()]);
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let head = lines.next().unwrap();
        let rows: Vec<Vec<&str>> = lines.collect();
        let series = 2 * System::NAMES.len();
        assert_eq!(rows.len(), series * Stream::ALL.len() * 7);
        assert!(
            rows.iter()
                .all(|row| row.len() == head.len() && row[0] == "\"of \"\"quotes\"\"\"")
        );
        let of = |name: &str| head.iter().position(|one| *one == name).unwrap();
        let series = &files.run.series[3];
        let own = |row: &&Vec<&str>| {
            row[of("series")] == series.name && row[of("stream")] == "round-trip"
        };
        let own: Vec<&Vec<&str>> = rows.iter().filter(own).collect();
        assert_eq!(own[0][of("round")], "all");
        assert_eq!(
            own[0][of("p99_ns")],
            series.figures.round_trip.value(99.0).unwrap().to_string()
        );
        assert_eq!((own[0][of("lost")], own[6][of("lost")]), ("24", "4"));
        let second = &series.trials[1].figures.round_trip;
        assert_eq!(
            (own[2][of("round")], own[2][of("max_ns")]),
            ("2", second.max.to_string().as_str())
        );
    }

    #[test]
    fn metrics_have_each_series_once_and_an_end() {
        let files = sample_of_loads(1);
        let text = open_metrics(std::slice::from_ref(&files));
        let own = "series=\"ours-nat-2\",system=\"ours-nat\",stream=\"forward\"";
        let own: Vec<&str> = text.lines().filter(|line| line.contains(own)).collect();
        let count = own.iter().find(|line| line.contains("_count{")).unwrap();
        assert!(count.ends_with(" 5976"), "{count}");
        let median = own
            .iter()
            .find(|line| line.contains("quantile=\"0.5\""))
            .unwrap();
        let seconds: f64 = median.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((1e-5..1e-3).contains(&seconds), "{median}");
        assert!(text.ends_with("\n# EOF\n"));
        let mut names: Vec<&str> = text
            .lines()
            .filter_map(|line| Some(line.rsplit_once(' ')?.0))
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn json_has_the_verdict_the_comparisons_and_the_whole_result() {
        let files = sample_of_loads(1);
        let value: Value =
            serde_json::from_str(&json(std::slice::from_ref(&files)).unwrap()).unwrap();
        let [one] = value.as_array().unwrap().as_slice() else {
            panic!("{value}");
        };
        assert_eq!(one["verdict"], Verdict::of(&files).sentence);
        let whole: Value = serde_json::from_str(&files.json).unwrap();
        assert_eq!(one["result"], whole);
        assert!(
            one["comparisons"][0]["rows"][0]["ratio"].is_f64(),
            "{}",
            one["comparisons"]
        );
    }

    #[test]
    fn the_table_for_a_page_has_a_row_for_each_series() {
        let text = markdown(&sample_of_loads(1));
        let rows = text.lines().filter(|line| line.starts_with("| "));
        let (rows, figures): (Vec<&str>, Vec<&str>) =
            rows.partition(|row| row.matches(" | ").count() == 6);
        assert_eq!(rows.len(), 1 + 2 * System::NAMES.len(), "{text}");
        let figure =
            "| the plain path | net cost | 61.00 ns [60.50 62.25] | 3 | <= 70.00 | holds |";
        assert_eq!(figures[1..], [figure]);
        let own = |row: &&&str| row.starts_with("| ours-ipip | 500/s | ");
        let row = rows.iter().find(own).unwrap();
        assert!(
            row.contains(", worse | ") && row.ends_with(" | 24 |"),
            "{text}"
        );
    }

    #[test]
    fn series_without_latencies_are_in_every_format_but_not_in_the_latencies() {
        let files = rates();
        let of = |text: &str, part: &str| text.lines().filter(|line| line.contains(part)).count();
        let csv = csv(std::slice::from_ref(&files));
        assert_eq!(of(&csv, ",ours-ipip-1,"), Stream::ALL.len() * 7, "{csv}");
        let metrics = open_metrics(std::slice::from_ref(&files));
        assert_eq!(
            of(&metrics, "guideway_bench_latency_seconds"),
            2,
            "{metrics}"
        );
        let own = "series=\"ours-ipip-1\",system=\"ours-ipip\",outcome=\"answered\"} 18000000";
        assert_eq!(of(&metrics, own), 1, "{metrics}");
        let markdown = markdown(&files);
        assert_eq!(of(&markdown, "| round trip p50 |"), 0, "{markdown}");
        let row = "| ours-ipip-1 | 3000000 | 3000000 | 3.000 [3.000 3.000] | 0.000 % | 0 |";
        assert_eq!(of(&markdown, row), 1, "{markdown}");
        assert!(drawings(&[files]).is_empty());
    }

    #[test]
    fn an_overloaded_series_is_named_so_in_the_table_and_has_no_curve() {
        let mut files = sample_of_loads(1);
        for trial in &mut files.run.series[4].trials {
            trial.tally.received /= 2;
        }
        let (name, system) = (
            files.run.series[4].name.clone(),
            files.run.series[4].system.clone(),
        );
        let files = Files::make(files.run, 1_795_219_200.0, files.series).unwrap();
        let text = markdown(&files);
        let row = format!("| {system} | 500/s | - | - |  | - | overloaded |");
        assert!(text.contains(&row), "{text}");
        let metrics = open_metrics(std::slice::from_ref(&files));
        let of = |metric: &str| {
            let mut own = metrics.lines().filter(|line| line.starts_with(metric));
            own.any(|line| line.contains(&format!("series=\"{name}\"")))
        };
        assert!(of("guideway_bench_probes") && !of("guideway_bench_latency_seconds"));
        let [(_, percentiles), ..] = &drawings(&[files])[..] else {
            panic!("there are drawings");
        };
        assert!(!percentiles.contains(&format!("{name} (")));
    }

    #[test]
    fn loads_that_differ_in_more_than_the_rate_have_curves_of_their_own() {
        let of_loads = |files: Files| {
            let all = drawings(&[files]).into_iter();
            let mut of_load = all.filter(|(name, _)| name == "load-p50.svg");
            of_load.next().expect("there are two rates").1
        };
        let mut files = sample_of_loads(1);
        assert!(!of_loads(files.clone()).contains("ours-ipip ("));
        for series in &mut files.run.series {
            if series.name.ends_with("-2") {
                series.load.flows = 7;
            }
        }
        let drawing = of_loads(files);
        for flows in [3, 7] {
            let label = format!("ours-ipip (sockets, ipv4, udp, constant, {flows} flows ");
            assert!(drawing.contains(&label), "{drawing}");
        }
    }
}
