//! The machine: facts for the report, checks before a run, a core for the measurement and its clock.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, Timespec, clock_gettime},
};
use serde::Serialize;

use crate::{
    exit::Exit,
    preflight::{Obstacle, Unable},
};

/// Facts about the machine that a reader needs to judge the figures.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// Date of the run in UTC, as `YYYY-MM-DD`.
    pub date: String,
}

impl Facts {
    /// Reads the facts.
    pub fn collect() -> Self {
        let uname = rustix::system::uname();
        let cpu = fs::read_to_string("/proc/cpuinfo")
            .ok()
            .and_then(|text| cpu_model(&text).map(str::to_owned));
        Self {
            kernel: uname.release().to_string_lossy().into_owned(),
            cpu: cpu.unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            date: date(clock_gettime(ClockId::Realtime)),
        }
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// Returns the date in UTC of a clock reading (Hinnant, "chrono-compatible low-level date algorithms").
fn date(now: Timespec) -> String {
    let days = now.tv_sec.div_euclid(86_400) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns a clock reading in UTC as of RFC 3339, to the second.
pub fn rfc3339(now: Timespec) -> String {
    let second = now.tv_sec.rem_euclid(86_400);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{}T{hour:02}:{minute:02}:{:02}Z", date(now), second % 60)
}

/// Returns a time since the epoch in UTC as of RFC 3339, to the second.
pub fn rfc3339_of(since_epoch: Duration) -> String {
    rfc3339(Timespec {
        tv_sec: i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    })
}

/// Why nothing is measured on a machine as it is, with the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hindrance {
    /// The kernel times each run of a BPF program.
    #[error(
        "kernel.bpf_stats_enabled is on and costs more than the programs under test; \
         switch it off: sysctl kernel.bpf_stats_enabled=0"
    )]
    BpfStats,
    /// BPF programs are interpreted.
    #[error("the BPF JIT is off; switch it on: sysctl net.core.bpf_jit_enable=1")]
    NoJit,
    /// The caller is not root.
    #[error("the bench loads BPF programs and makes network namespaces: run it as root")]
    NoRights,
}

/// Checks that no setting of the machine falsifies the figures.
///
/// # Errors
///
/// When a setting would, or the caller is not root: a [`Hindrance`].
pub fn preflight() -> Result<()> {
    check_settings(Path::new("/proc/sys"))?;
    if !rustix::process::geteuid().is_root() {
        bail!(Hindrance::NoRights);
    }
    Ok(())
}

fn check_settings(sysctls: &Path) -> Result<()> {
    let read = |key: &str| {
        let path = sysctls.join(key);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    if read("kernel/bpf_stats_enabled")?.trim() != "0" {
        bail!(Hindrance::BpfStats);
    }
    // The file is absent if the kernel was built with BPF_JIT_ALWAYS_ON.
    let jit = sysctls.join("net/core/bpf_jit_enable");
    if jit.exists() && fs::read_to_string(&jit).is_ok_and(|value| value.trim() == "0") {
        bail!(Hindrance::NoJit);
    }
    Ok(())
}

/// Binds the calling thread to one core, with priority over ordinary processes.
///
/// Returns the core: `wanted`, or the last one that the process may use, because interrupts usually go to the first.
///
/// # Errors
///
/// When the core does not exist or is not allowed.
pub fn occupy_core(wanted: Option<usize>) -> Result<usize> {
    let core = one_of(&allowed_cores()?, wanted)?;
    move_to_core(core)?;
    Ok(core)
}

/// Binds the calling thread to this core, with priority over ordinary processes, whichever core it is bound to.
///
/// # Errors
///
/// When this process may not use the core, or not raise the priority.
pub fn move_to_core(core: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).with_context(|| format!("moving to CPU {core}"))?;
    // On Linux a nice value belongs to a thread.
    setpriority_process(None, HIGHEST_PRIORITY).context("raising the priority")?;
    Ok(())
}

/// Returns a core as [`occupy_core`] does, and another one: the last of the others.
///
/// # Errors
///
/// When the core does not exist or is not allowed. [`Unable`] when there is no other one.
pub fn two_cores(wanted: Option<usize>) -> Result<[usize; 2]> {
    let allowed = allowed_cores()?;
    let core = one_of(&allowed, wanted)?;
    let other = allowed.iter().rev().find(|other| **other != core);
    let other = other.ok_or_else(|| {
        Unable(vec![Obstacle {
            text: format!("this process may use CPU {core} alone: it takes two, one to send from"),
            exit: Exit::Unable,
        }])
    })?;
    Ok([core, *other])
}

