//! Exchanges over streams in memory, with honest peers and others.

mod exchange;
mod messages;
mod refused;
mod support;
mod turns;
