//! Preserves the program's `errno`: a program does not expect a hook to change it.
//!
//! The guard is held around code that makes system calls. All of that is rare; the paths of every charge make none.

/// The value of `errno` at creation, restored when dropped.
pub(crate) struct ErrnoGuard(i32);

impl ErrnoGuard {
    pub(crate) fn now() -> Self {
        Self(get())
    }
}

impl Drop for ErrnoGuard {
    fn drop(&mut self) {
        // SAFETY: the C library always has an errno location for the calling thread.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: the location is valid for the calling thread.
        unsafe { location.write(self.0) };
    }
}

/// The error of the last failed system call.
pub(crate) fn get() -> i32 {
    // SAFETY: the C library always has an errno location for the calling thread.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is valid for the calling thread.
    unsafe { *location }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_there_stands_there_again() {
        let before = get();
        {
            let _errno = ErrnoGuard::now();
            // SAFETY: closing what is not open fails.
            unsafe { libc::close(-1) };
            assert_eq!(get(), libc::EBADF);
        }
        assert_eq!(get(), before);
    }
}
