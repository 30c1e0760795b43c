//! Runs that end before their time: by a signal, or because a system has crashed.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use aya::{maps::loaded_maps, programs::loaded_programs};
use bench::{exit::Exit, result::Files};
use lab::{Process, Signal, wait_until};
use rustix::process::{Pid, kill_process};

use super::{ANY_NOISE, SCENARIO, Scratch, bench, has_measured, text};

const TIMEOUT: Duration = Duration::from_mins(10);

/// A run of many rounds, as a process of its own.
struct LongRun {
    scratch: Scratch,
    out: String,
    process: Process,
}

impl LongRun {
    fn start(name: &str, scenario_text: &str) -> Self {
        let scratch = Scratch::new(name);
        let (scenario, out) = (scratch.path("long.yaml"), scratch.path("result"));
        let long = scenario_text
            .replace("seconds: 0.5", "seconds: 0.1")
            .replace("rounds: 6", "rounds: 10000");
        fs::write(&scenario, long).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_guideway-bench"));
        let command = command.args(["run", &scenario, "--out", &out]);
        let process = Process::spawn(command.args(ANY_NOISE)).unwrap();
        Self {
            scratch,
            out,
            process,
        }
    }

    /// Waits until a round is measured.
    fn wait_for_trials(&mut self) {
        let result = Path::new(&self.out).join("result.json");
        self.wait_until("a round is measured", |_| result.exists());
    }

    fn wait_until(&mut self, what: &str, has_come: impl Fn(&Self) -> bool) {
        wait_until(what, TIMEOUT, || {
            assert!(self.process.is_running(), "{}", self.process.stderr());
            has_come(self)
        })
        .unwrap();
    }

    /// Returns the network namespaces of the run, which are named after it.
    fn namespaces(&self) -> Vec<PathBuf> {
        let prefix = format!("gw-{}-", self.process.id());
        let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let is_own = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(&prefix)
        };
        names.map(|entry| entry.path()).filter(is_own).collect()
    }

    /// Checks that nothing is left of the run.
    fn expect_nothing(&self, made: &Made, told: &str) {
        assert!(self.namespaces().is_empty(), "{told}");
        made.expect_gone(told);
    }

    /// Returns the processes that the run has started: its agents.
    fn children(&self) -> BTreeSet<Child> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let own = ids.filter_map(Child::find);
        own.filter(|(parent, _)| *parent == self.process.id())
            .map(|(_, child)| child)
            .collect()
    }

    /// Returns the process of the run that is in one of its namespaces.
    fn agent_of(&self, machine: &str) -> Child {
        let namespaces = self.namespaces();
        let name = |path: &&PathBuf| path.to_string_lossy().ends_with(&format!("-{machine}"));
        let own = namespaces.iter().find(name).unwrap();
        let identity = |path: &Path| fs::metadata(path).map(|own| (own.dev(), own.ino())).ok();
        let is_there = |child: &Child| {
            let path = PathBuf::from(format!("/proc/{}/ns/net", child.id));
            identity(&path) == identity(own)
        };
        self.children().into_iter().find(is_there).unwrap()
    }
}

/// A process, which is told from later ones of its number by when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Child {
    id: u32,
    /// Clock ticks since the machine has begun.
    began: u64,
}

impl Child {
    /// Finds a process that runs, with its parent; see proc_pid_stat(5).
    fn find(id: u32) -> Option<(u32, Self)> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let child = Self {
            id,
            began: fields.get(19)?.parse().ok()?,
        };
        let runs = fields[0] != "Z";
        runs.then_some((fields[1].parse().ok()?, child))
    }

    fn runs(self) -> bool {
        Self::find(self.id).is_some_and(|(_, found)| found == self)
    }

    /// Returns the numbers of the BPF objects of a kind that the process has open: `prog_id` or `map_id`.
    fn open(self, kind: &str) -> BTreeSet<u32> {
        let files = fs::read_dir(format!("/proc/{}/fdinfo", self.id));
        let texts = files.into_iter().flatten().flatten();
        let texts = texts.filter_map(|file| fs::read_to_string(file.path()).ok());
        let key = format!("{kind}:");
        let number = |text: String| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(&key));
            values.next()?.trim().parse().ok()
        };
        texts.filter_map(number).collect()
    }
}

