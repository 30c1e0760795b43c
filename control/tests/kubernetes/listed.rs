//! What `e2e.md` says of tests that exist.

use std::fs;
use std::path::{Path, PathBuf};

const LIST: &str = include_str!("../e2e.md");

#[test]
fn tests_that_the_list_names_exist() {
    let quoted = LIST.split('`').skip(1).step_by(2);
    let mut names: Vec<&str> = quoted
        .filter(|text| text.contains("::") && !text.ends_with("..."))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 20, "{names:?}");
    let missing: Vec<&&str> = names.iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_test_on_the_list_has_an_answer() {
    let rows = LIST.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<&str> = rows.filter(|row| *row != "| test | here |").collect();
    assert!(rows.len() > 60, "{}", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let is_answered =
            matches!(cells[..], [test, answer] if !test.is_empty() && !answer.is_empty());
        assert!(is_answered, "{row}");
    }
}

/// Whether a source has a function, or a group of them, by this name; or is there, if the name is a module's.
fn exists(name: &str) -> bool {
    let words: Vec<&str> = name.split("::").collect();
    let directory = match words[0] {
        "index" => "src/index/tests",
        "kubernetes" => "tests/kubernetes",
        "e2e" => "tests/e2e",
        other => panic!("{other} is no group of tests"),
    };
    let directory: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let source = fs::read_to_string(directory.join(format!("{}.rs", words[1])));
    match (source, words.get(2)) {
        (Ok(source), Some(function)) => source.contains(&format!("fn {function}(")),
        (Ok(_), None) => true,
        (Err(_), _) => false,
    }
}
