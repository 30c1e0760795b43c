//! What the kernel, this process and an interface offer: facts for a preflight and for error messages.
//!
//! Everything here reads; nothing prints, and nothing judges. The exception is
//! [`set_features`], which the generic mode of [`attach`](crate::attach) needs.
//! All of it speaks of the network namespace of the calling thread.

mod cables;
pub(crate) mod connection;
mod egress;
mod ethtool;
mod interface;
mod kernel;
mod masquerade;
mod process;
mod settings;

pub use cables::pod_devices;
pub use connection::RequestError;
pub(crate) use egress::tcx_programs;
pub use egress::{Egress, Filter, TcxProgram, egress, runs_at_egress};
pub use ethtool::{Channels, Features, set_features};
pub use interface::{
    Interface, InterfaceError, NativeXdp, XdpMode, XdpProgram, device_name, interface, is_attached,
    members, mtus,
};
pub(crate) use interface::{link, links};
pub use kernel::{Bpffs, Jit, Kernel, KernelVersion, Lockdown, bpffs, kernel};
pub use masquerade::masquerades;
pub use process::{Capability, Process, process};
pub use settings::{LocalPorts, ReversePathFilter, forwards, local_ports, reverse_path_filter};
