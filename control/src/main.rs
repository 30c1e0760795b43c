//! The `guideway` binary: the agent, the controller and the commands.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use control::agent::StartError;
use control::api::{Backend, Reason, Request, Service};
use control::cli::{Cli, Cluster, Command, Drops};
use control::commands::capture::filter::FilterError;
use control::config::ConfigError;
use control::render::Page;
use control::{check, cluster, commands, controller, run, upgrade};

/// Exit code for a wrong command line or configuration.
const WRONG_INPUT: u8 = 2;

fn main() -> ExitCode {
    let arguments = control::cli::arguments(std::env::args_os());
    match execute(Cli::parse_from(arguments).command) {
        Ok(code) => code,
        Err(error) if commands::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // A failed write is ignored: the exit code still tells.
            let _ = writeln!(std::io::stderr(), "guideway: {error:#}");
            if is_wrong_input(&error) {
                ExitCode::from(WRONG_INPUT)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn execute(command: Command) -> Result<ExitCode> {
    use commands::show;

    match command {
        Command::Run(options) => run::run(&options)?,
        Command::Controller(options) => controller::run(&options)?,
        Command::Check(options) => return check::check(&options),
        Command::Status(options) => commands::show(&options, &Request::Status {}, show::status)?,
        Command::Services(options) => {
            let request = Request::Services(options.filter());
            let page = |rows: Cow<'_, [Service]>, columns, to: &mut Page| {
                show::services(rows, columns, to);
            };
            commands::show_rows(&options, &request, page)?;
        }
        Command::Backends(options) => {
            let request = Request::Backends(options.filter());
            let page = |rows: Cow<'_, [Backend]>, columns, to: &mut Page| {
                show::backends(rows, columns, to);
            };
            commands::show_rows(&options, &request, page)?;
        }
        Command::Drops(Drops {
            explain: Some(explanation),
            ..
        }) => commands::print_page(|to| show::explained(&explanation, to))?,
        Command::Drops(options) => {
            let page = |reasons: &Vec<Reason>, to: &mut Page| {
                show::drops(reasons, options.all, to);
            };
            commands::show(&options.show, &Request::Drops {}, page)?;
        }
        Command::Which(options) => commands::which(&options)?,
        Command::Trace(options) => commands::trace(&options)?,
        Command::Capture(options) => commands::capture::capture(&options)?,
        Command::DrainEdge(options) => commands::drain::drain_edge(&options)?,
        Command::UndrainEdge(options) => commands::drain::undrain_edge(&options)?,
        Command::Detach(options) => commands::detach(&options)?,
        Command::Flows(options) => commands::flows(&options)?,
        Command::Upgrade(options) => return upgrade::upgrade(&options),
        Command::Config(options) => commands::config(&options)?,
        Command::Version(options) => commands::version(&options)?,
        Command::Log(options) => commands::log(&options)?,
        Command::Cluster(Cluster::Status(options)) => return cluster::status(&options),
        Command::Cluster(Cluster::Test(options)) => return cluster::test(&options),
        Command::Cluster(Cluster::Which(options)) => return cluster::which(&options),
        Command::Cluster(Cluster::Bundle(options)) => return cluster::bundle(&options),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "guideway", &mut text);
            commands::print(&String::from_utf8_lossy(&text))?;
        }
        Command::Man { dir: Some(dir) } => {
            std::fs::create_dir_all(&dir)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &dir))
                .with_context(|| format!("cannot write the manual pages to {}", dir.display()))?;
        }
        Command::Man { dir: None } => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text)?;
            commands::print(&String::from_utf8_lossy(&text))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_wrong_input(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<ConfigError>()
            || cause.is::<FilterError>()
            || matches!(cause.downcast_ref(), Some(StartError::Config(_)))
    })
}
