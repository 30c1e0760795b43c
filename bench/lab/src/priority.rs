//! Scheduling priority of test threads.

use std::io;

/// Leaves nine tenths of a core to each other thread that wants it (`sched(7)`, "The nice value").
///
/// # Errors
///
/// The kernel's error.
pub fn run_after_others() -> io::Result<()> {
    const NICE: libc::c_int = 10;
    // SAFETY: takes no pointers. In Linux, the calling thread alone gets the value.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the calling thread run before every ordinary one of its core (`sched(7)`, `SCHED_FIFO`).
///
/// # Errors
///
/// The kernel's error, such as when the caller is not root.
pub fn run_first() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are readable.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
