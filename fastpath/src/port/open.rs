//! Getting hold of a queue: in the best mode that its driver has, and as soon as who had it before lets it go.

use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Time between two attempts at a queue that is in use.
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the kernel copies frames between the device's memory and the port's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// Always. The device's other frames go their way as before.
    Always,
    /// Only if the driver has no other way. Where it has, the whole queue is the port's: frames that the XDP program
    /// passes to the stack are copied.
    IfNeeded,
}

/// Calls `bind`, which is told whether to copy, until a way works.
///
/// The kernel lets a queue go some time after its socket has been closed, so one that is in use is tried again for as
/// long as `patience` says.
///
/// # Errors
///
/// The error of the last attempt: `EBUSY` if the queue stays in use.
pub(super) fn open<R>(
    copying: Copying,
    patience: Duration,
    mut bind: impl FnMut(bool) -> io::Result<R>,
) -> io::Result<R> {
    let begin = Instant::now();
    let mut copy = copying == Copying::Always;
    loop {
        let error = match bind(copy) {
            Ok(rings) => return Ok(rings),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EBUSY) if begin.elapsed() < patience => thread::sleep(PAUSE),
            Some(libc::EOPNOTSUPP | libc::EINVAL) if !copy => copy = true,
            _ => return Err(error),
        }
    }
}
