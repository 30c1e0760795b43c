//! The Helm chart and what else `deploy/` has, checked with the real `helm`, API server, `systemd-analyze`
//! and container runtime. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "clippy knows test functions, not the helpers beside them"
)]

mod bgp;
mod chart;
mod confined;
mod image;
mod in_pod;
mod licences;
mod monitoring;
mod newcomer;
#[path = "../docs/page.rs"]
#[allow(dead_code, reason = "the tests of the documentation need the rest")]
mod page;
mod pages;
mod render;
mod schema;
mod server;
#[path = "../docs/shell.rs"]
mod shell;
mod typed;
mod unit;
