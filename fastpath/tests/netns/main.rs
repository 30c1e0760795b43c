//! The dataplane in network namespaces: loaded, attached, and with traffic through it. Needs root.

#![expect(
    clippy::unwrap_used,
    reason = "a failure must end the test, also in its helpers"
)]

mod announce;
mod attach;
mod capture;
mod echo;
mod egress;
mod egress_attach;
mod failures;
mod forward;
#[cfg(feature = "xsk")]
mod mend;
mod nat;
mod next_hops;
mod nexthop;
mod own_machine;
#[cfg(feature = "xsk")]
mod port;
#[cfg(feature = "xsk")]
mod queues;
#[cfg(feature = "xsk")]
mod rights;

use std::sync::LazyLock;

/// The object with programs that do nothing, for tests that send nothing through them.
static STUBS: LazyLock<Vec<u8>> = LazyLock::new(|| lab::stub_object(fastpath::object::bytes()));
