//! Known truth: a forwarder of the test's own does harm by plan between real probes and real backends, and the report
//! says what it did, to the packet. Needs root.

mod forwarder;

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    ops::Range,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bench::{
    host,
    load::{
        self, Arrivals, Asked, Sent,
        sockets::{self, Backends, Flow, Requests, Way, ask_for_stamps},
    },
    probe::{Key, Tally},
    report,
    result::{Files, Series, Stream, Streams, Trial, figures},
    run,
    scenario::{Scenario, Stamps},
    wire::Responder,
};
use forwarder::{Deed, Forwarder, Log, PORT, Plan, Strays};
use lab::{Machine, Topology, wait_for};

const BACKENDS: u16 = 3;
const FLOWS: u32 = 3;
/// The port of the backends.
const BACKEND_PORT: u16 = 7_000;
const RATE: f64 = 1_000.0;
/// How long a machine that is busy may take until a measurement of times is let through undisturbed.
const PATIENCE: Duration = Duration::from_secs(600);

/// Only one test at a time: each has a whole core.
static CORE: Mutex<()> = Mutex::new(());

/// Client, forwarder and backends, all on one core: so frames of a flow cannot overtake each other by themselves.
struct Bench {
    // First, because fields are dropped in order.
    _responders: Vec<Responder>,
    net: Topology,
    far_end: Backends,
    flows: Vec<Flow>,
    _core: MutexGuard<'static, ()>,
}

impl Bench {
    fn new() -> Result<Self> {
        let core = CORE.lock().unwrap_or_else(PoisonError::into_inner);
        host::occupy_core(None)?;
        let nodes = u8::try_from(BACKENDS)?;
        let net = Topology::builder().edges(1).nodes(nodes).build()?;
        let far_end = Backends {
            marks: Key::random()?,
            number: BACKENDS.into(),
            arrivals: Arrivals::default(),
        };
        let start = |(number, node): (u16, &Machine)| {
            let at = [SocketAddr::new(node.v4(), BACKEND_PORT)];
            Responder::start(
                node.namespace(),
                &at,
                number,
                far_end.marks,
                &far_end.arrivals,
            )
        };
        let responders = (0..).zip(net.nodes()).map(start).collect::<Result<_>>()?;
        let flows = (0..FLOWS)
            .map(|flow| open(&net, flow))
            .collect::<Result<_>>()?;
        Ok(Self {
            _responders: responders,
            net,
            far_end,
            flows,
            _core: core,
        })
    }

    /// Runs a trial through a forwarder, and returns what a result has of it and what the forwarder did.
    fn measure(&self, seconds: f64, plan: Plan, strays: Strays) -> Result<((Trial, Streams), Log)> {
        let (given, log) = self.send(seconds, plan, strays)?;
        Ok((recorded(&given), log))
    }

    /// Runs a trial through a forwarder, and returns what it gave and what the forwarder did.
    fn send(&self, seconds: f64, plan: Plan, strays: Strays) -> Result<(load::Trial, Log)> {
        let nodes = self.net.nodes().iter();
        let backends = nodes.map(|node| SocketAddr::new(node.v4(), BACKEND_PORT));
        let backends: Vec<SocketAddr> = backends.collect();
        let forwarder = Forwarder::start(&self.net.edges()[0], &backends, plan, strays);
        let load = &scenario().loads[0];
        let asked = Asked {
            rate: load.rate,
            seconds,
            seed: 1,
        };
        let requests = Requests::of(load, asked);
        let given = sockets::run(&self.flows, &requests, &self.far_end);
        let log = forwarder.stop();
        Ok((given?.0, log))
    }
}

fn recorded(given: &load::Trial) -> (Trial, Streams) {
    let scenario = scenario();
    let streams = scenario.streams(&scenario.loads[0]);
    run::record(given, &streams, 1, Duration::ZERO)
}

fn open(net: &Topology, flow: u32) -> Result<Flow> {
    let (client, to) = (
        &net.clients()[0],
        SocketAddr::new(net.edges()[0].v4(), PORT),
    );
    let open = || {
        let socket = UdpSocket::bind((client.v4(), 0))?;
        socket.connect(to)?;
        socket.set_nonblocking(true)?;
        ask_for_stamps(&socket, Stamps::Kernel)?;
        Ok::<_, std::io::Error>(socket)
    };
    Ok(Flow {
        way: Way::Udp(client.namespace().run(open)?),
        backend: Some(u16::try_from(flow)? % BACKENDS),
    })
}

