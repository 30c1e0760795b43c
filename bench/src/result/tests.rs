//! A result for tests, and what becomes of it on its way through files.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::*;
use crate::{
    probe::Tally,
    scenario::{Named, Scenario, System},
    stats::SplitMix64,
};

/// The committed schema.
const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/result.schema.json");
const SCENARIO: &str = "\
name: test
systems: [direct, ours-ipip]
loads: [{ rate: 500, flows: 3, stamps: kernel }]
seconds: 2
rounds: 6
";

/// Makes a result of two systems, of which the second takes `slower` times as long. Its intervals take long to compute, so
/// each result is made once.
pub(crate) fn sample(seed: u64, slower: f64) -> Files {
    static MADE: Mutex<BTreeMap<(u64, u64), Files>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = made.entry((seed, slower.to_bits()));
    known.or_insert_with(|| make_sample(seed, slower)).clone()
}

fn make_sample(seed: u64, slower: f64) -> Files {
    let scenario = Scenario::parse(SCENARIO).unwrap();
    let (series, all) = series(seed, slower);
    let environment = [
        ("kernel.release", "6.1 </script>"),
        ("cpu.model", "made up"),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let run = Run {
        schema_version: SCHEMA_VERSION,
        tool: Tool {
            name: "guideway-bench".to_owned(),
            version: "0.0.0".to_owned(),
        },
        command: "guideway-bench run test.yaml --out test".to_owned(),
        started: "2026-11-23T12:00:00Z".to_owned(),
        ended: "2026-11-23T12:01:00Z".to_owned(),
        interrupted: false,
        scenario,
        scenario_text: SCENARIO.to_owned(),
        environment: environment.into(),
        environment_changes: BTreeMap::new(),
        comparability: Comparability::of(BTreeMap::new()),
        quietness: vec![crate::environment::quietness(0.0, 0.001)],
        series,
        measurements: vec![Measurement::of(
            "the plain path",
            "net cost",
            "ns",
            &[61.0, 60.5, 62.25],
            0.5,
            Some(70.0),
        )],
        files: BTreeMap::new(),
    };
    Files::make(run, 1_795_219_200.0, all).unwrap()
}

/// Makes a result of all systems under two loads.
pub(crate) fn sample_of_loads(seed: u64) -> Files {
    let mut run = sample(seed, 1.5).run;
    run.series.clear();
    let mut all = BTreeMap::new();
    for (place, (system, _)) in (0..).zip(System::NAMES) {
        for (number, rate) in [(1, 500.0), (2, 4_000.0)] {
            let slower = 1.0 + f64::from(place * number) / 5.0;
            let (mut made, mut streams) = series(seed, slower);
            let mut one = made.remove(1);
            let intervals = streams.remove(&one.name).unwrap();
            one.name = format!("{system}-{number}");
            one.system = (*system).to_owned();
            one.load.rate = Some(rate);
            all.insert(one.name.clone(), intervals);
            run.series.push(one);
        }
    }
    Files::make(run, 1_795_219_200.0, all).unwrap()
}

/// Makes the series of [`sample`], with the intervals of each.
pub(crate) fn series(seed: u64, slower: f64) -> (Vec<Series>, BTreeMap<String, Streams>) {
    let scenario = Scenario::parse(SCENARIO).unwrap();
    let mut random = SplitMix64::new(seed);
    let mut all = BTreeMap::new();
    let mut series = Vec::new();
    for (system, factor) in scenario.systems.iter().zip([1.0, slower]) {
        let name = format!("{system}-1");
        let mut streams = Streams::new();
        let trials = 1..=scenario.rounds;
        let trials = trials.map(|round| trial(round, factor, &mut random, &mut streams));
        let trials: Vec<Trial> = trials.collect();
        series.push(Series {
            name: name.clone(),
            system: system.to_string(),
            description: "made up <for> tests & \"more\"".to_owned(),
            load: scenario.loads[0].clone(),
            reference_rate: None,
            backends: vec!["node0".to_owned(), "node1".to_owned()],
            figures: figures(&streams, None),
            trials,
        });
        all.insert(name, streams);
    }
    (series, all)
}

/// Makes up a trial of 1000 requests, of which every 250th is lost.
fn trial(round: u32, factor: f64, random: &mut SplitMix64, streams: &mut Streams) -> Trial {
    let at = f64::from(round) * 5.0;
    let mut tally = Tally::default();
    let mut shares = vec![0, 0];
    let mut made = Stream::ALL.map(|_| new_histogram());
    let mut under_way = 0;
    for _ in 0..1_000 {
        tally.offered += 1;
        tally.sent += 1;
        let late = 1_000 + random.below(5_000) as u64;
        made[3].record(late).unwrap();
        if tally.sent.is_multiple_of(250) {
            tally.lost += 1;
            continue;
        }
        tally.received += 1;
        shares[random.below(2)] += 1;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "times are small"
        )]
        let took = ((40_000 + random.below(9_000)) as f64 * factor) as u64;
        made[0].record(took + late).unwrap();
        made[1].record(took).unwrap();
        under_way += took;
        made[2].record(took / 2 + late).unwrap();
        made[4].record(took - 1_000).unwrap();
    }
    for (stream, histogram) in Stream::ALL.into_iter().zip(made) {
        streams.entry(stream).or_default().push(Interval {
            round,
            start: Duration::from_secs_f64(at),
            length: Duration::from_secs(2),
            histogram,
        });
    }
    Trial {
        place: 1,
        shares,
        under_way_ns: Some(under_way),
        drops: BTreeMap::from([("edge0: eth0, received".to_owned(), u64::from(round))]),
        queues: BTreeMap::from([("edge0: rx_queue_0_xdp_packets".to_owned(), 3_000)]),
        figures: figures(streams, Some(round)),
        ..Trial::new(round, at, 2.0, tally)
    }
}