/// What a run has made, which must be gone with it.
struct Made {
    children: BTreeSet<Child>,
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Made {
    fn by(run: &LongRun) -> Self {
        let children = run.children();
        let open = |kind| children.iter().flat_map(|child| child.open(kind)).collect();
        Self {
            programs: open("prog_id"),
            maps: open("map_id"),
            children,
        }
    }

    /// Checks that nothing is left. The kernel frees programs and maps in the background, once nothing holds them.
    fn expect_gone(&self, told: &str) {
        // What is not in a namespace, as a command for the machine itself, ends by itself.
        wait_until(
            &format!("{told}: programs that were started"),
            TIMEOUT,
            || !self.children.iter().any(|child| child.runs()),
        )
        .unwrap();
        wait_until(&format!("{told}: programs and maps"), TIMEOUT, || {
            let mut programs = loaded_programs().flatten().map(|program| program.id());
            let mut maps = loaded_maps().flatten().map(|map| map.id());
            !programs.any(|id| self.programs.contains(&id))
                && !maps.any(|id| self.maps.contains(&id))
        })
        .unwrap();
    }
}

#[test]
fn a_run_that_is_ended_at_any_time_leaves_what_it_measured_and_nothing_else() {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut run = LongRun::start("ended", SCENARIO);
        run.wait_for_trials();
        let made = Made::by(&run);
        assert!(!made.children.is_empty() && !run.namespaces().is_empty());
        run.process.signal(signal).unwrap();
        assert!(!run.process.wait(TIMEOUT).unwrap().success());

        let files = Files::read(Path::new(&run.out)).unwrap();
        assert!(files.run.interrupted && !files.run.series[0].trials.is_empty());
        if signal == Signal::SIGKILL {
            next_run_starts(&run.scratch);
        }
        run.expect_nothing(&made, signal.as_str());
    }
}

#[test]
fn a_run_that_is_ended_while_it_sets_up_leaves_nothing() {
    type HasBegun = fn(&LongRun) -> bool;
    let begun: [(&str, HasBegun); 4] = [
        ("its first namespace", |run| !run.namespaces().is_empty()),
        ("its first program", |run| !run.children().is_empty()),
        ("its second program", |run| run.children().len() >= 2),
        ("programs in the kernel", |run| {
            !Made::by(run).programs.is_empty()
        }),
    ];
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let ended = begun.map(|(what, has_begun)| {
            let mut run = LongRun::start(&format!("{signal} with {what}"), SCENARIO);
            run.wait_until(what, has_begun);
            run.process.signal(signal).unwrap();
            let made = Made::by(&run);
            assert!(!run.process.wait(TIMEOUT).unwrap().success(), "{what}");
            (run, made)
        });
        if signal == Signal::SIGKILL {
            next_run_starts(&ended[0].0.scratch);
        }
        for (run, made) in ended {
            run.expect_nothing(&made, signal.as_str());
        }
    }
}

/// Runs another scenario, which cleans up first.
fn next_run_starts(scratch: &Scratch) {
    let (scenario, out) = (scratch.path("short.yaml"), scratch.path("other"));
    let short = SCENARIO.replace(", ours-ipip", "");
    fs::write(&scenario, short.replace("seconds: 0.5", "seconds: 0.1")).unwrap();
    let next = bench(&["run", &scenario, "--out", &out]);
    assert!(has_measured(&next), "{}", text(&next));
}

/// The edge's tables and program stay in the kernel without the agent, and forward on.
#[test]
fn a_system_that_crashes_ends_the_run_which_keeps_the_rounds_before() {
    let mut run = LongRun::start("crashed", SCENARIO);
    run.wait_for_trials();
    let made = Made::by(&run);
    let agent = run.agent_of("edge0").id.cast_signed();
    kill_process(Pid::from_raw(agent).unwrap(), rustix::process::Signal::KILL).unwrap();
    let status = run.process.wait(TIMEOUT).unwrap();
    let said = run.process.stderr();
    let expected = i32::from(Exit::SystemEnded.code());
    assert_eq!(status.code(), Some(expected), "{said}");
    for told in [
        "rounds, as an interrupted result",
        "ours-ipip has ended while it was measured",
        "of edge0: signal: 9 (SIGKILL)",
        "the last that it wrote:",
    ] {
        assert!(said.contains(told), "{said}");
    }
    let files = Files::read(Path::new(&run.out)).unwrap();
    assert!(files.run.interrupted);
    let rounds = files.run.series.iter().map(|series| series.trials.len());
    let rounds: Vec<usize> = rounds.collect();
    assert!(rounds[0] > 0 && rounds[0] == rounds[1], "{rounds:?}");
    run.expect_nothing(&made, "crashed");
}
