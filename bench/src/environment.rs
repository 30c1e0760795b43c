//! Facts about the machine that a reader needs to judge a result, or to build the same machine again.
//!
//! They are kept as names and values, so that two results, or before and after a run, are compared fact by fact.
//! A fact that a machine does not tell is left out.

mod bpf;
mod comparable;
mod interrupts;
mod kernel;
mod nic;
mod rules;
mod watch;

use std::{collections::BTreeMap, fs, path::Path, process::Command};

pub use bpf::facts as of_bpf;
pub use comparable::comparable;
pub use interrupts::Interrupts;
pub use nic::facts as of_cards;
pub use watch::{Watch, quietness};

use crate::result::digest;

/// Files with one fact each: its name and its path.
const FILES: [(&str, &str); 29] = [
    ("kernel.command_line", "/proc/cmdline"),
    ("kernel.version", "/proc/version"),
    ("kernel.preempt_dynamic", "/sys/kernel/debug/sched/preempt"),
    ("cpu.online", "/sys/devices/system/cpu/online"),
    ("cpu.smt", "/sys/devices/system/cpu/smt/control"),
    (
        "cpu.governor",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    ),
    (
        "cpu.no_turbo",
        "/sys/devices/system/cpu/intel_pstate/no_turbo",
    ),
    (
        "clock.source",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    ),
    ("hypervisor.product", "/sys/class/dmi/id/product_name"),
    ("bpf.jit_enable", "/proc/sys/net/core/bpf_jit_enable"),
    ("bpf.jit_harden", "/proc/sys/net/core/bpf_jit_harden"),
    ("bpf.stats_enabled", "/proc/sys/kernel/bpf_stats_enabled"),
    ("net.netdev_budget", "/proc/sys/net/core/netdev_budget"),
    (
        "net.netdev_budget_usecs",
        "/proc/sys/net/core/netdev_budget_usecs",
    ),
    ("net.dev_weight", "/proc/sys/net/core/dev_weight"),
    (
        "net.netdev_max_backlog",
        "/proc/sys/net/core/netdev_max_backlog",
    ),
    ("net.rmem_default", "/proc/sys/net/core/rmem_default"),
    ("net.wmem_default", "/proc/sys/net/core/wmem_default"),
    (
        "net.nf_conntrack_max",
        "/proc/sys/net/netfilter/nf_conntrack_max",
    ),
    (
        "net.nf_conntrack_buckets",
        "/proc/sys/net/netfilter/nf_conntrack_buckets",
    ),
    ("net.default_qdisc", "/proc/sys/net/core/default_qdisc"),
    (
        "net.rps_sock_flow_entries",
        "/proc/sys/net/core/rps_sock_flow_entries",
    ),
    ("net.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
    (
        "net.ipv6_forwarding",
        "/proc/sys/net/ipv6/conf/all/forwarding",
    ),
    ("net.rp_filter", "/proc/sys/net/ipv4/conf/all/rp_filter"),
    ("net.busy_poll", "/proc/sys/net/core/busy_poll"),
    (
        "sched.rt_runtime_us",
        "/proc/sys/kernel/sched_rt_runtime_us",
    ),
    (
        "memory.transparent_hugepage",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ),
    ("numa.nodes", "/sys/devices/system/node/online"),
];

/// How many tasks ran or wanted to, on average over 1, 5 and 15 minutes.
const LOAD: &str = "load.average";
/// Interrupts that came during the run: a fact that is known after it.
pub const INTERRUPTS: &str = "interrupts.during_the_run";

/// Tells whether a fact is one of the moment: another value after a run is no change of the machine.
pub fn is_momentary(name: &str) -> bool {
    [LOAD, INTERRUPTS].contains(&name)
}

/// Reads facts that a command of another machine tells, one a line: its name, a colon and the value. They get the name of
/// that machine in front.
pub fn of_machine(machine: &str, told: &str) -> BTreeMap<String, String> {
    let lines = told.lines().filter_map(|line| line.split_once(':'));
    let facts = lines.map(|(name, value)| {
        let name = format!("{machine}.{}", name.trim());
        (name, value.trim().to_owned())
    });
    facts.collect()
}

/// Reads the facts of this machine, and which programs measure: this one and `guideway`.
pub fn collect(guideway: &Path) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut fact = |name: &str, value: &str| {
        let value = value.trim();
        if !value.is_empty() {
            facts.insert(name.to_owned(), value.to_owned());
        }
    };
    for (name, path) in FILES {
        fact(name, &fs::read_to_string(path).unwrap_or_default());
    }
    let uname = rustix::system::uname();
    fact("host.name", &uname.nodename().to_string_lossy());
    let release = uname.release().to_string_lossy();
    fact("kernel.release", &release);
    for (name, value) in kernel::facts(&release).into_iter().chain(rules::facts()) {
        fact(&name, &value);
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split_whitespace().take(3).collect();
    fact(LOAD, &load.join(" "));
    fact("cpu.architecture", &uname.machine().to_string_lossy());
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    for (name, field) in [("cpu.model", "model name"), ("cpu.microcode", "microcode")] {
        fact(name, cpuinfo_field(&cpuinfo, field).unwrap_or_default());
    }
    let flags = cpuinfo_field(&cpuinfo, "flags").unwrap_or_default();
    let is_guest = flags.split(' ').any(|flag| flag == "hypervisor");
    fact("cpu.flags", flags);
    fact("hypervisor.guest", if is_guest { "yes" } else { "no" });
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    fact(
        "memory.total",
        cpuinfo_field(&meminfo, "MemTotal").unwrap_or_default(),
    );
    fact(
        "cpu.mitigations",
        &mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
    );
    for (name, value) in nic::facts().into_iter().chain(programs(guideway)) {
        fact(&name, &value);
    }
    facts
}

/// Returns what tells the measuring programs from others: their digests, and the revision of the checkout that this
/// one lies in.
fn programs(guideway: &Path) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let own = std::env::current_exe().unwrap_or_default();
    for (name, path) in [("guideway", guideway), ("guideway-bench", own.as_path())] {
        if let Ok(program) = fs::read(path) {
            facts.push((format!("program.{name}.sha256"), digest(&program)));
        }
    }
    let describe = ["describe", "--always", "--dirty", "--abbrev=12"];
    let checkout = own.parent().unwrap_or(Path::new("/"));
    let revision = said_by(Command::new("git").arg("-C").arg(checkout).args(describe));
    facts.push(("program.revision".to_owned(), revision));
    let rustc = env!("GUIDEWAY_BENCH_RUSTC").to_owned();
    facts.push(("program.guideway-bench.rustc".to_owned(), rustc));
    facts
}

