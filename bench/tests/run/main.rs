//! `guideway-bench run` end to end: the direct wire and Guideway side by side, the report, its check and a
//! comparison. Needs root, the programs of `deploy/setup.sh test`, and `guideway` as `cargo test --workspace` builds it.

mod costs;
mod ended;
mod hindrances;
mod loads;
mod ports;
mod repeat;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::ensure;
use bench::{
    exit::Exit,
    result::{Files, Series},
};
use lab::wait_for;

const SCENARIO: &str = "\
name: small
systems: [direct, ours-ipip]
loads: [{ rate: 400, flows: 6, schedule: poisson }]
seconds: 0.5
rounds: 6
";

/// How long a machine may be too busy for what it is asked.
const PATIENCE: Duration = Duration::from_secs(600);

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("guideway-bench-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory for temporary files can be made");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A machine that runs tests may be as noisy as it is.
const ANY_NOISE: [&str; 2] = ["--max-noise", "100"];

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guideway-bench"));
    command.args(arguments);
    if matches!(arguments[0], "run" | "preflight") {
        command.args(ANY_NOISE);
    }
    (command.output()).expect("the program was built with this test")
}

/// Tells whether a run has measured: on a busy machine, frames that are due at the end of a short trial stay behind.
fn has_measured(run: &Output) -> bool {
    let codes = [Exit::Success, Exit::SlowGenerator].map(|exit| i32::from(exit.code()));
    run.status.code().is_some_and(|code| codes.contains(&code))
}

/// Has programs that are not ours read a result: they find the same figures, and what its schema says.
///
/// `exports` are a report of that result as JSON and CSV.
fn read_by_others(result: &str, exports: &[&String]) -> Output {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = lab::kubernetes::cache().join("readers/bin/python");
    let mut command = Command::new(&python);
    command
        .arg(here.join("tests/readers.py"))
        .arg(result)
        .arg(here.join("result.schema.json"))
        .args(exports);
    let output = command.output();
    output
        .unwrap_or_else(|error| panic!("{}: {error}: run `deploy/setup.sh test`", python.display()))
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}: {out}{err}", output.status)
}

