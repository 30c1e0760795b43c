//! The log of `guideway run` and `guideway controller`: its filter and format, and changing the filter at run time.
//!
//! A level without a target applies to our own crates. Other crates log warnings at most, and kube nothing: its
//! warnings contain whole pages of objects, and every failed request is logged by its caller. A directive with
//! a target applies as written.
//!
//! The number of lines that one place in the code can log in a time is limited ([`limit`]).

mod limit;

use std::io;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Environment variable with the filter.
const FILTER: &str = "GUIDEWAY_LOG";
/// Environment variable with the format: `text` or `json`.
const FORMAT: &str = "GUIDEWAY_LOG_FORMAT";
/// Names of our crates.
const OURS: [&str; 4] = ["control", "fastpath", "guideway", "xdp_prog"];
/// Crates that log nothing unless a directive names them.
const SILENT: [&str; 2] = ["kube_client", "kube_runtime"];

/// Changes the filter at run time.
static HANDLE: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts to log to standard error, as [`FILTER`] and [`FORMAT`] say.
pub(crate) fn start() -> Result<()> {
    let (filter, handle) = reload::Layer::new(configured()?);
    let format = fmt::layer()
        .with_writer(io::stderr)
        .with_target(false)
        // Errors would be reported to stderr, and panic if stderr is what failed.
        .log_internal_errors(false);
    let format = match std::env::var(FORMAT).as_deref() {
        Ok("json") => format.json().flatten_event(true).boxed(),
        Err(_) | Ok("" | "text") => {
            let ansi = io::IsTerminal::is_terminal(&io::stderr());
            format.with_ansi(ansi).boxed()
        }
        Ok(other) => bail!("{FORMAT}={other:?} is no form of a log: use text or json"),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(format)
        .with(limit::RateLimit::default())
        .init();
    let _ = HANDLE.set(handle);
    Ok(())
}

/// Handles the signals that change the filter: SIGUSR1 sets `debug`, SIGUSR2 restores the configured one.
///
/// # Errors
///
/// When the signals cannot be handled.
pub(crate) fn follow_signals() -> io::Result<impl Future<Output = ()>> {
    let mut more = signal(SignalKind::user_defined1())?;
    let mut back = signal(SignalKind::user_defined2())?;
    Ok(async move {
        loop {
            let (name, filter) = tokio::select! {
                _ = more.recv() => ("SIGUSR1", EnvFilter::try_new(directives("debug")).ok()),
                _ = back.recv() => ("SIGUSR2", configured().ok()),
            };
            if let Some((handle, filter)) = HANDLE.get().zip(filter) {
                let shown = filter.to_string();
                if handle.reload(filter).is_ok() {
                    tracing::info!(signal = name, filter = shown, "another log");
                }
            }
        }
    })
}

/// Reads the configured filter.
fn configured() -> Result<EnvFilter> {
    let text = std::env::var(FILTER).unwrap_or_else(|_| "info".to_owned());
    EnvFilter::try_new(directives(&text))
        .with_context(|| format!("{FILTER}={text:?} is not a log filter"))
}

/// Expands levels without a target into directives for our crates and the others.
fn directives(text: &str) -> String {
    let (mut directives, mut by_name) = (Vec::new(), Vec::new());
    for part in text.split(',') {
        match part.trim().parse::<LevelFilter>() {
            Ok(level) if !part.trim().is_empty() => {
                directives.push(level.min(LevelFilter::WARN).to_string());
                directives.extend(SILENT.map(|name| format!("{name}=off")));
                directives.extend(OURS.map(|name| format!("{name}={level}")));
            }
            _ => by_name.push(part.to_owned()),
        }
    }
    // The last directive for a target counts, so those with a target come last.
    directives.append(&mut by_name);
    directives.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_alone_is_one_of_our_crates() {
        let ours = |level: &str| OURS.map(|name| format!("{name}={level}")).join(",");
        let all = |others: &str, level: &str| {
            format!("{others},kube_client=off,kube_runtime=off,{}", ours(level))
        };
        assert_eq!(directives("debug"), all("warn", "debug"));
        assert_eq!(directives("info"), all("warn", "info"));
        assert_eq!(directives("error"), all("error", "error"));
        assert_eq!(directives("off"), all("off", "off"));
        let asked = "kube_client=debug,hyper[x{y=1}]=trace";
        assert_eq!(
            directives(&format!("info,{asked}")),
            format!("{},{asked}", all("warn", "info"))
        );
        assert_eq!(directives(asked), asked);
    }

    #[test]
    fn what_is_asked_for_by_name_counts_in_any_order() {
        for text in ["info,kube_client=debug", "kube_client=debug,info"] {
            let filter = EnvFilter::try_new(directives(text)).unwrap().to_string();
            assert!(filter.contains("kube_client=debug"), "{text}: {filter}");
        }
    }
}
