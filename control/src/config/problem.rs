//! What is wrong with a configuration: one [`Problem`] per rule broken, each with
//! the place in the file, the field, the value found and the remedy.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::render::printable;

/// A place in the configuration file; both numbers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, counted in characters.
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

/// One rule that the configuration breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the offending value stands; unknown for a file that ends too early.
    pub position: Option<Position>,
    /// The path of the field, such as `services[0].port`; empty for a syntax error.
    pub field: String,
    /// The value as written; empty when a value is missing.
    pub value: String,
    /// What is wrong with it.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl Problem {
    /// Writes field, value and reason: `services[0].port "0": port 0 is reserved`.
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

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read at all.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        /// The path as given.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file was read and breaks at least one rule.
    #[error("{}", listing(path, problems))]
    Invalid {
        /// The path as given.
        path: PathBuf,
        /// Every problem found, in the order of the file.
        problems: Vec<Problem>,
    },
}

/// One line per problem, `file:line:column: field "value": reason; remedy`.
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
