//! Test networks made of Linux network namespaces, for tests, the demo and
//! the bench.
//!
//! [`Namespace`] is one machine: interfaces, addresses, routes, its own `/sys`,
//! bpffs and directory of files. [`Veth`] is a cable, [`Link`] one end of it,
//! [`Process`] a program running in a namespace, [`Guideway`] that program. [`Topology`] puts them together into the
//! usual picture: clients, a router, edges, nodes and their pods. [`kubernetes`] adds a real API server to it.
//!
//! Everything needs root and is removed again: on drop, on panic, on SIGINT and
//! SIGTERM (which then end the process as usual), and what a SIGKILL left behind
//! when the next lab is created.
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
//! Seen on Linux 6.18 and checked by `tests/xdp.rs`.
//!
//! - What a veth end sends by `XDP_TX` arrives only if the *other* end has a
//!   native XDP program ([`Link::attach_pass`]). Otherwise the frame is dropped
//!   and the interface's `tx_dropped` tells. GRO on the other end is worse than
//!   nothing: it makes NAPI run, so the frame is queued, but `veth_xdp_flush` in
//!   the kernel's `drivers/net/veth.c` wakes the receiver only if it has a
//!   program, so the frame waits until something else does.
//! - A Linux bridge forwards such frames like any others. It learns source
//!   addresses from them, so a program that forwards a frame must put its own
//!   MAC in: the router's MAC left in place moves the router to the edge's port.
//!   And a bridge never sends a frame back out of the port it came from.
//! - A socket's datagrams carry an unfinished checksum across veth unless the
//!   sender's `tx` offload is off ([`Link::disable_tx_offloads`]); a program that
//!   edits them incrementally would make them wrong.

mod delay;
mod guideway;
pub mod kubernetes;
mod link;
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
pub use link::{Link, Mac, Stats, Veth};
pub use namespace::Namespace;
pub use nix::sys::signal::Signal;
pub use offload::Offload;
pub use priority::run_when_idle;
pub use process::{Process, output};
pub use raw::RawSocket;
pub use registry::sweep;
pub use route::{Cidr, Route};
pub use stopwatch::Stopwatch;
pub use stub::stub_object;
pub use topology::{Builder, Machine, Topology, vip_v4, vip_v6};
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
        /// The namespace it was meant for.
        namespace: String,
        /// What was attempted.
        action: String,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The program's name.
        program: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A program did not get a signal.
    #[error("cannot send {signal} to {program}")]
    Signal {
        /// The program's name.
        program: String,
        /// The signal.
        signal: Signal,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A program ended although it was expected to go on.
    #[error("{program} ended with {status} before {awaited}; its output:\n{output}")]
    Ended {
        /// The program's name.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What did not come.
        awaited: String,
        /// Everything it wrote.
        output: String,
    },
    /// A program that was to succeed did not.
    #[error("{command}: {status}; its output:\n{output}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Everything it wrote.
        output: String,
    },
    /// A condition did not come true in time.
    #[error("not after {timeout:?}: {awaited}{seen}")]
    Timeout {
        /// The condition.
        awaited: String,
        /// How long it was waited for.
        timeout: Duration,
        /// The last observation, starting with a separator; empty if there is none.
        seen: String,
    },
    /// A value from the caller makes no sense.
    #[error("{what} {value:?}: {expected}")]
    Invalid {
        /// Which value.
        what: &'static str,
        /// The value.
        value: String,
        /// What would make sense.
        expected: &'static str,
    },
}
