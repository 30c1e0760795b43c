//! The README's figures are those of the bench.

use super::page::read;

const BENCH: &str = "bench/README.md";
const README: &str = "README.md";

#[test]
fn readme_has_at_most_100_lines() {
    let lines = read(README).lines().count();
    assert!(lines <= 100, "{lines}");
}

// What is counted is compared with its rows where these are read, in `bench`.
#[test]
fn figures_of_the_readme_are_those_of_the_bench() {
    let one = cell("IPv4 UDP, 1", "of the floor");
    let million = cell("IPv4 UDP, 1 M", "of the floor");
    expect(&format!(
        "{one} of what a bare `XDP_TX` does with one flow, and {million} with a million"
    ));
    let changes = "10 000 x 2, recorded";
    let change = cell(
        "one change, from its event to its first packet, p50",
        changes,
    );
    let memory = cell("memory, resident; peak", changes);
    let [change, memory] = [change, memory].map(|cell| number(&cell));
    expect(&format!("| {change:.1} ms, {memory:.0} MiB |"));
    expect(&format!("reaches its first packet in {change:.0} ms"));
}

fn expect(text: &str) {
    let readme = read(README).replace('\n', " ");
    assert!(
        readme.contains(text),
        "{BENCH} says, and {README} does not: {text}"
    );
}

/// The cell of a table of the bench's page, by the first words of its row and its column.
fn cell(row: &str, column: &str) -> String {
    let page = read(BENCH);
    let cells = |line: &str| -> Vec<String> {
        let inner = line
            .strip_prefix('|')
            .and_then(|line| line.strip_suffix('|'));
        let cells = inner.unwrap_or_default().split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let mut columns = Vec::new();
    for line in page.lines().map(cells) {
        if line.iter().any(|cell| cell == column) {
            columns = line;
        } else if line[0] == row && !columns.is_empty() {
            let at = columns.iter().position(|cell| cell == column);
            return line[at.unwrap()].clone();
        }
    }
    panic!("{BENCH} has no row {row:?} with {column:?}");
}

/// The number that a cell begins with.
fn number(cell: &str) -> f64 {
    cell.split(' ').next().unwrap().parse().unwrap()
}
