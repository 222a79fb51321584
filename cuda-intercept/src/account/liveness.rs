//! A lock that lasts as long as this process: how the others in the account know that it lives.
//!
//! Every process of the account has a read lock on one byte of the usage file, far beyond its end, at a position that
//! is its slot's and generation's alone. The lock belongs to an open file of its own (`F_OFD_SETLK`), and a mapping
//! is all that holds that file open: no descriptor is left that the program could close, count, pass on or meet under
//! a number that it thinks free. The kernel drops the lock with the mapping, when the process ends, however it does,
//! or executes another program; a child of `fork` does not get the mapping. Asking is one `F_OFD_GETLK` for each
//! process, through a descriptor that is open only meanwhile: 0.2 us each, where `/proc/PID/stat` takes 3 to 8.
//!
//! # Decision: no pid file descriptors
//! One `poll` of a pidfd for each process is quicker still (2 us for 64, this takes 15). But 64 processes with 63
//! descriptors each are a lot for programs that count theirs, use `select`, or close what they do not know; and a
//! number that the program has closed and got again for a file of its own can neither be polled nor closed by us.
//!
//! # What the absence of a lock says
//! Only that it is worth a look at the process itself, which may have no lock: an earlier release of this library, a
//! file system without such locks, no descriptor left at the time. Others cannot make a process look dead, and who
//! locks the byte of another (the file is the tenant's own) only makes it look alive to its own account, until the
//! next look at the processes themselves.

use core::ffi::{CStr, c_long, c_void};
use core::ptr::{NonNull, null_mut};

use crate::errno;

/// Where the bytes begin: beyond whatever a file can hold.
const FIRST: u64 = 1 << 62;
/// The mapping is never read or written; any length will do.
const LENGTH: usize = 1;

/// This process's own lock, dropped with the mapping.
#[derive(Debug)]
pub(super) struct LivenessLock {
    mapping: NonNull<c_void>,
    number: u64,
}

// SAFETY: the mapping belongs to no thread, and nobody looks into it.
unsafe impl Send for LivenessLock {}

/// The usage file, open to ask who has a lock on it.
#[derive(Debug)]
pub(super) struct LivenessProbe(DescriptorGuard);

/// A descriptor, closed when dropped.
#[derive(Debug)]
struct DescriptorGuard(c_long);

impl DescriptorGuard {
    /// The bare calls here and below: the C library's are points at which a thread can be cancelled, and would
    /// take the descriptor along.
    fn open(path: &CStr) -> Option<Self> {
        let (from, flags) = (
            c_long::from(libc::AT_FDCWD),
            c_long::from(libc::O_RDONLY | libc::O_CLOEXEC),
        );
        // SAFETY: the path is a string.
        let file = unsafe { libc::syscall(libc::SYS_openat, from, path.as_ptr(), flags, 0) };
        (file >= 0).then_some(Self(file))
    }

    /// Sets, or asks after, a lock of one byte. What the kernel says of it; `None` if it refuses.
    fn lock(&self, command: i32, kind: i32, number: u64) -> Option<i32> {
        // SAFETY: zeroes are a valid value of a structure of integers.
        let mut lock: libc::flock = unsafe { core::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = libc::off_t::try_from(FIRST.checked_add(number)?).ok()?;
        lock.l_len = 1;
        let command = c_long::from(command);
        // SAFETY: the kernel reads and writes the lock.
        let done = unsafe { libc::syscall(libc::SYS_fcntl, self.0, command, &raw mut lock) };
        (done == 0).then_some(i32::from(lock.l_type))
    }
}

impl Drop for DescriptorGuard {
    fn drop(&mut self) {
        // SAFETY: the descriptor was opened by `open` and is closed once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

impl LivenessLock {
    /// Takes the lock of a number that no other process has; `None` where the system does not give it now.
    pub(super) fn take(path: &CStr, number: u64) -> Option<Self> {
        let _kept = errno::ErrnoGuard::now();
        let file = DescriptorGuard::open(path)?;
        let descriptor = i32::try_from(file.0).ok()?;
        // SAFETY: a new mapping at an address of the kernel's choice, which nobody can look into.
        let mapping = unsafe {
            libc::mmap(
                null_mut(),
                LENGTH,
                libc::PROT_NONE,
                libc::MAP_SHARED,
                descriptor,
                0,
            )
        };
        let mapping = NonNull::new(mapping).filter(|at| at.as_ptr() != libc::MAP_FAILED)?;
        let line = Self { mapping, number };
        // SAFETY: the mapping is the one above.
        let advised = unsafe { libc::madvise(mapping.as_ptr(), LENGTH, libc::MADV_DONTFORK) };
        let is_locked = || {
            file.lock(libc::F_OFD_SETLK, libc::F_RDLCK, number)
                .is_some()
        };
        (advised == 0 && is_locked()).then_some(line)
    }

    /// The number that it was taken for.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `take` and is given up once.
        unsafe { libc::munmap(self.mapping.as_ptr(), LENGTH) };
    }
}

impl LivenessProbe {
    /// Opens the file; `None` where that cannot be done now.
    pub(super) fn open(path: &CStr) -> Option<Self> {
        DescriptorGuard::open(path).map(Self)
    }

