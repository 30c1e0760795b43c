//! Values of the chart, fields of the file and metrics that the pages name exist.

use std::collections::BTreeSet;

use serde_json::Value;

use super::fields::{fields, has};
use super::page::{manual, read};
use super::shell::commands;

/// Endings of files, whose names look like paths of values.
const FILES: [&str; 7] = [".md", ".rs", ".yaml", ".json", ".sh", ".conf", ".env"];

#[test]
fn values_that_are_set_are_in_the_chart() {
    let names = Names::read();
    let mut unknown = Vec::new();
    let mut count = 0;
    for page in manual() {
        let code = page.code.iter();
        let code = code.map(|code| {
            (
                code.at.clone(),
                shlex::split(&code.text).unwrap_or_default(),
            )
        });
        let typed = commands(&page)
            .into_iter()
            .map(|command| (command.at, command.words));
        for (at, words) in typed.chain(code) {
            for pair in words.windows(2).filter(|pair| pair[0] == "--set") {
                for value in pair[1].split(',') {
                    let path = value.split_once('=').unwrap().0;
                    count += 1;
                    if !names.has_value(path) {
                        unknown.push(format!("{at}: {path}"));
                    }
                }
            }
        }
    }
    assert!(count > 10, "{count}");
    assert!(
        unknown.is_empty(),
        "not in values.yaml:\n{}",
        unknown.join("\n")
    );
}

#[test]
fn values_and_fields_that_are_named_exist() {
    let names = Names::read();
    let mut unknown = Vec::new();
    for page in manual() {
        for code in page.code.iter().filter(|code| names.is_path(&code.text)) {
            let path = code.text.split('=').next().unwrap();
            if !names.has_value(path) && !has(&names.fields, path) {
                unknown.push(format!("{}: {path}", code.at));
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "neither in values.yaml nor in the configuration file:\n{}",
        unknown.join("\n")
    );
}

#[test]
fn metrics_that_are_named_are_in_the_reference() {
    let reference = read("deploy/docs/metrics.md");
    for page in manual()
        .iter()
        .filter(|page| page.path.starts_with("deploy"))
    {
        for code in page
            .code
            .iter()
            .filter(|code| code.text.starts_with("guideway_"))
        {
            let name = code.text.split('{').next().unwrap();
            assert!(
                reference.contains(&format!("| `{name}` |")),
                "{}: {name} is no metric",
                code.at
            );
        }
    }
}

/// What can be named: values of the chart and fields of the file.
struct Names {
    values: Value,
    fields: BTreeSet<String>,
}

impl Names {
    fn read() -> Self {
        let values = read("deploy/helm/guideway/values.yaml");
        Self {
            values: serde_saphyr::from_str(&values).unwrap(),
            fields: fields(),
        }
    }

    /// Tells whether a text is meant as the path of a value or a field: it begins with a section of either.
    fn is_path(&self, text: &str) -> bool {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._[]=".contains(letter);
        let Some((first, _)) = text.split_once('.') else {
            return false;
        };
        let first = first.trim_end_matches("[]");
        text.chars().all(is_letter)
            && !FILES.iter().any(|ending| text.ends_with(ending))
            && (self.values.get(first).is_some() || has(&self.fields, first))
    }

    /// Tells whether the chart has a value; below an empty one anything may be given that the file has.
    fn has_value(&self, path: &str) -> bool {
        let path = without_indices(path);
        let mut value = &self.values;
        for (at, part) in path.split('.').enumerate() {
            let Some(next) = value.get(part) else {
                let rest = path.split('.').skip(at).collect::<Vec<_>>().join(".");
                let above = path.split('.').take(at).collect::<Vec<_>>().join(".");
                return match above.as_str() {
                    "agent.extraConfig" => has(&self.fields, &rest),
                    "agent.kubernetes" | "agent.nat" | "agent.interfaces" => {
                        let section = above.trim_start_matches("agent.");
                        has(&self.fields, &format!("{section}.{rest}"))
                    }
                    "agent.seLinuxOptions" | "agent.seccompProfile" | "agent.appArmorProfile" => {
                        true
                    }
                    _ => false,
                };
            };
            value = next;
        }
        true
    }
}

/// Takes `[0]` out of a path.
fn without_indices(path: &str) -> String {
    let parts = path
        .split('[')
        .map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}
