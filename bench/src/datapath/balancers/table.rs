//! The table of the counted rows in the documentation.

use super::{Balancer, COUNTED, Flows, Row};
use crate::datapath::{
    frames::{Family, Protocol},
    report::lower,
};

/// The most that Guideway may take of what another balancer takes.
const BARS: [(Balancer, f64); 2] = [
    (Balancer::KubeProxyNftables, 0.35),
    (Balancer::IpvsIpip, 0.5),
];

/// The columns.
const COLUMNS: [(Family, Flows); 4] = [
    (Family::V4, Flows::Established),
    (Family::V4, Flows::New),
    (Family::V6, Flows::Established),
    (Family::V6, Flows::New),
];

/// Formats rows as tables in Markdown, with the shares that Guideway takes of other balancers' instructions by IPIP and
/// by NAT, and what becomes of the bars.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for protocol in Protocol::ALL {
        let of_protocol = rows.iter().filter(|row| row.protocol == protocol);
        let rows = Rows(of_protocol.collect());
        if !rows.0.is_empty() {
            rows.write(&lower(protocol).to_uppercase(), &mut text);
        }
    }
    text
}

/// The rows of one protocol.
struct Rows<'a>(Vec<&'a Row>);

impl Rows<'_> {
    fn write(&self, protocol: &str, text: &mut String) {
        *text += &format!(
            "| {protocol} | Services | IPv4, known flows | IPv4, new flows | IPv6, known flows | IPv6, new flows |\n\
             |---|---|---|---|---|---|\n"
        );
        for (balancer, sizes) in COUNTED {
            for &services in sizes {
                let cells = COLUMNS.map(|column| self.cell(balancer, services, column));
                if cells.iter().any(Option::is_some) {
                    let cells = cells.map(|cell| cell.unwrap_or_default()).join(" | ");
                    *text += &format!("| `{}` | {services} | {cells} |\n", balancer.name());
                }
            }
        }
        for (balancer, bar) in BARS {
            if let Some(worst) = self.worst(balancer) {
                let verdict = if worst <= bar { "kept" } else { "not kept" };
                *text += &format!(
                    "\n{protocol}, bar: by IPIP, Guideway takes at most {bar} of the instructions of `{}`. The highest \
                     share is {worst:.2}: {verdict}.\n",
                    balancer.name()
                );
            }
        }
        *text += "\n";
    }

    fn instructions(
        &self,
        balancer: Balancer,
        services: u32,
        (family, flows): (Family, Flows),
    ) -> Option<f64> {
        let wanted = (balancer, services, family, flows);
        let is_wanted = |row: &&&Row| (row.balancer, row.services, row.family, row.flows) == wanted;
        self.0.iter().find(is_wanted).map(|row| row.instructions)
    }

    /// Returns what Guideway takes of another balancer's instructions, in one of its own modes.
    fn share(
        &self,
        ours: Balancer,
        balancer: Balancer,
        services: u32,
        column: (Family, Flows),
    ) -> Option<f64> {
        let theirs = self.instructions(balancer, services, column)?;
        Some(self.instructions(ours, services, column)? / theirs)
    }

    fn cell(&self, balancer: Balancer, services: u32, column: (Family, Flows)) -> Option<String> {
        let share = |ours| self.share(ours, balancer, services, column);
        let shares = share(Balancer::OursIpip).zip(share(Balancer::OursNat));
        let shares = shares.filter(|_| balancer > Balancer::OursNat);
        let shares = shares.map(|(ipip, nat)| format!(" ({ipip:.2}, {nat:.2})"));
        let instructions = self.instructions(balancer, services, column)?;
        Some(format!("{instructions:.0}{}", shares.unwrap_or_default()))
    }

    /// Returns the highest share that Guideway takes by IPIP.
    fn worst(&self, balancer: Balancer) -> Option<f64> {
        let (_, sizes) = COUNTED.iter().find(|(counted, _)| *counted == balancer)?;
        let share = |services: &u32| {
            COLUMNS.map(|column| self.share(Balancer::OursIpip, balancer, *services, column))
        };
        sizes.iter().flat_map(share).flatten().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use super::*;

    fn row(balancer: Balancer, flows: Flows, instructions: f64) -> Row {
        Row {
            balancer,
            services: 1,
            family: Family::V4,
            protocol: Protocol::Udp,
            flows,
            instructions,
            range: [instructions; 2],
            direct: 900.0,
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
            row(Balancer::KubeProxyNftables, Flows::New, 10_000.0),
            row(Balancer::IpvsIpip, Flows::New, 1_900.0),
        ];
        let text = table(&rows);
        for expected in [
            "| UDP | Services | IPv4, known flows",
            "| `ours-ipip` | 1 | 1000 | 1000 |  |  |\n",
            "| `kube-proxy-nftables` | 1 | 4000 (0.25, 0.50) | 10000 (0.10, 0.30) |  |  |\n",
            "0.35 of the instructions of `kube-proxy-nftables`. The highest share is 0.25: kept.",
            "0.5 of the instructions of `ipvs-ipip`. The highest share is 0.53: not kept.",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(
            !text.contains("ipvs-nat") && !text.contains("TCP"),
            "{text}"
        );
    }

    #[test]
    fn page_of_the_documentation_has_the_table_of_the_counted_rows() {
        const BEGIN: &str =
            "<!-- counted balancers: `make reference` writes this table from balancers.jsonl -->\n";
        const END: &str = "<!-- end -->\n";
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let rows = fs::read_to_string(directory.join("balancers.jsonl")).unwrap();
        let rows = rows.lines().map(|line| serde_json::from_str(line).unwrap());
        let table = table(&rows.collect::<Vec<Row>>());
        let page = directory.join("README.md");
        let text = fs::read_to_string(&page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let made = [before, BEGIN, "\n", &table, END, after].concat();
        if env::var_os("GUIDEWAY_WRITE_DOCS").is_some() {
            fs::write(&page, &made).unwrap();
        }
        let text = fs::read_to_string(&page).unwrap();
        assert!(
            text == made,
            "bench/README.md has another table; write it anew with: make reference"
        );
    }
}
