//! Scheduling priority of test threads.

use std::io;

/// Makes the calling thread run only while a core has nothing else to do (`sched(7)`, `SCHED_IDLE`).
///
/// # Errors
///
/// The kernel's error.
pub fn run_when_idle() -> io::Result<()> {
    set_policy(libc::SCHED_IDLE, 0)
}

/// Makes the calling thread run before every ordinary one of its core (`sched(7)`, `SCHED_FIFO`).
///
/// # Errors
///
/// The kernel's error, such as when the caller is not root.
pub fn run_first() -> io::Result<()> {
    set_policy(libc::SCHED_FIFO, 1)
}

fn set_policy(policy: libc::c_int, sched_priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the parameters are readable.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
