//! The table of the counted rows in the documentation.

use super::{Balancer, Flows, Row, each_size};
use crate::{
    datapath::{
        frames::{Family, Protocol},
        instructions::MEANING,
    },
    stats::{Spread, median},
};

/// The most that Guideway may take of what another balancer takes, by IPIP.
const BARS: [(Balancer, f64); 2] = [
    (Balancer::KubeProxyNftables, 0.35),
    (Balancer::IpvsIpip, 0.5),
];
/// How far boots of the counting machine may differ.
const AGREEMENT: f64 = 0.005;

/// The columns.
const COLUMNS: [(Family, Flows); 4] = [
    (Family::V4, Flows::Established),
    (Family::V4, Flows::New),
    (Family::V6, Flows::Established),
    (Family::V6, Flows::New),
];

/// What a figure is of.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    protocol: Protocol,
    balancer: Balancer,
    services: u32,
    column: (Family, Flows),
}

impl Row {
    fn cell(&self) -> Cell {
        Cell {
            protocol: self.protocol,
            balancer: self.balancer,
            services: self.services,
            column: (self.family, self.flows),
        }
    }
}

/// Formats rows of several boots as tables in Markdown, with the shares that Guideway takes of other balancers'
/// instructions by IPIP and by NAT, and what becomes of the bars.
pub fn table(rows: &[Row]) -> String {
    let table = Table(rows);
    let mut text: String = Protocol::ALL.map(|protocol| table.of(protocol)).concat();
    for (balancer, bar) in BARS {
        if let Some(worst) = table.worst(balancer) {
            text += &format!(
                "- By IPIP, Guideway takes at most {worst:.2} of the instructions of `{}` (bar: {bar}, {}).\n",
                balancer.name(),
                verdict(worst, bar),
            );
        }
    }
    text + &table.agreement() + &format!("- {MEANING}\n\n")
}

fn verdict(worst: f64, bar: f64) -> &'static str {
    if worst <= bar { "kept" } else { "not kept" }
}

/// Formats a share to two digits that tell something.
fn short(share: f64) -> String {
    let digits = if share < 0.1 { 3 } else { 2 };
    format!("{share:.digits$}")
}

struct Table<'a>(&'a [Row]);

