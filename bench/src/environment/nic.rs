//! Facts about network cards: what `/sys` and `ethtool` say of each interface that has a device.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use fastpath::facts::{NativeXdp, interface};

use super::said_by;

/// Where interfaces are.
const INTERFACES: &str = "/sys/class/net";
/// Files of an interface's directory with one fact each.
const FILES: [(&str, &str); 11] = [
    ("mtu", "mtu"),
    ("speed", "speed"),
    ("state", "operstate"),
    ("vendor", "device/vendor"),
    ("device", "device/device"),
    ("numa_node", "device/numa_node"),
    ("pci_speed", "device/current_link_speed"),
    ("pci_width", "device/current_link_width"),
    ("threaded", "threaded"),
    ("napi_defer_hard_irqs", "napi_defer_hard_irqs"),
    ("gro_flush_timeout", "gro_flush_timeout"),
];
/// Files of a queue's directory, and the facts that those of all queues make: receive and transmit packet steering, and
/// receive flow steering.
const OF_QUEUES: [(&str, &str); 3] = [
    ("rps", "rps_cpus"),
    ("rfs", "rps_flow_cnt"),
    ("xps", "xps_cpus"),
];
/// Questions to `ethtool`, and the facts that answer them.
const QUESTIONS: [(&str, &str); 5] = [
    ("-g", "rings"),
    ("-l", "queues"),
    ("-a", "pause"),
    ("-c", "coalescing"),
    ("-k", "offloads"),
];

/// Returns the facts of the cards in the network namespace of this thread, as `nic.INTERFACE.FACT`. Of a fact that a card
/// does not tell, the value is empty.
pub fn facts() -> Vec<(String, String)> {
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
    let qdisc = said_by(Command::new("tc").args(["qdisc", "show", "dev", interface]));
    let qdisc = ("qdisc".to_owned(), qdisc.replace('\n', "; "));
    let steering = OF_QUEUES.map(|(name, file)| (name.to_owned(), steering(directory, file)));
    files
        .into_iter()
        .chain(driver)
        .chain(answers)
        .chain(steering)
        .chain([irqs, qdisc, ("xdp".to_owned(), xdp(interface))])
        .collect()
}

/// Returns what a file of each queue says, without those that are switched off.
fn steering(directory: &Path, file: &str) -> String {
    let queues = fs::read_dir(directory.join("queues"));
    let queues = queues.into_iter().flatten().flatten();
    let mut all: Vec<String> = queues
        .filter_map(|queue| {
            let value = fs::read_to_string(queue.path().join(file)).ok()?;
            let is_on = value.trim().contains(|digit: char| !"0,".contains(digit));
            let name = queue.file_name().into_string().ok()?;
            is_on.then(|| format!("{name} {}", value.trim()))
        })
        .collect();
    all.sort();
    all.join(", ")
}

/// Says what the driver does of XDP, and how a program is attached, if one is.
fn xdp(name: &str) -> String {
    let Ok(card) = interface(name) else {
        return String::new();
    };
    let does = match card.native_xdp {
        NativeXdp::Unsupported => "no native mode".to_owned(),
        NativeXdp::Unknown => "not told by this kernel".to_owned(),
        NativeXdp::Supported {
            redirect_target,
            zero_copy,
            several_buffers,
        } => {
            let also = [
                (redirect_target, ", redirect target"),
                (zero_copy, ", AF_XDP without copies"),
                (several_buffers, ", several buffers"),
            ];
            let also = also.into_iter().filter(|(does, _)| *does);
            "native mode".to_owned() + &also.map(|(_, name)| name).collect::<String>()
        }
    };
    let attached = card.programs.iter();
    let attached = attached.map(|program| format!(", a program attached in mode {}", program.mode));
    does + &attached.collect::<String>()
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
    fn steering_is_told_of_the_queues_that_have_it() {
        let root = std::env::temp_dir().join(format!("guideway-bench-{}-rps", std::process::id()));
        for (queue, cpus) in [
            ("rx-0", "00000000,00000003\n"),
            ("rx-1", "00000000,00000000\n"),
        ] {
            let queue = root.join("queues").join(queue);
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("rps_cpus"), cpus).unwrap();
        }
        let told = [steering(&root, "rps_cpus"), steering(&root, "xps_cpus")];
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(told, ["rx-0 00000000,00000003", ""]);
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
