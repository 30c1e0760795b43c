//! The control plane of Guideway: configuration in, dataplane tables out, and the
//! commands that show them.
//!
//! ```text
//! file -> config -> desired -> plan -> agent -> fastpath tables
//!                                        |
//!            commands <- api (socket) <--+--> metrics (HTTP)
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod config;
pub mod desired;
#[allow(missing_docs, reason = "replaced by fastpath's types")]
pub mod stub;
