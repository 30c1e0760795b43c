//! Compares two revisions: this build of the bench and another one.
//!
//! The layout of the tables may differ between revisions, and an object can only be measured with tables that
//! its own user space has filled. So whole benches are compared. Each runs as a process that prints its rows as
//! JSON. They take turns of a few rounds on the same core, and swap their order from turn to turn, so that
//! drift affects both alike. The figure of a row is its net cost in ns divided by the other's in the same turn.
//! Rows that only one of the benches has are left out.

use std::{
    collections::BTreeMap,
    env, fmt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{
    Options, System,
    report::{interval, lower},
};
use crate::bars::{Limit, Outcome};
use crate::stats::{Estimate, bootstrap, median};

/// Rounds of a turn. Setting a bench up takes as long as some rounds.
const ROUNDS: usize = 4;
/// Least number of turns that tells noise from cost.
const TURNS: usize = 3;
/// A row is slower if its cost is certainly above the other's by more than this factor. Two runs of one build
/// may differ by as much.
const NOT_SLOWER: Limit = Limit::Most(1.03);
/// Exit codes of a bench that has measured. Whether its bars hold does not matter here.
const MEASURED: [Option<i32>; 3] = [Some(0), Some(3), Some(4)];

/// The identity of a row, in the spelling of the benches' JSON.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    family: String,
    protocol: String,
    system: String,
    flows: u64,
    #[serde(default = "in_turn")]
    order: String,
}

/// The order of rows from benches that do not print one.
fn in_turn() -> String {
    "in_turn".to_owned()
}

/// The part of a row that is compared.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(flatten)]
    key: Key,
    net_ns: f64,
}

/// The net costs of one turn of a bench, in ns.
type Turn = BTreeMap<Key, f64>;

/// A row that both benches have.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    #[serde(flatten)]
    key: Key,
    /// Median net cost of this build, in ns.
    pub net_ns: f64,
    /// Median net cost of the other build, in ns.
    pub other_net_ns: f64,
    /// Net cost of this build over that of the other.
    pub ratio: f64,
    /// The 95 % confidence interval of the ratio.
    pub interval: [f64; 2],
}

impl Compared {
    fn estimate(&self) -> Estimate {
        let [low, high] = self.interval;
        Estimate {
            value: self.ratio,
            low,
            high,
        }
    }

    /// Returns whether this build is slower.
    pub fn outcome(&self) -> Outcome {
        NOT_SLOWER.judge(&self.estimate())
    }
}

/// All rows of both benches.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Number of turns of each bench.
    pub turns: usize,
    /// The rows.
    pub rows: Vec<Compared>,
}

/// Compares this build of the bench with another.
///
/// # Errors
///
/// When either bench cannot be run, or they have no row in common.
pub fn compare(other: &Path, options: &Options, progress: &dyn Fn(&str)) -> Result<Comparison> {
    let own = env::current_exe().context("finding this program")?;
    let turns = options.rounds.div_ceil(ROUNDS);
    ensure!(
        turns >= TURNS,
        "a comparison takes at least {} rounds, {ROUNDS} of them to a turn",
        TURNS * ROUNDS
    );
    let mut turns_of = [Vec::new(), Vec::new()];
    for turn in 0..turns {
        // The order is: ours, theirs, theirs, ours.
        for which in [turn % 2, 1 - turn % 2] {
            let program = [own.as_path(), other][which];
            progress(&format!(
                "turn {} of {turns}: {}",
                turn + 1,
                program.display()
            ));
            turns_of[which].push(take_turn(program, options)?);
        }
    }
    let [ours, theirs] = turns_of;
    let rows = rows(&ours, &theirs);
    ensure!(!rows.is_empty(), "the two have no row in common");
    Ok(Comparison { turns, rows })
}

/// Runs a bench for a few rounds and returns its rows.
fn take_turn(program: &Path, options: &Options) -> Result<Turn> {
    let mut command = Command::new(program);
    command.args(["datapath", "--json", "--rounds", &ROUNDS.to_string()]);
    command.args(["--seconds", &options.seconds.to_string()]);
    if let Some(core) = options.core {
        command.args(["--core", &core.to_string()]);
    }
    if let [family] = options.families[..] {
        command.args(["--family", &lower(family)]);
    }
    if let [protocol] = options.protocols[..] {
        command.args(["--protocol", &lower(protocol)]);
    }
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("running {}", program.display()))?;
    ensure!(
        MEASURED.contains(&output.status.code()),
        "{} ended with {}",
        program.display(),
        output.status
    );
    read_rows(&String::from_utf8_lossy(&output.stdout))
}

/// Reads the rows of a bench, without those of the yardsticks, which do not depend on the build.
fn read_rows(json: &str) -> Result<Turn> {
    let yardsticks = [System::Floor, System::Static].map(System::name);
    let lines: Vec<Line> = json
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("reading {line:?}")))
        .collect::<Result<_>>()?;
    let lines = lines.into_iter().map(|line| (line.key, line.net_ns));
    Ok(lines
        .filter(|(key, _)| !yardsticks.contains(&key.system.as_str()))
        .collect())
}

fn rows(ours: &[Turn], theirs: &[Turn]) -> Vec<Compared> {
    let Some(first) = ours.first() else {
        return Vec::new();
    };
    let compare = |key: &Key| {
        let of = |turns: &[Turn]| -> Option<Vec<f64>> {
            turns.iter().map(|turn| turn.get(key).copied()).collect()
        };
        let (net, other) = (of(ours)?, of(theirs)?);
        let ratio = bootstrap(net.len(), |sample| {
            median(
                &sample
                    .iter()
                    .map(|&turn| net[turn] / other[turn])
                    .collect::<Vec<_>>(),
            )
        });
        Some(Compared {
            key: key.clone(),
            net_ns: median(&net),
            other_net_ns: median(&other),
            ratio: ratio.value,
            interval: [ratio.low, ratio.high],
        })
    };
    first.keys().filter_map(compare).collect()
}

