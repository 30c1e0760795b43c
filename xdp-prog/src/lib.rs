//! Everything the kernel programs and user space must agree on.
//!
//! The same code is compiled into the XDP program, tested on the host, and
//! used by the agent, the tests and the bench. A packet's way through it:
//!
//! ```text
//! parse (bytes -> Packet) -> decide (Packet + tables -> Verdict) -> rewrite (Verdict -> byte edits)
//! ```
//!
//! [`abi`] holds the table layouts. [`reason`] is the one list of outcomes: its entries are errors, counter indices
//! and metric labels at once.
#![no_std]
#![warn(missing_docs)]

pub mod abi;
pub mod bench;
pub mod capture;
pub mod csum;
pub mod decide;
pub mod egress;
pub mod failure;
pub mod family;
pub mod flow;
pub mod flow_state;
pub mod frame;
pub mod ip;
pub mod maglev;
pub mod parse;
pub mod process;
pub mod punt;
pub mod reason;
pub mod rewrite;
pub mod stage;
pub mod verdict;
pub mod whole_edge;
pub mod wire;
mod words;
pub mod world;