#[test]
fn a_scenario_is_measured_reported_verified_and_compared() {
    let scratch = Scratch::new("run");
    let (scenario, out, page) = (
        scratch.path("small.yaml"),
        scratch.path("result"),
        scratch.path("report.html"),
    );
    fs::write(&scenario, SCENARIO).unwrap();
    // A busy machine may lose so many answers that there are no latencies.
    let files = wait_for("both systems keep up", PATIENCE, || {
        if Path::new(&out).exists() {
            fs::remove_dir_all(&out)?;
        }
        let run = bench(&["run", &scenario, "--out", &out]);
        assert!(has_measured(&run), "{}", text(&run));
        let files = Files::read(Path::new(&out))?;
        let keep_up = files.run.series.iter().all(Series::has_latencies);
        ensure!(keep_up, "{}", text(&run));
        anyhow::Ok(files)
    })
    .unwrap();
    assert!(!files.run.interrupted);
    let [direct, ours] = files.run.series.as_slice() else {
        panic!("{:?}", files.run.series);
    };
    assert_eq!(
        (direct.system.as_str(), ours.system.as_str()),
        ("direct", "ours-ipip")
    );
    for series in [direct, ours] {
        assert_eq!(series.trials.len(), 6);
        for trial in &series.trials {
            let tally = trial.tally;
            assert!(tally.sent > 100 && tally.sent == tally.offered, "{tally:?}");
            assert_eq!((tally.corrupt, tally.misdelivered), (0, 0));
            assert!(trial.under_way_ns.is_some() && trial.carrier_changes.is_empty());
            let of_law = |doubt: &String| doubt.contains("Little's law");
            assert!(!trial.doubts.iter().any(of_law), "{:?}", trial.doubts);
            // A busy machine may lose answers.
            if !trial.is_overloaded() {
                assert_eq!(trial.figures.lateness.count, tally.sent);
                assert!(trial.figures.forward.count >= tally.received, "{trial:?}");
            }
        }
        let p50 = series.figures.round_trip.value(50.0).unwrap();
        assert!(p50 > 1_000, "{p50} ns");
    }
    // Rounds go back and forth, and both systems have the same requests in each.
    let places = |place: usize| {
        files
            .run
            .series
            .iter()
            .map(move |series| series.trials[place].place)
    };
    assert!(places(0).eq([1, 2]) && places(1).eq([2, 1]));
    for (one, other) in direct.trials.iter().zip(&ours.trials) {
        assert_eq!(one.tally.offered, other.tally.offered);
    }

    let readers = read_by_others(&out, &[]);
    assert!(readers.status.success(), "{}", text(&readers));
    assert!(
        text(&readers).contains("8 logs agree"),
        "{}",
        text(&readers)
    );
    let table = format!("{out}/direct-1.forward.csv");
    let whole = fs::read_to_string(&table).unwrap();
    let first = whole.lines().nth(1).unwrap();
    fs::write(&table, whole.replacen(first, &format!("1{first}"), 1)).unwrap();
    let readers = read_by_others(&out, &[]);
    assert!(
        text(&readers).contains("direct-1.forward.csv, sample "),
        "{}",
        text(&readers)
    );

    fs::write(&table, whole).unwrap();

    let again = bench(&["run", &scenario, "--out", &out]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again));
    assert!(
        text(&again).contains("a complete result is there; name another directory"),
        "{}",
        text(&again)
    );

    let report = bench(&["report", &out, "--html", &page]);
    assert!(report.status.success(), "{}", text(&report));
    let verify = bench(&["verify", &page]);
    assert!(verify.status.success(), "{}", text(&verify));
    exports_are_read_by_others(&scratch, &out);
    let edited = fs::read_to_string(&page)
        .unwrap()
        .replacen("<h1>", "<h1>Not: ", 1);
    fs::write(&page, edited).unwrap();
    let verify = bench(&["verify", &page]);
    assert_eq!(verify.status.code(), Some(3), "{}", text(&verify));

    // Better or the same, worse, or not to be told: never an error.
    let (one, other) = (format!("{out}:direct"), format!("{out}:ours-ipip"));
    let compare = bench(&["compare", &one, &other]);
    assert!(
        matches!(compare.status.code(), Some(0 | 3 | 4)),
        "{}",
        text(&compare)
    );
    let same = bench(&["compare", &one, &one, "--json"]);
    assert!(same.status.success(), "{}", text(&same));
    assert!(
        text(&same).contains("\"judgement\":\"same\""),
        "{}",
        text(&same)
    );
}

