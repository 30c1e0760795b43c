//! The user-space dataplane: loads and attaches the XDP and TC programs, and owns their tables.
//!
//! It knows nothing of Kubernetes; `control` decides what the tables shall say.

pub mod announce;
pub mod attach;
pub mod capture;
pub mod clock;
mod clsact;
pub mod cpus;
pub mod echo;
pub mod facts;
pub mod load;
pub mod memory;
#[cfg(any(feature = "xsk", test))]
pub mod mend;
mod netlink;
pub mod nexthop;
pub mod object;
pub mod pins;
#[cfg(any(feature = "xsk", test))]
pub mod port;
pub mod refusal;
mod sys;
pub mod tables;
#[cfg(any(feature = "xsk", test))]
pub mod whole_edge;