fn scenario() -> Scenario {
    Scenario::parse(&text_of_scenario()).expect("it is one")
}

fn text_of_scenario() -> String {
    format!(
        "name: truth\nsystems: [direct]\nloads: [{{ rate: {RATE}, flows: {FLOWS}, stamps: kernel }}]\nseconds: 1\nrounds: 6\n"
    )
}

/// Makes a result of trials, each a series of its own.
fn result_of(trials: Vec<(&str, (Trial, Streams))>) -> Result<Files> {
    let options = run::Options {
        scenario: text_of_scenario(),
        guideway: PathBuf::new(),
        out: PathBuf::new(),
        interrupted: None,
        most_noise: 1.0,
        command: String::new(),
    };
    let mut run = run::new_run(&options, scenario());
    let mut all = BTreeMap::new();
    for (name, (trial, streams)) in trials {
        run.series.push(Series {
            name: name.to_owned(),
            system: "direct".to_owned(),
            description: "a forwarder of the test".to_owned(),
            load: run.scenario.loads[0].clone(),
            reference_rate: None,
            backends: (0..BACKENDS)
                .map(|number| format!("node{number}"))
                .collect(),
            trials: vec![trial],
            figures: figures(&streams, None),
        });
        all.insert(name.to_owned(), streams);
    }
    Ok(Files::make(run, 1.0, all)?)
}

/// A program that is not ours asks a backend over HTTP/1.1, twice on one connection.
#[test]
fn the_backends_speak_http_to_others() {
    let bench = Bench::new().unwrap();
    let (client, node) = (&bench.net.clients()[0], &bench.net.nodes()[0]);
    let url = format!("http://{}:{BACKEND_PORT}/", node.v4());
    let probe = "0123456789abcdef";
    let told = "%{http_version} %{http_code} %{size_download} %{num_connects}\n";
    let mut curl = client.namespace().command("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--http1.1",
        "--data-binary",
        probe,
    ]);
    curl.args(["--write-out", told, "--output", "/dev/null", &url]);
    curl.args(["--output", "/dev/null", &url]);
    let answers = lab::output(&mut curl).unwrap();
    assert_eq!(answers, "1.1 200 22 1\n1.1 200 22 0\n");
}

/// The harm of the first test, each kind at its own sequence numbers, in all flows or in one.
fn harm(flow: u32, sequence: u32) -> Option<Deed> {
    Some(match (sequence, flow) {
        (10..13, _) => Deed::LoseRequest,
        (30..34, 0) => Deed::LoseAnswer,
        (50..55, _) => Deed::DoubleRequest,
        (70..76, 1) => Deed::DoubleAnswer,
        (90..97, _) => Deed::DamageRequest,
        (110..130, 2) => Deed::DamageAnswer,
        (150..159, 1) => Deed::Misdeliver,
        // Each is overtaken by its next one.
        (170 | 172 | 175 | 180, _) => Deed::Overtake,
        _ => return None,
    })
}

/// Kinds of harm.
const KINDS: usize = 8;

/// Counts the requests of a trial of `each` to a flow whose deed is among these.
fn planned(each: u32, deeds: &[Deed]) -> u64 {
    let all = (0..FLOWS).flat_map(|flow| (0..each).map(move |sequence| (flow, sequence)));
    let done = all.filter_map(|(flow, sequence)| harm(flow, sequence));
    done.filter(|deed| deeds.contains(deed)).count() as u64
}

/// Returns the numbers of a series' line in the table of packets of the text report.
fn packets(text: &str, series: &str) -> Vec<u64> {
    let (_, table) = text
        .split_once("\npackets")
        .expect("the report has the table");
    let mut lines = table.lines().filter_map(|line| line.strip_prefix(series));
    let numbers = lines.next().expect("the table has the series");
    let numbers = numbers.split_whitespace().map(|number| number.parse());
    numbers
        .collect::<Result<_, _>>()
        .expect("these are numbers")
}

