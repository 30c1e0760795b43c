//! The way to the threads that do in user space what the programs do in the kernel: the whole edge.
//!
//! One program takes the place of all others, and it redirects what may be for a service, and what routers say of the MTUs
//! of paths, to the socket of its queue. It calls no function that Linux 5.10 lacks, and its thread decides, rewrites and
//! sends.

/// Name of the program that redirects frames to the threads.
pub const REDIRECT_PROGRAM: &str = "guideway_to_thread";

/// Bytes that the program puts in front of a frame, in which the thread writes headers: those of an ICMPv6 error, the
/// largest, and some more.
pub const ROOM: usize = 64;