fn content(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Writes a redacted report in each format. Prometheus takes the metrics, and readers of results the redacted one.
fn exports_are_read_by_others(scratch: &Scratch, out: &str) {
    let names = ["json", "csv", "openmetrics", "svg", "results-to", "html"];
    let paths = names.map(|name| scratch.path(&format!("export.{name}")));
    let options = names.map(|name| format!("--{name}"));
    let mut arguments = vec!["report", out, "--redact"];
    for (option, path) in options.iter().zip(&paths) {
        arguments.extend([option.as_str(), path]);
    }
    let markdown = scratch.path("page.md");
    let marks = "<!-- begin of the report -->\nold\n<!-- end of the report -->\n";
    fs::write(&markdown, format!("before\n{marks}after\n"))
        .expect("the directory is the test's own");
    arguments.extend(["--markdown", &markdown]);
    let report = bench(&arguments);
    assert!(report.status.success(), "{}", text(&report));
    let written = content(&markdown);
    assert!(written.starts_with("before\n<!-- begin") && written.ends_with("report -->\nafter\n"));
    assert!(
        written.contains("| ours-ipip | 400/s | ") && !written.contains("old"),
        "{written}"
    );
    let [json, csv, metrics, svg, results, page] = &paths;
    assert!(Path::new(svg).join("percentiles.svg").exists());

    let mut check = Command::new("promtool");
    check
        .args(["check", "metrics"])
        .stdin(fs::File::open(metrics).expect("the report has written it"));
    let check = check
        .output()
        .expect("deploy/setup.sh test has installed it");
    assert!(check.status.success(), "{}", text(&check));
    let readers = read_by_others(&format!("{results}/result-1"), &[json, csv]);
    assert!(readers.status.success(), "{}", text(&readers));
    let verify = bench(&["verify", page]);
    assert!(verify.status.success(), "{}", text(&verify));

    let host = content("/proc/sys/kernel/hostname");
    let json = content(json);
    assert!(json.contains("\"host.name\": \"host-"));
    let named = |text: &str| text.contains(&format!("\"{}\"", host.trim()));
    assert!(!named(&json), "{host}");
}

/// Leaves of a result what a run has written that was ended after `rounds` rounds.
fn interrupt_after(rounds: u32, result: &Path) -> Files {
    let files = Files::read(result).expect("the run has written it");
    let started = files.started().expect("its logs tell");
    let (mut run, mut series) = (files.run, files.series);
    run.interrupted = true;
    for one in &mut run.series {
        one.trials.retain(|trial| trial.round <= rounds);
    }
    for intervals in series.values_mut().flat_map(|streams| streams.values_mut()) {
        intervals.retain(|interval| interval.round <= rounds);
    }
    let files = Files::make(run, started.as_secs_f64(), series).expect("its histograms were read");
    (files.write(result)).expect("the directory is the test's own");
    files
}

#[test]
fn an_interrupted_run_is_gone_on_with_and_its_rounds_count() {
    let scratch = Scratch::new("interrupted");
    let (scenario, out) = (scratch.path("direct.yaml"), scratch.path("result"));
    let own = SCENARIO.replace(", ours-ipip", "");
    fs::write(&scenario, &own).unwrap();
    let run = bench(&["run", &scenario, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let before = interrupt_after(2, Path::new(&out));

    fs::write(&scenario, own.replace("flows: 6", "flows: 7")).unwrap();
    let other = bench(&["run", &scenario, "--out", &out]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other));
    assert!(
        text(&other).contains("its scenario differs"),
        "{}",
        text(&other)
    );

    fs::write(&scenario, &own).unwrap();
    let run = bench(&["run", &scenario, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let files = Files::read(Path::new(&out)).unwrap();
    assert!(!files.run.interrupted);
    assert_eq!(files.run.started, before.run.started);
    let [trials, first] = [&files, &before].map(|files| &files.run.series[0].trials);
    assert_eq!(trials[..2], first[..]);
    assert!(trials.iter().map(|trial| trial.round).eq(1..=6));
    assert!(trials.is_sorted_by(|one, next| one.at + one.seconds < next.at));
}

/// Needs the programs of `deploy/setup.sh test`. That each system answers and balances is proved by the run itself.
#[test]
fn each_system_answers_with_the_real_kube_proxy_among_them() {
    const SYSTEMS: [&str; 9] = [
        "direct",
        "routing",
        "null-program",
        "ours-ipip",
        "ours-l2dsr",
        "ours-nat",
        "ours-nodeport",
        "kube-proxy-nftables",
        "kube-proxy-iptables",
    ];
    let scratch = Scratch::new("systems");
    let (scenario, out, page) = (
        scratch.path("systems.yaml"),
        scratch.path("result"),
        scratch.path("report.html"),
    );
    let text_of_scenario = SCENARIO
        .replace("direct, ours-ipip", &SYSTEMS.join(", "))
        .replace(
            "schedule: poisson }]",
            "schedule: poisson }, { generator: live, rate: 2000 }]",
        )
        .replace("seconds: 0.5", "seconds: 0.2\nservices: 40");
    fs::write(&scenario, text_of_scenario).unwrap();
    let run = bench(&["run", &scenario, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let files = Files::read(Path::new(&out)).unwrap();
    let systems = files.run.series.iter().map(|series| series.system.as_str());
    assert!(systems.eq(SYSTEMS.iter().chain(&SYSTEMS).copied()));
    for series in &files.run.series {
        if !series.is_timed() {
            let [_, sent, received] = series.totals();
            assert!(
                received > 0 && received <= sent,
                "{}: {sent}, {received}",
                series.name
            );
            continue;
        }
        for trial in &series.trials {
            let tally = trial.tally;
            assert!(tally.sent > 0 && tally.sent == tally.offered, "{tally:?}");
            assert_eq!((tally.corrupt, tally.misdelivered), (0, 0));
        }
        assert!(series.figures.forward.count >= series.figures.round_trip.count);
    }
    let report = bench(&["report", &out, "--html", &page]);
    assert!(report.status.success(), "{}", text(&report));
    let page_text = fs::read_to_string(&page).unwrap();
    assert!(page_text.contains("Against kube-proxy"));
    let verify = bench(&["verify", &page]);
    assert!(verify.status.success(), "{}", text(&verify));
}

#[test]
fn a_plan_sends_nothing_and_its_capture_is_read_by_others() {
    let scratch = Scratch::new("plan");
    let (scenario, capture) = (scratch.path("plan.yaml"), scratch.path("plan.pcap"));
    let loads = "loads: [{ rate: 400, flows: 6, frame_bytes: imix }, \
                 { rate: 400, flows: 6, protocol: tcp, exchange: http }, \
                 { generator: live, family: ipv6, protocol: tcp, schedule: max, frame_bytes: imix }]";
    let own = SCENARIO.replace("loads: [{ rate: 400, flows: 6, schedule: poisson }]", loads);
    fs::write(&scenario, own).unwrap();
    let plan = bench(&["plan", &scenario, "--pcap", &capture]);
    assert!(plan.status.success(), "{}", text(&plan));
    assert!(
        text(&plan).contains("10.0.0.2:10000 -> 10.0.1.104:7000: node3"),
        "{}",
        text(&plan)
    );

    let mut tshark = Command::new("tshark");
    tshark.args(["-r", &capture, "-o", "ip.check_checksum:TRUE"]);
    for protocol in ["udp", "tcp"] {
        tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    tshark.args([
        "-T",
        "fields",
        "-e",
        "udp.checksum.status",
        "-e",
        "tcp.checksum.status",
    ]);
    let read = tshark
        .output()
        .expect("`deploy/setup.sh test` installs tshark");
    assert!(read.status.success(), "{}", text(&read));
    // 1 stands for a right checksum.
    let fields = String::from_utf8_lossy(&read.stdout);
    let statuses: Vec<&str> = fields.lines().map(str::trim).collect();
    assert_eq!(statuses.len(), 1_000);
    assert!(statuses.iter().all(|status| *status == "1"), "{statuses:?}");
}

#[test]
fn requests_by_http_are_http_to_others() {
    let scratch = Scratch::new("http");
    let (scenario, capture) = (scratch.path("http.yaml"), scratch.path("http.pcap"));
    let loads = "loads: [{ rate: 6, flows: 6, protocol: tcp, exchange: http }]";
    let own = SCENARIO.replace("loads: [{ rate: 400, flows: 6, schedule: poisson }]", loads);
    let own = own
        .replace(", ours-ipip", "")
        .replace("seconds: 0.5", "seconds: 1");
    fs::write(&scenario, own).unwrap();
    let plan = bench(&["plan", &scenario, "--pcap", &capture]);
    assert!(plan.status.success(), "{}", text(&plan));
    let mut tshark = Command::new("tshark");
    tshark.args(["-r", &capture, "-d", "tcp.port==7000,http", "-T", "fields"]);
    tshark.args(["-e", "http.request.method", "-e", "http.request.version"]);
    tshark.args(["-e", "http.content_length", "-e", "data.len"]);
    let read = tshark.output();
    let read = read.expect("`deploy/setup.sh test` installs tshark");
    assert!(read.status.success(), "{}", text(&read));
    let fields = String::from_utf8_lossy(&read.stdout);
    let requests: Vec<&str> = fields.lines().collect();
    assert_eq!(requests, ["POST\tHTTP/1.1\t16\t16"; 6], "{fields}");
}

#[test]
fn a_wrong_scenario_is_refused_with_its_place_before_anything_is_sent() {
    let scratch = Scratch::new("wrong");
    let (scenario, out) = (scratch.path("wrong.yaml"), scratch.path("result"));
    fs::write(&scenario, SCENARIO.replace("rate: 400", "rate: 0")).unwrap();
    let run = bench(&["run", &scenario, "--out", &out]);
    assert_eq!(run.status.code(), Some(2), "{}", text(&run));
    assert!(
        text(&run).contains("line 3, column 17: rate is \"0\""),
        "{}",
        text(&run)
    );
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_machine_without_the_programs_is_told_what_to_do_before_anything_is_made() {
    let scratch = Scratch::new("unable");
    let (scenario, out) = (scratch.path("small.yaml"), scratch.path("result"));
    let needs_all = SCENARIO.replace("ours-ipip", "ours-ipip, kube-proxy-nftables");
    fs::write(&scenario, needs_all).unwrap();
    let run_without = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_guideway-bench"));
        command
            .args(arguments)
            .args(["--guideway", "/nowhere/guideway"]);
        command.env("XDG_CACHE_HOME", "/nowhere").output().unwrap()
    };
    for arguments in [
        &["preflight", &scenario][..],
        &["run", &scenario, "--out", &out],
    ] {
        let output = run_without(arguments);
        assert_eq!(output.status.code(), Some(77), "{}", text(&output));
        for told in [
            "/nowhere/guideway is missing: build it",
            "kube-proxy: not built: run `deploy/setup.sh test`",
        ] {
            assert!(text(&output).contains(told), "{}", text(&output));
        }
    }
    assert!(!Path::new(&out).exists());
    let preflight = bench(&["preflight", &scenario]);
    assert!(preflight.status.success(), "{}", text(&preflight));
    // Three systems, seven trials of half a second and the time for late answers.
    assert!(
        text(&preflight).contains("whose trials take 0.3 minutes"),
        "{}",
        text(&preflight)
    );
}

/// Kernels have pktgen as a module, which nothing has loaded here.
#[test]
fn a_kernel_without_pktgen_has_an_exit_code_and_a_remedy_of_its_own() {
    let expected = if Path::new("/proc/net/pktgen").exists() {
        0
    } else {
        13
    };
    let scratch = Scratch::new("pktgen");
    let (scenario, out) = (scratch.path("pktgen.yaml"), scratch.path("result"));
    let own = SCENARIO
        .replace("rate: 400", "generator: pktgen, threads: 2, rate: 400")
        .replace(", schedule: poisson", "");
    fs::write(&scenario, own).unwrap();
    let preflight = bench(&["preflight", &scenario]);
    assert_eq!(
        preflight.status.code(),
        Some(expected),
        "{}",
        text(&preflight)
    );
    if expected == 13 {
        assert!(
            text(&preflight).contains("modprobe pktgen"),
            "{}",
            text(&preflight)
        );
        let run = bench(&["run", &scenario, "--out", &out]);
        assert_eq!(run.status.code(), Some(13), "{}", text(&run));
    }
    let plan = bench(&["plan", &scenario]);
    assert!(plan.status.success(), "{}", text(&plan));
    assert!(
        text(&plan).contains("198.18.0.2:10000 -> "),
        "{}",
        text(&plan)
    );
}

#[test]
fn the_scenario_of_make_report_can_run_in_less_than_a_quarter_of_an_hour() {
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/report.yaml");
    let preflight = bench(&["preflight", scenario]);
    assert!(preflight.status.success(), "{}", text(&preflight));
    let said = text(&preflight);
    let (_, minutes) = said
        .split_once("9 systems under 4 loads in 8 rounds, whose trials take ")
        .unwrap();
    let minutes: f64 = minutes.split(' ').next().unwrap().parse().unwrap();
    assert!(minutes < 10.0, "{said}");
}

#[test]
fn the_scenario_of_the_bars_is_one() {
    let plan = bench(&["plan", concat!(env!("CARGO_MANIFEST_DIR"), "/bars.yaml")]);
    assert!(plan.status.success(), "{}", text(&plan));
    assert!(
        text(&plan).contains("stamped by the kernel"),
        "{}",
        text(&plan)
    );
}
