//! The gate through which writes to maps pass. Tests shut it after a number of writes, as if the process had ended
//! there, and make reads of whole maps fail.

#[cfg(test)]
pub(super) use shutting::{end_after, pass, refusal, refuse_reads};

/// Makes a write.
#[cfg(not(test))]
pub(super) fn pass<T>(write: impl FnOnce() -> T) -> Option<T> {
    Some(write())
}

/// Returns the error that a test wants for reads of whole maps: outside of tests none.
#[cfg(not(test))]
pub(super) const fn refusal<T>() -> Option<T> {
    None
}

#[cfg(test)]
mod shutting {
    use std::{cell::Cell, io};

    use aya::{maps::MapError, sys::SyscallError};

    thread_local! {
        static WRITES: Cell<u64> = const { Cell::new(0) };
        static LIMIT: Cell<u64> = const { Cell::new(u64::MAX) };
        static READS_FAIL: Cell<bool> = const { Cell::new(false) };
    }

    /// Makes a write, unless the gate is shut.
    pub(in super::super) fn pass<T>(write: impl FnOnce() -> T) -> Option<T> {
        let number = WRITES.get() + 1;
        WRITES.set(number);
        (number <= LIMIT.get()).then(write)
    }

    /// Runs `task` and shuts the gate after this many writes of this thread. Returns how many writes `task` has
    /// tried, and its result.
    pub(in super::super) fn end_after<T>(writes: u64, task: impl FnOnce() -> T) -> (u64, T) {
        WRITES.set(0);
        LIMIT.set(writes);
        let outcome = task();
        LIMIT.set(u64::MAX);
        (WRITES.get(), outcome)
    }

    /// Makes reads of whole maps fail while `task` runs.
    pub(in super::super) fn refuse_reads<T>(task: impl FnOnce() -> T) -> T {
        READS_FAIL.set(true);
        let outcome = task();
        READS_FAIL.set(false);
        outcome
    }

    pub(in super::super) fn refusal<T>() -> Option<Result<T, MapError>> {
        READS_FAIL.get().then(|| {
            Err(MapError::SyscallError(SyscallError {
                call: "bpf_map_get_next_key",
                io_error: io::Error::from_raw_os_error(libc::EFAULT),
            }))
        })
    }
}
