//! The page about the API names the fields that the commands print.

use std::collections::BTreeSet;

use control::api::{Backend, Flows, Reason, Service, Status, Trace, Untrusted, Which};
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
    ] {
        assert_eq!(documented(command), names(&document), "{PAGE}: {command}");
    }
}

/// The fields in the row of a command: those that are there without an option.
fn documented(command: &str) -> BTreeSet<String> {
    let page = read(PAGE);
    let row = format!("| `{command}` | ");
    let row = page.lines().find_map(|line| line.strip_prefix(&row));
    let always = row.unwrap().split(';').next().unwrap();
    let code = always.split('`').skip(1).step_by(2);
    code.map(str::to_owned).collect()
}

fn names(document: &Value) -> BTreeSet<String> {
    document.as_object().unwrap().keys().cloned().collect()
}
