//! Scheduling priority of test threads.

use std::io;

/// Makes the calling thread run only while a core has nothing else to do (`sched(7)`, `SCHED_IDLE`).
///
/// # Errors
///
/// The kernel's error.
pub fn run_when_idle() -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters are readable.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
