//! Facts about network cards: what `/sys` and `ethtool` say of each interface that has a device.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use super::said_by;

/// Where interfaces are.
const INTERFACES: &str = "/sys/class/net";
/// Files of an interface's directory with one fact each.
const FILES: [(&str, &str); 6] = [
    ("mtu", "mtu"),
    ("speed", "speed"),
    ("state", "operstate"),
    ("vendor", "device/vendor"),
    ("device", "device/device"),
    ("numa_node", "device/numa_node"),
];
/// Questions to `ethtool`, and the facts that answer them.
const QUESTIONS: [(&str, &str); 5] = [
    ("-g", "rings"),
    ("-l", "queues"),
    ("-a", "pause"),
    ("-c", "coalescing"),
    ("-k", "offloads"),
];

/// Returns the facts, as `nic.INTERFACE.FACT`.
pub(super) fn facts() -> Vec<(String, String)> {
    let entries = fs::read_dir(INTERFACES).into_iter().flatten().flatten();
    let cards = entries.filter(|entry| entry.path().join("device").exists());
    cards
        .flat_map(|entry| {
            let interface = entry.file_name().to_string_lossy().into_owned();
            let facts = of_card(&interface, &entry.path());
            let named = facts
                .into_iter()
                .map(move |(name, value)| (format!("nic.{interface}.{name}"), value));
            named.collect::<Vec<_>>()
        })
        .collect()
}

fn of_card(interface: &str, directory: &Path) -> Vec<(String, String)> {
    let ask = |question: &str| said_by(Command::new("ethtool").arg(question).arg(interface));
    let files = FILES.map(|(name, file)| {
        let value = fs::read_to_string(directory.join(file)).unwrap_or_default();
        (name.to_owned(), value)
    });
    let answer = ask("-i");
    let driver = pairs(&answer);
    let driver = ["driver", "version", "firmware-version", "bus-info"].map(|name| {
        let value = driver.get(name).cloned().unwrap_or_default();
        (name.to_owned(), value)
    });
    let answers = QUESTIONS.map(|(question, name)| (name.to_owned(), settings(&ask(question))));
    let irqs = ("irqs".to_owned(), irqs(directory, Path::new("/proc/irq")));
    files
        .into_iter()
        .chain(driver)
        .chain(answers)
        .chain([irqs])
        .collect()
}

/// Reads lines of `name: value`.
fn pairs(text: &str) -> BTreeMap<&str, String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.trim(), value.trim().to_owned()))
        .collect()
}

/// Returns the settings of an answer of `ethtool` in one line: the current ones where the answer has limits too, and
/// not those that a card lacks or that are off for good.
fn settings(text: &str) -> String {
    let current = text.rsplit_once("Current hardware settings:");
    let text = current.map_or(text, |(_, current)| current);
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let all = lines.filter_map(|(name, value)| {
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        let says = !value.is_empty() && value != "n/a" && value != "off [fixed]";
        says.then(|| format!("{}: {value}", name.trim()))
    });
    all.collect::<Vec<_>>().join(", ")
}

/// Returns the interrupts of a card, each with the CPUs that it may go to.
fn irqs(directory: &Path, all: &Path) -> String {
    // Of virtio, the interrupts belong to the device above.
    let places = ["device/msi_irqs", "device/../msi_irqs"].map(|place| directory.join(place));
    let entries = places.iter().find_map(|place| fs::read_dir(place).ok());
    let entries = entries.into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let with_cpus = numbers.iter().filter_map(|number| {
        let cpus = fs::read_to_string(all.join(format!("{number}/smp_affinity_list"))).ok()?;
        Some(format!("{number} on {}", cpus.trim()))
    });
    with_cpus.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_the_current_ones_in_a_line() {
        let rings = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t1024\nTX:\t\t1024\nTX push buff len:\tn/a\n\
                     Current hardware settings:\nRX:\t\t256\nRX Mini:\tn/a\nTX:\t\t512\n";
        assert_eq!(settings(rings), "RX: 256, TX: 512");
        let offloads = "Features for eth0:\nrx-checksumming: on [fixed]\ntx-scatter-gather: off\nloopback: off [fixed]\n";
        assert_eq!(
            settings(offloads),
            "rx-checksumming: on [fixed], tx-scatter-gather: off"
        );
        let pause = "Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n";
        assert_eq!(settings(pause), "Autonegotiate: off, RX: on, TX: off");
        assert_eq!(settings(""), "");
    }

    #[test]
    fn interrupts_are_told_with_their_cpus() {
        let root = std::env::temp_dir().join(format!("guideway-bench-{}-irqs", std::process::id()));
        for path in ["eth0/msi_irqs/24", "eth0/msi_irqs/7", "irq/24", "irq/7"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::create_dir_all(root.join("eth0/device")).unwrap();
        fs::write(root.join("irq/24/smp_affinity_list"), "0-1\n").unwrap();
        fs::write(root.join("irq/7/smp_affinity_list"), "3\n").unwrap();
        let told = irqs(&root.join("eth0"), &root.join("irq"));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(told, "7 on 3, 24 on 0-1");
    }

    #[test]
    fn a_driver_is_told_by_name() {
        let text =
            "driver: virtio_net\nversion: 1.0.0\nfirmware-version: \nbus-info: 0000:00:03.0\n";
        assert_eq!(pairs(text)["driver"], "virtio_net");
        assert_eq!(pairs(text)["bus-info"], "0000:00:03.0");
    }
}
