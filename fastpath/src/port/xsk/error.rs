//! Reasons why a port could not be opened.

use std::io;

use super::Options;
use crate::facts::{self, InterfaceError};

/// Reasons why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("interface {interface}: there is no queue {queue}: it has {queues}")]
    NoQueue {
        interface: String,
        queue: u32,
        queues: u32,
    },
    #[error(
        "interface {interface}: another AF_XDP socket has queue {queue}; end the program that opened it"
    )]
    InUse {
        interface: String,
        queue: u32,
        #[source]
        source: io::Error,
    },
    #[error(
        "interface {interface}: the kernel locks no {bytes} bytes of memory for AF_XDP; give the capability IPC_LOCK, \
         or raise the limit of locked memory"
    )]
    LockedMemory {
        interface: String,
        bytes: u64,
        #[source]
        source: io::Error,
    },
    #[error("this kernel is built without AF_XDP (CONFIG_XDP_SOCKETS)")]
    NoSockets(#[source] io::Error),
    #[error("interface {interface}: AF_XDP takes the capability NET_RAW")]
    NotPermitted {
        interface: String,
        #[source]
        source: io::Error,
    },
    #[error("interface {interface}: cannot open an AF_XDP socket on queue {queue}")]
    Refused {
        interface: String,
        queue: u32,
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    /// Names the cause of the kernel's error.
    pub(super) fn new(interface: &str, queue: u32, options: &Options, source: io::Error) -> Self {
        let device = match facts::interface(interface) {
            Ok(device) => device,
            Err(error) => return error.into(),
        };
        let interface = device.name;
        match source.raw_os_error() {
            Some(libc::EINVAL) if queue >= device.rx_queues => Self::NoQueue {
                interface,
                queue,
                queues: device.rx_queues,
            },
            Some(libc::EBUSY) => Self::InUse {
                interface,
                queue,
                source,
            },
            Some(libc::ENOBUFS) => Self::LockedMemory {
                interface,
                bytes: u64::from(options.buffers) * u64::from(options.buffer_size),
                source,
            },
            Some(libc::EAFNOSUPPORT) => Self::NoSockets(source),
            Some(libc::EPERM) => Self::NotPermitted { interface, source },
            _ => Self::Refused {
                interface,
                queue,
                source,
            },
        }
    }
}

/// Reasons why the way by which frames come could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("cannot read the options of the AF_XDP socket")]
    Options(#[from] io::Error),
}