    /// Whether the process of this number has its lock.
    pub(super) fn is_held(&self, number: u64) -> bool {
        // It would stand in the way of a write lock.
        let asked = self.0.lock(libc::F_OFD_GETLK, libc::F_WRLCK, number);
        asked.is_some_and(|kind| kind != libc::F_UNLCK)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn file() -> (tempfile::NamedTempFile, CString) {
        let file = tempfile::NamedTempFile::new().expect("room");
        let path = CString::new(file.path().as_os_str().as_bytes()).expect("paths hold no zero");
        (file, path)
    }

    /// How many descriptors this process has on a file.
    fn descriptors(path: &CStr) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").expect("it is mounted");
        let targets = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let here = |target: &std::path::PathBuf| target.as_os_str().as_bytes() == path.to_bytes();
        targets.filter(here).count()
    }

    #[test]
    fn it_is_held_for_its_number_until_it_is_dropped_and_leaves_no_descriptor() {
        let (file, path) = file();
        let asked = LivenessProbe::open(&path).expect("it is there");
        let before = descriptors(&path);
        let line = LivenessLock::take(&path, 7).expect("the kernel has such locks");
        let other = LivenessLock::take(&path, 7).expect("nobody keeps anybody out");
        assert_eq!(descriptors(&path), before);
        assert!(asked.is_held(7) && !asked.is_held(6) && !asked.is_held(8));
        drop(other);
        assert!(asked.is_held(7));
        drop(line);
        assert!(!asked.is_held(7));
        drop(file);
    }

    #[test]
    fn what_is_not_there_has_none() {
        assert!(LivenessLock::take(c"/nowhere/usage", 1).is_none());
        assert!(LivenessProbe::open(c"/nowhere/usage").is_none());
    }

    /// A shell that sleeps stands for any program: it was forked and executed while the lock was held.
    #[test]
    fn a_program_that_is_started_does_not_hold_it() {
        let (_file, path) = file();
        let asked = LivenessProbe::open(&path).expect("it is there");
        let line = LivenessLock::take(&path, 1).expect("the kernel has such locks");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep is there");
        drop(line);
        assert!(!asked.is_held(1));
        child.kill().expect("it runs");
        child.wait().expect("it ended");
    }

    /// A child of `fork` that executes nothing.
    #[test]
    fn a_child_does_not_hold_it() {
        let (_file, path) = file();
        let asked = LivenessProbe::open(&path).expect("it is there");
        let line = LivenessLock::take(&path, 1).expect("the kernel has such locks");
        // SAFETY: the child only waits, which it may after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: it waits until it is killed.
            unsafe { libc::pause() };
            // SAFETY: it leaves at once.
            unsafe { libc::_exit(0) };
        }
        drop(line);
        assert!(!asked.is_held(1));
        // SAFETY: the child is ours.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: nowhere is a place that it accepts.
        unsafe { libc::waitpid(child, null_mut(), 0) };
    }
}
