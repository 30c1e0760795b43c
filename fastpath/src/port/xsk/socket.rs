//! What `xsk-rs` is told, and what is asked of its socket past it.

use std::{
    error::Error,
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use xsk_rs::config::{BindFlags, FrameSize, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};

use super::Options;

/// `XDP_MAX_TX_SKB_BUDGET` of linux/if_xdp.h, which libc lacks.
const TRANSMIT_BUDGET: libc::c_int = 9;
/// The kernel's own budget, and the smallest that it accepts.
const LEAST_BUDGET: u32 = 32;

/// Returns the kernel's error, which `xsk-rs` keeps as the source of its own.
pub(super) fn cause(error: &dyn Error) -> io::Error {
    let source = error.source().and_then(|source| source.downcast_ref());
    match source.and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error.to_string()),
    }
}

pub(super) fn umem_config(options: &Options) -> io::Result<UmemConfig> {
    let size = FrameSize::new(options.buffer_size).map_err(io::Error::other)?;
    UmemConfig::builder()
        .frame_size(size)
        .fill_queue_size(queue_size(options.ring.saturating_mul(2))?)
        .comp_queue_size(queue_size(options.ring)?)
        .build()
        .map_err(io::Error::other)
}

pub(super) fn socket_config(options: &Options, copy: bool) -> io::Result<SocketConfig> {
    let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
    flags |= if copy {
        BindFlags::XDP_COPY
    } else {
        BindFlags::XDP_ZEROCOPY
    };
    if options.several_buffers {
        flags |= BindFlags::XDP_USE_SG;
    }
    Ok(SocketConfig::builder()
        .rx_queue_size(queue_size(options.ring)?)
        .tx_queue_size(queue_size(options.ring)?)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(flags)
        .build())
}

fn queue_size(descriptors: u32) -> io::Result<QueueSize> {
    QueueSize::new(descriptors).map_err(io::Error::other)
}

/// Has the kernel copy up to a whole TX ring in one call in place of 32 frames, as it can since Linux 6.17.
pub(super) fn raise_budget(socket: BorrowedFd<'_>, ring: u32) -> io::Result<()> {
    if ring < LEAST_BUDGET {
        return Ok(());
    }
    // SAFETY: the kernel reads no more than the given length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            TRANSMIT_BUDGET,
            (&raw const ring).cast(),
            4,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        error => Err(error),
    }
}

/// Tells whether the driver writes to the port's memory itself.
pub(super) fn is_zero_copy(socket: BorrowedFd<'_>) -> io::Result<bool> {
    // `struct xdp_options` of linux/if_xdp.h.
    let mut flags: u32 = 0;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the kernel writes no more than the given length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_OPTIONS,
            (&raw mut flags).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}
