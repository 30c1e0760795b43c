//! Runs that are ended by a signal.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use bench::result::Files;
use lab::wait_until;
use rustix::process::{Pid, Signal, kill_process};

use super::{ANY_NOISE, SCENARIO, Scratch, bench, text};

/// Tells whether a namespace of a program is there.
fn has_namespaces(program: u32) -> bool {
    let prefix = format!("gw-{program}-");
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let mut names = names.map(|name| name.file_name());
    names.any(|name| name.to_string_lossy().starts_with(&prefix))
}

#[test]
fn a_run_that_is_ended_at_any_time_leaves_what_it_measured_and_nothing_else() {
    for signal in [Signal::INT, Signal::KILL] {
        let scratch = Scratch::new("ended");
        let (scenario, out) = (scratch.path("long.yaml"), scratch.path("result"));
        let long = SCENARIO
            .replace(", ours-ipip", "")
            .replace("seconds: 0.5", "seconds: 0.1")
            .replace("rounds: 6", "rounds: 10000");
        fs::write(&scenario, &long).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_guideway-bench"));
        let command = command.args(["run", &scenario, "--out", &out]);
        let command = command.args(ANY_NOISE);
        let mut run = command.stdout(Stdio::null()).spawn().unwrap();
        let result = Path::new(&out).join("result.json");
        wait_until("a round is measured", Duration::from_secs(120), || {
            result.exists()
        })
        .unwrap();
        assert!(has_namespaces(run.id()));
        kill_process(Pid::from_child(&run), signal).unwrap();
        assert!(!run.wait().unwrap().success());

        let files = Files::read(Path::new(&out)).unwrap();
        assert!(files.run.interrupted && !files.run.series[0].trials.is_empty());
        if signal == Signal::KILL {
            // The next run cleans up.
            let (scenario, out) = (scratch.path("short.yaml"), scratch.path("other"));
            fs::write(&scenario, long.replace("rounds: 10000", "rounds: 6")).unwrap();
            let next = bench(&["run", &scenario, "--out", &out]);
            assert!(next.status.success(), "{}", text(&next));
        }
        assert!(!has_namespaces(run.id()), "{signal:?}");
    }
}
