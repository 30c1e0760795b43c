//! The page of commands is what `--help` says.

use clap::CommandFactory;
use control::cli::Cli;

use super::page::{read, root};

const PAGE: &str = "deploy/docs/commands.md";
/// With it, the page is written anew: `make reference`.
const VARIABLE: &str = "GUIDEWAY_WRITE_DOCS";
/// Where the lines of the page end, whatever the terminal of who writes it.
const WIDTH: usize = 100;

#[test]
fn page_of_the_documentation_is_made_of_the_command_line() {
    let page = page();
    if std::env::var_os(VARIABLE).is_some() {
        std::fs::write(root().join(PAGE), &page).unwrap();
    }
    assert!(
        read(PAGE) == page,
        "{PAGE} is not what the command line is; write it anew with: make reference"
    );
}

fn page() -> String {
    let mut cli = Cli::command().term_width(WIDTH);
    cli.build();
    let mut page = "\
# Commands

<!-- Written by `make reference` from the definitions of the command line. -->

This page has the help of every command, as it prints it with `--help`. `guideway man --dir DIR` writes the same as manual pages, and `guideway completions bash` prints completions for a shell.
"
    .to_owned();
    page += &section(&mut cli);
    for command in cli
        .get_subcommands_mut()
        .filter(|command| !command.is_hide_set())
    {
        if command.get_name() != "help" {
            page += &section(command);
            for below in command.get_subcommands_mut() {
                if below.get_name() != "help" {
                    page += &section(below);
                }
            }
        }
    }
    page
}

fn section(command: &mut clap::Command) -> String {
    let name = command
        .get_bin_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    format!(
        "\n## {name}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    )
}
