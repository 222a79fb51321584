//! Descriptors of memory that guests made: open for as long as the driver's lock is on them, which can be seen
//! through another open file of the same memory.

use std::fs::File;
use std::os::fd::AsRawFd;

use apportion_sim_machine::{EXPORTED, Pid};

/// The descriptors that are open, as far as it is known, with the handles of their memory.
#[derive(Default)]
pub(crate) struct OpenDescriptors(Vec<(u64, File)>);

impl OpenDescriptors {
    /// Enters one by its number in a process. False if it cannot be seen from here.
    pub(crate) fn enter(&mut self, pid: Pid, handle: u64, descriptor: i32) -> bool {
        let file = File::open(format!("/proc/{pid}/fd/{descriptor}"));
        file.map(|file| self.0.push((handle, file))).is_ok()
    }

    /// Calls `closed` for all that are closed by now.
    pub(crate) fn look(&mut self, mut closed: impl FnMut(u64)) {
        let over = self.0.extract_if(.., |(_, file)| !is_locked(file));
        over.for_each(|(handle, _)| closed(handle));
    }
}

/// Whether the lock of any open file would stand in the way of another.
fn is_locked(file: &File) -> bool {
    // SAFETY: zeroes are a valid value of a structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    (lock.l_start, lock.l_len) = EXPORTED;
    // SAFETY: the kernel reads and writes the lock, and the file is open.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}
