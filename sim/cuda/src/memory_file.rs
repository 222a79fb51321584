//! The bytes of virtual memory: files without a path. A file's name contains the machine's name of the memory. An
//! importer gets only a descriptor and finds the memory by this name.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use apportion_sim_machine::EXPORTED;

use crate::error::{CudaError, INVALID_VALUE, OPERATING_SYSTEM, OUT_OF_MEMORY, UNKNOWN};

/// The prefix of a file's name.
const FILE_PREFIX: &str = "apportion-sim-";

/// Creates a file of `bytes` bytes. A page is backed when it is touched.
pub(crate) fn create(name: u64, bytes: u64) -> Result<OwnedFd, CudaError> {
    let title = CString::new(format!("{FILE_PREFIX}{name}")).map_err(|_| UNKNOWN)?;
    // SAFETY: the title is a C string that lives for the call.
    let fd = unsafe { libc::memfd_create(title.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OPERATING_SYSTEM);
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let file = fs::File::from(file);
    file.set_len(bytes).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// The memory that a descriptor of another process names, and a descriptor of our own.
pub(crate) fn open(fd: RawFd) -> Result<(u64, OwnedFd), CudaError> {
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| INVALID_VALUE)?;
    let link = link.to_str().ok_or(INVALID_VALUE)?;
    let title = link
        .strip_prefix("/memfd:")
        .and_then(|rest| rest.strip_prefix(FILE_PREFIX));
    let name = title
        .and_then(|title| title.split(' ').next())
        .and_then(|name| name.parse().ok());
    // A separate open file: the exporter's one keeps the memory alive for as long as it is open.
    let file = again(fd)?;
    name.map(|name| (name, file)).ok_or(INVALID_VALUE)
}

/// Opens the same memory again.
fn again(fd: RawFd) -> Result<OwnedFd, CudaError> {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{fd}"));
    Ok(file.map_err(|_| INVALID_VALUE)?.into())
}

/// A descriptor for other processes. It holds a lock, by which the machine sees that it is still open.
pub(crate) fn export(file: RawFd) -> Result<OwnedFd, CudaError> {
    let descriptor = again(file)?;
    let (start, bytes) = EXPORTED;
    // SAFETY: zeroes are a valid value of a structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    (lock.l_start, lock.l_len) = (start, bytes);
    // SAFETY: the kernel reads the lock, and the descriptor is open.
    let marked = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    match marked {
        0 => Ok(descriptor),
        _ => Err(OPERATING_SYSTEM),
    }
}
