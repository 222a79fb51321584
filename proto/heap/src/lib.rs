//! Returns free memory of a long-running program to the system.
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
