//! Drains this edge: other edges announce its addresses before the machine goes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::print;
use crate::api::client::ask;
use crate::api::{Request, Status};
use crate::cli;
use crate::first_few::first_few;

/// Time between two looks at what is still announced here.
const PAUSE: Duration = Duration::from_millis(200);
/// How long packets may still come once others have the addresses: they repeat their announcements so long, for
/// neighbours that missed one.
const STRAGGLERS: Duration = Duration::from_secs(4);

/// Drains this edge, and waits until the others announce its addresses.
///
/// # Errors
///
/// When the agent or the API server does not answer, or an address is still announced here in the end.
pub fn drain_edge(options: &cli::DrainEdge) -> Result<()> {
    let socket = options.agent.socket()?;
    let before: Status = ask(&socket, &Request::Status {})?;
    let () = ask(&socket, &Request::DrainEdge { drained: true })?;
    let end = Instant::now() + Duration::from_secs(options.timeout.into());
    loop {
        let status: Status = ask(&socket, &Request::Status {})?;
        let left = &status.announced.addresses;
        if status.announced.drained && left.is_empty() {
            break;
        }
        if Instant::now() >= end {
            bail!(
                "after {} s, this edge still announces {}: no other edge has taken it over. It is drained, and keeps \
                 what nobody takes; `guideway undrain-edge` ends that",
                options.timeout,
                first_few(left)
            );
        }
        thread::sleep(PAUSE);
    }
    thread::sleep(STRAGGLERS);
    let moved = before.announced.addresses.len();
    print(&format!(
        "drained: other edges announce the {moved} addresses that this one had\n"
    ))
}

/// Gives a drained edge its share of the addresses again. Does not wait for them: with few addresses, its share may be
/// none.
///
/// # Errors
///
/// When the agent or the API server does not answer.
pub fn undrain_edge(options: &cli::UndrainEdge) -> Result<()> {
    let () = ask(
        &options.agent.socket()?,
        &Request::DrainEdge { drained: false },
    )?;
    print("no longer drained: its share of the addresses comes back within seconds\n")
}
