//! The user-space dataplane.
