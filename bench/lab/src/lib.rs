//! Test networks made of Linux network namespaces, for tests, the demo and
//! the bench.
//!
//! [`Namespace`] is one machine: interfaces, addresses, routes, its own `/sys`, bpffs and directory of files.
//! [`Veth`] is a cable, [`Link`] one end of it, [`Process`] a program running in a namespace, [`Guideway`] the
//! product's own program. [`Topology`] builds the usual network: clients, a router, edges, nodes and their
//! pods. [`kubernetes`] adds a real API server.
//!
//! Everything needs root and is removed again: on drop, on panic, and on SIGINT and SIGTERM, which then end the
//! process as usual. What a SIGKILL left behind is removed when the next lab is created.
//!
//! ```no_run
//! use std::net::UdpSocket;
//!
//! use lab::{Guideway, Topology, vip_v4};
//!
//! let net = Topology::builder().edges(1).nodes(3).queues(2).build()?;
//! for node in net.nodes() {
//!     node.add_vip(vip_v4(1))?;
//! }
//! let (guideway, edge) = (Guideway::new("guideway"), net.edges()[0].namespace());
//! guideway.configure(edge, &std::fs::read_to_string("edge.yaml")?)?;
//! let mut agent = guideway.run(edge)?;
//! guideway.wait_until_ready(edge, &mut agent)?;
//! let client = net.clients()[0].namespace();
//! client.run(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"hello", (vip_v4(1), 53)))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What veth and bridges do to XDP
//!
//! Observed on Linux 6.18 and checked by `tests/xdp.rs`.
//!
//! - A frame that a veth end sends by `XDP_TX` arrives only if the *other* end has a native XDP program
//!   ([`Link::attach_pass`]). Otherwise it is dropped and counted in the interface's `tx_dropped`. GRO on the
//!   other end makes it worse. It makes NAPI run, so the frame is queued; but `veth_xdp_flush` in the kernel's
//!   `drivers/net/veth.c` wakes the receiver only if it has a program. The frame then waits until something
//!   else wakes the receiver.
//! - A Linux bridge forwards such frames like any others, and learns source addresses from them. A program that
//!   forwards a frame must therefore write its own MAC into it. If the router's MAC stayed, the bridge would
//!   look for the router at the edge's port. And a bridge never sends a frame back to the port that it came
//!   from.
//! - A socket's datagrams cross a veth with an unfinished checksum unless the sender's `tx` offload is off
//!   ([`Link::disable_tx_offloads`]). A program that updates such a checksum incrementally makes it wrong.

mod delay;
mod guideway;
mod hardware_stamps;
mod ioctl;
pub mod kubernetes;
mod link;
mod machine;
mod namespace;
mod offload;
mod pod;
mod priority;
mod process;
mod raw;
mod registry;
mod route;
mod rtnl;
mod stopwatch;
mod stub;
mod topology;
mod wait;
mod web;
mod xdp;

use std::{io, process::ExitStatus, time::Duration};

pub use delay::DelayedCable;
pub use guideway::Guideway;
pub use hardware_stamps::HardwareStamps;
pub use link::{Link, Mac, Stats, Veth};
pub use machine::Machine;
pub use namespace::Namespace;
pub use nix::sys::signal::Signal;
pub use offload::Offload;
pub use pod::pod_addresses;
pub use priority::{run_after_others, run_first};
pub use process::{Process, output};
pub use raw::RawSocket;
pub use registry::{AtEnd, at_end, sweep};
pub use route::{Cidr, Route};
pub use stopwatch::Stopwatch;
pub use stub::stub_object;
pub use topology::{
    Builder, Topology, client_addresses, edge_addresses, node_addresses, vip_v4, vip_v6,
};
pub use wait::{wait_for, wait_until};
pub use web::serve_page;

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a network could not be built, changed or observed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused an operation in a namespace.
    #[error("{namespace}: cannot {action}")]
    Kernel {
        /// The namespace of the operation.
        namespace: String,
        /// What was attempted.
        action: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// An interface has no native XDP: its driver lacks it.
    #[error("{namespace}: the driver of the interface {interface} has no native XDP")]
    NoNativeXdp {
        /// The namespace of the interface.
        namespace: String,
        /// The interface.
        interface: String,
    },
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The program's name.
        program: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A signal could not be sent to a program.
    #[error("cannot send {signal} to {program}")]
    Signal {
        /// The program's name.
        program: String,
        /// The signal.
        signal: Signal,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A program ended although it was expected to run on.
    #[error("{program} ended with {status} before {awaited}; its output:\n{output}")]
    Ended {
        /// The program's name.
        program: String,
        /// Its exit status.
        status: ExitStatus,
        /// The event that did not happen.
        awaited: String,
        /// Its whole output.
        output: String,
    },
    /// A program that should have succeeded failed.
    #[error("{command}: {status}; its output:\n{output}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its whole output.
        output: String,
    },
    /// A condition did not come true in time.
    #[error("not after {timeout:?}: {awaited}{seen}")]
    Timeout {
        /// The condition.
        awaited: String,
        /// How long it was awaited.
        timeout: Duration,
        /// The last observation, starting with a separator; empty if there is none.
        seen: String,
    },
    /// The caller passed an invalid value.
    #[error("{what} {value:?}: {expected}")]
    Invalid {
        /// What the value stands for.
        what: &'static str,
        /// The value.
        value: String,
        /// What a valid value looks like.
        expected: &'static str,
    },
}
