//! The control plane of Guideway: it turns the configuration into tables of the dataplane, and has the commands
//! that show them.
//!
//! ```text
//! Kubernetes API -> kubernetes -> index --+
//!                                         v
//! file -> config --------------------> desired -> plan -> agent -> fastpath tables
//!                                                           |
//!                 commands <- api (socket) <- observer <----+
//!                          metrics (HTTP) <------+
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod agent;
pub mod announce;
pub mod api;
mod chain;
pub mod check;
pub mod cli;
mod clock;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod controller;
pub mod desired;
pub mod durations;
pub mod file_watch;
mod first_few;
mod hash;
pub mod health;
pub mod healthz;
pub mod hex;
pub mod http;
pub mod index;
pub mod kubernetes;
mod log;
pub mod metrics;
mod next_hop;
pub mod observer;
pub mod peers;
pub mod plan;
mod random;
pub mod reasons;
pub mod render;
pub mod run;
pub mod service_totals;
pub mod target_state;
mod timer;
pub mod upgrade;
mod versions;
