//! Loads of all kinds, and events while they run.

use std::{fs, path::Path};

use bench::result::{Files, Stream, merge};

use super::{SCENARIO, Scratch, bench, content, has_measured, text};

#[test]
fn loads_of_both_families_and_protocols_pass_and_live_frames_are_counted() {
    const LOADS: &str = "
- { rate: 400, flows: 6, family: ipv6, stamps: kernel, schedule: burst, burst: 8, flow_order: zipf, frame_bytes: imix }
- { generator: live, family: ipv6, protocol: tcp, rate: 4000, frame_bytes: 84:1 512:1 1518:1 }
- { generator: live, schedule: max, threads: 2, flows: 1000, flow_order: zipf, new_flow_share: 0.1 }
- { generator: live, rate: 20000, search: pdr }
- { generator: live, protocol: tcp, segment: syn, rate: 4000, new_flow_share: 1 }
- { generator: live, family: ipv6, rate: 4000, vlan: 7 }
- { generator: live, rate: 20000, search: rfc2544-loss }
";
    let scratch = Scratch::new("loads");
    let (scenario, out, page) = (
        scratch.path("loads.yaml"),
        scratch.path("result"),
        scratch.path("report.html"),
    );
    let own = "loads: [{ rate: 400, flows: 6, schedule: poisson }]\n";
    let loads = SCENARIO.replace(own, &format!("loads:{LOADS}services: 3\n"));
    fs::write(&scenario, loads.replace("seconds: 0.5", "seconds: 0.1")).unwrap();
    let run = bench(&["run", &scenario, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    assert!(
        text(&run).contains("million frames a second"),
        "{}",
        text(&run)
    );
    let files = Files::read(Path::new(&out)).unwrap();
    assert_eq!(files.run.series.len(), 14);
    for series in &files.run.series {
        let has_losses = series.name.ends_with("-7");
        let mut trials = series.trials.iter();
        assert!(trials.all(|trial| (trial.losses.len() >= 2) == has_losses));
        let [offered, sent, received] = series.totals();
        let told = format!("{}: {offered}, {sent}, {received}", series.name);
        // That all of a few frames pass was proved when the load was opened.
        assert!(
            received > 0 && received <= sent && sent <= offered,
            "{told}"
        );
        assert!(series.rates().iter().all(|rate| *rate > 0.0), "{told}");
    }
    for series in &files.run.series[..2] {
        let name = &series.name;
        let own = &files.series[name];
        let [stamped, all] =
            [Stream::RoundTripStamped, Stream::RoundTripUncorrected].map(|stream| {
                let intervals = own[&stream].iter().map(|one| &one.histogram);
                merge(intervals)
            });
        assert_eq!(stamped.len(), all.len(), "{name}");
        // What the kernel saw of each request is part of what the client saw.
        assert!(
            stamped.mean() < all.mean(),
            "{name}: {}, {}",
            stamped.mean(),
            all.mean()
        );
    }
    let report = bench(&["report", &out, "--html", &page]);
    assert!(report.status.success(), "{}", text(&report));
    let verify = bench(&["verify", &page]);
    assert!(verify.status.success(), "{}", text(&verify));
    let (one, other) = (format!("{out}:direct-3"), format!("{out}:ours-ipip-3"));
    // Better or the same, worse, or not to be told: never an error.
    let compare = bench(&["compare", &one, &other]);
    assert!(
        matches!(compare.status.code(), Some(0 | 3 | 4)),
        "{}",
        text(&compare)
    );
    assert!(
        text(&compare).contains("time per frame"),
        "{}",
        text(&compare)
    );
    let (one, other) = (format!("{out}:direct-2"), format!("{out}:ours-ipip-2"));
    let compare = bench(&["compare", &one, &other]);
    assert_eq!(compare.status.code(), Some(2), "{}", text(&compare));
    assert!(
        text(&compare).contains("has the rate of its load"),
        "{}",
        text(&compare)
    );
}

#[test]
fn requests_by_tcp_and_beside_live_frames_are_timed_and_af_xdp_sends() {
    const LOADS: &str = "
- { rate: 400, flows: 6, background: 1% of ours-ipip }
- { rate: 400, flows: 6, family: ipv6, protocol: tcp }
- { rate: 400, flows: 6, protocol: tcp, exchange: http, frame_bytes: 140:1 1400:1 }
- { rate: 400, flows: 64, protocol: tcp, exchange: crr }
- { rate: 400, flows: 64, family: ipv6, protocol: tcp, exchange: connect }
- { generator: afxdp, rate: 4000, frame_bytes: 68:1 512:1, vlan: 7 }
";
    let scratch = Scratch::new("tcp");
    let (scenario, out, page) = (
        scratch.path("tcp.yaml"),
        scratch.path("result"),
        scratch.path("report.html"),
    );
    let own = "loads: [{ rate: 400, flows: 6, schedule: poisson }]\n";
    let loads = SCENARIO.replace(own, &format!("loads:{LOADS}services: 3\n"));
    fs::write(&scenario, loads.replace("seconds: 0.5", "seconds: 0.2")).unwrap();
    let run = bench(&["run", &scenario, "--out", &out, "--redact"]);
    assert!(has_measured(&run), "{}", text(&run));
    let files = Files::read(Path::new(&out)).unwrap();
    assert!(files.run.environment["host.name"].starts_with("host-"));
    assert_eq!(files.run.series.len(), 12);
    for series in &files.run.series {
        for trial in &series.trials {
            let tally = trial.tally;
            let told = format!("{}: {tally:?}", series.name);
            assert!(tally.sent > 50 && tally.received > 0, "{told}");
            assert_eq!((tally.corrupt, tally.misdelivered), (0, 0), "{told}");
            assert_eq!(trial.longest_gap_ns.is_some(), series.is_timed());
            let has_frames = series.name.ends_with("-1");
            let passed = trial.background.map(|passed| passed.tally.received);
            assert_eq!(
                passed.is_some_and(|frames| frames > 1_000),
                has_frames,
                "{told}"
            );
        }
    }
    // All systems have the same frames beside their requests.
    let offered = files.run.series[..2].iter().flat_map(|series| {
        let passed = series.trials.iter().filter_map(|trial| trial.background);
        passed.map(|passed| passed.tally.offered)
    });
    let offered: Vec<u64> = offered.collect();
    assert!(
        offered.iter().all(|frames| *frames == offered[0]),
        "{offered:?}"
    );
    let report = bench(&["report", &out, "--html", &page]);
    assert!(report.status.success(), "{}", text(&report));
    let page_text = content(&page);
    assert!(page_text.contains("beside direct-1") && page_text.contains("tcp connect"));
    let verify = bench(&["verify", &page]);
    assert!(verify.status.success(), "{}", text(&verify));
}

#[test]
fn shares_of_a_rate_that_is_searched_for_are_all_of_the_same_one() {
    let scratch = Scratch::new("shares");
    let (scenario, out, page) = (
        scratch.path("shares.yaml"),
        scratch.path("result"),
        scratch.path("report.html"),
    );
    let own = SCENARIO
        .replace(", ours-ipip", "")
        .replace("poisson }", "poisson, background: 1% 2% of pdr }")
        .replace("seconds: 0.5", "seconds: 0.1");
    fs::write(&scenario, own).unwrap();
    let run = bench(&["run", &scenario, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let files = Files::read(Path::new(&out)).unwrap();
    let [low, high] = files.run.series.as_slice() else {
        panic!("{:?}", files.run.series);
    };
    let found = low.reference_rate.unwrap();
    assert_eq!(high.reference_rate, Some(found));
    for (series, share) in [(low, 0.01), (high, 0.02)] {
        assert_eq!(series.background_rate(), Some((share * found).round()));
        let mut trials = series.trials.iter();
        assert!(trials.all(|trial| trial.background.is_some()));
    }
    let report = bench(&["report", &out, "--html", &page]);
    assert!(report.status.success(), "{}", text(&report));
    assert!(text(&run).contains("1 % of its pdr") && content(&page).contains("2 % of its pdr"));
    let verify = bench(&["verify", &page]);
    assert!(verify.status.success(), "{}", text(&verify));
}

#[test]
fn an_event_happens_in_each_trial_and_is_undone_before_the_next() {
    for event in ["agent-restart", "backend-change", "other-services"] {
        let scratch = Scratch::new(event);
        let (scenario, out) = (scratch.path("event.yaml"), scratch.path("result"));
        let systems = "direct, ours-nat, kube-proxy-nftables";
        let own = SCENARIO.replace("direct, ours-ipip", systems);
        let own = own.replace("seconds: 0.5", "seconds: 0.3");
        let own = own + &format!("services: 20\nevent: {{ what: {event}, at: 0.1 }}\n");
        fs::write(&scenario, own).unwrap();
        let run = bench(&["run", &scenario, "--out", &out]);
        assert!(has_measured(&run), "{}", text(&run));
        assert!(text(&run).contains("longest gap"), "{}", text(&run));
        let files = Files::read(Path::new(&out)).unwrap();
        let [direct, balancers @ ..] = files.run.series.as_slice() else {
            panic!("{:?}", files.run.series);
        };
        assert_eq!(balancers.len(), 2);
        assert!(direct.trials.iter().all(|trial| trial.event.is_none()));
        for trial in balancers.iter().flat_map(|series| &series.trials) {
            let happened = trial.event.expect("it happens in each");
            assert!(happened.seconds > 0.0, "{happened:?}");
            assert!(trial.longest_gap_ns.is_some());
            let tally = trial.tally;
            assert!(tally.received > 0 && tally.corrupt == 0, "{tally:?}");
            assert_eq!(tally.misdelivered, 0, "{event}: {tally:?}");
        }
    }
}
