//! Facts about the machine that a reader needs to judge a result, or to build the same machine again.
//!
//! They are kept as names and values, so that two results, or before and after a run, are compared fact by fact.
//! A fact that a machine does not tell is left out.

mod nic;
mod watch;

use std::{collections::BTreeMap, fs, path::Path, process::Command};

pub use watch::{Watch, quietness};

use crate::{result::digest, scenario::Scenario};

/// Files with one fact each: its name and its path.
const FILES: [(&str, &str); 22] = [
    ("kernel.command_line", "/proc/cmdline"),
    ("kernel.version", "/proc/version"),
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

/// Facts that move latencies: results that differ in one of them are not compared.
const COMPARABLE: [&str; 18] = [
    "bpf.jit_enable",
    "bpf.jit_harden",
    "bpf.stats_enabled",
    "clock.source",
    "cpu.governor",
    "cpu.mitigations",
    "cpu.model",
    "cpu.no_turbo",
    "cpu.online",
    "cpu.smt",
    "hypervisor.product",
    "kernel.release",
    "memory.transparent_hugepage",
    "net.busy_poll",
    "net.dev_weight",
    "net.netdev_budget",
    "net.netdev_budget_usecs",
    "numa.nodes",
];

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
    fact("kernel.release", &uname.release().to_string_lossy());
    fact("cpu.architecture", &uname.machine().to_string_lossy());
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    for (name, field) in [("cpu.model", "model name"), ("cpu.microcode", "microcode")] {
        fact(name, cpuinfo_field(&cpuinfo, field).unwrap_or_default());
    }
    let flags = cpuinfo_field(&cpuinfo, "flags").unwrap_or_default();
    let is_guest = flags.split(' ').any(|flag| flag == "hypervisor");
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

/// Returns what must agree for results to be compared: the machine, the wire and the loads. The systems are left out,
/// because comparing those is what results are for; so are the rounds and the seed.
pub fn comparable(
    environment: &BTreeMap<String, String>,
    scenario: &Scenario,
) -> BTreeMap<String, String> {
    let of_machine = COMPARABLE.iter().filter_map(|&name| {
        let value = environment.get(name)?;
        Some((name.to_owned(), value.clone()))
    });
    let event = scenario.event.map(|event| {
        let happens = format!("{} at {} s", event.what, event.at);
        ("scenario.event".to_owned(), happens)
    });
    let cards = scenario.ports.iter().flat_map(|ports| {
        let backend = ports.backend.iter().map(|port| ("backend", port));
        [("client", &ports.client)].into_iter().chain(backend)
    });
    let cards = cards.map(|(role, port)| {
        let driver = environment.get(&format!("nic.{}.driver", port.device));
        // A card without a device of its own, such as a veth.
        let driver = driver.map_or("virtual", String::as_str).to_owned();
        (format!("scenario.card.{role}"), driver)
    });
    let loads = scenario.loads.iter().zip(1..);
    let of_loads =
        loads.map(|(load, number)| (format!("scenario.load-{number}"), load.to_string()));
    of_machine
        .chain([
            ("scenario.wire".to_owned(), scenario.wire.to_string()),
            (
                "scenario.services".to_owned(),
                scenario.services.to_string(),
            ),
            ("scenario.seconds".to_owned(), scenario.seconds.to_string()),
        ])
        .chain(of_loads)
        .chain(cards)
        .chain(event)
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
            "program.guideway-bench.sha256",
        ] {
            assert!(facts.contains_key(name), "{name}: {facts:?}");
        }
    }

    #[test]
    fn changes_name_what_came_went_or_differs() {
        let before = facts(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let after = facts(&[("a", "1"), ("b", "2"), ("d", "1")]);
        let expected = facts(&[("b", "2"), ("c", "absent"), ("d", "1")]);
        assert_eq!(changes(&before, &after), expected);
    }
}
