//! Native XDP programs of a few instructions: the pass-through program that veth needs at the receiving end,
//! and programs that tests assemble.
//!
//! They are loaded by bpf(2) and attached by netlink, so that the lab needs no BPF loader and no object file.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use netlink_packet_route::link::{LinkAttribute, LinkXdp};

use crate::{Error, Link, Result};

// linux/bpf.h and linux/if_link.h; libc has none of these.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_UPDATE_IF_NOEXIST: u32 = 1 << 0;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const NO_PROGRAM: i32 = -1;

/// `r0 = XDP_PASS; exit`.
const PASS: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

/// The fields of `union bpf_attr` that BPF_PROG_LOAD reads.
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

impl Link<'_> {
    /// Attaches a native XDP program that passes every frame, so that frames arrive that the other end of a
    /// veth sends by `XDP_TX`.
    ///
    /// # Errors
    ///
    /// As for [`Link::attach_xdp`].
    pub fn attach_pass(&self) -> Result<()> {
        self.attach_xdp(&PASS)
    }

    /// Attaches a native XDP program, given as its instructions. It stays until it is detached or the interface
    /// is gone.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`] when the verifier rejects the program, or the interface has one already;
    /// [`crate::Error::NoNativeXdp`] when its driver runs none.
    pub fn attach_xdp(&self, instructions: &[u64]) -> Result<()> {
        let program = load(instructions)
            .map_err(|source| self.error("load the XDP program for".to_owned(), source))?;
        self.set_xdp(program.as_raw_fd(), XDP_FLAGS_UPDATE_IF_NOEXIST)
    }

    /// Detaches the native XDP program.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Kernel`] when a bpf_link holds the program.
    pub fn detach_xdp(&self) -> Result<()> {
        self.set_xdp(NO_PROGRAM, 0)
    }

    fn set_xdp(&self, program: i32, flags: u32) -> Result<()> {
        let xdp = vec![
            LinkXdp::Fd(program),
            LinkXdp::Flags(flags | XDP_FLAGS_DRV_MODE),
        ];
        let changed = self.set_attribute(LinkAttribute::Xdp(xdp), || {
            "change the XDP program of".to_owned()
        });
        changed.map_err(|error| match error {
            Error::Kernel { source, .. } if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Error::NoNativeXdp {
                    namespace: self.namespace().name().to_owned(),
                    interface: self.name().to_owned(),
                }
            }
            other => other,
        })
    }
}

/// Loads a program for frames of several buffers, without which veth refuses MTUs larger than a page; kernels before
/// 5.18 know no such programs.
fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    match load_with(instructions, BPF_F_XDP_HAS_FRAGS) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => load_with(instructions, 0),
        outcome => outcome,
    }
}

fn load_with(instructions: &[u64], flags: u32) -> io::Result<OwnedFd> {
    let mut attributes = LoadAttributes {
        kind: BPF_PROG_TYPE_XDP,
        instruction_count: instructions.len().try_into().map_err(io::Error::other)?,
        instructions: instructions.as_ptr().addr() as u64,
        licence: c"GPL".as_ptr().addr() as u64,
        flags,
        ..LoadAttributes::default()
    };
    // SAFETY: the size is that of the attributes; the instructions and the
    // licence they point to outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            &raw mut attributes,
            size_of_val(&attributes),
        )
    };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