/// Returns the texts of a series' cells in the table of packets of a page.
fn cells(page: &str, series: &str) -> Vec<String> {
    let (_, table) = page
        .split_once("<h2>Packets</h2>")
        .expect("the page has the table");
    let row = table.split_once(&format!(">{series}</th>"));
    let (_, row) = row.expect("the table has the series");
    let (row, _) = row.split_once("</tr>").expect("the row ends");
    let texts = row
        .split('<')
        .filter_map(|part| Some(part.split_once('>')?.1));
    let texts = texts.filter(|text| !text.is_empty());
    texts.map(str::to_owned).collect()
}

#[test]
fn the_report_says_to_the_packet_what_was_lost_doubled_reordered_damaged_and_misdelivered() {
    // A system that answers fewer than 99 % counts as overloaded, and has no latencies.
    const EACH: u32 = 2_000;
    let bench = Bench::new().unwrap();
    let seconds = f64::from(EACH * FLOWS) / RATE;
    let sent = u64::from(EACH * FLOWS);
    let lost_on_the_way = planned(EACH, &[Deed::LoseRequest]);
    let lost = lost_on_the_way + planned(EACH, &[Deed::LoseAnswer]);
    let damaged_on_the_way = planned(EACH, &[Deed::DamageRequest]);
    let corrupt = damaged_on_the_way + planned(EACH, &[Deed::DamageAnswer]);
    let expected = Tally {
        offered: sent,
        sent,
        received: sent - lost - corrupt,
        lost,
        duplicates: planned(EACH, &[Deed::DoubleRequest, Deed::DoubleAnswer]),
        reordered: planned(EACH, &[Deed::Overtake]),
        corrupt,
        misdelivered: planned(EACH, &[Deed::Misdeliver]),
        foreign: 0,
    };
    // A machine that stops for long loses frames of its own.
    let (trial, streams) = wait_for("the tally is that of the plan", PATIENCE, || {
        let (measured, log) = bench.measure(seconds, harm, Strays::default())?;
        let as_planned = |(deed, times): (&Deed, &u64)| *times == planned(EACH, &[*deed]);
        let is_done = log.deeds.len() == KINDS && log.deeds.iter().all(as_planned);
        ensure!(is_done, "the forwarder did {:?}", log.deeds);
        ensure!(
            measured.0.tally == expected,
            "{:?}, not {expected:?}",
            measured.0.tally
        );
        Ok(measured)
    })
    .unwrap();

    // Of flow 1, node 1 got what was neither lost, damaged nor sent to node 2.
    let of = |flow: u32, wanted: &[Option<Deed>]| {
        let deeds = (0..EACH).map(|sequence| harm(flow, sequence));
        deeds.filter(|deed| wanted.contains(deed)).count() as u64
    };
    let harmless = [
        None,
        Some(Deed::DoubleRequest),
        Some(Deed::DoubleAnswer),
        Some(Deed::Overtake),
    ];
    let mut shares = [0, 1, 2].map(|flow| of(flow, &harmless));
    shares[2] += of(1, &[Some(Deed::Misdeliver)]);
    assert_eq!(trial.shares, shares);

    let files = result_of(vec![("harmed", (trial, streams))]).unwrap();
    let forward = &files.run.series[0].figures.forward;
    assert_eq!(forward.unanswered, lost_on_the_way + damaged_on_the_way);
    assert_eq!(
        files.run.series[0].figures.round_trip.unanswered,
        lost + corrupt
    );
    let text = report::text(&files);
    let Tally {
        received,
        duplicates,
        reordered,
        misdelivered,
        ..
    } = expected;
    let row = [
        sent,
        sent,
        received,
        lost,
        duplicates,
        reordered,
        corrupt,
        misdelivered,
        0,
    ];
    assert_eq!(packets(&text, "harmed"), row, "{text}");
    // What was lost, doubled and damaged leaves Little's law its bounds.
    assert!(!text.contains("Little's law"), "{text}");
    let wrong = format!("Wrong packets: {} answers", corrupt + misdelivered);
    assert!(text.starts_with(&wrong), "{text}");
    let page = report::render(&[files]);
    assert_eq!(
        cells(&page, "harmed")[..row.len()],
        row.map(|number| number.to_string())
    );
    report::verify(&page).unwrap();
}

