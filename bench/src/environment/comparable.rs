//! What must agree for results to be compared: the machine, the network cards that carry the loads, the wire and the loads.
//!
//! The systems are left out, because comparing those is what results are for; so are the programs that measure, the
//! rounds and the seed. Facts that move no figure are left out, too: names and addresses, which tell machines of one kind
//! apart, and what changes from minute to minute, such as the load and the numbers of interrupts.

use std::collections::BTreeMap;

use crate::scenario::{Port, Scenario};

/// Facts of a machine that move latencies and rates.
const OF_MACHINE: [&str; 28] = [
    "bpf.jit_enable",
    "bpf.jit_harden",
    "bpf.stats_enabled",
    "clock.source",
    "cpu.governor",
    "cpu.microcode",
    "cpu.mitigations",
    "cpu.model",
    "cpu.no_turbo",
    "cpu.online",
    "cpu.smt",
    "hypervisor.product",
    "kernel.hz",
    "kernel.preempt",
    "kernel.preempt_dynamic",
    "kernel.release",
    "memory.transparent_hugepage",
    "net.busy_poll",
    "net.default_qdisc",
    "net.dev_weight",
    "net.netdev_budget",
    "net.netdev_budget_usecs",
    "net.netdev_max_backlog",
    "net.rmem_default",
    "net.rps_sock_flow_entries",
    "net.wmem_default",
    "numa.nodes",
    "sched.rt_runtime_us",
];

/// Facts of a network card that do. The interrupts are left out: `irqbalance` moves them while a machine runs.
const OF_CARD: [&str; 20] = [
    "coalescing",
    "device",
    "driver",
    "firmware-version",
    "gro_flush_timeout",
    "mtu",
    "napi_defer_hard_irqs",
    "numa_node",
    "offloads",
    "pause",
    "pci_speed",
    "pci_width",
    "queues",
    "rfs",
    "rings",
    "rps",
    "speed",
    "threaded",
    "vendor",
    "xps",
];

/// Parameters of the kernel that move nothing: where the system lies, and how it is reached.
const OF_PLACE: [&str; 9] = [
    "BOOT_IMAGE",
    "console",
    "initrd",
    "ip",
    "netconsole",
    "nfsroot",
    "resume",
    "root",
    "rootflags",
];

/// Returns the facts that must agree, by name.
pub fn comparable(
    environment: &BTreeMap<String, String>,
    scenario: &Scenario,
) -> BTreeMap<String, String> {
    let of_machine = OF_MACHINE.iter().filter_map(|&name| {
        let value = environment.get(name)?;
        Some((name.to_owned(), value.clone()))
    });
    let command_line = environment.get("kernel.command_line").map(|whole| {
        let name = "kernel.command_line".to_owned();
        (name, without_places(whole))
    });
    let cards = scenario.ports.iter().flat_map(|ports| {
        let backend = ports.backend.iter().map(|port| ("backend", port));
        [("client", &ports.client)].into_iter().chain(backend)
    });
    let cards = cards.flat_map(|(role, port)| of_card(environment, role, port));
    of_machine
        .chain(command_line)
        .chain(cards)
        .chain(of_scenario(scenario))
        .collect()
}

/// Returns the facts of a card, under the name of its role: interfaces of like machines may be called differently.
fn of_card(
    environment: &BTreeMap<String, String>,
    role: &str,
    port: &Port,
) -> Vec<(String, String)> {
    let facts = OF_CARD.iter().filter_map(|fact| {
        let value = environment.get(&format!("nic.{}.{fact}", port.device))?;
        Some((format!("card.{role}.{fact}"), value.clone()))
    });
    let facts: Vec<_> = facts.collect();
    if facts.is_empty() {
        // An interface without a device, such as a veth.
        return vec![(format!("card.{role}.driver"), "virtual".to_owned())];
    }
    facts
}

fn of_scenario(scenario: &Scenario) -> impl Iterator<Item = (String, String)> {
    let event = scenario.event.map(|event| {
        let happens = format!("{} at {} s", event.what, event.at);
        ("event".to_owned(), happens)
    });
    let loads = scenario.loads.iter().zip(1..);
    let loads = loads.map(|(load, number)| (format!("load-{number}"), load.to_string()));
    let others = [
        ("wire", scenario.wire.to_string()),
        ("services", scenario.services.to_string()),
        ("seconds", scenario.seconds.to_string()),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value));
    let all = others.into_iter().chain(loads).chain(event);
    all.map(|(name, value)| (format!("scenario.{name}"), value))
}

