//! Small runs of `guideway-bench control` and `datapath`: figures are plausible, and both give them as JSON rows and as a
//! result. How large they are is the bench's matter. Needs root, and `guideway` as `cargo test --workspace` builds it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use bench::{
    control::{self, Cluster, Options, Scenario, Source},
    exit::Exit,
    result::Files,
};
use lab::wait_for;
use serde_json::Value;

/// Bytes of memory that no agent goes below: the tables that it has mapped.
const LEAST_MIB: f64 = 4.0;

/// Fields of each JSON row of `control`.
const OF_CONTROL: [&str; 11] = [
    "bound",
    "endpoints",
    "figure",
    "host",
    "interval",
    "nodes",
    "services",
    "source",
    "unit",
    "value",
    "verdict",
];
/// Fields of each JSON row of `datapath`.
const OF_DATAPATH: [&str; 12] = [
    "family", "flows", "host", "net_ns", "ns", "order", "protocol", "rounds", "spread", "system",
    "unit_ns", "units",
];
/// Fields of rows of `datapath` that have a rate, another program or row to be held against, or other numbers of flows.
const OF_SOME: [&str; 5] = ["growth", "of_plain", "pps", "pps_vs_floor", "units_more"];

/// Fields of each JSON row of `datapath --engine afxdp`.
const OF_WHOLE_EDGE: [&str; 10] = [
    "family",
    "flows",
    "host",
    "offered_pps",
    "order",
    "pps",
    "protocol",
    "rounds",
    "spread",
    "system",
];

/// Those of `datapath --engine mend` beside them.
const OF_MEND: [&str; 2] = ["lost", "thread"];

/// A path for a directory, which is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("guideway-bench-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("it is a text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guideway-bench"));
    let output = command.args(arguments).output();
    output.expect("the program was built with this test")
}

fn fields(row: &Value) -> BTreeSet<&str> {
    let fields = row.as_object().expect("a row is an object").keys();
    fields.map(String::as_str).collect()
}

#[test]
fn tables_follow_a_cluster_of_500_services_with_20_endpoints() {
    let guideway = Path::new(env!("CARGO_BIN_EXE_guideway-bench")).with_file_name("guideway");
    let options = Options {
        guideway,
        scenarios: vec![Scenario {
            source: Source::Recorded,
            cluster: Cluster {
                services: 500,
                endpoints: 20,
                nodes: 50,
            },
            changes: 20,
            storm: Some((100, Duration::from_secs(2))),
            heartbeats: Some((50, Duration::from_secs(1))),
            idle: Duration::from_secs(1),
        }],
    };
    // Each packet that does not follow the cluster is an error.
    let report = control::run(&options, &|_| {}).expect("the agent follows the cluster");
    let [results] = report.scenarios.as_slice() else {
        panic!("one scenario gives one set of results: {report}");
    };
    let value = |name: &str| {
        let figure = results
            .figures
            .iter()
            .find(|figure| figure.quantity.starts_with(name));
        let figure = figure.unwrap_or_else(|| panic!("no figure {name}: {report}"));
        figure.value
    };
    let (tables, all) = (value("lists complete"), value("start of the program"));
    assert!(tables > 0.0 && tables < all, "{report}");
    let (p50, p99) = (
        value("one change to its first packet, p50"),
        value("one change to its first packet, p99"),
    );
    assert!(p50 > 0.0 && p50 <= p99, "{report}");
    assert!(value("storm: latest") > 0.0, "{report}");
    let unwritten = value("storm: changes not written");
    assert!((0.0..100.0).contains(&unwritten), "{report}");
    assert!(value("one heartbeat of a Node").is_finite(), "{report}");
    let (resident, peak) = (value("memory, resident"), value("memory, peak"));
    assert!(resident > LEAST_MIB && resident <= peak, "{report}");
    assert!(value("guideway services, all rows") > 0.0, "{report}");
    assert!(value("guideway backends, all rows") > 0.0, "{report}");
    assert!(value("guideway backends, memory") > 1.0, "{report}");
    let (p50, p99) = (
        value("one change while backends is asked, p50"),
        value("one change while backends is asked, p99"),
    );
    assert!(p50 > 0.0 && p50 <= p99, "{report}");
    let idle = value("CPU when nothing changes");
    assert!((0.0..=200.0).contains(&idle), "{report}");
    for row in report.to_json() {
        assert!(fields(&row).into_iter().eq(OF_CONTROL), "{row}");
    }
    let out = Scratch::new("control");
    let files = control::result::of(&report, "again".to_owned(), Duration::from_secs(9));
    let files = files.expect("all numbers have a form in JSON");
    files
        .write(&out.0)
        .expect("the directory is the test's own");
    let read = Files::read(&out.0).expect("it was written so");
    assert_eq!(read.run.measurements, results.figures);
    let told = bench(&["report", out.path()]);
    let text = String::from_utf8_lossy(&told.stdout);
    assert!(
        told.status.success() && text.contains("memory, resident"),
        "{told:?}"
    );
}

/// Longer than a host is as busy as that.
const PATIENCE: Duration = Duration::from_secs(900);

/// Runs a measurement with bars. Returns the rows that it prints.
fn rows_of(arguments: &[&str]) -> Vec<Value> {
    let run = wait_for("the host leaves a CPU alone", PATIENCE, || {
        let run = bench(arguments);
        if run.status.code() == Some(i32::from(Exit::Noisy.code())) {
            return Err(String::from_utf8_lossy(&run.stderr).into_owned());
        }
        Ok(run)
    })
    .expect("the host is quiet now and then");
    // What its bars come to is another matter: such short trials may miss them.
    let told = [Exit::Success, Exit::Worse, Exit::Inconclusive].map(|exit| i32::from(exit.code()));
    let code = run.status.code();
    assert!(code.is_some_and(|code| told.contains(&code)), "{run:?}");
    let text = String::from_utf8_lossy(&run.stdout);
    let rows = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row is JSON"));
    rows.collect()
}

