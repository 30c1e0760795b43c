//! Configuration files in the pages are valid, and the reference has every field.

use std::collections::BTreeSet;

use control::config;

use super::fields::{fields, has};
use super::page::{pages, read};

const REFERENCE: &str = "deploy/docs/configuration.md";
/// What makes a file of a part of one.
const AROUND: &str = "interfaces: [{name: eth0}]\nkubernetes: {}\n";

#[test]
fn configuration_files_in_pages_are_valid() {
    let mut count = 0;
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.is("yaml")) {
            let is_part = block.info.contains("fragment");
            if block.text.contains("apiVersion:") {
                continue;
            }
            count += 1;
            let around = if is_part { AROUND } else { "" };
            let file = format!("{around}{}", block.text);
            if let Err(problems) = config::parse(&file) {
                panic!("{}: {problems:?}", block.at);
            }
        }
    }
    assert!(count > 2, "{count}");
}

#[test]
fn reference_has_exactly_the_fields_of_the_file() {
    let fields = fields();
    let documented = documented();
    for field in &documented {
        assert!(
            has(&fields, field),
            "{REFERENCE} has {field}, which no file has"
        );
    }
    for field in &fields {
        // A service's own section has the fields of the one for all.
        let field = field.replace("services[].health.", "health.");
        let is_section = fields
            .iter()
            .any(|other| other.starts_with(&format!("{field}.")));
        assert!(
            is_section || documented.contains(&field),
            "{REFERENCE} lacks {field}"
        );
    }
}

/// The fields in the first columns of the reference's tables.
fn documented() -> BTreeSet<String> {
    let mut documented = BTreeSet::new();
    let mut section = "";
    for line in read(REFERENCE).lines() {
        if line.starts_with("| field") {
            section = if line.starts_with("| field of `kubernetes`") {
                "kubernetes."
            } else {
                ""
            };
        } else if let Some((names, _)) = line
            .strip_prefix("| `")
            .and_then(|row| row.split_once(" | "))
        {
            let names = names.split("`, `").map(|name| name.trim_matches('`'));
            documented.extend(names.map(|name| format!("{section}{name}")));
        }
    }
    documented
}