/// A directory that is removed with the test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("guideway-bench-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes a result, changes one of its files, and reads it again.
fn reread(name: &str, file: &str, change: impl Fn(String) -> String) -> Result<Files, ResultError> {
    let scratch = Scratch::new(name);
    let directory: &Path = &scratch.0;
    sample(1, 1.5).write(directory).unwrap();
    let path = directory.join(file);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, change(text)).unwrap();
    Files::read(directory)
}

#[test]
fn a_result_is_read_as_it_was_written() {
    let read = reread("whole", "result.json", |text| text).unwrap();
    let made = sample(1, 1.5);
    // How quiet the machine was is measured anew for each sample.
    assert_eq!(read.run.series, made.run.series);
    assert_eq!(read.series, made.series);
    let names: Vec<&String> = read.run.files.keys().collect();
    assert_eq!(names.len(), 10);
    assert_eq!(names[0], "direct-1.forward.hlog");
}

#[test]
fn every_stream_has_a_distribution_and_a_table_beside_its_log() {
    let scratch = Scratch::new("files");
    sample(1, 1.0).write(&scratch.0).unwrap();
    for ending in ["hlog", "hgrm", "csv"] {
        let path = scratch.0.join(format!("ours-ipip-1.round-trip.{ending}"));
        assert!(
            fs::metadata(&path).unwrap().len() > 100,
            "{}",
            path.display()
        );
    }
}

#[test]
fn a_directory_is_replaced_whole_and_only_results_are_found_in_one() {
    let scratch = Scratch::new("replaced");
    let directory: &Path = &scratch.0;
    assert!(Files::find(directory).unwrap().is_none());
    fs::create_dir(directory).unwrap();
    assert!(Files::find(directory).unwrap().is_none());
    fs::write(directory.join("notes"), "of somebody").unwrap();
    let error = Files::find(directory).unwrap_err().to_string();
    assert!(error.contains("result.json"), "{error}");

    // A program that was killed left this.
    let draft = directory.with_added_extension("draft");
    fs::create_dir(&draft).unwrap();
    fs::write(draft.join("half"), "").unwrap();
    sample(1, 1.0).write(directory).unwrap();
    assert!(!directory.join("notes").exists() && !draft.exists());
    let found = Files::find(directory).unwrap().unwrap();
    assert_eq!(found.started().unwrap(), Duration::from_secs(1_795_219_200));
    fs::remove_file(directory.join("direct-1.forward.hlog")).unwrap();
    let error = Files::find(directory).unwrap_err().to_string();
    assert!(error.contains("direct-1.forward.hlog"), "{error}");
}

