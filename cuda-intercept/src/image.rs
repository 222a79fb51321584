//! Reads code images, from an address that the program passes or from a file.
//!
//! An address comes without a length. So the kernel copies the bytes, and returns an error where nothing is mapped. A
//! program that passes a bad address gets the driver's answer. If a sandbox forbids that copy, the bytes are read
//! directly, as the driver will read them. A file is read and not mapped, because a mapped file that is truncated
//! meanwhile would crash the program.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_long};

use apportion_gate::image::{self, BUNDLE, CUBIN, ImageFootprint, WRAPPER};

use crate::errno;
use crate::foreign::Opaque;

/// Longer files are not read.
const LONGEST_FILE: usize = 256 << 20;
/// A file is read in pieces of this size.
const PIECE: usize = 1 << 20;

/// What the image at an address takes, as far as it can be read.
///
/// # Safety
/// If there is text, it must end with a zero byte, as the driver requires.
pub(crate) unsafe fn at(image: Opaque) -> Option<ImageFootprint> {
    if image.is_null() {
        return None;
    }
    let _errno = errno::ErrnoGuard::now();
    let start = image as u64;
    match first_word(&|at, into| copy(start, at, into))? {
        CUBIN => image::cubin(&|at, into| copy(start, at, into)),
        BUNDLE => image::bundle(&|at, into| copy(start, at, into)),
        WRAPPER => {
            let mut address = [0; 8];
            copy(start, 8, &mut address).then_some(())?;
            let start = u64::from_le_bytes(address);
            image::bundle(&|at, into| copy(start, at, into))
        }
        word if is_text(word) => {
            // SAFETY: the caller guarantees it.
            let text = unsafe { CStr::from_ptr(image.cast()) };
            Some(image::text(text.to_bytes()))
        }
        _ => None,
    }
}

/// What the image in a file takes.
///
/// # Safety
/// `path` must be null or a string.
pub(crate) unsafe fn in_file(path: *const c_char) -> Option<ImageFootprint> {
    if path.is_null() {
        return None;
    }
    let _errno = errno::ErrnoGuard::now();
    // SAFETY: the caller guarantees it.
    let file = unsafe { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let content = read_to_end(file);
    // SAFETY: the descriptor is our own.
    unsafe { libc::close(file) };
    of_content(&content?)
}

fn of_content(content: &[u8]) -> Option<ImageFootprint> {
    let read = |at: u64, into: &mut [u8]| {
        let start = usize::try_from(at).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(into.len())?));
        let found = range.and_then(|range| content.get(range));
        found.map(|found| into.copy_from_slice(found)).is_some()
    };
    match first_word(&read)? {
        CUBIN => image::cubin(&read),
        BUNDLE => image::bundle(&read),
        word if is_text(word) => Some(image::text(content)),
        _ => None,
    }
}

fn read_to_end(file: i32) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    while content.len() < LONGEST_FILE {
        content.try_reserve(PIECE).ok()?;
        let buffer = content.spare_capacity_mut();
        // SAFETY: the room is ours to write to.
        let read = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(read).ok()? {
            0 => return Some(content),
            // SAFETY: so many bytes were written behind the old end.
            more => unsafe { content.set_len(content.len().saturating_add(more)) },
        }
    }
    None
}

fn first_word(read: &image::Reader<'_>) -> Option<u32> {
    let mut word = [0; 4];
    read(0, &mut word).then(|| u32::from_le_bytes(word))
}

/// Whether a word is text. Nothing else that a driver accepts starts with four printable characters.
fn is_text(word: u32) -> bool {
    word.to_le_bytes()
        .iter()
        .all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

/// Copies from this process's memory; false if nothing is mapped there.
fn copy(start: u64, at: u64, into: &mut [u8]) -> bool {
    let Some(from) = start.checked_add(at) else {
        return false;
    };
    let local = [into.as_mut_ptr() as u64, into.len() as u64];
    let remote = [from, into.len() as u64];
    // SAFETY: the call cannot fail.
    let own = c_long::from(unsafe { libc::getpid() });
    let (to, of, one, no_flags): (_, _, c_long, c_long) = (local.as_ptr(), remote.as_ptr(), 1, 0);
    // SAFETY: both are lists of one range, the first of room that is ours; the kernel checks the other.
    let copied =
        unsafe { libc::syscall(libc::SYS_process_vm_readv, own, to, one, of, one, no_flags) };
    if usize::try_from(copied).is_ok_and(|copied| copied == into.len()) {
        return true;
    }
    if copied >= 0 || errno::get() == libc::EFAULT {
        return false;
    }
    // SAFETY: the program gave these bytes to the driver to read, and the room is ours.
    unsafe { core::ptr::copy(from as *const u8, into.as_mut_ptr(), into.len()) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_read_where_it_is() {
        let text = c".global .b8 table[1000];";
        // SAFETY: text ends with a zero byte.
        let found = unsafe { at(text.as_ptr() as Opaque) };
        assert_eq!(found.map(|image| image.variables), Some(1024));
        assert_eq!(found, of_content(text.to_bytes()));
    }

    #[test]
    fn an_address_with_nothing_there_is_no_image() {
        for address in [0, 8, usize::MAX - 2] {
            // SAFETY: no text is there.
            assert_eq!(unsafe { at(address as Opaque) }, None);
        }
        let mut wrapper = [0_u64; 2];
        wrapper[0] = u64::from(WRAPPER);
        // SAFETY: as above.
        assert_eq!(unsafe { at(wrapper.as_mut_ptr().cast()) }, None);
    }

    #[test]
    fn a_file_is_read_to_its_end() {
        let folder = tempfile::tempdir().expect("room");
        let path = folder.path().join("code.ptx");
        let text = "// nothing\n".repeat(PIECE / 5) + ".global .b8 table[1000];";
        std::fs::write(&path, &text).expect("it is writable");
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: it is a string.
        let found = unsafe { in_file(path.as_ptr()) };
        assert_eq!(found, Some(image::text(text.as_bytes())));
    }
}