/// Returns the wanted core, or the last one that is allowed.
fn one_of(allowed: &[usize], wanted: Option<usize>) -> Result<usize> {
    let core = match wanted {
        Some(core) => core,
        None => *allowed.last().context("no CPU is allowed")?,
    };
    if !allowed.contains(&core) {
        bail!("CPU {core} does not exist or this process may not use it");
    }
    Ok(core)
}

/// More threads are to have a core of their own than there are cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wanted} threads are to send, each on a CPU of its own, and this process may use {found}: write threads: {found}, or fewer"
)]
pub struct FewCores {
    /// Threads that are to send.
    pub wanted: usize,
    /// CPUs that the process may use.
    pub found: usize,
}

/// A hypervisor ran others on the core of each trial, however often it was repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a hypervisor took CPU {core} away in each of {tries} trials: rates need a core of their own"
)]
pub struct CoreTakenAway {
    /// The CPU.
    pub core: usize,
    /// Trials.
    pub tries: u32,
}

/// Makes a trial, again as long as a hypervisor takes a core meanwhile: the trial returns `None` then.
///
/// # Errors
///
/// Those of the trial; [`CoreTakenAway`] after ten trials.
pub fn undisturbed<T>(core: usize, mut trial: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    const TRIES: u32 = 10;
    for _ in 0..TRIES {
        if let Some(trial) = trial()? {
            return Ok(trial);
        }
    }
    bail!(CoreTakenAway { core, tries: TRIES })
}

/// Returns a core for each of so many threads: the last ones that the calling thread may use, the very last first.
///
/// # Errors
///
/// [`FewCores`] when there are not as many.
pub fn cores(wanted: usize) -> Result<Vec<usize>> {
    let allowed = allowed_cores()?;
    let found = allowed.len();
    ensure!(wanted <= found, FewCores { wanted, found });
    Ok(allowed.into_iter().rev().take(wanted).collect())
}

/// Returns the cores that the calling thread may use, in their order.
fn allowed_cores() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("reading the allowed CPUs")?;
    let cores = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    Ok(cores.collect())
}

/// The nice value of the most favoured ordinary thread.
const HIGHEST_PRIORITY: i32 = -20;

/// Lets this process have as many sockets as the machine allows it.
pub(crate) fn allow_many_sockets() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    let _ = setrlimit(Resource::Nofile, all);
}

/// Reads the core time of the calling thread.
///
/// It is the wall clock less the time that the thread waited for its core. The thread's own CPU clock
/// (`CLOCK_THREAD_CPUTIME_ID`) cannot be used: with `CONFIG_IRQ_TIME_ACCOUNTING` it leaves out softirqs, in
/// which the whole receiving side runs.
///
/// # Errors
///
/// When the kernel does not report how long a thread has waited, or what a hypervisor took from the core.
pub fn core_clock(core: usize) -> Result<CoreClock> {
    let waited = read_proc("/proc/thread-self/schedstat")?;
    let waited = waited_ns(&waited).context(
        "the kernel does not tell how long threads wait for their core: it takes one with CONFIG_SCHED_INFO",
    )?;
    let taken = read_proc("/proc/stat")?;
    let stolen = stolen_ticks(&taken, core)
        .with_context(|| format!("/proc/stat does not tell what was stolen from CPU {core}"))?;
    let now = clock_gettime(ClockId::Monotonic);
    Ok(CoreClock {
        wall: now.tv_sec as f64 + now.tv_nsec as f64 / 1e9,
        waited: waited as f64 / 1e9,
        stolen: stolen as f64 / f64::from(TICKS_PER_SECOND),
    })
}

/// A reading of the core time, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoreClock {
    wall: f64,
    waited: f64,
    stolen: f64,
}

/// Unit of `/proc/stat` (`USER_HZ`); the same on all architectures that Guideway is built for.
const TICKS_PER_SECOND: u32 = 100;

/// Share of a trial that a hypervisor may take. Trials differ by about as much anyway.
const STOLEN_AT_MOST: f64 = 0.02;

impl CoreClock {
    /// Returns the core time since an earlier reading, in seconds.
    pub fn since(self, earlier: Self) -> f64 {
        (self.wall - earlier.wall) - (self.waited - earlier.waited)
    }

    /// Returns whether a hypervisor took so much of the core since an earlier reading that the figure is
    /// useless. One tick is tolerated, because ticks are charged inexactly.
    pub fn is_stolen_since(self, earlier: Self) -> bool {
        let tick = 1.0 / f64::from(TICKS_PER_SECOND);
        let stolen = self.stolen - earlier.stolen - tick;
        stolen > STOLEN_AT_MOST * self.since(earlier)
    }
}

