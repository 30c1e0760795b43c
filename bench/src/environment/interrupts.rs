//! Interrupts that came while something was measured, by CPU.

use std::{cmp::Reverse, collections::BTreeMap, fs};

/// Most interrupts that are told: those that came most often.
const MOST: usize = 16;

/// What the kernel has counted so far: by number or name, what it is and how often each CPU had it.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    cpus: Vec<String>,
    counts: BTreeMap<String, (String, Vec<u64>)>,
}

impl Interrupts {
    /// Reads the counters.
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/interrupts").unwrap_or_default())
    }

    /// Reads a line with the CPUs, and one for each interrupt: its number, a count for each CPU, and what it is (proc(5)).
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let cpus = lines.next().unwrap_or_default().split_whitespace();
        let cpus: Vec<String> = cpus.map(str::to_owned).collect();
        let counts = lines.filter_map(|line| {
            let (name, rest) = line.trim_start().split_once(':')?;
            let words: Vec<&str> = rest.split_whitespace().collect();
            // Of some, there is one count for all CPUs.
            let of_cpus = words.iter().map_while(|word| word.parse().ok());
            let counts: Vec<u64> = of_cpus.take(cpus.len()).collect();
            let what = words[counts.len()..].join(" ");
            Some((name.to_owned(), (what, counts)))
        });
        Self {
            counts: counts.collect(),
            cpus,
        }
    }

    /// Tells which interrupts came since an earlier reading, the most frequent first.
    pub fn since(&self, earlier: &Self) -> String {
        let mut grown: Vec<(u64, String)> = Vec::new();
        for (name, (what, counts)) in &self.counts {
            let before = earlier
                .counts
                .get(name)
                .map_or(&[][..], |(_, counts)| counts.as_slice());
            let before = before.iter().copied().chain(std::iter::repeat(0));
            let growth = counts.iter().zip(before);
            let growth: Vec<u64> = growth.map(|(now, then)| now.saturating_sub(then)).collect();
            let of_cpus = self
                .cpus
                .iter()
                .zip(&growth)
                .filter(|(_, growth)| **growth > 0);
            let of_cpus = of_cpus.map(|(cpu, growth)| format!(" {cpu} {growth}"));
            let text = format!("{name} ({what}){}", of_cpus.collect::<String>());
            grown.push((growth.iter().sum(), text));
        }
        grown.retain(|(growth, _)| *growth > 0);
        grown.sort_by_key(|(growth, _)| Reverse(*growth));
        let told = grown.into_iter().take(MOST).map(|(_, text)| text);
        told.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = "           CPU0       CPU1\n \
                           24:          1          0  IO-APIC   5-edge      ACPI:Ged\n\
                           LOC:       5000       6000   Local timer interrupts\n\
                           ERR:          3\n";

    #[test]
    fn what_came_since_is_told_by_cpu_the_most_frequent_first() {
        let later = EARLIER
            .replace("         1  ", "        20  ")
            .replace("6000", "6100");
        let later = later + " 30:          0          7  PCI-MSIX eth0-rx-0\n";
        let [earlier, later] = [EARLIER, &later].map(Interrupts::parse);
        assert_eq!(
            later.since(&earlier),
            "LOC (Local timer interrupts) CPU1 100, 24 (IO-APIC 5-edge ACPI:Ged) CPU0 19, \
             30 (PCI-MSIX eth0-rx-0) CPU1 7"
        );
        assert_eq!(earlier.since(&earlier), "");
    }

    #[test]
    fn this_machine_counts_some() {
        let earlier = Interrupts::read();
        assert!(!earlier.cpus.is_empty());
        assert!(!earlier.since(&Interrupts::default()).is_empty());
    }
}
