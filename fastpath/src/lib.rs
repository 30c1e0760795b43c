//! The user-space dataplane.

pub mod nexthop;
pub mod object;
