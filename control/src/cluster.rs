//! `guideway cluster`: looks at all agents and controllers of a Kubernetes cluster at once.
//!
//! ```text
//! API server -- pods, slices, Leases --> members --+
//!     |                                            v
//!     +-- its proxy --> pages of pods ----------> ask --> report --> findings, page
//!     |                 pages of edges outside ----^ |                         |
//!     +-- logs, objects -----------------------------+-------> bundle <--------+
//! ```
//!
//! No machine is entered: what agents and controllers publish beside their metrics is all that is needed. So the right to
//! read pods through the API server's proxy suffices, in one namespace. A bundle has more where its writer may read more.
//! Nothing is written, but for the throw-away objects of a test.

mod ask;
mod bundle;
mod findings;
mod members;
mod page;
mod report;
mod test;
mod which;

use std::process::ExitCode;

use anyhow::{Context, Result};
use kube::Client;
use tokio::runtime::Runtime;

use self::members::Members;
use self::report::Report;
use self::which::Announced;
use crate::check::finding::{self, Severity};
use crate::cli::{ClusterBundle, ClusterScope, ClusterStatus, ClusterTest, ClusterWhich, Output};
use crate::commands;
use crate::kubernetes::client;

/// Prints how every agent and controller is. The exit code is 1 if there are findings.
///
/// # Errors
///
/// When the API server does not tell which pods there are.
pub fn status(options: &ClusterStatus) -> Result<ExitCode> {
    let report = runtime()?.block_on(report(&options.at))?;
    let output = options.format.output();
    let is_wide = output == Output::Wide;
    commands::print(&commands::written(&report, output, |report, to| {
        page::page(report, is_wide, to);
    })?)?;
    Ok(if report.findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints which edge announces an address. The exit code is 1 unless one does.
///
/// # Errors
///
/// When the API server does not tell which pods there are.
pub fn which(options: &ClusterWhich) -> Result<ExitCode> {
    let report = runtime()?.block_on(report(&options.at))?;
    let announced = Announced::of(&report, options.address);
    let output = options.format.output();
    commands::print(&commands::written(&announced, output, Announced::page)?)?;
    Ok(if announced.announced_by.len() == 1 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Tries whether Services work. The exit code is 1 if any finding is a FAIL.
///
/// # Errors
///
/// When the API server does not tell which pods there are, or a signal ends the test.
pub fn test(options: &ClusterTest) -> Result<ExitCode> {
    let findings = runtime()?.block_on(async {
        let client = connect(&options.at).await?;
        test::run(&client, options).await
    })?;
    let output = options.format.output();
    commands::print(&commands::written(&findings, output, |findings, to| {
        finding::page(findings, to);
    })?)?;
    let fails = findings
        .iter()
        .any(|finding| finding.severity == Severity::Fail);
    Ok(ExitCode::from(u8::from(fails)))
}

async fn report(scope: &ClusterScope) -> Result<Report> {
    let client = connect(scope).await?;
    let members = Members::find(&client, scope).await?;
    Ok(Report::of(&client, &members, scope).await)
}

/// Writes what a bug report needs into one file. The exit code is 1 if nothing could be had.
///
/// # Errors
///
/// When the API server is not known, or the file cannot be written.
pub fn bundle(options: &ClusterBundle) -> Result<ExitCode> {
    runtime()?.block_on(async {
        let client = connect(&options.at).await?;
        bundle::write(&client, options).await
    })
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")
}

async fn connect(scope: &ClusterScope) -> Result<Client> {
    let config = match &scope.context {
        Some(context) => client::by_context(context).await?,
        None => client::infer().await?,
    };
    Ok(client::client(config)?)
}
