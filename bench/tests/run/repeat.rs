//! A report says how to repeat it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use bench::result::Files;
use serde_json::Value;

use super::{ANY_NOISE, SCENARIO, Scratch, bench, content, has_measured, text};

/// Least difference that matters between a run and its repetition: tenfold. Rates are in core time, so other work on the
/// machine changes them by its use of caches and no more. Latencies have no such limit, and a busy machine may leave a run
/// without any: that equals are found equal at 2 % is what `guideway-bench judgement` checks.
const LEAST: &str = "9";

/// Returns the blocks of a page that are shown as they are.
fn verbatim(page: &str) -> Vec<String> {
    let blocks = page.split("<pre>").skip(1);
    let blocks = blocks.filter_map(|block| Some(block.split_once("</pre>")?.0.to_owned()));
    blocks.collect()
}

/// Runs a command of a report in a directory, with its result there.
fn repeat(command: &str, directory: &Path) -> Output {
    let words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(words[..2], ["guideway-bench", "run"], "{command}");
    let mut run = Command::new(env!("CARGO_BIN_EXE_guideway-bench"));
    let words = words[1..].iter();
    run.args(words.map(|word| if *word == "DIR" { "again" } else { word }));
    let output = run.current_dir(directory).output();
    output.expect("the program was built with this test")
}

#[test]
fn the_command_of_a_report_repeats_it_and_both_can_be_compared() {
    let scratch = Scratch::new("repeat");
    let [scenario, out, page] =
        ["own.yaml", "result", "report.html"].map(|name| scratch.path(name));
    let own = SCENARIO
        .replace(", ours-ipip", "")
        .replace("poisson }", "poisson }, { generator: live, schedule: max }")
        .replace("seconds: 0.5", "seconds: 0.2");
    fs::write(&scenario, own).unwrap();
    let run = bench(&["run", &scenario, "--out", &out]);
    assert!(has_measured(&run), "{}", text(&run));
    let report = bench(&["report", &out, "--html", &page]);
    assert!(report.status.success(), "{}", text(&report));

    // All that a reader has is the page.
    let page = content(&page);
    let blocks = verbatim(&page);
    let [scenario, command] = blocks.as_slice() else {
        panic!("{blocks:?}");
    };
    assert!(command.ends_with(&ANY_NOISE.join(" ")), "{command}");
    let elsewhere = scratch.0.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("own.yaml"), scenario).unwrap();
    let repeated = repeat(command, &elsewhere);
    assert!(has_measured(&repeated), "{}", text(&repeated));

    let again = elsewhere.join("again");
    let [before, after] = [Path::new(&out), &again].map(|path| Files::read(path).unwrap().run);
    assert_eq!(before.comparability.key, after.comparability.key);
    assert_eq!(before.scenario, after.scenario);
    let again = again.to_string_lossy();
    let sides = [&*out, &*again].map(|result| format!("{result}:direct-2"));
    let compare = bench(&["compare", &sides[0], &sides[1], "--least", LEAST, "--json"]);
    let compared: Value = serde_json::from_slice(&compare.stdout).unwrap_or_default();
    let judgement = &compared["rows"][0]["judgement"];
    assert!(
        ["same", "inconclusive"].iter().any(|one| judgement == one),
        "{}",
        text(&compare)
    );
}
