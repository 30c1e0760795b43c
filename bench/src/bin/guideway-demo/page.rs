//! The results of the demo, 90 columns wide.

use std::{fmt::Write as _, time::Duration};

use crate::{
    cluster::{SERVICES, Service, WEIGHTS},
    removal::Removal,
    traffic::{Packets, Row},
};

/// Returns the column titles of [`rows`].
pub(crate) fn rows_title(requests: u32, pace: Duration) -> String {
    let per_second = Duration::from_secs(1).as_micros() / pace.as_micros();
    let mut page = format!(
        "\n{requests} requests to each of {} services in turn, {per_second} per second, a new \
         connection for each.\nLatency in milliseconds, from when a request was due.\n\n",
        SERVICES.len()
    );
    let _ = writeln!(
        page,
        "  {:<20}{:<14}{:>6}  {:>6}{:>7}{:>7}{:>9}{:>8}{:>8}",
        "service", "way", "failed", "node0", "node1", "node2", "p50", "p99", "p99.9"
    );
    let whole: u32 = WEIGHTS.iter().sum();
    let _ = write!(page, "  {:<42}", "shares by weight");
    for (place, weight) in WEIGHTS.into_iter().enumerate() {
        let width = if place == 0 { 6 } else { 7 };
        let _ = write!(page, "{:>width$}", percent(weight.into(), whole.into()));
    }
    page.push('\n');
    page
}

/// Returns a line for each service, with the answers by node and the latencies.
pub(crate) fn rows(rows: &[Row]) -> String {
    rows.iter().map(row).collect()
}

fn row(row: &Row) -> String {
    let whole: u64 = row.answers.iter().sum();
    let mut line = format!(
        "  {:<20}{:<14}{:>6}  ",
        row.service.address().to_string(),
        outer_header(row.service),
        row.failures.as_ref().map_or(0, |(_, count)| *count)
    );
    for (place, &answers) in row.answers.iter().enumerate() {
        let width = if place == 0 { 6 } else { 7 };
        let _ = write!(line, "{:>width$}", percent(answers, whole));
    }
    let micros = |quantile| milliseconds(row.latency.value_at_quantile(quantile));
    let _ = write!(
        line,
        "{:>9}{:>8}{:>8}",
        micros(0.5),
        micros(0.99),
        micros(0.999)
    );
    line.push('\n');
    line
}

/// Returns a table of the packets counted along the path.
pub(crate) fn path(packets: &Packets) -> String {
    let mut page =
        "\nDirect server return: packets by the interfaces' counters, ARP and ND included.\n\n"
            .to_owned();
    let columns = [
        ("client out", packets.client_sent),
        ("edge in", packets.edge_in),
        ("edge out", packets.edge_out),
        ("nodes out", packets.nodes_out),
        ("client in", packets.client_received),
    ];
    let titles: String = columns.map(|(title, _)| format!("{title:>11}")).concat();
    let counts: String = columns.map(|(_, count)| format!("{count:>11}")).concat();
    let _ = writeln!(page, "  {titles}\n  {counts}");
    page
}

/// Returns the line before a removal.
pub(crate) fn removal_title() -> String {
    "\nA backend leaves the configuration while clients are at work.\n\n".to_owned()
}

/// Returns the lines about the connections during a removal.
pub(crate) fn removal(removal: &Removal) -> String {
    let mut page = String::new();
    let mut line = |what: &str, outcome: String| {
        let _ = writeln!(page, "  {what:<42}{outcome}");
    };
    let (removed, place) = &removal.removed;
    line(
        &format!("{removed} out of {}", removal.service.address()),
        format!(
            "in force {} ms after the file changed",
            removal.took.as_millis()
        ),
    );
    line(
        "open connections to the other nodes",
        format!(
            "{}: {} broken, {} requests answered",
            removal.kept,
            removal.kept_broken.len(),
            removal.kept_answers
        ),
    );
    if removal.moved > 0 {
        line(
            "  whose slot has another owner",
            format!("{}: Maglev moves 1 slot in 1000", removal.moved),
        );
    }
    line(
        &format!("open connections to {removed}"),
        format!(
            "{}: {} broken, its pod is asked as a past owner",
            removal.of_removed,
            removal.of_removed_broken()
        ),
    );
    line(
        "requests under way at the change",
        format!(
            "{} cut off with {removed}, {} elsewhere",
            removal.under_way.cut_off,
            removal.under_way.unexpected.len()
        ),
    );
    let shares = removal
        .answers_after
        .iter()
        .enumerate()
        .filter(|(node, _)| node != place)
        .map(|(_, answers)| answers.to_string())
        .collect::<Vec<_>>()
        .join(" : ");
    line(
        "requests after the change",
        format!(
            "{shares} to the others, {} to {removed}, {} failed",
            removal.answers_after[*place],
            removal
                .failures_after
                .as_ref()
                .map_or(0, |(_, count)| *count)
        ),
    );
    page
}

fn outer_header(service: &Service) -> String {
    match service.outer {
        None => "L2 DSR".to_owned(),
        Some(outer) => format!("{} in {outer} IPIP", service.family),
    }
}

fn percent(part: u64, whole: u64) -> String {
    let whole = whole.max(1);
    let tenths = (part * 1000 + whole / 2) / whole;
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// Converts microseconds.
pub(crate) fn milliseconds(micros: u64) -> String {
    let hundredths = (micros + 5) / 10;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
