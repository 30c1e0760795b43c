//! The bench: scenarios that measure Guideway, their statistics and reports.
//!
//! [`datapath`] measures the cost of the XDP program per packet and the rate of the whole edge in user space, which
//! [`mod@bare`] is the yardstick of; [`control`] the cost of following a large cluster. [`consistency`] simulates which
//! connections outlive changes. [`run`] measures what a user's [`scenario`] asks for, into a [`result`] that [`report`] and [`mod@compare`]
//! read. [`judgement`] checks what comparisons find, and [`scale`] sets many Services beside one. All build their own
//! networks with the crate `lab` and remove them.

pub mod bare;
pub mod bars;
pub mod compare;
pub mod consistency;
pub mod control;
pub mod datapath;
pub mod environment;
pub mod exit;
pub mod host;
pub mod judgement;
pub mod load;
#[cfg(test)]
mod pages;
pub mod plan;
pub mod preflight;
pub mod probe;
pub mod redact;
pub mod report;
pub mod result;
pub mod run;
pub mod scale;
pub mod scenario;
pub mod stats;
mod usage;
pub mod wire;
