//! The memory of the process.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Returns freed memory to the kernel that the C library would keep for later.
///
/// By itself, the C library returns only memory at the very end of a heap, and each thread has its own heap.
pub fn release_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointer, and locks every heap that it changes.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lifts the limit of locked memory, if this process may. Kernels before 5.11 charge maps to it.
pub(crate) fn unlock() {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // What is too little, the kernel says when it makes the maps.
    let _ = setrlimit(Resource::Memlock, unlimited);
}
