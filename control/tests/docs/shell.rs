//! The commands of a block of shell, as far as the pages use its language.

use shlex::Shlex;

use super::page::Page;

/// A command with its arguments.
#[derive(Debug)]
pub(crate) struct Command {
    /// Page and line of its block, for messages.
    pub(crate) at: String,
    pub(crate) words: Vec<String>,
}

/// Words behind which a command begins.
const BEFORE: [&str; 6] = ["|", "&&", "||", ";", "do", "--"];
/// Words at which a command ends.
const BEHIND: [&str; 6] = ["|", "&&", "||", ";", ">", "done"];

/// The commands in the shell blocks of a page: also those that another one runs behind `--`.
pub(crate) fn commands(page: &Page) -> Vec<Command> {
    let mut commands = Vec::new();
    for block in page.blocks.iter().filter(|block| block.is("sh")) {
        for line in lines(&block.text) {
            let words: Vec<String> = Shlex::new(&line).flat_map(apart).collect();
            assert!(
                !words.is_empty() || line.trim_start().starts_with('#'),
                "{}: no shell: {line}",
                block.at
            );
            let is_before = |at: usize| BEFORE.contains(&words[at].as_str());
            let begins = |at: usize| (at == 0 || is_before(at - 1)) && !is_before(at);
            for begin in (0..words.len()).filter(|&at| begins(at)) {
                let rest = words[begin..].iter();
                let rest = rest.skip_while(|word| is_assignment(word));
                let rest = rest.take_while(|word| !BEHIND.contains(&word.as_str()));
                commands.push(Command {
                    at: block.at.clone(),
                    words: rest.cloned().collect(),
                });
            }
        }
    }
    commands
}

/// Takes a semicolon from the end of a word.
fn apart(word: String) -> Vec<String> {
    match word.strip_suffix(';') {
        Some(rest) if !rest.is_empty() => vec![rest.to_owned(), ";".to_owned()],
        _ => vec![word],
    }
}

/// The lines of a block, continued ones joined, without documents that are read from it and empty ones.
fn lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let mut lines: Vec<String> = Vec::new();
    let mut is_document = false;
    let mut is_quoted = false;
    for line in joined.lines() {
        if is_document {
            is_document = line.trim() != "EOF";
            continue;
        }
        match lines.last_mut() {
            Some(last) if is_quoted => *last += line,
            _ if line.trim().is_empty() => continue,
            _ => lines.push(line.to_owned()),
        }
        is_quoted = lines
            .last()
            .is_some_and(|line| shlex::split(line).is_none());
        is_document = line.contains("<<EOF");
    }
    lines
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| {
        name.chars()
            .all(|letter| letter.is_ascii_uppercase() || letter == '_')
    })
}
