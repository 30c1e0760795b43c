//! The whole edge in user space: threads that do with frames what the programs do in the kernel.
//!
//! It is for kernels on which the programs do not load. A program of a few instructions redirects what may be for a
//! service to the AF_XDP socket of its queue ([`xdp_prog::whole_edge`]). Each queue has a thread on a CPU of its own,
//! which runs the datapath's code over the frame where it lies and sends it by the same socket. No frame leaves its
//! thread, and nothing on its way is locked.
//!
//! ```text
//! NIC queue -> guideway_to_thread -> socket -> thread: decide, rewrite -> socket -> the same device
//!                    |                            `-> not ours after all -> veth pair -> the stack
//!                    `-> what is for no service -> the stack
//! ```
//!
//! `worker` has one queue's frames, over any [`Rings`](crate::port::Rings); `stack` is the way to the stack; `copies` has
//! what captures get; `threads` has the threads and their sockets, `reader` their counters, `buffers` the size of their
//! memory. What a thread knows of the tables is in [`tables`](crate::tables::EdgeTables).

mod buffers;
mod copies;
mod counts;
#[cfg(feature = "xsk")]
mod reader;
mod stack;
#[cfg(feature = "xsk")]
mod threads;
mod worker;

pub use self::buffers::{LARGEST_MTU, locked_bytes};
pub use self::copies::{EdgeCaptureError, EdgeCaptures, TakenEvents};
pub use self::counts::{EDGE_LOST, EdgeCounts, EdgeOutcome};
#[cfg(feature = "xsk")]
pub use self::reader::EdgeReader;
#[cfg(feature = "xsk")]
pub use self::threads::{WholeEdge, WholeEdgeError};
