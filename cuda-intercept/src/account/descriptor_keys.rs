//! Keys on descriptors, by which two processes know that they share the same memory.
//!
//! Memory is shared by a descriptor that one process gets from the driver and hands to another, by a socket, by
//! inheritance or with `pidfd_getfd`. All of these are one open file description. Nothing else about it identifies
//! the memory, because all such descriptors may be of the same device. So the exporter marks the open file with a
//! read lock of one byte, whose position is the key. The kernel shows an open file's locks in `fdinfo` to every
//! process that has it open. Nobody waits for such a lock, and no driver looks at it.
//!
//! Where the kernel does not support this (before 4.1, or in some sandboxes), memory has no key and is not tracked.

use core::ffi::c_long;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use apportion_gate::{ExportedDescriptor, Inode};

use super::path::PathBuffer;
use super::peers::{concatenate, decimal, number, read};
use crate::errno;

/// Keys are positions in a file, so this is the largest.
const LARGEST: u64 = i64::MAX as u64 - 1;

/// A new key, unique with near certainty.
pub(super) fn fresh() -> u64 {
    /// Written by: processes that need a key where the kernel gives no random bytes. Relaxed: it only counts.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let _errno = errno::ErrnoGuard::now();
    let mut random = 0_u64;
    let place = (&raw mut random).cast::<u8>();
    // SAFETY: the kernel writes as many bytes as the variable has.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, place, size_of::<u64>(), 0) };
    if got != size_of::<u64>() as c_long {
        // SAFETY: the call cannot fail.
        let pid = u64::from(unsafe { libc::getpid() }.unsigned_abs());
        random = (pid << 32) | NEXT.fetch_add(1, Relaxed);
    }
    random & LARGEST
}