fn read_proc(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

/// Reads the second number of `schedstat`: how long a thread waited while it could run, in nanoseconds.
fn waited_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// Reads the eighth number of a CPU's line in `/proc/stat`: stolen time, in ticks (proc(5)).
fn stolen_ticks(stat: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core}");
    let mut fields = stat
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut fields| (fields.next()? == name).then_some(fields))?;
    fields.nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu11 0 0 0 0 0 0 0 77 0 0\n";

    #[test]
    fn waiting_and_stealing_are_read_of_the_right_fields() {
        assert_eq!(waited_ns("123 456 7\n"), Some(456));
        assert_eq!(waited_ns(""), None);
        assert_eq!(stolen_ticks(STAT, 1), Some(8));
        assert_eq!(stolen_ticks(STAT, 11), Some(77));
        assert_eq!(stolen_ticks(STAT, 2), None);
    }

    #[test]
    fn core_time_is_wall_time_less_waiting() {
        let at = |wall, waited, stolen| CoreClock {
            wall,
            waited,
            stolen,
        };
        let start = at(10.0, 1.0, 5.0);
        // Softirqs are in it, whatever the thread's CPU clock makes of them.
        assert_eq!(at(12.0, 1.5, 5.0).since(start), 1.5);
        assert!(!at(11.0, 1.0, 5.01).is_stolen_since(start));
        assert!(!at(11.0, 1.0, 5.025).is_stolen_since(start));
        assert!(at(11.0, 1.0, 5.04).is_stolen_since(start));
        assert!(at(11.0, 1.5, 5.025).is_stolen_since(start));
    }

    #[test]
    fn core_clock_counts_what_a_busy_thread_does_and_not_what_it_waits() {
        let core = occupy_core(None).unwrap();
        let cpu = || {
            let now = clock_gettime(ClockId::ThreadCPUTime);
            now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
        };
        let (start, cpu_start) = (core_clock(core).unwrap(), cpu());
        let wall = std::time::Instant::now();
        while cpu() - cpu_start < 0.05 {}
        let busy = cpu() - cpu_start;
        let took = core_clock(core).unwrap().since(start);
        let wall = wall.elapsed().as_secs_f64();
        // What ends before the last reading of the clocks is in neither.
        assert!(
            took > 0.9 * busy,
            "{took} s of core time, {busy} s of CPU time"
        );
        assert!(took <= wall + 0.05, "{took} s of core time in {wall} s");
    }

    fn sysctls(stats: &str, jit: Option<&str>) -> std::path::PathBuf {
        let name = format!("guideway-bench-{}-{stats}-{jit:?}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(root.join("kernel")).unwrap();
        fs::create_dir_all(root.join("net/core")).unwrap();
        fs::write(root.join("kernel/bpf_stats_enabled"), stats).unwrap();
        if let Some(jit) = jit {
            fs::write(root.join("net/core/bpf_jit_enable"), jit).unwrap();
        }
        root
    }

    fn verdict(stats: &str, jit: Option<&str>) -> Result<()> {
        let root = sysctls(stats, jit);
        let verdict = check_settings(&root);
        fs::remove_dir_all(root).unwrap();
        verdict
    }

    #[test]
    fn settings_that_falsify_figures_are_refused_with_the_remedy() {
        assert!(verdict("0\n", Some("1\n")).is_ok());
        assert!(verdict("0\n", None).is_ok());
        let stats = verdict("1\n", Some("1\n")).unwrap_err().to_string();
        assert!(
            stats.contains("sysctl kernel.bpf_stats_enabled=0"),
            "{stats}"
        );
        let jit = verdict("0\n", Some("0\n")).unwrap_err().to_string();
        assert!(jit.contains("sysctl net.core.bpf_jit_enable=1"), "{jit}");
    }

    #[test]
    fn dates_are_civil() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_795_219_199, "2026-11-20"),
            (1_795_219_200, "2026-11-21"),
        ] {
            let now = Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            assert_eq!(date(now), expected);
        }
        let now = Timespec {
            tv_sec: 1_795_219_199,
            tv_nsec: 0,
        };
        assert_eq!(rfc3339(now), "2026-11-20T23:59:59Z");
    }

    #[test]
    fn cpu_model_is_found_among_other_lines() {
        let text = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: Some CPU @ 3 GHz\nflags\t: a b\n";
        assert_eq!(cpu_model(text), Some("Some CPU @ 3 GHz"));
    }
}
