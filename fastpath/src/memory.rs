//! The memory of the process.

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