/// Returns a kernel's command line without the parameters of [`OF_PLACE`], and without what is init's.
fn without_places(command_line: &str) -> String {
    let of_kernel = command_line.split_whitespace();
    let of_kernel = of_kernel.take_while(|word| *word != "--");
    let moves = |word: &&str| {
        let (name, _) = word.split_once('=').unwrap_or((word, ""));
        !OF_PLACE.contains(&name)
    };
    of_kernel.filter(moves).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Comparability;

    const SCENARIO: &str = "\
name: cards
wire: ports
systems: [router]
loads: [{ rate: 500 }]
ports:
  client: { device: eth1, addresses: [192.0.2.10/24] }
  backend: { device: eth2, addresses: [198.51.100.10/24] }
under_test: [{ name: router, via: [192.0.2.1], to: [198.51.100.10] }]
";

    /// Facts of a machine with the cards of the scenario and one besides. Each value is the fact's own name.
    fn machine() -> BTreeMap<String, String> {
        let cards = ["eth1", "eth2", "eth9"];
        let of_cards = cards.iter().flat_map(|card| {
            let facts = OF_CARD.iter().chain(&["bus-info", "irqs", "state"]);
            facts.map(move |fact| format!("nic.{card}.{fact}"))
        });
        let others = ["host.name", "memory.total", "program.revision"];
        let of_machine = OF_MACHINE.iter().chain(&others);
        let of_machine = of_machine.map(|name| (*name).to_owned());
        let named = of_machine.chain(of_cards).map(|name| (name.clone(), name));
        let command_line = "BOOT_IMAGE=/vmlinuz root=UUID=1 isolcpus=1 quiet -- --addr 192.0.2.1";
        let command_line = ("kernel.command_line".to_owned(), command_line.to_owned());
        named.chain([command_line]).collect()
    }

    fn key(environment: &BTreeMap<String, String>, scenario: &str) -> Comparability {
        let scenario = Scenario::parse(scenario).unwrap();
        Comparability::of(comparable(environment, &scenario))
    }

    /// Returns the names of the differences that a change of one fact makes.
    fn differences(fact: &str, value: &str) -> Vec<String> {
        let mut other = machine();
        other.insert(fact.to_owned(), value.to_owned());
        let differences = key(&machine(), SCENARIO).differences(&key(&other, SCENARIO));
        differences.into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn each_fact_of_the_machine_and_of_the_scenarios_cards_is_named_where_it_differs() {
        for fact in OF_MACHINE {
            assert_eq!(differences(fact, "other"), [fact]);
        }
        for fact in OF_CARD {
            for (device, role) in [("eth1", "client"), ("eth2", "backend")] {
                let found = differences(&format!("nic.{device}.{fact}"), "other");
                assert_eq!(found, [format!("card.{role}.{fact}")]);
            }
        }
    }

    #[test]
    fn names_load_and_other_cards_are_not_in_the_key() {
        for fact in [
            "host.name",
            "memory.total",
            "program.revision",
            "load.average",
            "nic.eth1.bus-info",
            "nic.eth1.irqs",
            "nic.eth1.state",
            "nic.eth9.rings",
        ] {
            assert_eq!(differences(fact, "other"), [""; 0], "{fact}");
        }
    }

    #[test]
    fn parameters_of_the_kernel_differ_unless_they_tell_a_place() {
        let same = "BOOT_IMAGE=/other root=LABEL=2 isolcpus=1 quiet -- --addr 192.0.2.2";
        assert_eq!(differences("kernel.command_line", same), [""; 0]);
        let other = "root=UUID=1 isolcpus=2 quiet";
        assert_eq!(
            differences("kernel.command_line", other),
            ["kernel.command_line"]
        );
    }

    #[test]
    fn a_card_without_a_device_is_virtual_and_the_lab_has_none() {
        let facts = key(&BTreeMap::new(), SCENARIO).facts;
        assert_eq!(facts["card.client.driver"], "virtual");
        let lab = "name: lab\nsystems: [direct]\nloads: [{ rate: 500 }]\n";
        let facts = key(&machine(), lab).facts;
        assert!(!facts.keys().any(|name| name.starts_with("card.")));
        assert_eq!(facts["scenario.wire"], "lab");
    }
}
