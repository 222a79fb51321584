//! Free memory goes back to the system.
//!
//! A burst of pods needs much more memory than what follows. glibc keeps what is freed in between what is still used,
//! and gives nothing back by itself.

/// Gives the pages of the heap back in which nothing is used. It takes some milliseconds for each 100 MiB.
#[expect(unsafe_code, reason = "the standard library has no name for it")]
pub(super) fn release_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
