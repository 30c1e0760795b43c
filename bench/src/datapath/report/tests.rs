use super::*;
use crate::{
    bars::{Limit, Outcome},
    datapath::Figures as _,
};

/// The protocol that takes all paths.
const PROTOCOL: Protocol = Protocol::Tcp;

/// The figures of [`samples`] that keep all bounds.
const GOOD: [(System, f64); 9] = [
    (System::Guideway, 1.5),
    (System::Slots, 2.0),
    (System::NodePort, 1.6),
    (System::Node, 1.5),
    (System::Reply, 1.5),
    (System::Nat, 3.0),
    (System::NatReply, 2.0),
    (System::OtherEgress, 0.2),
    (System::Miss, 0.5),
];

/// Rounds with these units and this share of the floor, disturbed by noise that a round's systems share.
fn samples(figures: &[(System, f64)], share: f64) -> Samples {
    let mut samples = Samples::default();
    for noise in [1.0, 1.4, 0.9, 1.1, 2.0, 1.0, 1.2] {
        for (stream, system) in super::super::plan::cost_trials(PROTOCOL, 0) {
            let units = figures.iter().rev().find(|(named, _)| *named == system);
            let units = match system {
                System::Hit => 1.0,
                _ => units.map_or(0.0, |(_, units)| *units),
            };
            let rounds = samples.ns.entry((system, stream)).or_default();
            rounds.push((45.0 + 20.0 * units) * noise);
        }
        for (stream, system) in super::super::plan::rate_trials(PROTOCOL, 0) {
            let share = if system == System::Floor { 1.0 } else { share };
            let rounds = samples.pps.entry((system, stream)).or_default();
            rounds.push(4e6 * share / noise);
        }
    }
    samples
}

fn report(samples: &Samples) -> Report {
    let host = Facts {
        kernel: "6.18.0".to_owned(),
        cpu: "Some CPU".to_owned(),
        date: "2026-11-21".to_owned(),
    };
    let mut report = Report::new(host, 1, 7);
    report.add(Family::V4, PROTOCOL, samples.clone());
    report
}

fn failed(report: &Report) -> Vec<&'static str> {
    let bars = report.bars().into_iter();
    bars.filter(|bar| bar.outcome == Outcome::Fails)
        .map(|bar| bar.name)
        .collect()
}

#[test]
fn shared_noise_does_not_reach_ratios_and_units() {
    let report = report(&samples(&GOOD, 0.82));
    let is_plain = |row: &&Row| row.system == System::Guideway;
    let plain = report.rows.iter().find(is_plain).unwrap();
    assert!((plain.rate.as_ref().unwrap().of_floor.value - 0.82).abs() < 1e-9);
    assert!((plain.units.value - 1.5).abs() < 1e-9);
    assert!((plain.units.high - plain.units.low).abs() < 1e-9);
    assert_eq!(report.outcome(), Outcome::Holds, "{report}");
}

#[test]
fn each_bar_fails_by_its_own_figure() {
    for (system, figure, bars) in [
        (System::Slots, 2.5, &["131 072 slots, units"][..]),
        (System::L2Dsr, 2.0, &["plain and L2 DSR, units"]),
        (
            System::NodePort,
            1.7,
            &["NodePort to another node, of plain"],
        ),
        (System::Node, 2.1, &["edge to pod, units"]),
        (System::Reply, 1.9, &["a pod's reply, units"]),
        (System::Nat, 3.3, &["NAT to the backend, units"]),
        (System::NatReply, 2.5, &["NAT to the client, units"]),
        (
            System::OtherEgress,
            0.4,
            &["other traffic at egress, units"],
        ),
        (System::Miss, 0.7, &["a miss at the edge, units"]),
        (System::Past, 1.7, &["slots with a past, of plain"]),
        (System::Pinned, 5.1, &["pinned connections, units"]),
        (
            System::NodeTries,
            2.1,
            &["may be returned, units more at the node"],
        ),
        (
            System::NodeAsked,
            5.1,
            &["the node asks, units more in a second"],
        ),
        (System::NodeReturn, 9.1, &["returned by a node, units"]),
        (System::Retry, 9.1, &["sent to the next owner, units"]),
    ] {
        let figures = [&GOOD[..], &[(system, figure)]].concat();
        let report = report(&samples(&figures, 0.82));
        assert_eq!(failed(&report), bars);
        assert_eq!(report.outcome(), Outcome::Fails);
    }
    assert_eq!(
        failed(&report(&samples(&GOOD, 0.79))),
        ["plain, of the floor"]
    );
    let mut grown = samples(&GOOD, 0.82);
    let many = grown.ns.get_mut(&(System::Guideway, MANY)).unwrap();
    many.iter_mut().for_each(|ns| *ns *= 1.05);
    assert_eq!(
        failed(&report(&grown)),
        ["growth of the net cost, 10 k to 1 M flows"]
    );
}

#[test]
fn interval_around_the_bound_is_inconclusive() {
    let outcome = |limit: Limit, low, value, high| limit.judge(&Estimate { value, low, high });
    let most = Limit::Most(3.0);
    assert_eq!(outcome(most, 2.8, 2.9, 3.0), Outcome::Holds);
    assert_eq!(outcome(most, 2.8, 2.9, 3.1), Outcome::Inconclusive);
    assert_eq!(outcome(most, 3.1, 3.2, 3.3), Outcome::Fails);
    let least = Limit::Least(0.72);
    assert_eq!(outcome(least, 0.72, 0.8, 0.9), Outcome::Holds);
    assert_eq!(outcome(least, 0.71, 0.8, 0.9), Outcome::Inconclusive);
    assert_eq!(outcome(least, 0.6, 0.7, 0.71), Outcome::Fails);
    assert_eq!(Outcome::worst([]), Outcome::Inconclusive);
}

#[test]
fn json_rows_carry_the_documented_fields() {
    let report = report(&samples(&GOOD, 0.82));
    assert_eq!(report.rows.len(), System::rows(PROTOCOL).count());
    let is_many = |row: &&Row| row.system == System::Guideway && row.stream == MANY;
    let row = report.rows.iter().find(is_many).unwrap();
    let row = row.to_json(&report.host);
    assert_eq!(row["system"], "guideway");
    assert_eq!(row["family"], "v4");
    assert_eq!(row["protocol"], "tcp");
    assert_eq!(row["flows"], 1_000_000);
    assert_eq!(row["order"], "in_turn");
    assert_eq!(row["rounds"], 7);
    let estimates = ["pps_vs_floor", "net_ns", "units", "of_plain", "growth"];
    for field in ["pps", "ns", "unit_ns"].iter().chain(&estimates) {
        assert!(row[field].is_f64(), "{field}");
    }
    for field in ["pps", "ns"] {
        for part in ["min", "iqr", "max"] {
            assert!(row["spread"][field][part].is_f64(), "{field}.{part}");
        }
    }
    for field in estimates {
        let interval = row["spread"][field].as_array().unwrap();
        assert!(
            interval.len() == 2 && interval.iter().all(Value::is_f64),
            "{field}"
        );
    }
    assert_eq!(row["host"]["kernel"], "6.18.0");
}

#[test]
fn systems_have_one_name_in_tables_and_json() {
    for system in System::ALL {
        assert_eq!(json!(system), system.name());
    }
}

#[test]
fn table_fits_a_hundred_columns() {
    let text = report(&samples(&GOOD, 0.82)).to_string();
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}
