//! Settings of single nodes: the entries of `node_config` that name this machine are laid over the settings that the
//! file has for all.

use serde_saphyr::Spanned;

use super::interfaces::matches;
use super::{Config, Position, Problem, Source, raw, validate};
use crate::kubernetes::client::node_name;

/// An entry for this machine: its place in the file, and its settings.
type Entry = (String, raw::File);

/// Validates a file with the settings of this machine.
pub(super) fn validate(mut file: raw::File, source: Source) -> Result<Config, Vec<Problem>> {
    let entries = entries_here(&mut file)?;
    validate_with(file, entries, source)
}

/// Returns a file with the settings of this machine, which are not validated.
pub(super) fn settings_here(mut file: raw::File) -> Result<raw::File, Vec<Problem>> {
    let entries = entries_here(&mut file)?;
    Ok(overlay(file, entries).0)
}

fn validate_with(
    file: raw::File,
    entries: Vec<Entry>,
    source: Source,
) -> Result<Config, Vec<Problem>> {
    if entries.is_empty() {
        return validate::validate(&file, source);
    }
    let common = validate::validate(&file, source).err().unwrap_or_default();
    let (file, places) = overlay(file, entries);
    match validate::validate(&file, source) {
        Ok(config) => Ok(Config {
            node_config: places,
            ..config
        }),
        Err(mut problems) => {
            for problem in &mut problems {
                if !common.contains(problem) {
                    problem.field = format!("{} (with {})", problem.field, places.join(", "));
                }
            }
            Err(problems)
        }
    }
}

/// Takes the entries for this machine out of a file.
fn entries_here(file: &mut raw::File) -> Result<Vec<Entry>, Vec<Problem>> {
    let Some(entries) = file.node_config.take() else {
        return Ok(Vec::new());
    };
    let given = file.kubernetes.as_ref();
    let given = given.and_then(|kubernetes| kubernetes.value.node_name.as_ref());
    let name = node_name(given.map(|name| name.value.clone()));
    entries_for(&name, entries.value)
}

/// Chooses the entries for a node; all of them must have the right form.
fn entries_for(
    node: &str,
    entries: Vec<Spanned<raw::NodeConfig>>,
) -> Result<Vec<Entry>, Vec<Problem>> {
    let (mut chosen, mut problems) = (Vec::new(), Vec::new());
    for (index, entry) in entries.into_iter().enumerate() {
        let place = format!("node_config[{index}]");
        let at = Position::from(entry.referenced);
        let mut missing = |field: &str, reason: &str, remedy: &str| {
            problems.push(Problem {
                position: Some(at),
                field: format!("{place}.{field}"),
                value: String::new(),
                reason: reason.to_owned(),
                remedy: remedy.to_owned(),
            });
        };
        let nodes = entry.value.nodes.map_or_else(Vec::new, |nodes| nodes.value);
        if nodes.is_empty() {
            missing(
                "nodes",
                "missing",
                "list names of nodes, such as [n1, edge-*]",
            );
        }
        let Some(config) = entry.value.config else {
            missing("config", "missing", "give the settings of these nodes");
            continue;
        };
        if config.value.node_config.is_some() {
            let remedy = "give one list of entries, at the top of the file";
            missing("config.node_config", "an entry has no entries", remedy);
        }
        if nodes.iter().any(|pattern| matches(&pattern.value, node)) {
            chosen.push((place, config.value));
        }
    }
    match problems.is_empty() {
        true => Ok(chosen),
        false => Err(problems),
    }
}