/// Returns what a program writes; nothing if it is missing or fails.
fn said_by(command: &mut Command) -> String {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success());
    let output = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// Returns the facts that `after` has another value for, with the later value.
pub fn changes(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let changed = |(name, _): &(&String, &String)| before.get(*name) != after.get(*name);
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    let gone = gone.map(|name| (name.clone(), "absent".to_owned()));
    let changed = after.iter().filter(changed);
    changed
        .map(|(name, value)| (name.clone(), value.clone()))
        .chain(gone)
        .collect()
}

fn cpuinfo_field<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == field).then_some(value.trim())
    })
}

/// Returns what the kernel does against each flaw of the CPU that it has.
fn mitigations(directory: &Path) -> String {
    let mut all: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            let name = entry.file_name().into_string().ok()?;
            let affected = text.trim() != "Not affected";
            affected.then(|| format!("{name}: {}", text.trim()))
        })
        .collect();
    all.sort();
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_machine_tells_its_kernel_and_its_cpus() {
        let facts = collect(Path::new("/nowhere"));
        for name in [
            "kernel.release",
            "kernel.command_line",
            "cpu.online",
            "memory.total",
            "cpu.flags",
            "load.average",
            "net.ip_forward",
            "net.rp_filter",
            "program.guideway-bench.sha256",
            "program.guideway-bench.rustc",
        ] {
            assert!(facts.contains_key(name), "{name}: {facts:?}");
        }
    }

    #[test]
    fn facts_of_other_machines_are_told_by_lines() {
        let told = "cpu.model: one: of many\nno fact\n kernel.release : 6.12\n";
        let expected = facts(&[
            ("router.cpu.model", "one: of many"),
            ("router.kernel.release", "6.12"),
        ]);
        assert_eq!(of_machine("router", told), expected);
    }

    #[test]
    fn changes_name_what_came_went_or_differs() {
        let before = facts(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let after = facts(&[("a", "1"), ("b", "2"), ("d", "1")]);
        let expected = facts(&[("b", "2"), ("c", "absent"), ("d", "1")]);
        assert_eq!(changes(&before, &after), expected);
    }
}
