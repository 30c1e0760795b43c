//! Commands of ours that pages have typed in an agent's pod.

use super::page::{Page, manual};
use super::shell::commands;

/// Those that ask and change nothing; tests of their own run the others.
const ASKING: [&str; 11] = [
    "backends", "capture", "check", "config", "drops", "flows", "log", "services", "status",
    "trace", "which",
];
/// Those of which pages give the name alone, though they need more.
const NEEDING: [&str; 4] = ["capture", "log", "trace", "which"];
/// What pages leave open, with what a pod of the README's cluster has there.
const OPEN: [(&str, &str); 5] = [
    ("[SERVICE]", "default/web"),
    ("DEV", "eth0"),
    ("FILE", "/etc/guideway/guideway.yaml"),
    ("REASON", "no_service"),
    // The README's Service has no name for its port.
    ("default/web:http", "default/web:80"),
];

/// What `kubectl exec` runs in an agent's pod on a page.
pub(crate) fn executed(page: &Page) -> Vec<Vec<String>> {
    let behind = |words: Vec<String>| {
        let begin = words.iter().position(|word| word == "--")?;
        let is_exec = words[0] == "kubectl" && words[..begin].iter().any(|word| word == "exec");
        is_exec.then(|| words[begin + 1..].to_vec())
    };
    typed(page).into_iter().filter_map(behind).collect()
}

/// The asking commands of all pages, without their waits for an end.
pub(crate) fn asking() -> Vec<Vec<String>> {
    let all = manual();
    let all = all.iter().flat_map(typed);
    let all = all.filter(|words| is_asking(words)).map(ending);
    all.collect()
}

fn typed(page: &Page) -> Vec<Vec<String>> {
    let typed = commands(page).into_iter().map(|command| command.words);
    let named = page.code.iter();
    let named = named.filter_map(|code| shlex::split(&code.text));
    typed
        .chain(named)
        .filter(|words| !words.is_empty())
        .collect()
}

fn is_asking(words: &[String]) -> bool {
    let [program, command, rest @ ..] = words else {
        return false;
    };
    let is_name = rest.is_empty() && NEEDING.contains(&command.as_str());
    program == "guideway"
        && ASKING.contains(&command.as_str())
        && !is_name
        && !rest.iter().any(|word| word == "--watch")
}

/// Fills in what is open. A capture ends by itself, and writes to standard output, for lack of a disk.
fn ending(words: Vec<String>) -> Vec<String> {
    let is_capture = words[1] == "capture" && !words.iter().any(|word| word == "--help");
    let mut filled = Vec::new();
    for word in words {
        let is_file = filled.last().is_some_and(|last| last == "-w");
        let open = OPEN.iter().find(|(open, _)| *open == word);
        filled.push(match open {
            _ if is_file => "-".to_owned(),
            Some((_, value)) => (*value).to_owned(),
            None => word,
        });
    }
    if is_capture && !filled.iter().any(|word| word == "--duration") {
        filled.splice(2..2, ["--duration", "1"].map(str::to_owned));
    }
    filled
}
