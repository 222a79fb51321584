//! A lock that lasts as long as this process, so that the others in the account know that it lives.
//!
//! Every process of the account has a read lock on one byte of the usage file, far beyond the file's end. The
//! position belongs to its record and generation alone. The lock belongs to an open file description of its own
//! (`F_OFD_SETLK`), and only a mapping keeps that open. So there is no descriptor that the program could close,
//! count, pass on, or find under a number that it believes is free. The kernel drops the lock with the mapping: when
//! the process ends for any reason, or executes another program. A child of `fork` does not get the mapping. To check
//! a process takes one `F_OFD_GETLK`, through a descriptor that is open only meanwhile: 0.2 us each, where
//! `/proc/PID/stat` takes 3 to 8.
//!
//! # Decision: no pid file descriptors
//! One `poll` with a pidfd for each process is quicker still (2 us for 64; this takes 15). But 64 processes with 63
//! descriptors each are too many for programs that count their descriptors, use `select`, or close what they do not
//! know. And if the program closes such a number and gets it again for its own file, we can neither poll nor close
//! it.
//!
//! # What the absence of a lock says
//! Only that the process itself must be checked. It may have no lock because it uses an earlier release of this
//! library, its file system has no such locks, or no descriptor was free at the time. Others cannot make a process
//! look dead. The file is the tenant's own, so a program can lock another's byte. That only makes a dead process look
//! alive to its own account, until the next full scan.

use core::ffi::{CStr, c_long, c_void};
use core::ptr::{NonNull, null_mut};

use crate::errno;

/// The position of the first byte, beyond anything that a file can hold.
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

/// The usage file, opened to check who holds a lock on it.
#[derive(Debug)]
pub(super) struct LivenessProbe(DescriptorGuard);

/// A descriptor, closed when dropped.
#[derive(Debug)]
pub(super) struct DescriptorGuard(c_long);

impl DescriptorGuard {
    /// Uses the bare system call, as all functions here: the C library's are cancellation points, and a cancelled
    /// thread would leak the descriptor.
    fn open(path: &CStr) -> Option<Self> {
        Self::open_with(path, libc::O_RDONLY)
    }

    pub(super) fn open_with(path: &CStr, flags: i32) -> Option<Self> {
        let (from, flags) = (
            c_long::from(libc::AT_FDCWD),
            c_long::from(flags | libc::O_CLOEXEC),
        );
        // SAFETY: the path is a string.
        let file = unsafe { libc::syscall(libc::SYS_openat, from, path.as_ptr(), flags, 0) };
        (file >= 0).then_some(Self(file))
    }

    /// Writes one byte, if that is possible without waiting.
    pub(super) fn write_byte(&self) {
        let byte = 0_u8;
        // SAFETY: the byte is readable.
        unsafe { libc::syscall(libc::SYS_write, self.0, &raw const byte, 1) };
    }

    /// Sets or queries a lock of one byte, and returns the kernel's lock type; `None` if the kernel refuses.
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
    /// Takes the lock of a number that no other process has; `None` if the system does not grant it now.
    pub(super) fn take(path: &CStr, number: u64) -> Option<Self> {
        let _errno = errno::ErrnoGuard::now();
        let file = DescriptorGuard::open(path)?;
        let descriptor = i32::try_from(file.0).ok()?;
        // SAFETY: a new mapping at an address that the kernel chooses, with no access rights.
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
        if advised != 0 {
            return None;
        }
        file.lock(libc::F_OFD_SETLK, libc::F_RDLCK, number)?;
        Some(line)
    }

    /// The number that the lock was taken for.
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
    /// Opens the file; `None` if that fails now.
    pub(super) fn open(path: &CStr) -> Option<Self> {
        DescriptorGuard::open(path).map(Self)
    }

    /// Whether the process of this number holds its lock.
    pub(super) fn is_held(&self, number: u64) -> bool {
        // A held lock would conflict with a write lock.
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

    /// How many descriptors of this process are open on a file.
    fn descriptors(path: &CStr) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").expect("it is mounted");
        let targets = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        targets
            .filter(|target| target.as_os_str().as_bytes() == path.to_bytes())
            .count()
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

    /// A sleeping shell stands for any program: it is forked and executed while the lock is held.
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
