//! The system call bpf(2), for commands that aya does not offer, or that it makes in a way that needs more rights
//! than the agent has.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

/// `BPF_OBJ_GET`.
const OPEN_PINNED: libc::c_int = 7;
/// `BPF_OBJ_GET_INFO_BY_FD`.
const OBJECT_INFO: libc::c_int = 15;
/// `BPF_PROG_QUERY`.
pub(crate) const QUERY_PROGRAMS: libc::c_int = 16;
/// `BPF_MAP_LOOKUP_BATCH`.
pub(crate) const LOOK_UP_BATCH: libc::c_int = 24;

/// Makes the system call and returns its result. The attributes have the layout of the command (`union bpf_attr` of
/// linux/bpf.h).
///
/// # Safety
///
/// Pointers in the attributes must lead to memory that lives through the call and is as long as the command reads and
/// writes there.
pub(crate) unsafe fn bpf<A>(command: libc::c_int, attributes: &mut A) -> io::Result<i32> {
    let size = size_of::<A>();
    // SAFETY: the kernel reads and writes no more than `size` bytes of the attributes. The caller guarantees the
    // memory that they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}

/// Converts a pointer to its form in the attributes.
pub(crate) fn address<T: ?Sized>(memory: *const T) -> u64 {
    memory.cast::<u8>().expose_provenance() as u64
}

/// Opens the object that is pinned at a path.
pub(crate) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Attributes {
        path: address(path.as_ptr()),
        fd: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads the path up to its terminator.
    let fd = unsafe { bpf(OPEN_PINNED, &mut attributes) }?;
    // SAFETY: the kernel has just opened it for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The front of `struct bpf_link_info`, for a link between a program and a network device.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct LinkInfo {
    kind: u32,
    /// The kernel's id of the link.
    pub(crate) id: u32,
    /// The kernel's id of the program in the link.
    pub(crate) program: u32,
    padding: u32,
    /// The device's index in its network namespace; 0 when the device is gone.
    pub(crate) ifindex: u32,
    rest: u32,
}

/// Reads the kernel's information about a link.
pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    #[repr(C)]
    struct Attributes {
        fd: i32,
        length: u32,
        info: u64,
    }
    const LENGTH: u32 = 6 * u32::BITS / u8::BITS;
    let mut info = LinkInfo::default();
    let mut attributes = Attributes {
        fd: link.as_raw_fd(),
        length: LENGTH,
        info: address(&raw mut info),
    };
    // SAFETY: the kernel writes no more than the given length.
    unsafe { bpf(OBJECT_INFO, &mut attributes) }?;
    Ok(info)
}
