//! The page about troubleshooting has the words by which planted faults are found.

use super::faults_planted::ALL;
use super::page::read;

const PAGE: &str = "deploy/docs/troubleshoot.md";

#[test]
fn page_has_a_row_for_each_planted_fault_with_the_words_that_are_said() {
    let page = read(PAGE);
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    for fault in ALL {
        for (by, words) in fault.said {
            let has = |row: &&&str| words.iter().all(|words| row.contains(words));
            let row = rows.iter().find(has);
            let row = row.unwrap_or_else(|| {
                panic!("{}: no row of {PAGE} has {words:?} of {by}", fault.name)
            });
            let command = by.strip_prefix("guideway ").unwrap_or(by);
            assert!(
                row.contains(command),
                "{}: {by} is not in: {row}",
                fault.name
            );
        }
    }
}
