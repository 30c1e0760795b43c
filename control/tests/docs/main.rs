//! The documentation against what it is about: links, commands, configuration files, chart values, and the page
//! that is generated from the command line's own definitions.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

mod api;
mod commands;
mod configuration;
mod fields;
mod links;
mod page;
mod reference;
mod shell;
mod values;
