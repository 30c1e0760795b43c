//! The table of the counted ways in the documentation.

use super::{Instructions, MEANING};
use crate::datapath::{Family, Protocol, System, report::lower};

/// The ways, with what the page calls them.
const WAYS: [(System, &str); 11] = [
    (System::Guideway, "plain, edge to node"),
    (System::NodePort, "NodePort, to a remote pod"),
    (System::L2Dsr, "L2 DSR"),
    (System::Slots, "131 072 slots"),
    (System::Services, "10 000 services"),
    (System::Miss, "a miss at the edge"),
    (System::Node, "edge to pod"),
    (System::Reply, "reply of a pod"),
    (System::OtherEgress, "other traffic at egress"),
    (System::Nat, "NAT mode, to the backend"),
    (System::NatReply, "NAT mode, to the client"),
];

/// Formats the counts with one flow as a table in Markdown, and says what the unit of costs takes and how far more flows
/// take more.
pub fn table(rows: &[Instructions]) -> String {
    let columns = Family::ALL.map(|family| Protocol::ALL.map(|protocol| (family, protocol)));
    let columns = columns.as_flattened();
    let cells = |system: System, flows: u32| -> Option<Vec<f64>> {
        let count = |(family, protocol): &(Family, Protocol)| {
            let mut rows = rows.iter();
            let row = rows.find(|row| {
                (row.system, row.family, row.protocol, row.flows)
                    == (system, *family, *protocol, flows)
            });
            row.map(|row| row.net)
        };
        columns.iter().map(count).collect()
    };
    let title = |(family, protocol): &(Family, Protocol)| {
        format!(
            "IP{} {}",
            lower(family),
            protocol.to_string().to_uppercase()
        )
    };
    let titles: Vec<_> = columns.iter().map(title).collect();
    let mut text = format!(
        "| way | {} |\n|---|{}\n",
        titles.join(" | "),
        "---|".repeat(columns.len())
    );
    let mut most = 1.0_f64;
    for (system, words) in WAYS {
        let Some(counts) = cells(system, 1) else {
            continue;
        };
        let many = cells(system, super::FLOWS[1]).unwrap_or_default();
        let ratios = many.iter().zip(&counts).map(|(many, one)| many / one);
        most = ratios.fold(most, f64::max);
        let counts: Vec<_> = counts.iter().map(|count| format!("{count:.0}")).collect();
        text += &format!("| {words} | {} |\n", counts.join(" | "));
    }
    if let Some(units) = cells(System::Hit, 1) {
        let units: Vec<_> = units.iter().map(|unit| format!("{unit:.0}")).collect();
        text += &format!(
            "| a look-up in a hash of the kernel's | {} |\n",
            units.join(" | ")
        );
    }
    text + &format!(
        "\nWith one flow. With {} in turn, they are at most {:.1} % more. {MEANING}\n\n",
        super::FLOWS[1],
        (most - 1.0) * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages;

    fn row(system: System, family: Family, flows: u32, net: f64) -> [Instructions; 2] {
        Protocol::ALL.map(|protocol| Instructions {
            system,
            family,
            protocol,
            flows,
            net,
        })
    }

    #[test]
    fn each_way_that_was_counted_has_a_line() {
        let rows = [
            row(System::Guideway, Family::V4, 1, 640.4),
            row(System::Guideway, Family::V6, 1, 700.0),
            row(System::Guideway, Family::V4, 1000, 640.4),
            row(System::Guideway, Family::V6, 1000, 710.5),
            row(System::Node, Family::V4, 1, 900.0),
        ];
        let text = table(rows.as_flattened());
        let expected = "| plain, edge to node | 640 | 640 | 700 | 700 |\n\nWith one flow. With 1000 in turn, they are at most 1.5 % more. ";
        let expected = format!("{expected}{MEANING}\n\n");
        assert!(text.ends_with(&expected), "{text}");
        let titles = "| way | IPv4 UDP | IPv4 TCP | IPv6 UDP | IPv6 TCP |\n";
        assert!(text.starts_with(titles), "{text}");
    }

    #[test]
    fn page_of_the_documentation_has_the_table_of_the_counted_ways() {
        let rows: Vec<Instructions> = pages::rows("instructions.jsonl");
        let begin =
            "<!-- counted ways: `make reference` writes this table from instructions.jsonl -->\n";
        pages::expect_part("README.md", begin, &table(&rows));
    }
}
