//! Free memory of a long-running program goes back to the system.
//!
//! A burst of work needs much more memory than what follows. glibc keeps what is freed in between what is still used,
//! and gives nothing back by itself.

/// Gives the pages of the heap back in which nothing is used. It takes some milliseconds for each 100 MiB. Where the C
/// library is another one, nothing happens.
pub fn release_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
