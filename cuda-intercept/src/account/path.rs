//! Paths, and the variables that name them. Nothing here uses the heap, because this code runs inside other people's
//! programs.

use core::ffi::{CStr, c_char};

/// A path, built without the heap.
#[derive(Debug)]
pub(super) struct PathBuffer([u8; 512]);

impl Default for PathBuffer {
    fn default() -> Self {
        Self([0; 512])
    }
}

impl PathBuffer {
    /// `folder/file`, or `folder` alone; `None` if it is too long.
    pub(super) fn join(&mut self, folder: &[u8], file: &str) -> Option<&CStr> {
        let slash = if file.is_empty() { "" } else { "/" };
        let parts = [folder, slash.as_bytes(), file.as_bytes(), b"\0"];
        let mut rest = self.0.as_mut_slice();
        for part in parts {
            let (here, next) = rest.split_at_mut_checked(part.len())?;
            here.copy_from_slice(part);
            rest = next;
        }
        CStr::from_bytes_until_nul(&self.0).ok()
    }

    /// The path that was built last.
    pub(super) fn get(&self) -> Option<&CStr> {
        let path = CStr::from_bytes_until_nul(&self.0).ok()?;
        (!path.is_empty()).then_some(path)
    }
}

/// The bytes of an environment variable that is set and not empty.
pub(super) fn environment(name: &str) -> Option<&'static [u8]> {
    let mut buffer = PathBuffer::default();
    let name = buffer.join(name.as_bytes(), "")?;
    // SAFETY: the name is a string.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the C library returns a string. A program that changes its environment while other threads read it has
    // a race with or without this library.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_fit_is_no_path() {
        let mut path = PathBuffer::default();
        assert_eq!(path.join(b"/a", "limits"), Some(c"/a/limits"));
        assert_eq!(path.join(&[b'a'; 600], "limits"), None);
    }
}
