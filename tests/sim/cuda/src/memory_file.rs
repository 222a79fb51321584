//! The bytes of virtual memory: files without a path. A file's name carries what the machine calls the
//! memory; that is how an importer, which gets nothing but a descriptor, finds it.

use std::ffi::CString;
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::error::{Error, INVALID_VALUE, OPERATING_SYSTEM, OUT_OF_MEMORY, UNKNOWN};

/// The part of a file's name before the memory's own.
const FILE_PREFIX: &str = "apportion-sim-";

/// A file of that many bytes, none of them there until it is touched.
pub(crate) fn create(name: u64, bytes: u64) -> Result<OwnedFd, Error> {
    let title = CString::new(format!("{FILE_PREFIX}{name}")).map_err(|_| UNKNOWN)?;
    // SAFETY: the title is a C string that lives for the call.
    let fd = unsafe { libc::memfd_create(title.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OPERATING_SYSTEM);
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let file = fs::File::from(file);
    file.set_len(bytes).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// What a descriptor of another process's memory file names, and a descriptor of our own.
pub(crate) fn open(fd: RawFd) -> Result<(u64, OwnedFd), Error> {
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| INVALID_VALUE)?;
    let link = link.to_str().ok_or(INVALID_VALUE)?;
    let title = link
        .strip_prefix("/memfd:")
        .and_then(|rest| rest.strip_prefix(FILE_PREFIX));
    let name = title
        .and_then(|title| title.split(' ').next())
        .and_then(|name| name.parse().ok());
    // SAFETY: `fcntl` with F_DUPFD_CLOEXEC takes two integers and touches no memory of ours.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(copy) };
    name.map(|name| (name, file)).ok_or(INVALID_VALUE)
}
