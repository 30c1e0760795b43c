//! What the documentation tells `helm` and `kubectl` is taken as it stands there.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use lab::kubernetes::program;

use super::chart::{deploy, template};
use super::page::manual;
use super::shell::commands;

#[test]
fn values_that_pages_set_render() {
    let mut count = 0;
    for (page, text) in pages() {
        for code in text
            .replace("\\\n", " ")
            .lines()
            .flat_map(|line| line.split('`'))
        {
            let words = shlex::split(code).unwrap_or_default();
            let pairs = words.windows(2).filter(|pair| pair[0] == "--set");
            let values: Vec<&str> = pairs.map(|pair| pair[1].as_str()).collect();
            if values.is_empty() {
                continue;
            }
            count += 1;
            let output = template(&values);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{page}: {values:?}: {errors}");
        }
    }
    assert!(count > 5, "{count}");
}

#[test]
fn commands_of_kubectl_and_helm_and_their_options_exist() {
    let mut typed = BTreeMap::new();
    for page in manual() {
        for command in commands(&page) {
            typed.insert(command.words, command.at);
        }
        for code in &page.code {
            let first = code.text.split('|').next().unwrap_or_default();
            typed.insert(shlex::split(first).unwrap_or_default(), code.at.clone());
        }
    }
    // A plugin of kubectl is a program of ours.
    typed.retain(|words, _| match words.as_slice() {
        [program, first, ..] => {
            ["kubectl", "helm"].contains(&program.as_str()) && first != "guideway"
        }
        _ => false,
    });
    assert!(typed.len() > 30, "{typed:?}");
    for (words, at) in typed {
        // The others are for a program in a pod.
        let own = words.iter().take_while(|word| *word != "--");
        let own: Vec<&String> = own.collect();
        let output = Command::new(program(own[0]).unwrap())
            .args(&own[1..])
            .arg("--help")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let refused = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{at}: {words:?}: {refused}");
        let usage = said.split_once("Usage:\n  ").unwrap_or_default().1;
        let usage = usage.lines().next().unwrap_or_default();
        let verb = verb(&own[1..]);
        assert!(
            usage.starts_with(&format!("{} {verb} ", own[0])) && !usage.contains("SUBCOMMAND"),
            "{at}: {words:?}: {usage}"
        );
    }
}

/// The command of `kubectl` or `helm`, behind the namespace.
fn verb<'w>(words: &'w [&String]) -> &'w str {
    match words {
        [option, _, verb, ..] if *option == "-n" => verb,
        [verb, ..] => verb,
        [] => "",
    }
}

/// The objects that pages have applied from their text, each with its page.
pub(crate) fn documents() -> Vec<(String, String)> {
    let mut documents = Vec::new();
    for (page, text) in pages() {
        let applied = text.split("<<EOF\n").skip(1);
        let applied = applied.filter_map(|part| part.split("\nEOF").next());
        let shown = text.split("```yaml\n").skip(1);
        let shown = shown.filter_map(|part| part.split("```").next());
        let objects = applied.chain(shown.filter(|text| text.starts_with("apiVersion")));
        documents.extend(objects.map(|objects| (page.clone(), objects.to_owned())));
    }
    documents
}

/// The README and every page of the documentation, by name.
fn pages() -> Vec<(String, String)> {
    let readme = deploy("../README.md");
    let docs = std::fs::read_dir(deploy("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    std::iter::once(readme)
        .chain(docs)
        .map(|path| (name(&path), std::fs::read_to_string(&path).unwrap()))
        .collect()
}