/// Checks that a row's rate is that of a series.
fn expect_rate(files: &Files, name: &str, row: &Value) {
    let series = files.run.series.iter().find(|series| series.name == name);
    let rates = series.expect("it has a series").rates();
    let of_all = |of| rates.iter().copied().reduce(of).expect("it has trials");
    let [slowest, fastest] = [f64::min, f64::max].map(of_all);
    let pps = row["pps"].as_f64().expect("it has a rate");
    // The result keeps millionths of a second.
    let (slowest, fastest) = (slowest * 0.999, fastest * 1.001);
    assert!((slowest..=fastest).contains(&pps), "{pps}: {rates:?}");
}

#[test]
fn whole_edge_gives_its_rates_as_rows_and_as_a_result() {
    let out = Scratch::new("whole-edge");
    let arguments = "datapath --engine afxdp --family v6 --protocol tcp --rounds 3 --seconds 0.001 --json --out";
    let arguments: Vec<&str> = arguments.split(' ').chain([out.path()]).collect();
    let rows = rows_of(&arguments);
    let systems = rows.iter().map(|row| row["system"].as_str().unwrap());
    assert!(systems.eq(["l2fwd", "ipip", "l2_dsr"]), "{rows:?}");
    let files = Files::read(&out.0).expect("it was written so");
    for row in &rows {
        let system = row["system"].as_str().unwrap();
        let mut expected = BTreeSet::from(OF_WHOLE_EDGE);
        if system != "l2fwd" {
            expected.insert("pps_vs_l2fwd");
        }
        assert_eq!(fields(row), expected);
        assert_eq!((&row["family"], &row["rounds"]), (&"v6".into(), &3.into()));
        let name = format!("{system}-ipv6-tcp-10000-random");
        expect_rate(&files, &name, row);
    }
}

#[test]
fn mending_gives_its_rates_as_rows_and_as_a_result() {
    let out = Scratch::new("mend");
    let arguments =
        "datapath --engine mend --family v4 --protocol udp --rounds 3 --seconds 0.001 --json --out";
    let arguments: Vec<&str> = arguments.split(' ').chain([out.path()]).collect();
    let rows = rows_of(&arguments);
    let systems = rows.iter().map(|row| row["system"].as_str().unwrap());
    let all = [
        "l2fwd",
        "l2fwd_bridge",
        "alone",
        "plain",
        "thousandth",
        "carried",
        "cut",
        "cut_100000",
        "half_cut",
    ];
    assert!(systems.eq(all), "{rows:?}");
    let files = Files::read(&out.0).expect("it was written so");
    for row in &rows {
        let system = row["system"].as_str().unwrap();
        let mut expected: BTreeSet<&str> = OF_WHOLE_EDGE.into_iter().chain(OF_MEND).collect();
        if ["l2fwd_bridge", "plain", "thousandth", "carried"].contains(&system) {
            expected.extend(["pps_vs_reference", "reference"]);
        }
        assert_eq!(fields(row), expected);
        let name = format!("{system}-ipv4-udp-10000-random");
        expect_rate(&files, &name, row);
    }
}

#[test]
fn two_revisions_are_compared_by_the_programs_alone() {
    let refused = bench(&["datapath", "--engine", "afxdp", "--against", "other"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    let usage = i32::from(Exit::Usage.code());
    assert_eq!(refused.status.code(), Some(usage), "{text}");
    assert!(text.contains("use it with --engine xdp"), "{text}");
}

#[test]
fn datapath_gives_its_rates_and_costs_as_rows_and_as_a_result() {
    let out = Scratch::new("datapath");
    let arguments = "datapath --family v4 --protocol udp --rounds 3 --seconds 0.001 --json --out";
    let arguments: Vec<&str> = arguments.split(' ').chain([out.path()]).collect();
    let rows = rows_of(&arguments);
    let all: BTreeSet<&str> = OF_DATAPATH.into_iter().chain(OF_SOME).collect();
    let seen: BTreeSet<&str> = rows.iter().flat_map(fields).collect();
    assert_eq!(seen, all);
    for row in &rows {
        let fields = fields(row);
        assert!(
            OF_DATAPATH.iter().all(|field| fields.contains(field)),
            "{row}"
        );
        assert_eq!((&row["family"], &row["rounds"]), (&"v4".into(), &3.into()));
    }

    let files = Files::read(&out.0).expect("it was written so");
    assert_eq!(
        files.run.command,
        format!("guideway-bench {}", arguments.join(" "))
    );
    for system in ["floor", "guideway"] {
        let own = |row: &&Value| row["system"] == system && row["flows"] == 1;
        let row = rows.iter().find(own).expect("it has a row");
        expect_rate(&files, &format!("{system}-ipv4-udp-1"), row);
    }
    let costs = files.run.measurements.iter();
    assert!(costs.clone().all(|cost| cost.samples.len() == 3));
    assert!(
        costs
            .clone()
            .any(|cost| cost.subject == "guideway, v4, udp, 1 flows in turn")
    );

    let again = bench(&arguments);
    let refused = String::from_utf8_lossy(&again.stderr);
    assert!(
        !again.status.success() && refused.contains("is in use"),
        "{refused}"
    );
}
