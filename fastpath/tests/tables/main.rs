//! The tables as user space writes them and the loaded programs use them. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "a failure must end the test, also in its helpers"
)]

mod changes;
mod example;
mod explain;
mod flow_notes;
mod ledger;
mod loopback;
mod nat_edge;
mod nat_pressure;
mod nat_stress;
mod owners;
mod pods;
mod services;
#[expect(dead_code, reason = "the packet cases use the rest")]
#[path = "../support/mod.rs"]
mod support;
mod walks;

use std::sync::LazyLock;

/// The object with programs that do nothing, for tests that send nothing through them.
static STUBS: LazyLock<Vec<u8>> = LazyLock::new(|| lab::stub_object(fastpath::object::bytes()));
