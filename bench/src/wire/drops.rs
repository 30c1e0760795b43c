//! What the lab's machines threw away, by place: interfaces, IP, UDP, the connection table, Guideway. And what the queues
//! of a system's device received.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};
use fastpath::facts::received_by_queue;
use lab::{Machine, Namespace};

use super::Lab;
use crate::scenario::System;

/// Counts so far: by machine and place, or by machine and queue.
pub type Counts = BTreeMap<String, u64>;

/// The counters of `/proc/net/snmp` that count packets thrown away.
const OF_PROTOCOLS: [(&str, &[&str]); 2] = [
    (
        "Ip",
        &[
            "InHdrErrors",
            "InAddrErrors",
            "InUnknownProtos",
            "InDiscards",
            "OutDiscards",
            "OutNoRoutes",
        ],
    ),
    ("Udp", &["NoPorts", "InErrors", "SndbufErrors"]),
];
/// The same of `/proc/net/stat/nf_conntrack`.
const OF_CONNTRACK: [&str; 3] = ["insert_failed", "drop", "early_drop"];

impl Lab {
    /// Reads what was thrown away so far on the way of a system's packets.
    pub(super) fn read_drops(&self, system: System) -> Result<Counts> {
        let mut drops = Counts::new();
        let (net, nodes) = (&self.net, self.nodes(system));
        let balancer = self.edge(system).ok();
        let machines = [net.clients()[0].namespace(), net.router(), net.switch()];
        let machines = machines
            .into_iter()
            .chain(balancer.map(|edge| edge.namespace()));
        for machine in machines.chain(nodes.iter().map(|node| node.namespace())) {
            of_kernel(machine, &mut drops)?;
        }
        for machine in self.machines_with_agents(system) {
            let reasons = self.guideway.ask(machine.namespace(), &["drops"])?;
            for reason in reasons.as_array().into_iter().flatten() {
                let [action, name] = ["action", "reason"].map(|key| reason[key].as_str());
                let (Some(action @ ("drop" | "fail")), Some(name)) = (action, name) else {
                    continue;
                };
                let place = format!("{}: Guideway, {action} {name}", machine.label());
                drops.insert(place, reason["packets"].as_u64().unwrap_or(0));
            }
        }
        Ok(drops)
    }

    /// Reads what each queue of a system's device has received so far; without a balancer, of the first node's.
    pub(super) fn read_queues(&self, system: System) -> Result<Counts> {
        let first = &self.nodes(system)[0];
        let machine = self.edge(system).unwrap_or(first);
        let read = || received_by_queue(Machine::INTERFACE);
        let queues = machine.namespace().run(read);
        let queues =
            queues.with_context(|| format!("reading the queues of {}", machine.label()))?;
        let named = queues.into_iter();
        let named = named.map(|(name, count)| (format!("{}: {name}", machine.label()), count));
        Ok(named.collect())
    }
}

/// Returns what was counted between two readings.
pub fn counted_between(before: &Counts, after: &Counts) -> Counts {
    let grown = after.iter().filter_map(|(place, count)| {
        let grown = count.saturating_sub(before.get(place).copied().unwrap_or(0));
        (grown > 0).then(|| (place.clone(), grown))
    });
    grown.collect()
}

pub(super) fn of_kernel(machine: &Namespace, drops: &mut Counts) -> Result<()> {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let texts = machine.run(|| {
        // Without netfilter in the kernel there is no connection table.
        let conntrack = read("stat/nf_conntrack").unwrap_or_default();
        Ok::<_, std::io::Error>([read("dev")?, read("snmp")?, conntrack])
    });
    let [dev, snmp, conntrack] =
        texts.with_context(|| format!("reading the counters of {}", machine.label()))?;
    let counts = of_interfaces(&dev)
        .chain(of_protocols(&snmp))
        .chain(of_conntrack(&conntrack));
    drops.extend(counts.map(|(place, count)| (format!("{}: {place}", machine.label()), count)));
    Ok(())
}

