//! The licences and sources of all crates that are built, against what `deny.toml` allows.

use std::{collections::BTreeSet, process::Command};

use lab::output;
use serde_json::Value;

use super::chart::deploy;

/// The only source of crates that are not the workspace's own.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Crates that name no licence, but bring a file with one: its licence, and words that no other has.
const BY_FILE: [(&str, &str, &str); 1] = [(
    "internet-checksum",
    "BSD-2-Clause",
    "Redistributions in binary form must reproduce the above",
)];

#[test]
fn every_crate_has_an_allowed_licence_and_comes_from_the_registry() {
    let allowed = allowed();
    assert!(allowed.contains("MIT"), "{allowed:?}");
    let crates = crates();
    assert!(crates.len() > 100, "{}", crates.len());
    for one in &crates {
        let name = one["name"].as_str().unwrap();
        let source = one["source"].as_str();
        assert!(
            source.is_none_or(|source| source == REGISTRY),
            "{name}: {source:?}"
        );
        let licence = one["license"].as_str();
        let licence = licence.map_or_else(|| by_file(one), str::to_owned);
        assert!(is_allowed(&licence, &allowed), "{name}: {licence}");
    }
}

#[test]
fn choices_need_one_allowed_licence_and_sums_need_all() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"];
    let allowed = allowed.map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-2.0", false),
        ("GPL-2.0 OR MIT", true),
        ("GPL-2.0/MIT", true),
        ("MIT AND ISC", true),
        ("MIT AND GPL-2.0", false),
        ("(MIT OR GPL-2.0) AND ISC", true),
        ("MIT OR GPL-2.0 AND ISC", true),
        ("(GPL-2.0 AND MIT) OR (GPL-3.0)", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
        ("Apache-2.0", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}

/// Reads the list of licences from `deny.toml`.
fn allowed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(deploy("../deny.toml")).unwrap();
    let (_, list) = text.split_once("\nallow = [").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    let quoted = list.split('"').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

/// Lists the crates that members of the workspace are built with on this kind of machine.
fn crates() -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--locked", "--format-version", "1"]);
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command.args(["--filter-platform", &platform]);
    command.arg("--manifest-path").arg(deploy("../Cargo.toml"));
    let metadata: Value = serde_json::from_str(&output(&mut command).unwrap()).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Returns the licence of a crate that has it in a file alone.
fn by_file(one: &Value) -> String {
    let name = one["name"].as_str().unwrap();
    let known = BY_FILE.iter().find(|(known, ..)| *known == name);
    let (_, licence, words) = known.unwrap_or_else(|| panic!("{name} names no licence"));
    let manifest = std::path::Path::new(one["manifest_path"].as_str().unwrap());
    let file = manifest.with_file_name(one["license_file"].as_str().unwrap());
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(words), "{text}");
    (*licence).to_owned()
}

/// Judges an SPDX expression, in which old manifests write `/` for `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let expression = expression.replace('/', " OR ").replace(" OR ", "|");
    let mut rest = expression.as_str();
    let verdict = any(&mut rest, allowed);
    assert!(rest.is_empty(), "{expression}: {rest}");
    verdict
}

/// Judges a choice, and leaves what comes after it.
fn any(rest: &mut &str, allowed: &BTreeSet<String>) -> bool {
    let mut verdict = all(rest, allowed);
    while let Some(next) = rest.strip_prefix('|') {
        *rest = next;
        verdict |= all(rest, allowed);
    }
    verdict
}

/// Judges licences that hold together.
fn all(rest: &mut &str, allowed: &BTreeSet<String>) -> bool {
    let mut verdict = one(rest, allowed);
    while let Some(next) = rest.strip_prefix(" AND ") {
        *rest = next;
        verdict &= one(rest, allowed);
    }
    verdict
}

fn one(rest: &mut &str, allowed: &BTreeSet<String>) -> bool {
    if let Some(inner) = rest.strip_prefix('(') {
        *rest = inner;
        let verdict = any(rest, allowed);
        *rest = rest.strip_prefix(')').unwrap();
        return verdict;
    }
    let ends = ["|", ")", " AND "].map(|end| rest.find(end).unwrap_or(rest.len()));
    let (name, after) = rest.split_at(ends.into_iter().min().unwrap());
    *rest = after;
    // Any later version will do as well.
    allowed.contains(name.trim_end_matches('+'))
}
