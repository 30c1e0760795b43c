//! The commands that ask the agent and show its answers.

pub mod capture;
pub mod show;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::client::{self, AskError, ask};
use crate::api::{Detached, Request, Trace, TraceRequest, Which, WhichRequest};
use crate::cli::{self, LogLevel};
use fastpath::pins::Pins;

/// Two samples of one answer, for rates.
#[derive(Debug)]
pub struct Sampled<T> {
    /// The answer.
    pub current: T,
    /// The answer before it and the time between the two; none at first or without `--watch`.
    pub previous: Option<(T, Duration)>,
}

impl<T> Sampled<T> {
    /// Returns the growth per second of a counter, found in both samples by `value`.
    pub fn rate(&self, current: u64, value: impl FnOnce(&T) -> Option<u64>) -> Option<u64> {
        let (previous, span) = self.previous.as_ref()?;
        let grown = current.saturating_sub(value(previous)?);
        let millis = u64::try_from(span.as_millis())
            .ok()
            .filter(|millis| *millis > 0)?;
        Some(grown.saturating_mul(1_000) / millis)
    }
}

/// Shows an answer once, or again and again.
///
/// # Errors
///
/// When the agent does not answer, or nothing can be written.
pub fn show<T>(
    options: &cli::Show,
    request: &Request,
    render: impl Fn(&Sampled<T>) -> String,
) -> Result<()>
where
    T: Serialize + DeserializeOwned,
{
    let socket = &options.agent.socket;
    let Some(seconds) = options.watch else {
        let sampled = Sampled {
            current: ask(socket, request)?,
            previous: None,
        };
        if options.json {
            return print(&json(&sampled.current, true)?);
        }
        return print(&render(&sampled));
    };
    let interval = Duration::from_secs(seconds.into());
    let mut last: Option<(T, Instant)> = None;
    loop {
        let asked = Instant::now();
        let current: T = ask(socket, request)?;
        if options.json {
            print(&json(&current, false)?)?;
            std::thread::sleep(interval);
            continue;
        }
        let sampled = Sampled {
            current,
            previous: last
                .take()
                .map(|(sample, at)| (sample, asked.duration_since(at))),
        };
        print(&screen(seconds, &render(&sampled)))?;
        last = Some((sampled.current, asked));
        std::thread::sleep(interval);
    }
}

/// Puts a page at the top of an emptied screen; a pipe gets one page after the other.
fn screen(seconds: u32, page: &str) -> String {
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let clear = if io::stdout().is_terminal() {
        CLEAR
    } else {
        ""
    };
    format!("{clear}every {seconds} s, end with Ctrl-C\n\n{page}\n")
}

/// Tells which backend a flow gets.
///
/// # Errors
///
/// When the agent does not answer, or has no such service.
pub fn which(options: &cli::Which) -> Result<()> {
    let request = Request::Which(WhichRequest {
        service: options.service.to_string(),
        from: options.from.to_string(),
    });
    let which: Which = ask(&options.agent.socket, &request)?;
    print_answer(&which, options.json, show::which)
}

/// Follows one packet through the datapath's code.
///
/// # Errors
///
/// When the agent does not answer, or the frame cannot be read.
pub fn trace(options: &cli::Trace) -> Result<()> {
    let request = Request::Trace(TraceRequest {
        service: options.service.map(|service| service.to_string()),
        from: options.from.map(|from| from.to_string()),
        frame: options.hex.clone(),
        interface: options.interface.clone(),
    });
    let trace: Trace = ask(&options.agent.socket, &request)?;
    print_answer(&trace, options.json, show::trace)
}

/// Has an agent or a controller log more, or what it did at its start.
///
/// # Errors
///
/// When no agent answers, or the process takes no signals from here.
pub fn log(options: &cli::Log) -> Result<()> {
    let pid = match options.pid {
        Some(pid) => Pid::from_raw(pid),
        None => client::process(&options.agent.socket)?,
    };
    let signal = match options.level {
        LogLevel::Debug => Signal::SIGUSR1,
        LogLevel::Default => Signal::SIGUSR2,
    };
    kill(pid, signal).with_context(|| format!("cannot send {signal} to the process {pid}"))
}

/// Detaches by the agent, or without one.
///
/// # Errors
///
/// When something cannot be removed.
pub fn detach(options: &cli::Detach) -> Result<()> {
    let detached = match ask(&options.agent.socket, &Request::Detach {}) {
        Ok(detached) => detached,
        Err(AskError::NotRunning { .. }) => detach_pins(&options.pin_dir)?,
        Err(error) => return Err(error.into()),
    };
    print_answer(&detached, options.json, show::detached)
}

fn detach_pins(pin_dir: &Path) -> Result<Detached> {
    let interfaces = Pins::new(pin_dir)
        .remove_all()
        .with_context(|| format!("cannot remove the pins below {}", pin_dir.display()))?;
    Ok(Detached { interfaces })
}

fn print_answer<T: Serialize>(answer: &T, as_json: bool, page: fn(&T) -> String) -> Result<()> {
    let text = if as_json {
        json(answer, true)?
    } else {
        page(answer)
    };
    print(&text)
}

/// Writes a value as one JSON document, for people or on one line.
///
/// # Errors
///
/// When the value cannot be written as JSON.
pub fn json<T: Serialize>(value: &T, pretty: bool) -> Result<String> {
    let mut text = if pretty {
        serde_json::to_string_pretty(value)?
    } else {
        serde_json::to_string(value)?
    };
    text.push('\n');
    Ok(text)
}

/// Writes to standard output.
///
/// # Errors
///
/// When it cannot be written; see [`is_closed_pipe`].
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write the output")
}

/// Tells whether an error is only that the reader of our output has had enough.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(|cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe)
}