/// Reads `/proc/net/dev`: the fourth number of each direction's eight.
fn of_interfaces(text: &str) -> impl Iterator<Item = (String, u64)> {
    let interfaces = text.lines().filter_map(|line| line.split_once(':'));
    interfaces.flat_map(|(name, numbers)| {
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        let directions = [("received", 3), ("sent", 11)].into_iter();
        let name = name.trim();
        directions.filter_map(move |(direction, place)| {
            Some((format!("{name}, {direction}"), *numbers.get(place)?))
        })
    })
}

/// Reads `/proc/net/snmp`: for each protocol a line of names and one of numbers.
fn of_protocols(text: &str) -> impl Iterator<Item = (String, u64)> {
    OF_PROTOCOLS
        .into_iter()
        .flat_map(move |(protocol, wanted)| {
            let mut lines = text.lines().filter_map(move |line| {
                let (name, rest) = line.split_once(": ")?;
                (name == protocol).then_some(rest.split(' '))
            });
            let pairs = lines
                .next()
                .into_iter()
                .flatten()
                .zip(lines.next().into_iter().flatten());
            let wanted = pairs.filter(move |(name, _)| wanted.contains(name));
            wanted.filter_map(move |(name, number)| {
                Some((format!("{protocol} {name}"), number.parse().ok()?))
            })
        })
}

/// Reads `/proc/net/stat/nf_conntrack`: a line of names, and one of hexadecimal numbers for each CPU.
fn of_conntrack(text: &str) -> impl Iterator<Item = (String, u64)> {
    let mut lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let names = lines.next().unwrap_or_default();
    let cpus: Vec<Vec<&str>> = lines.collect();
    OF_CONNTRACK.into_iter().filter_map(move |wanted| {
        let place = names.iter().position(|name| *name == wanted)?;
        let of_cpus = cpus
            .iter()
            .filter_map(|cpu| u64::from_str_radix(cpu.get(place)?, 16).ok());
        Some((format!("conntrack {wanted}"), of_cpus.sum()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drops(of: impl Iterator<Item = (String, u64)>) -> Vec<String> {
        of.filter(|(_, count)| *count > 0)
            .map(|(place, count)| format!("{place} {count}"))
            .collect()
    }

    #[test]
    fn drops_are_read_of_the_right_columns() {
        let dev = "Inter-|   Receive |  Transmit\n face |bytes packets errs drop\n    lo: 1 1 1 0 1 1 1 1 1 1 1 0 1 1 1 1\n\
                   \u{20} eth0: 9 9 9 7 9 9 9 9 9 9 9 5 9 9 9 9\n";
        assert_eq!(
            drops(of_interfaces(dev)),
            ["eth0, received 7", "eth0, sent 5"]
        );
        let snmp = "Ip: Forwarding InDiscards OutRequests OutNoRoutes\nIp: 2 4 6 8\nUdp: InDatagrams InErrors\nUdp: 3 5\n";
        assert_eq!(
            drops(of_protocols(snmp)),
            ["Ip InDiscards 4", "Ip OutNoRoutes 8", "Udp InErrors 5"]
        );
        let conntrack = "entries  found drop early_drop\n00000009  00000009 0000000a 00000000\n00000009  00000009 00000001 00000000\n";
        assert_eq!(drops(of_conntrack(conntrack)), ["conntrack drop 11"]);
        assert!(drops(of_conntrack("")).is_empty());
    }

    #[test]
    fn only_places_that_dropped_more_are_told() {
        let of = |counts: &[(&str, u64)]| -> Counts {
            counts
                .iter()
                .map(|&(place, count)| (place.to_owned(), count))
                .collect()
        };
        let (before, after) = (
            of(&[("a", 1), ("b", 2)]),
            of(&[("a", 1), ("b", 5), ("c", 4)]),
        );
        assert_eq!(counted_between(&before, &after), of(&[("b", 3), ("c", 4)]));
    }
}