#[test]
fn foreign_and_replayed_frames_are_in_no_figure() {
    const EACH: u32 = 200;
    let bench = Bench::new().unwrap();
    let seconds = f64::from(EACH * FLOWS) / RATE;
    let sent = u64::from(EACH * FLOWS);
    let nothing: Plan = |_, _| None;
    let expected = |foreign| Tally {
        offered: sent,
        sent,
        received: sent,
        foreign,
        ..Tally::default()
    };
    wait_for("only what is of the trial is counted", PATIENCE, || {
        let (_, earlier) = bench.measure(seconds, nothing, Strays::default())?;
        let noise = (0..100).map(|length| vec![0xa5; length % 60]);
        let all = noise.chain(earlier.answers);
        let strays = Strays {
            to_clients: all.take((EACH * FLOWS) as usize).collect(),
            to_backends: earlier.requests,
        };
        let (measured, log) = bench.measure(seconds, nothing, strays.clone())?;
        let put_in = strays.to_clients.len() + strays.to_backends.len();
        ensure!(log.strays == put_in as u64, "{} of {put_in}", log.strays);
        let (trial, streams) = measured;
        ensure!(trial.tally == expected(log.strays), "{:?}", trial.tally);
        for stream in Stream::ALL {
            let intervals = streams[&stream].iter();
            let values: u64 = intervals.map(|interval| interval.histogram.len()).sum();
            assert_eq!(values, sent, "{stream:?}");
        }
        Ok(())
    })
    .unwrap();
}

/// What the forwarder takes for each request: it takes half of what is offered.
const TAKES: Duration = Duration::from_millis(2);

#[test]
fn a_system_that_takes_half_of_what_is_offered_is_called_overloaded_and_gets_no_latency() {
    let bench = Bench::new().unwrap();
    let linger: Plan = |_, _| Some(Deed::Linger(TAKES));
    let (tally, files) = wait_for("half is answered", PATIENCE, || {
        let ((trial, streams), log) = bench.measure(5.0, linger, Strays::default())?;
        let tally = trial.tally;
        let done = log.deeds[&Deed::Linger(TAKES)];
        ensure!(done >= tally.received, "{done}, {tally:?}");
        // A sender that comes late offers less at a time.
        ensure!(tally.received < tally.offered * 3 / 4, "{tally:?}");
        // One that is held up for seconds gets through little.
        ensure!(tally.received > 1_000, "{tally:?}");
        Ok::<_, anyhow::Error>((tally, result_of(vec![("slow", (trial, streams))])?))
    })
    .unwrap();
    assert_eq!((tally.offered, tally.sent), (5_000, 5_000));

    let series = &files.run.series[0];
    assert!(series.is_overloaded() && !series.has_latencies());
    assert_eq!(series.figures.round_trip.value(50.0), None);
    assert_eq!(series.trials[0].figures.round_trip.value(50.0), None);
    let told = format!(
        "overloaded: of 5000 requests that were offered, 5000 were sent and {} received",
        tally.received
    );
    assert_eq!(series.trials[0].doubts[0], told);
    let text = report::text(&files);
    let row = [tally.offered, tally.sent, tally.received, tally.lost];
    assert_eq!(packets(&text, "slow")[..4], row, "{text}");
    let page = report::render(&[files]);
    assert_eq!(
        cells(&page, "slow")[..4],
        row.map(|number| number.to_string())
    );
    report::verify(&page).unwrap();
}

/// Leaves of a trial the requests of one flow. Flows take turns.
fn only(given: &load::Trial, flow: usize) -> load::Trial {
    let own = given.requests.iter().skip(flow).step_by(FLOWS as usize);
    load::Trial {
        start: given.start,
        seconds: given.seconds,
        requests: own.copied().collect(),
        tally: given.tally,
        under_way_ns: None,
        shares: Vec::new(),
        background: None,
        losses: Vec::new(),
    }
}

