//! What `guideway run` and `guideway controller` log, how, and how that is changed while they run.
//!
//! A level alone is one of our crates. Of the others, warnings are logged at most, and nothing of kube's: what it
//! warns of has whole pages of objects in it, and each request that fails is logged where it was made. A directive
//! with a target counts as it stands.
//!
//! No place in the code writes more than a bounded number of lines in a time ([`limit`]).

mod limit;

use std::io;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Variable that says what is logged.
const FILTER: &str = "GUIDEWAY_LOG";
/// Variable that says in which form.
const FORMAT: &str = "GUIDEWAY_LOG_FORMAT";
/// Our crates.
const OURS: [&str; 4] = ["control", "fastpath", "guideway", "xdp_prog"];
/// Crates that log nothing unless asked for by name.
const SILENT: [&str; 2] = ["kube_client", "kube_runtime"];

/// What is changed while the process runs.
static HANDLE: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Logs to standard error what [`FILTER`] and [`FORMAT`] say.
pub(crate) fn start() -> Result<()> {
    let (filter, handle) = reload::Layer::new(configured()?);
    let format = fmt::layer()
        .with_writer(io::stderr)
        .with_target(false)
        // It would report them to stderr, and panic where that is what failed.
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
        .with(limit::Limit::default())
        .init();
    let _ = HANDLE.set(handle);
    Ok(())
}

/// Changes what is logged at each signal: SIGUSR1 to `debug`, SIGUSR2 back.
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

/// Reads what is to be logged where no signal says otherwise.
fn configured() -> Result<EnvFilter> {
    let text = std::env::var(FILTER).unwrap_or_else(|_| "info".to_owned());
    EnvFilter::try_new(directives(&text))
        .with_context(|| format!("{FILTER}={text:?} is not a log filter"))
}

/// Returns what is to be logged as the filter reads it.
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
    // Of two for one target the last one counts.
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