impl Comparison {
    /// Returns the worst outcome of all rows.
    pub fn outcome(&self) -> Outcome {
        Outcome::worst(self.rows.iter().map(Compared::outcome))
    }
}

/// Formats the comparison as a table.
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (turns, rounds) = (self.turns, ROUNDS);
        writeln!(
            f,
            "{turns} turns of {rounds} rounds each, in alternation; * flows in random order\n"
        )?;
        writeln!(
            f,
            "{:<3} {:<4} {:<15}{:>8} {:>8} {:>8}  {:<18} bound {NOT_SLOWER}",
            "ip", "l4", "system", "flows", "net ns", "other's", "of the other's",
        )?;
        for row in &self.rows {
            let mark = if row.key.order == in_turn() { "" } else { "*" };
            writeln!(
                f,
                "{:<3} {:<4} {:<15}{:>8} {:>8.1} {:>8.1}  {:<18} {}",
                row.key.family,
                row.key.protocol,
                row.key.system,
                format!("{}{mark}", row.key.flows),
                row.net_ns,
                row.other_net_ns,
                interval(&row.estimate()),
                row.outcome(),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::datapath::{Family, Protocol};

    const OLD: &str = concat!(
        r#"{"system":"floor","family":"v4","protocol":"udp","flows":1,"net_ns":0.0}"#,
        "\n",
        r#"{"system":"node","family":"v4","protocol":"udp","flows":1,"net_ns":50.0,"units":2.0}"#,
        "\n",
    );

    fn turns(net: impl Fn(usize) -> [f64; 2]) -> [Vec<Turn>; 2] {
        let new = OLD.replace("\"flows\"", "\"order\":\"in_turn\",\"flows\"");
        let read = |text: &str, net: f64| read_rows(&text.replace("50.0", &net.to_string()));
        let all = |which: usize, text: &str| {
            (0..9)
                .map(|turn| read(text, net(turn)[which]).unwrap())
                .collect()
        };
        [all(0, &new), all(1, OLD)]
    }

    #[test]
    fn rows_of_benches_that_tell_no_order_are_compared_and_empty_programs_are_not() {
        let [ours, theirs] = turns(|_| [40.0, 50.0]);
        let rows = rows(&ours, &theirs);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].ratio, rows[0].interval), (0.8, [0.8, 0.8]));
        assert_eq!(rows[0].outcome(), Outcome::Holds);
    }

    #[test]
    fn what_is_surely_slower_fails_and_what_may_be_is_inconclusive() {
        let outcome = |net: &dyn Fn(usize) -> [f64; 2]| {
            let [ours, theirs] = turns(net);
            let rows = rows(&ours, &theirs);
            Comparison { turns: 9, rows }.outcome()
        };
        // Noise that both of a turn share does not matter.
        let noise = |turn: usize| [1.0, 1.5, 0.8, 1.2, 1.0, 2.0, 0.9, 1.1, 1.0][turn];
        assert_eq!(
            outcome(&|turn| [1.02, 1.0].map(|net| net * noise(turn))),
            Outcome::Holds
        );
        assert_eq!(
            outcome(&|turn| [1.05, 1.0].map(|net| net * noise(turn))),
            Outcome::Fails
        );
        assert_eq!(outcome(&|turn| [noise(turn), 1.0]), Outcome::Inconclusive);
    }

    #[test]
    fn a_row_that_only_one_has_is_left_out() {
        let [ours, _] = turns(|_| [40.0, 50.0]);
        assert!(rows(&ours, &vec![Turn::new(); 9]).is_empty());
    }

    /// A process of its own writes the file: a descriptor of ours would be inherited by what other tests fork
    /// meanwhile, and a file that is open for writing cannot be run (`ETXTBSY`, execve(2)).
    fn program(name: &str, script: &str) -> std::path::PathBuf {
        let path = env::temp_dir().join(format!("guideway-bench-{}-{name}", std::process::id()));
        let written = Command::new("sh")
            .args([
                "-c",
                r#"printf '#!/bin/sh\n%s' "$1" >"$0" && chmod 755 "$0""#,
            ])
            .arg(&path)
            .arg(script)
            .status()
            .unwrap();
        assert!(written.success());
        path
    }

    fn options() -> Options {
        Options {
            families: vec![Family::V6],
            protocols: Protocol::ALL.to_vec(),
            rounds: 4,
            seconds: 0.02,
            core: Some(1),
        }
    }

    #[test]
    fn a_bench_that_breaks_its_bars_is_read_and_gets_our_options() {
        let wanted = "datapath --json --rounds 4 --seconds 0.02 --core 1 --family v6";
        let path = program(
            "bars",
            &format!("[ \"$*\" = '{wanted}' ] || exit 2\ncat <<E\n{OLD}E\nexit 3\n"),
        );
        let rows = take_turn(&path, &options()).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(rows.values().copied().collect::<Vec<_>>(), [50.0]);
    }

    #[test]
    fn too_few_turns_are_refused() {
        let error = compare(Path::new("/nowhere"), &options(), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("at least 12 rounds"), "{error}");
    }

    #[test]
    fn a_bench_that_has_not_measured_is_an_error() {
        let path = program("fails", "exit 1\n");
        let error = take_turn(&path, &options()).unwrap_err().to_string();
        fs::remove_file(path).unwrap();
        assert!(error.contains("ended with exit status: 1"), "{error}");
    }
}