#[test]
fn truncated_edited_and_other_results_are_refused_and_named() {
    let log = "direct-1.round-trip.hlog";
    let refused = |name, file, change: fn(String) -> String| {
        reread(name, file, change).unwrap_err().to_string()
    };
    let cut = refused("cut", "result.json", |text| {
        text[..text.len() / 2].to_owned()
    });
    assert!(cut.contains("cut off") && cut.contains("line"), "{cut}");
    let other = refused("version", "result.json", |text| {
        let own = format!("\"schema_version\": {SCHEMA_VERSION}");
        text.replacen(&own, "\"schema_version\": 1", 1)
    });
    assert!(other.contains("schema_version 1"), "{other}");
    let unknown = refused("unknown", "result.json", |text| {
        text.replacen("\"interrupted\"", "\"finished\"", 1)
    });
    assert!(unknown.contains("finished"), "{unknown}");
    let log_cut = refused("log", log, |text| text[..text.len() - 9].to_owned());
    assert!(log_cut.contains(log), "{log_cut}");
    let figure = refused("figure", "result.json", |text| {
        text.replacen("\"count\": 996", "\"count\": 997", 1)
    });
    assert!(figure.contains("round 1 of direct-1"), "{figure}");
    let tally = refused("tally", "result.json", |text| {
        text.replacen("\"lost\": 4", "\"lost\": 3", 1)
    });
    assert!(tally.contains("do not add up"), "{tally}");
    let fact = refused("fact", "result.json", |text| {
        text.replacen("made up", "other", 1)
    });
    assert!(fact.contains("comparability"), "{fact}");
}

#[test]
fn histograms_of_other_units_are_refused() {
    let mut other = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1_000_000, 2).unwrap();
    other.record(7).unwrap();
    let interval = Interval {
        round: 1,
        start: Duration::ZERO,
        length: Duration::from_secs(1),
        histogram: other,
    };
    let log = write_log("direct-1", Stream::RoundTrip, 0.0, &[interval]).unwrap();
    let error = read_log("direct-1", Stream::RoundTrip, &log).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("other units"), "{error}");
}

/// Tied to the types: `GUIDEWAY_WRITE_SCHEMA=1 cargo test -p bench --lib the_schema` writes it.
#[test]
fn the_schema_in_the_repository_is_that_of_the_types() {
    let schema = schemars::schema_for!(Run);
    let schema = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("GUIDEWAY_WRITE_SCHEMA").is_some() {
        fs::write(SCHEMA, &schema).unwrap();
    }
    assert!(
        fs::read_to_string(SCHEMA).is_ok_and(|committed| committed == schema),
        "write it anew: GUIDEWAY_WRITE_SCHEMA=1 cargo test --workspace --lib the_schema"
    );
}

#[test]
fn the_name_of_the_schema_has_the_version_that_results_must_have() {
    let schema = schemars::schema_for!(Run).to_value();
    let version = &schema["properties"]["schema_version"]["const"];
    let name = schema["$id"].as_str().unwrap();
    assert_eq!(name.rsplit(':').next().unwrap(), version.to_string());
}

/// Makes a result of live frames, of which systems take 4, 3 and half a million a second.
pub(crate) fn rates() -> Files {
    const TEXT: &str = "name: rates\nsystems: [direct, ours-ipip, kube-proxy-nftables]\n\
                        loads: [{ generator: live, schedule: max }]\nseconds: 1\nrounds: 6\n";
    let scenario = Scenario::parse(TEXT).unwrap();
    let mut run = sample(1, 1.0).run;
    let systems = scenario.systems.iter().zip([4_000_000, 3_000_000, 500_000]);
    let trial = |round, sent| {
        let tally = Tally {
            offered: sent,
            sent,
            received: sent,
            ..Tally::default()
        };
        Trial {
            place: 1,
            ..Trial::new(round, f64::from(round), 1.0, tally)
        }
    };
    let series = systems.map(|(system, rate)| Series {
        name: format!("{system}-1"),
        system: system.to_string(),
        description: String::new(),
        load: scenario.loads[0].clone(),
        reference_rate: None,
        backends: Vec::new(),
        trials: (1..=6).map(|round| trial(round, rate)).collect(),
        figures: figures(&Streams::new(), None),
    });
    run.series = series.collect();
    let names = run.series.iter().map(|series| series.name.clone());
    let streams = names.map(|name| (name, Streams::new())).collect();
    run.scenario_text = TEXT.to_owned();
    run.scenario = scenario;
    Files::make(run, 0.0, streams).unwrap()
}

#[test]
fn a_result_without_latencies_has_no_histograms_and_is_read_as_it_was_written() {
    let files = rates();
    assert!(files.logs.is_empty());
    let read = Files::of_texts(files.json.clone(), files.logs).unwrap();
    assert_eq!(read.run.series, files.run.series);
    let error = read.started().unwrap_err().to_string();
    assert!(error.contains("tells no start"), "{error}");
}
