//! What people read when a case fails.

use std::fmt::Write as _;

use xdp_prog::{abi::Traffic, reason};

use super::tables::Counts;

/// Bytes per line.
const WIDTH: usize = 16;
/// Lines that are shown of a difference.
const LINES: usize = 12;

/// Lists the counters that differ from zero.
pub(crate) fn counters(counts: &Counts) -> String {
    let mut text = String::new();
    for ((kind, label), count) in reason::all().zip(&counts.reasons) {
        if *count != 0 {
            write!(text, " {kind:?}/{label}+{count}").unwrap();
        }
    }
    for (table, traffic) in [("service", &counts.services), ("backend", &counts.backends)] {
        for (id, Traffic { packets, bytes }) in traffic.iter().enumerate() {
            if (*packets, *bytes) != (0, 0) {
                write!(text, " {table} {id}+{packets} packets, {bytes} bytes").unwrap();
            }
        }
    }
    if text.is_empty() {
        " none".to_owned()
    } else {
        text
    }
}

/// Shows the lines in which two frames differ, differing bytes in brackets.
pub(crate) fn difference(expected: &[u8], actual: &[u8]) -> String {
    let mut text = format!("    {} bytes, expected {}\n", actual.len(), expected.len());
    let lines = (0..expected.len().max(actual.len()))
        .step_by(WIDTH)
        .map(|start| (start, line(expected, start), line(actual, start)))
        .filter(|(_, expected, actual)| expected != actual);
    for (start, expected, actual) in lines.clone().take(LINES) {
        writeln!(
            text,
            "    {start:04x} expected {}",
            marked(expected, actual)
        )
        .unwrap();
        writeln!(
            text,
            "    {start:04x} got      {}",
            marked(actual, expected)
        )
        .unwrap();
    }
    let more = lines.skip(LINES).count();
    if more > 0 {
        writeln!(text, "    and {more} more lines").unwrap();
    }
    text
}

fn line(bytes: &[u8], start: usize) -> &[u8] {
    let end = bytes.len().min(start + WIDTH);
    bytes.get(start..end).unwrap_or_default()
}

fn marked(bytes: &[u8], other: &[u8]) -> String {
    let mut text = String::new();
    for (position, byte) in bytes.iter().enumerate() {
        if other.get(position) == Some(byte) {
            write!(text, " {byte:02x} ").unwrap();
        } else {
            write!(text, "[{byte:02x}]").unwrap();
        }
    }
    text
}
