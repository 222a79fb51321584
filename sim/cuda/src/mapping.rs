//! Address space: the only place that maps and unmaps the memory behind device pointers.

use std::os::fd::RawFd;
use std::ptr;

use crate::error::{CudaError, OUT_OF_MEMORY};

const LAZY: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// The flag for addresses that fit 32 bits. Only x86 has the API that needs it.
#[cfg(target_arch = "x86_64")]
const LOW: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const LOW: i32 = 0;

/// The driver's blocks are 2 MiB of aligned address space. Programs can see that small allocations share one.
const BLOCK: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// The content of a page that was never written.
const NOTHING: [u8; PAGE as usize] = [0; PAGE as usize];

/// Maps memory that is backed on first touch. A mapping that fills a block starts at a block boundary.
pub(crate) fn lazy(bytes: u64) -> Result<u64, CudaError> {
    let whole = bytes.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
    if whole < BLOCK {
        return map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, LAZY, -1);
    }
    let start = reserve(whole, BLOCK, 0)?;
    protect(start, whole, true, true)?;
    Ok(start)
}

/// The same within the reach of 32-bit pointers.
pub(crate) fn lazy_low(bytes: u64) -> Result<u64, CudaError> {
    map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, LAZY | LOW, -1)
}

/// Reserves addresses without memory, with the given alignment, at `wish` if that is free.
pub(crate) fn reserve(bytes: u64, alignment: u64, wish: u64) -> Result<u64, CudaError> {
    let room = bytes.checked_add(alignment).ok_or(OUT_OF_MEMORY)?;
    let base = map(wish, room, libc::PROT_NONE, LAZY, -1)?;
    let start = base.next_multiple_of(alignment.max(1));
    if start > base {
        unmap(base, start - base);
    }
    let end = start + bytes;
    if base + room > end {
        unmap(end, base + room - end);
    }
    Ok(start)
}

/// Turns mapped addresses back into a bare reservation.
pub(crate) fn clear(base: u64, bytes: u64) -> Result<(), CudaError> {
    map(base, bytes, libc::PROT_NONE, LAZY | libc::MAP_FIXED, -1).map(drop)
}

/// Maps a file into reserved addresses, without access rights.
pub(crate) fn place(base: u64, bytes: u64, fd: RawFd) -> Result<(), CudaError> {
    map(
        base,
        bytes,
        libc::PROT_NONE,
        libc::MAP_SHARED | libc::MAP_FIXED,
        fd,
    )
    .map(drop)
}

/// Maps a file anywhere, for reading and writing.
pub(crate) fn file(bytes: u64, fd: RawFd) -> Result<u64, CudaError> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map(0, bytes, access, libc::MAP_SHARED, fd)
}

/// Sets the access rights of addresses.
pub(crate) fn protect(base: u64, bytes: u64, read: bool, write: bool) -> Result<(), CudaError> {
    let read = if read { libc::PROT_READ } else { 0 };
    let write = if write { libc::PROT_WRITE } else { 0 };
    let at = ptr::with_exposed_provenance_mut(base as usize);
    // SAFETY: this module has mapped the range; changing its access is what the program asks for by
    // `cuMemSetAccess`.
    let rc = unsafe { libc::mprotect(at, bytes as usize, read | write) };
    if rc == 0 { Ok(()) } else { Err(OUT_OF_MEMORY) }
}

/// Removes a mapping. The program has freed it, so a later access is a bug of the program, as with the real driver.
pub(crate) fn unmap(base: u64, bytes: u64) {
    let at = ptr::with_exposed_provenance_mut(base as usize);
    // SAFETY: this module has mapped the range, and its owner has freed it.
    unsafe { libc::munmap(at, bytes as usize) };
}

/// Copies bytes. Device ends have been checked against the tables; for a host end the caller vouches.
pub(crate) fn copy(to: u64, from: u64, bytes: u64) {
    let to: *mut u8 = ptr::with_exposed_provenance_mut(to as usize);
    let from: *const u8 = ptr::with_exposed_provenance(from as usize);
    // SAFETY: the caller of the copy function promises that both ends are valid for so many bytes; `copy` allows
    // them to overlap.
    unsafe { ptr::copy(from, to, bytes as usize) };
}

/// Copies the pages that are not all zero into zeroed memory. Pages that were never touched stay untouched.
pub(crate) fn copy_written(to: u64, from: u64, bytes: u64) {
    for at in (0..bytes).step_by(PAGE as usize) {
        let page: *const u8 = ptr::with_exposed_provenance((from + at) as usize);
        // SAFETY: the range is a block that this module has mapped, in whole pages, and is readable.
        let page = unsafe { std::slice::from_raw_parts(page, PAGE as usize) };
        if page != NOTHING {
            copy(to + at, from + at, PAGE);
        }
    }
}

/// Writes a pattern `times` times.
pub(crate) fn fill(at: u64, pattern: &[u8], times: u64) {
    let at: *mut u8 = ptr::with_exposed_provenance_mut(at as usize);
    if let [byte] = *pattern {
        // SAFETY: the range has been found in the tables, so it is mapped.
        return unsafe { ptr::write_bytes(at, byte, times as usize) };
    }
    for time in 0..times as usize {
        // SAFETY: the range has been found in the tables, so it is one mapping.
        let place = unsafe { at.add(time * pattern.len()) };
        // SAFETY: as above; the pattern is memory of our own and cannot overlap.
        unsafe { ptr::copy_nonoverlapping(pattern.as_ptr(), place, pattern.len()) };
    }
}

fn map(at: u64, bytes: u64, access: i32, flags: i32, fd: RawFd) -> Result<u64, CudaError> {
    let at = ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: without MAP_FIXED the kernel chooses free addresses; with it the range is part of a reservation of
    // this module.
    let base = unsafe { libc::mmap(at, bytes as usize, access, flags, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    Ok(base.expose_provenance() as u64)
}