/// Lays entries over a file, the last on top; returns their places too.
fn overlay(file: raw::File, entries: Vec<Entry>) -> (raw::File, Vec<String>) {
    let mut places = Vec::new();
    let file = entries.into_iter().fold(file, |file, (place, settings)| {
        places.push(place);
        raw::Overlay::over(settings, file)
    });
    (file, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::shape;

    const FILE: &str = "\
interfaces: [{name: eth0}]
kubernetes: {topology_hints: ignore}
tables: {services: 100, backends: 200}
node_port_addresses: [primary]
announce: {interfaces: [eth0], node_selector: {a: '1'}}
node_config:
  - nodes: [n1, 'edge-*']
    config:
      interfaces: [{name: eth1, mode: native}, {name: eth2}]
      tables: {backends: 300}
      announce: {node_selector: {b: '2'}}
  - nodes: [edge-1]
    config: {tables: {flows: 400}, clamp_mss: off}
";

    fn on(node: &str, text: &str) -> Result<Config, Vec<Problem>> {
        let mut file = shape(text)?;
        let entries = file
            .node_config
            .take()
            .map_or_else(Vec::new, |list| list.value);
        validate_with(file, entries_for(node, entries)?, Source::Kubernetes)
    }

    fn problems(node: &str, text: &str) -> Vec<String> {
        let problems = on(node, text).unwrap_err().into_iter();
        let line = |problem: &Problem| problem.position.map(|position| position.line);
        problems
            .map(|problem| format!("{:?} {problem}", line(&problem)))
            .collect()
    }

    #[test]
    fn sections_are_merged_and_lists_replaced_where_an_entry_names_the_node() {
        let config = on("n1", FILE).unwrap();
        assert_eq!(config.node_config, ["node_config[0]"]);
        let interfaces: Vec<_> = config.desired.interfaces.keys().collect();
        assert_eq!(interfaces, ["eth1", "eth2"]);
        assert_eq!((config.tables.services, config.tables.backends), (100, 300));
        assert!(!config.kubernetes.unwrap().honour_hints);
        let selector = config.desired.announce.unwrap().node_selector;
        assert_eq!(
            selector,
            [("a", "1"), ("b", "2")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into()
        );
    }

    #[test]
    fn later_entries_are_laid_over_earlier_ones_and_other_nodes_keep_the_common_settings() {
        let both = on("edge-1", FILE).unwrap();
        assert_eq!(both.node_config, ["node_config[0]", "node_config[1]"]);
        assert_eq!((both.tables.backends, both.tables.flows), (300, 400));
        assert!(!both.desired.clamp_mss);
        let other = on("n2", FILE).unwrap();
        assert!(other.node_config.is_empty());
        let common = FILE.split("node_config:").next().unwrap();
        assert_eq!(other, on("n1", common).unwrap());
    }

    #[test]
    fn problem_that_an_entry_makes_names_it() {
        let broken = FILE.replace("{flows: 400}", "{flows: many}");
        assert!(on("n1", &broken).is_ok());
        let [problem] = &problems("edge-1", &broken)[..] else {
            panic!("not one problem");
        };
        let said = "Some(13) tables.flows (with node_config[0], node_config[1]) \"many\": ";
        assert!(problem.starts_with(said), "{problem}");
        // What the common settings break by themselves is theirs.
        let common = FILE.replace("services: 100", "services: many");
        let [problem] = &problems("n1", &common)[..] else {
            panic!("not one problem");
        };
        assert!(
            problem.starts_with("Some(3) tables.services \"many\": "),
            "{problem}"
        );
    }

    #[test]
    fn entry_without_nodes_or_settings_is_refused_on_every_node() {
        let text = "interfaces: [{name: eth0}]\nkubernetes: {}\nnode_config:\n  - config: {}\n  - nodes: [n1]\n  \
                    - {nodes: [n1], config: {node_config: []}}\n";
        let problems = problems("n9", text);
        for (problem, said) in problems.iter().zip([
            "Some(4) node_config[0].nodes: missing",
            "Some(5) node_config[1].config: missing",
            "Some(6) node_config[2].config.node_config: ",
        ]) {
            assert!(problem.starts_with(said), "{problem}");
        }
        assert_eq!(problems.len(), 3, "{problems:?}");
    }
}