impl Table<'_> {
    /// Formats the table of a protocol; nothing if it was not counted.
    fn of(&self, protocol: Protocol) -> String {
        let mut lines = String::new();
        for (balancer, services) in each_size() {
            let cells = COLUMNS.map(|column| {
                self.text(Cell {
                    protocol,
                    balancer,
                    services,
                    column,
                })
            });
            if cells.iter().any(Option::is_some) {
                let cells = cells.map(Option::unwrap_or_default).join(" | ");
                lines += &format!("| `{}` | {services} | {cells} |\n", balancer.name());
            }
        }
        if lines.is_empty() {
            return lines;
        }
        format!(
            "| {} | Services | IPv4, known flows | IPv4, new flows | IPv6, known flows | IPv6, new flows |\n\
             |---|---|---|---|---|---|\n{lines}\n",
            protocol.to_string().to_uppercase()
        )
    }

    /// Returns the instructions of each boot.
    fn boots(&self, cell: Cell) -> Vec<f64> {
        let rows = self.0.iter().filter(|row| row.cell() == cell);
        rows.map(Row::instructions).collect()
    }

    fn instructions(&self, cell: Cell) -> Option<f64> {
        let boots = self.boots(cell);
        (!boots.is_empty()).then(|| median(&boots))
    }

    /// Returns what Guideway takes of another balancer's instructions, in one of its own modes.
    fn share(&self, ours: Balancer, cell: Cell) -> Option<f64> {
        let balancer = ours;
        let ours = self.instructions(Cell { balancer, ..cell })?;
        Some(ours / self.instructions(cell)?)
    }

    fn text(&self, cell: Cell) -> Option<String> {
        let instructions = self.instructions(cell)?;
        let share = |ours| self.share(ours, cell);
        let shares = share(Balancer::OursIpip).zip(share(Balancer::OursNat));
        let shares = shares.filter(|_| cell.balancer > Balancer::OursNat);
        let shares = shares.map(|(ipip, nat)| format!(" ({}, {})", short(ipip), short(nat)));
        Some(format!("{instructions:.0}{}", shares.unwrap_or_default()))
    }

    /// Returns the highest share that Guideway takes by IPIP.
    fn worst(&self, balancer: Balancer) -> Option<f64> {
        let rows = self.0.iter().filter(|row| row.balancer == balancer);
        let shares = rows.filter_map(|row| self.share(Balancer::OursIpip, row.cell()));
        shares.reduce(f64::max)
    }

    /// Says how far the boots agree.
    fn agreement(&self) -> String {
        let Some(Row { kernel, date, .. }) = self.0.first() else {
            return String::new();
        };
        let mut cells: Vec<Cell> = Vec::new();
        for cell in self.0.iter().map(Row::cell) {
            if !cells.contains(&cell) {
                cells.push(cell);
            }
        }
        let fewest = cells.iter().map(|cell| self.boots(*cell).len()).min();
        let difference = |cell: &Cell| {
            let boots = self.boots(*cell);
            let Spread { min, max, .. } = Spread::of(&boots);
            (max - min) / median(&boots)
        };
        let differences: Vec<f64> = cells.iter().map(difference).collect();
        let agree = differences.iter().filter(|one| **one <= AGREEMENT).count();
        let worst = differences.iter().copied().fold(0.0, f64::max);
        format!(
            "- Counted on Linux {kernel} on {date}, in {} boots: {agree} of {} figures agree within {} % (the bar), all \
             within {:.2} %.\n",
            fewest.unwrap_or_default(),
            cells.len(),
            100.0 * AGREEMENT,
            100.0 * worst,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages;

    fn row(balancer: Balancer, flows: Flows, instructions: f64) -> Row {
        Row {
            balancer,
            services: 1,
            family: Family::V4,
            protocol: Protocol::Udp,
            flows,
            trials: vec![900.0 + instructions, 0.0, 1e6],
            direct: vec![900.0],
            kernel: "6.12".to_owned(),
            date: "2026-11-25".to_owned(),
        }
    }

    #[test]
    fn others_have_the_shares_of_both_modes_and_the_worst_one_is_judged() {
        let rows = [
            row(Balancer::OursIpip, Flows::Established, 1_000.0),
            row(Balancer::OursNat, Flows::Established, 2_000.0),
            row(Balancer::KubeProxyNftables, Flows::Established, 4_000.0),
            row(Balancer::OursIpip, Flows::New, 1_000.0),
            row(Balancer::OursNat, Flows::New, 3_000.0),
            row(Balancer::KubeProxyNftables, Flows::New, 20_000.0),
            row(Balancer::IpvsIpip, Flows::New, 1_900.0),
        ];
        let text = table(&rows);
        for expected in [
            "| UDP | Services | IPv4, known flows",
            "| `ours-ipip` | 1 | 1000 | 1000 |  |  |\n",
            "| `kube-proxy-nftables` | 1 | 4000 (0.25, 0.50) | 20000 (0.050, 0.15) |  |  |\n",
            "at most 0.25 of the instructions of `kube-proxy-nftables` (bar: 0.35, kept).",
            "at most 0.53 of the instructions of `ipvs-ipip` (bar: 0.5, not kept).",
            MEANING,
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(
            !text.contains("ipvs-nat") && !text.contains("TCP"),
            "{text}"
        );
    }

    #[test]
    fn boots_are_compared_and_their_median_is_shown() {
        let boots = |counts: [f64; 3]| {
            table(&counts.map(|count| row(Balancer::OursIpip, Flows::New, count)))
        };
        let text = boots([1_000.0, 1_004.0, 1_001.0]);
        assert!(text.contains("| `ours-ipip` | 1 |  | 1001 |"), "{text}");
        let expected = "Linux 6.12 on 2026-11-25, in 3 boots: 1 of 1 figures agree within 0.5 % (the bar), all within 0.40 %.";
        assert!(text.contains(expected), "{text}");
        let text = boots([1_000.0, 1_000.0, 1_010.0]);
        let expected = "0 of 1 figures agree within 0.5 % (the bar), all within 1.00 %";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn page_of_the_documentation_has_the_table_of_the_counted_rows() {
        const BEGIN: &str =
            "<!-- counted balancers: `make reference` writes this table from balancers.jsonl -->\n";
        pages::expect_part("README.md", BEGIN, &table(&counted()));
    }

    #[test]
    fn first_page_of_the_documentation_compares_by_the_counted_rows() {
        const BEGIN: &str = "| instructions of a packet: known flow; new flow [1] |";
        let rows = counted();
        let counts = |balancer| {
            let count = |flows| {
                let cell = Cell {
                    protocol: Protocol::Udp,
                    balancer,
                    services: 1000,
                    column: (Family::V4, flows),
                };
                Table(&rows).instructions(cell).unwrap()
            };
            let [known, new] = [Flows::Established, Flows::New].map(count);
            format!("{known:.0}; {new:.0}")
        };
        let line = format!(
            "{BEGIN} {} | nftables {}, iptables {} | | | none of its own: kube-proxy forwards |\n",
            counts(Balancer::OursIpip),
            counts(Balancer::KubeProxyNftables),
            counts(Balancer::KubeProxyIptables),
        );
        pages::expect_page("../README.md", |text| {
            let (before, rest) = text.split_once(BEGIN).unwrap();
            let (_, after) = rest.split_once('\n').unwrap();
            [before, &line, after].concat()
        });
    }

    /// The rows that are kept.
    fn counted() -> Vec<Row> {
        pages::rows("balancers.jsonl")
    }
}
