//! Requests about interfaces that netlink does not have.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

/// Makes a request about the interface `name` of the socket's namespace, which reads and writes `data`.
///
/// # Safety
///
/// The request takes an `ifreq` whose data points to a `T`.
pub(crate) unsafe fn request<T>(
    socket: BorrowedFd<'_>,
    name: &str,
    number: libc::Ioctl,
    data: &mut T,
) -> io::Result<()> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: std::ptr::from_mut(data).cast(),
        },
    };
    // A NUL remains behind the longest name that an interface can have.
    let room = &mut request.ifr_name[..libc::IFNAMSIZ - 1];
    for (to, &from) in room.iter_mut().zip(name.as_bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the caller knows the request; it and its data live until the call returns.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw mut request) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Opens a socket in the calling thread's namespace. It stays in that namespace.
pub(crate) fn ioctl_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
