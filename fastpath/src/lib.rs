//! The user-space dataplane.

pub mod facts;
pub mod nexthop;
pub mod object;
