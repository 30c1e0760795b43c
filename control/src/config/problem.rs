//! Problems of a configuration. There is one [`Problem`] for each broken rule, with the position, the field,
//! its value and the remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::render::printable;

/// A position in the configuration file. Line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: u64,
    /// Column, in characters.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl From<serde_saphyr::Location> for Position {
    fn from(location: serde_saphyr::Location) -> Self {
        Self {
            line: location.line(),
            column: location.column(),
        }
    }
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Position of the value; `None` if the file ends too early.
    pub position: Option<Position>,
    /// Path of the field, such as `services[0].port`; empty for a syntax error.
    pub field: String,
    /// The value as written; empty if it is missing.
    pub value: String,
    /// What is wrong with the value.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl Problem {
    /// Returns field, value and reason: `services[0].port "0": port 0 is reserved`.
    pub(crate) fn without_remedy(&self) -> String {
        let mut text = printable(&self.field);
        if !self.field.is_empty() && !self.value.is_empty() {
            text.push_str(&format!(" {:?}", self.value));
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&self.reason);
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_remedy())?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Why a configuration was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        /// The path as given.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file breaks at least one rule.
    #[error("{}", listing(path, problems))]
    Invalid {
        /// The path as given.
        path: PathBuf,
        /// Every problem found, ordered by position.
        problems: Vec<Problem>,
    },
}

/// Formats one line for each problem: `file:line:column: field "value": reason; remedy`.
fn listing(path: &Path, problems: &[Problem]) -> String {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| match problem.position {
            Some(position) => format!("{}:{position}: {problem}", path.display()),
            None => format!("{}: {problem}", path.display()),
        })
        .collect();
    lines.join("\n")
}
