//! Standard output: pages as wide as its terminal, and texts.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::render::Page;

/// Width of a terminal that does not tell its own, or tells that nothing can be read on it.
const USUAL_WIDTH: usize = 80;
/// Smallest width that is believed.
const LEAST_WIDTH: usize = 20;

/// Formats a value as a JSON document, indented or on one line.
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

/// Writes a page to standard output.
///
/// # Errors
///
/// When it cannot be written; see [`is_closed_pipe`].
pub fn print_page(fill: impl FnOnce(&mut Page)) -> Result<()> {
    print(&formatted(fill))
}

/// Formats a page that is as wide as the terminal of standard output.
pub(super) fn formatted(fill: impl FnOnce(&mut Page)) -> String {
    let mut page = Page::new(width_of(&io::stdout()));
    fill(&mut page);
    page.into_text()
}

/// Returns the width of the terminal that an output is. If it is none, lines stay whole, so that each can be searched for.
pub(crate) fn width_of(output: &(impl IsTerminal + AsFd)) -> usize {
    if !output.is_terminal() {
        return Page::ENDLESS;
    }
    let given = std::env::var("COLUMNS");
    let given = given.ok().and_then(|columns| columns.parse().ok());
    let told = || rustix::termios::tcgetwinsize(output).map(|size| usize::from(size.ws_col));
    let width: Option<usize> = given.or_else(|| told().ok());
    width
        .filter(|width| *width >= LEAST_WIDTH)
        .unwrap_or(USUAL_WIDTH)
}

/// Writes a text to standard output.
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

/// Returns whether an error only means that the reader of our output has closed the pipe.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    causes.any(|cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe)
}
