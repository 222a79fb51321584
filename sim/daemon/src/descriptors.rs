//! Memory descriptors of client processes. A descriptor is open as long as it holds the driver's lock, which is visible
//! through another open file of the same memory.

use std::fs::File;
use std::os::fd::AsRawFd;

use apportion_sim_machine::{EXPORTED, Pid};

/// The descriptors that were open at the last check, with the handles of their memory.
#[derive(Default)]
pub(crate) struct OpenDescriptors(Vec<(u64, File)>);

impl OpenDescriptors {
    /// Adds a descriptor by its number in a process. False if it cannot be opened from here.
    pub(crate) fn enter(&mut self, pid: Pid, handle: u64, descriptor: i32) -> bool {
        let file = File::open(format!("/proc/{pid}/fd/{descriptor}"));
        file.map(|file| self.0.push((handle, file))).is_ok()
    }

    /// Calls `closed` for all that have been closed, and forgets them.
    pub(crate) fn scan(&mut self, mut closed: impl FnMut(u64)) {
        let over = self.0.extract_if(.., |(_, file)| !is_locked(file));
        over.for_each(|(handle, _)| closed(handle));
    }
}

/// Whether any open file holds the lock.
fn is_locked(file: &File) -> bool {
    // SAFETY: zeroes are a valid value of a structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    (lock.l_start, lock.l_len) = EXPORTED;
    // SAFETY: the kernel reads and writes the lock, and the file is open.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}
