//! What the pages tell to type can be typed.

use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;
use control::cli::{Cli, Command};
use control::commands::capture::filter;

use super::page::{pages, read, root};
use super::shell::commands;

/// `guideway cluster` as a plugin of kubectl.
const PLUGIN: [&str; 2] = ["kubectl", "guideway"];

#[test]
fn commands_of_ours_are_ones_that_the_command_line_knows() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        // What was is not what is.
        if page.path == Path::new("CHANGELOG.md") {
            continue;
        }
        for mut command in commands(&page) {
            if command.words.starts_with(&PLUGIN.map(str::to_owned)) {
                command
                    .words
                    .splice(..2, ["guideway", "cluster"].map(str::to_owned));
            }
            if command.words.first().is_some_and(|word| is_guideway(word)) {
                count += 1;
                wrong.extend(refused(&command.words, true).map(|why| (command.at.clone(), why)));
            }
        }
        for code in &page.code {
            // Where a page says that any reason may stand.
            let words = code.text.replace("REASON", "no_service");
            let words = shlex::split(&words).unwrap_or_default();
            if words.len() > 1 && words[0] == "guideway" {
                count += 1;
                wrong.extend(refused(&words, false).map(|why| (code.at.clone(), why)));
            }
        }
    }
    assert!(count > 100, "{count}");
    let wrong: Vec<String> = wrong
        .into_iter()
        .map(|(at, why)| format!("{at}: {why}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn targets_of_make_and_files_of_the_repository_exist() {
    let makefile = read("Makefile");
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':').map(|(target, _)| target))
        .collect();
    let mut missing = Vec::new();
    for page in pages() {
        let code = page.code.iter();
        let code = code.map(|code| (&code.at, shlex::split(&code.text).unwrap_or_default()));
        let code: Vec<_> = code.collect();
        let typed = commands(&page);
        let typed = typed
            .iter()
            .map(|command| (&command.at, command.words.clone()));
        for (at, words) in typed.chain(code) {
            match words.as_slice() {
                [make, target] if make == "make" && !targets.contains(&target.as_str()) => {
                    missing.push(format!("{at}: make {target}"));
                }
                _ => {}
            }
            for file in words.iter().filter(|word| word.starts_with("deploy/")) {
                if !root().join(file).exists() {
                    missing.push(format!("{at}: {file}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

fn is_guideway(word: &str) -> bool {
    word == "guideway"
}

/// Why a command line is refused; where it only names a command, options that it needs may be left out.
fn refused(words: &[String], whole: bool) -> Option<String> {
    let error = match Cli::try_parse_from(words) {
        Ok(cli) => match cli.command {
            Command::Capture(capture) => {
                let some = |_: &str| Ok("192.0.2.10:80/tcp".parse()?);
                let error = filter::parse(&capture.filter, some).err()?;
                return Some(format!("{words:?}: {error}"));
            }
            _ => return None,
        },
        Err(error) => error,
    };
    let is_named = !whole
        && matches!(
            error.kind(),
            ErrorKind::MissingRequiredArgument
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        );
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    (!is_named && !is_help).then(|| format!("{words:?}: {error}"))
}