/// Requests of one flow are held, those of another are not: both meet the same noise.
#[test]
fn a_fixed_delay_of_200_us_is_measured_within_5_us() {
    let bench = Bench::new().unwrap();
    let hold: Plan = |flow, _| (flow == 0).then_some(Deed::Hold(Duration::from_micros(200)));
    wait_for("the medians differ by what was held", PATIENCE, || {
        let (given, mut log) = bench.send(3.0, hold, Strays::default())?;
        let tally = given.tally;
        ensure!(tally.received == tally.offered, "{tally:?}");
        log.held.sort_unstable();
        let truth = log.held[log.held.len() / 2];
        assert!(truth >= 200_000, "{truth}");
        let [held, free] = [0, 1].map(|flow| recorded(&only(&given, flow)));
        let files = result_of(vec![("free", free), ("held", held)])?;
        for stream in [Stream::RoundTrip, Stream::Forward, Stream::RoundTripStamped] {
            let median = |place: usize| {
                let figures = files.run.series[place].figures.of(stream);
                figures.value(50.0).context("half were not answered")
            };
            let (own, added) = (median(0)?, median(1)?.saturating_sub(median(0)?));
            ensure!(
                added.abs_diff(truth) <= 5_000,
                "{stream:?}: {own} and {added}, held {truth} ns"
            );
        }
        Ok(())
    })
    .unwrap();
}

/// The sequence number in flow 0 at which the core stalls: 4 s after the start.
const STALLED: u32 = 1_333;
const STALL: Duration = Duration::from_millis(100);
/// When requests are due that the stall holds up, from the start on in nanoseconds.
const HELD_UP: Range<u64> = 3_900_000_000..4_500_000_000;
/// What the 99.9th uncorrected percentile of requests that a stall holds up must stay below, in nanoseconds.
const UNCORRECTED: u64 = 1_000_000;
/// Requests of a trial that may take longer than the bar, on a machine that is quiet: half of those above the percentile.
const SLOW: usize = 5;
/// Trials on a busy machine until one is taken that is not quiet.
const NOISY_TRIALS: u32 = 3;

/// Returns what all requests but a few take at most, from when they were sent: of those that the stall does not hold up.
fn slowest_elsewhere(given: &load::Trial) -> u64 {
    let elsewhere = given
        .requests
        .iter()
        .filter(|request| !HELD_UP.contains(&(request.due - given.start)));
    let mut all: Vec<u64> = elsewhere.filter_map(Sent::round_trip_uncorrected).collect();
    all.sort_unstable();
    all[all.len() - 1 - SLOW]
}

#[test]
fn a_stall_of_100_ms_shows_in_the_corrected_percentile_and_not_in_the_other() {
    let bench = Bench::new().unwrap();
    let stall: Plan =
        |flow, sequence| (flow == 0 && sequence == STALLED).then_some(Deed::Hold(STALL));
    let mut noisy = 0;
    wait_for("nothing else stalls the machine", PATIENCE, || {
        let (given, log) = bench.send(10.0, stall, Strays::default())?;
        // What is slow without a stall is the machine's.
        let machine = slowest_elsewhere(&given);
        noisy += u32::from(machine >= UNCORRECTED);
        ensure!(
            machine < UNCORRECTED || noisy > NOISY_TRIALS,
            "without a stall requests take {machine} ns"
        );
        let measured = recorded(&given);
        let [held] = log.held[..] else {
            bail!("it stalled {} times", log.held.len());
        };
        let files = result_of(vec![("stalled", measured)])?;
        let figures = &files.run.series[0].figures;
        // A machine that stops for long leaves requests unanswered.
        let p99_9 = |stream| figures.of(stream).value(99.9).context("no such figure");
        // Ten of the 10 000 are above: those that were due in the first 10 ms.
        let corrected = p99_9(Stream::RoundTrip)?;
        assert!(
            corrected >= 85_000_000,
            "{corrected} ns, stalled for {held} ns"
        );
        let uncorrected = p99_9(Stream::RoundTripUncorrected)?;
        ensure!(
            uncorrected < machine.max(UNCORRECTED),
            "{uncorrected} and {corrected} ns, and without a stall {machine} ns"
        );
        ensure!(
            corrected < held + held / 8,
            "{corrected} ns, stalled for {held} ns"
        );
        Ok(())
    })
    .unwrap();
}
