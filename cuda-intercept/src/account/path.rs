//! Paths without heap allocations, because this code runs inside other people's programs.

use core::ffi::CStr;

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
