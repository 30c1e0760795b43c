//! Measurement: scenarios, the statistics behind them, and their reports.
//!
//! [`datapath`] measures what the XDP program costs, [`control`] what following a large cluster does.
//! Scenarios build their own network with the crate `lab` and leave nothing behind.

pub mod control;
pub mod datapath;
pub mod host;
pub mod stats;
