//! The documentation against what it is about: links, commands, configuration files, chart values, and the page
//! that is generated from the command line's own definitions.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

mod api;
mod commands;
mod configuration;
mod faults;
#[path = "../e2e/support/faults.rs"]
#[allow(dead_code, reason = "the tests that plant the faults need the rest")]
mod faults_planted;
mod fields;
mod links;
mod page;
mod programs;
mod readme;
mod reference;
mod shell;
mod values;
