//! The memory of the process.

/// Gives back to the kernel what was freed in bulk and the C library keeps for later.
///
/// By itself it returns only what lies at the very end of a heap, and each thread has a heap of its own.
pub fn release_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointer, and locks every heap that it works on.
    unsafe {
        libc::malloc_trim(0);
    }
}
