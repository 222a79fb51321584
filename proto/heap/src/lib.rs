//! Keeps the heap of a long-running program small.
//!
//! A burst of work needs much more memory than what follows. glibc keeps freed memory that lies between used blocks,
//! and does not return it by itself.

/// Returns all unused pages of the heap to the system. This takes some milliseconds for each 100 MiB. With another C
/// library it does nothing.
pub fn release_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes all threads share one heap. glibc gives each thread its own, up to eight for each core, and what one thread
/// frees is of no use to the others. Call this before the first thread starts. With another C library it does nothing.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt(3) may be called at any time; it changes how the heap grows and nothing that is allocated.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
