//! The table of the counted ways in the documentation.

use super::{Instructions, MEANING};
use crate::datapath::{Family, Protocol, System, report::lower};

/// The ways, with what the page calls them.
const WAYS: [(System, &str); 18] = [
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
    (System::Past, "plain, of a slot with a past"),
    (System::Pinned, "plain, of a pinned connection"),
    (System::NodeTries, "edge to pod, may be returned"),
    (System::NodeFirst, "edge to pod, a flow's first in a second"),
    (System::NodeAsked, "edge to pod, the same, may be returned"),
    (System::NodeReturn, "a node's return"),
    (System::Retry, "a return, to the next owner"),
];

/// Formats the counts with one flow as a table in Markdown, or those with more where one is not counted. Says what the unit
/// of costs takes and how far more flows take more.
pub fn table(rows: &[Instructions]) -> String {
    let columns = Family::ALL.map(|family| Protocol::ALL.map(|protocol| (family, protocol)));
    let columns = columns.as_flattened();
    let count = |system: System, (family, protocol): (Family, Protocol), flows: u32| {
        let mut rows = rows.iter();
        let row = rows.find(|row| {
            (row.system, row.family, row.protocol, row.flows) == (system, family, protocol, flows)
        });
        row.map(|row| row.net)
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
    let [few, many] = super::FLOWS;
    let mut most = 1.0_f64;
    let unit = (System::Hit, "a look-up in a hash of the kernel's");
    for (system, words) in WAYS.into_iter().chain([unit]) {
        let mut cells = Vec::new();
        let mut is_counted = false;
        for column in columns {
            let [one, more] = [few, many].map(|flows| count(system, *column, flows));
            if let (Some(one), Some(more)) = (one, more) {
                most = most.max(more / one);
            }
            is_counted |= one.or(more).is_some();
            cells.push(
                one.or(more)
                    .map_or("-".to_owned(), |count| format!("{count:.0}")),
            );
        }
        if is_counted {
            text += &format!("| {words} | {} |\n", cells.join(" | "));
        }
    }
    text + &format!(
        "\nWith one flow; first packets in a second and returns with {many}. With {many} in turn, the others are at most {:.1} % \
         more. {MEANING}\n\n",
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
            row(System::Retry, Family::V4, 1000, 3000.0),
        ];
        let text = table(rows.as_flattened());
        let expected = "| plain, edge to node | 640 | 640 | 700 | 700 |\n| edge to pod | 900 | 900 | - | - |\n\
                        | a return, to the next owner | 3000 | 3000 | - | - |\n\nWith one flow; first packets in a second and \
                        returns with 1000. With 1000 in turn, the others are at most 1.5 % more. ";
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
