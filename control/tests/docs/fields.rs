//! The fields of the configuration file, as the code that reads it names them.

use std::collections::BTreeSet;

use control::config;

/// Deepest nesting of sections.
const DEEPEST: usize = 4;
/// The settings of single nodes.
const OVERRIDE: &str = "node_config[].config";
/// How a refusal of an unknown field lists those that there are.
const LISTED: &str = "the fields here are ";

/// Every field by its path, such as `services[].backends[].weight`; sections are among them, with `[]` where they are lists.
pub(crate) fn fields() -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    collect("", 0, &mut fields);
    fields
}

/// Tells whether a path, with or without its `[]`, is one of these fields.
pub(crate) fn has(fields: &BTreeSet<String>, path: &str) -> bool {
    let plain = |path: &str| path.replace("[]", "");
    fields.iter().any(|field| plain(field) == plain(path))
}

fn collect(section: &str, depth: usize, fields: &mut BTreeSet<String>) {
    assert!(depth < DEEPEST, "{section}");
    // An override has the fields of the file again.
    if section == OVERRIDE {
        return;
    }
    for field in listed(section).unwrap_or_default() {
        let path = match section {
            "" => field,
            section => format!("{section}.{field}"),
        };
        let sections = [path.clone(), format!("{path}[]")];
        match sections
            .into_iter()
            .find(|section| listed(section).is_some())
        {
            Some(section) => {
                collect(&section, depth + 1, fields);
                fields.insert(section);
            }
            None => {
                fields.insert(path);
            }
        }
    }
}

/// The fields of a section; none if it is no section.
fn listed(section: &str) -> Option<Vec<String>> {
    let parts = section.split('.').filter(|part| !part.is_empty());
    let mut text = "{nosuch: 1}".to_owned();
    for part in parts.collect::<Vec<_>>().into_iter().rev() {
        text = match part.strip_suffix("[]") {
            Some(part) => format!("{{{part}: [{text}]}}"),
            None => format!("{{{part}: {text}}}"),
        };
    }
    let problems = config::parse(&text).err()?;
    let of_nosuch = |problem: &&config::Problem| problem.field == "nosuch";
    let refusal = problems.iter().find(of_nosuch)?;
    let names = refusal.remedy.strip_prefix(LISTED)?;
    Some(names.split(", ").map(str::to_owned).collect())
}

#[test]
fn settings_of_single_nodes_are_those_of_the_file() {
    let of_file = listed("").unwrap();
    assert_eq!(listed(OVERRIDE), Some(of_file));
}

#[test]
fn sections_are_found_at_any_depth() {
    let fields = fields();
    for path in [
        "hash_seed",
        "sources.ipv4",
        "interfaces[].mode",
        "services[].backends[].weight",
        "services[].health.rise",
        "announce.node_selector",
    ] {
        assert!(fields.contains(path), "{path} is not in {fields:?}");
    }
}
