//! A report says how to repeat it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use bench::result::Files;

use super::{ANY_NOISE, SCENARIO, Scratch, bench, content, has_measured, text};

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
    let compare = bench(&["compare", &out, &again.to_string_lossy()]);
    // What a busy machine makes of it is no matter of this test.
    let code = compare.status.code();
    assert!(matches!(code, Some(0 | 3 | 4)), "{}", text(&compare));
}
