//! Comparison of results that have figures of their own, as `datapath --out` and `control --out` write them.

use std::{collections::BTreeMap, path::PathBuf};

use bench::{
    result::{Files, Measurement, Run},
    run,
    scenario::Scenario,
};

use super::{SCENARIO, Scratch, bench, text};

/// Writes a result with one cost of 60 ns, times `slower`, in eight rounds, and returns its directory.
fn result(scratch: &Scratch, name: &str, slower: f64, change: impl Fn(&mut Run)) -> String {
    let options = run::Options {
        scenario: SCENARIO.to_owned(),
        guideway: PathBuf::new(),
        out: PathBuf::new(),
        interrupted: None,
        most_noise: 1.0,
        command: "again".to_owned(),
    };
    let scenario = Scenario::parse(SCENARIO).expect("it is one");
    let mut run = run::new_run(&options, scenario);
    run.interrupted = false;
    let costs = (0..8).map(|round| slower * (60.0 + 0.01 * f64::from(round)));
    let costs: Vec<f64> = costs.collect();
    let cost = Measurement::of("plain", "net cost", "ns", &costs, 0.5, None);
    let memory = Measurement::of("agent", "memory", "MiB", &[70.0], 0.5, None);
    run.measurements = vec![cost, memory];
    change(&mut run);
    let directory = scratch.path(name);
    let files = Files::make(run, 1.0, BTreeMap::new()).expect("all numbers have a form in JSON");
    let written = files.write(directory.as_ref());
    written.expect("the directory is the test's own");
    directory
}

#[test]
fn costs_of_two_results_are_judged_and_other_machines_are_refused_by_name() {
    let scratch = Scratch::new("costs");
    let nothing = |_: &mut Run| ();
    let one = result(&scratch, "one", 1.0, nothing);
    let same = result(&scratch, "same", 1.001, nothing);
    let slower = result(&scratch, "slower", 1.05, nothing);
    let elsewhere = result(&scratch, "elsewhere", 1.0, |run| {
        (run.environment).insert("cpu.model".to_owned(), "another".to_owned());
    });
    for (other, code, told) in [
        (&same, 0, "of different runs: same"),
        (&slower, 3, "of different runs: worse"),
        (&elsewhere, 2, "cpu.model: "),
    ] {
        let compare = bench(&["compare", &one, other]);
        assert_eq!(compare.status.code(), Some(code), "{}", text(&compare));
        assert!(text(&compare).contains(told), "{}", text(&compare));
    }
    let faster = bench(&["compare", &slower, &one, "--json"]);
    assert!(faster.status.success(), "{}", text(&faster));
    assert!(
        text(&faster).contains("\"judgement\":\"better\""),
        "{}",
        text(&faster)
    );
    let agents = [&one, &slower].map(|of| format!("{of}:agent"));
    let few = bench(&["compare", &agents[0], &agents[1]]);
    assert_eq!(few.status.code(), Some(4), "{}", text(&few));
    assert!(
        text(&few).contains("1 and 1 samples are too few"),
        "{}",
        text(&few)
    );
    let unknown = bench(&["compare", &format!("{one}:moon"), &one]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown));
    assert!(
        text(&unknown).contains("the subjects plain; agent"),
        "{}",
        text(&unknown)
    );
}
