//! Facts about the kernel, this process and its interfaces, for the preflight and for error messages.
//!
//! The functions here only read: they print nothing and judge nothing. The exception is [`set_features`], which the
//! generic mode of [`attach`](crate::attach) needs. All of them speak of the calling thread's network namespace.

mod cables;
mod devices;
mod egress;
mod ethtool;
mod interface;
mod kernel;
mod masquerade;
mod pods;
mod process;
mod settings;
mod statistics;
mod uplinks;

pub(crate) use crate::netlink::connection;
pub use crate::netlink::connection::RequestError;
pub use cables::pod_devices;
pub use devices::Devices;
pub(crate) use egress::tcx_programs;
pub use egress::{Egress, Filter, TcxProgram, egress};
pub use ethtool::{Channels, Features, set_features};
pub use interface::{
    Interface, InterfaceError, NativeXdp, XdpMode, XdpProgram, above_others, device_name,
    interface, is_attached, members, mtus,
};
pub(crate) use interface::{link, links, redirect_targets};
pub use kernel::{Bpffs, Jit, Kernel, KernelVersion, Lockdown, Softirq, bpffs, has_af_xdp, kernel};
pub use masquerade::masquerades;
pub use pods::{
    NamespaceDevices, PodAddresses, addresses_in, devices_to_namespaces, has_device, pod_addresses,
};
pub use process::{Capability, Process, process};
pub use settings::{
    LocalPorts, NeighbourTable, ReversePathFilter, forwards, local_ports, neighbour_table,
    reverse_path_filter,
};
pub use statistics::{received_by_queue, transmit_errors};
pub use uplinks::{default_route_devices, uplinks};
