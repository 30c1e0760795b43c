//! The page about the API names the requests, and the fields of what is asked and answered.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use control::api::{
    Backend, Detached, Flows, Reason, Request, Service, Status, Trace, Untrusted, Which,
};
use serde_json::{Value, json};

use super::page::read;

const PAGE: &str = "deploy/docs/api.md";

#[test]
fn page_has_exactly_the_fields_of_each_document() {
    let reason = Reason {
        drivers: [("eth0 rx_xdp_tx_errors".to_owned(), 1)].into(),
        last: Some(Untrusted::default()),
        ..Reason::default()
    };
    for (command, document) in [
        ("status", json!(Status::default())),
        ("services", json!(Service::default())),
        ("backends", json!(Backend::default())),
        ("flows", json!(Flows::default())),
        ("drops", json!(reason)),
        ("which", json!(Which::default())),
        ("trace", json!(Trace::default())),
        ("version", printed(&["version", "--socket", "/nonexistent"])),
        ("check", printed(&["check", "--interface", "lo"])[0].clone()),
        ("detach", json!(Detached::default())),
    ] {
        assert_eq!(documented(command), names(&document), "{PAGE}: {command}");
    }
}

#[test]
fn page_has_exactly_the_requests_with_their_fields() {
    let known = refused(&json!({"request": "nosuch"}));
    assert!(known.len() > 8, "{known:?}");
    let fields = known.into_iter().map(|request| {
        let fields = refused(&json!({"request": request, "nosuch": 1}));
        (request, fields)
    });
    assert_eq!(requests(), fields.collect(), "{PAGE}");
}

/// The names that a request could have had in the place of `nosuch`.
fn refused(request: &Value) -> BTreeSet<String> {
    let error = serde_json::from_value::<Request>(request.clone()).unwrap_err();
    let error = error.to_string();
    let known = error.split_once("`nosuch`, ").expect(&error).1;
    quoted(known)
}

/// The requests of the page, each with its fields.
fn requests() -> BTreeMap<String, BTreeSet<String>> {
    let page = read(PAGE);
    let (_, rows) = page
        .split_once("| request | its fields |\n|---|---|\n")
        .unwrap();
    let rows = rows.lines().take_while(|line| line.starts_with('|'));
    let each = rows.flat_map(|row| {
        let (requests, fields) = row[1..].split_once('|').unwrap();
        let fields = quoted(fields.split(';').next().unwrap());
        quoted(requests)
            .into_iter()
            .map(move |request| (request, fields.clone()))
    });
    each.collect()
}

/// What a text has between backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

/// What a command prints as JSON, whatever its exit code.
fn printed(words: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_guideway"));
    let output = command.args(words).arg("--json").output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The fields in the row of a command: those that are there without an option.
fn documented(command: &str) -> BTreeSet<String> {
    let page = read(PAGE);
    let row = format!("| `{command}` | ");
    let row = page.lines().find_map(|line| line.strip_prefix(&row));
    quoted(row.unwrap().split(';').next().unwrap())
}

fn names(document: &Value) -> BTreeSet<String> {
    document.as_object().unwrap().keys().cloned().collect()
}
