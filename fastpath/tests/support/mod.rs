//! The table of packet cases and the three engines that run it.
//!
//! [`cases`] says what must happen, [`packet`] builds frames with a library
//! that is independent of the code under test, [`host`], [`kernel`] and
//! [`whole_edge`] run a frame through the same tables: as functions of this
//! process, as the loaded BPF object, and as a thread over the object's maps.
//! [`routes`] and [`pod_sockets`] are what the kernel knows beside the tables.

pub(crate) mod cases;
pub(crate) mod hash;
pub(crate) mod host;
pub(crate) mod kernel;
pub(crate) mod memory;
pub(crate) mod packet;
pub(crate) mod pod_sockets;
pub(crate) mod report;
pub(crate) mod routes;
pub(crate) mod tables;
pub(crate) mod whole_edge;