/// The inode that a descriptor is open on.
pub(crate) fn inode_of(descriptor: i32) -> Option<Inode> {
    let _errno = errno::ErrnoGuard::now();
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the buffer is a `stat`; a descriptor that is not open is an error.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded and so has filled the buffer.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

/// Opens the same file again. The new descriptor can see the keys on all others of this inode. That works for
/// devices, not for buffers.
pub(crate) fn open_again(descriptor: i32) -> Option<i32> {
    let _errno = errno::ErrnoGuard::now();
    let mut digits = [0; 10];
    let digits = decimal(u32::try_from(descriptor).ok()?, &mut digits)?;
    let name = core::str::from_utf8(digits).ok()?;
    let mut path = PathBuffer::default();
    let path = path.join(b"/proc/self/fd", name)?;
    // SAFETY: the path is a string.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    (file >= 0).then_some(file)
}

/// Whether any copy of a descriptor is open, in any process.
pub(crate) fn is_open(descriptor: ExportedDescriptor) -> bool {
    let probe = descriptor.probe.filter(|probe| is_ours(*probe, descriptor));
    match probe {
        Some(probe) => is_marked(probe, descriptor.key),
        None => find(descriptor.number) == Some(descriptor.key),
    }
}

/// Whether a probe is still ours. A program may have closed all descriptors that it did not know, and reused the
/// number.
fn is_ours(probe: i32, descriptor: ExportedDescriptor) -> bool {
    inode_of(probe) == Some(descriptor.inode)
}

pub(crate) fn close(descriptor: ExportedDescriptor) {
    let _errno = errno::ErrnoGuard::now();
    if let Some(probe) = descriptor.probe.filter(|probe| is_ours(*probe, descriptor)) {
        // SAFETY: it is ours, and nobody uses it any more.
        unsafe { libc::close(probe) };
    }
}

/// A lock of one byte.
fn lock_at(key: u64, kind: i32) -> Option<libc::flock> {
    // SAFETY: zeroes are a valid value of a structure of integers.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::try_from(key).ok()?;
    lock.l_len = 1;
    Some(lock)
}

/// Whether any other open file of the same inode has the key: its lock would conflict with a write lock.
fn is_marked(probe: i32, key: u64) -> bool {
    let _errno = errno::ErrnoGuard::now();
    let Some(mut lock) = lock_at(key, libc::F_WRLCK) else {
        return false;
    };
    let (file, command) = (c_long::from(probe), c_long::from(libc::F_OFD_GETLK));
    // SAFETY: the kernel reads and writes the lock.
    let asked = unsafe { libc::syscall(libc::SYS_fcntl, file, command, &raw mut lock) };
    asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}

/// Marks an open file with a key. False where that is not possible.
pub(super) fn mark(descriptor: i32, key: u64) -> bool {
    let _errno = errno::ErrnoGuard::now();
    let Some(lock) = lock_at(key, libc::F_RDLCK) else {
        return false;
    };
    let (file, command) = (c_long::from(descriptor), c_long::from(libc::F_OFD_SETLK));
    // The bare system call: the C library's function is a cancellation point.
    // SAFETY: the kernel reads the lock; a descriptor that is not open is an error.
    unsafe { libc::syscall(libc::SYS_fcntl, file, command, &raw const lock) == 0 }
}

/// The key on an open file.
pub(super) fn find(descriptor: i32) -> Option<u64> {
    let _errno = errno::ErrnoGuard::now();
    let mut digits = [0; 10];
    let mut file = [0_u8; 32];
    let mut text = [0_u8; 2048];
    let descriptor = decimal(u32::try_from(descriptor).ok()?, &mut digits)?;
    let folder = concatenate(&mut file, &[b"/proc/self/fdinfo"])?;
    let name = core::str::from_utf8(descriptor).ok()?;
    let mut path = PathBuffer::default();
    parse(read(path.join(folder, name)?, &mut text)?)
}

/// The position of the first lock that belongs to the open file and is one byte long.
fn parse(info: &[u8]) -> Option<u64> {
    let lines = info.split(|byte| *byte == b'\n');
    let mut locks = lines.filter(|line| line.starts_with(b"lock:") && holds(line, b" OFDLCK "));
    locks.find_map(|line| {
        let mut words = line.rsplit(|byte| *byte == b' ');
        let (end, start) = (number(words.next()?)?, number(words.next()?)?);
        (start == end).then_some(start)
    })
}

fn holds(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|here| here == word)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_key_stays_on_an_open_file_and_on_no_other_of_the_same_name() {
        let file = tempfile::NamedTempFile::new().expect("room");
        let key = fresh();
        assert_eq!(find(file.as_raw_fd()), None);
        assert!(mark(file.as_raw_fd(), key));
        let copy = file.as_file().try_clone().expect("it is open");
        assert_eq!(find(copy.as_raw_fd()), Some(key));
        let other = File::open(file.path()).expect("it is there");
        assert_eq!(find(other.as_raw_fd()), None);
        assert!(mark(other.as_raw_fd(), key ^ 1), "marks do not collide");
        drop(file);
        assert_eq!(find(copy.as_raw_fd()), Some(key));
    }

    #[test]
    fn a_key_is_seen_until_the_last_copy_is_closed() {
        let file = tempfile::tempfile().expect("room");
        let number = file.as_raw_fd();
        let (key, probe) = (fresh(), open_again(number));
        let descriptor = ExportedDescriptor {
            key,
            number,
            inode: inode_of(number).expect("it is open"),
            probe,
        };
        assert!(probe.is_some() && !is_open(descriptor));
        assert!(mark(number, key) && is_open(descriptor));
        let by_number = ExportedDescriptor {
            probe: None,
            ..descriptor
        };
        assert!(is_open(by_number));
        let copy = file.try_clone().expect("it is open");
        drop(file);
        assert!(is_open(descriptor) && !is_open(by_number));
        drop(copy);
        assert!(!is_open(descriptor));
        close(descriptor);
        assert!(!is_open(descriptor));
    }

    #[test]
    fn what_is_not_open_has_no_key() {
        assert!(!mark(-1, 1) && !mark(1000, 1));
        assert_eq!((find(-1), find(1000)), (None, None));
    }

    #[test]
    fn locks_of_a_program_are_no_keys() {
        let line =
            |kind: &str| format!("pos:\t0\nlock:\t1: {kind}  ADVISORY  READ -1 00:01:7 5 5\n");
        assert_eq!(parse(line("OFDLCK").as_bytes()), Some(5));
        assert_eq!(parse(line("POSIX").as_bytes()), None);
    }
}
