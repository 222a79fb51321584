//! Which processes are of the account, by the pids that this process knows them by.
//!
//! A slot has the pid and the pid namespace of who entered it. A process of the reader's own namespace is
//! known by that pid. One of a namespace inside it (a container in a container) has another pid there, which
//! the kernel tells of processes that the reader may look at; where it does not, the process is nobody's.

use core::ffi::CStr;

use apportion_abi::account::ProcessRegistration;

use super::MappedAccount;
use super::path::PathBuffer;
use super::peers::{concatenate, decimal, namespace, number, read};
use crate::errno;

impl MappedAccount {
    /// Whether a process is of this account: this very one, or one that has a slot.
    pub(crate) fn has_process(&self, pid: u32) -> bool {
        let _kept = errno::ErrnoGuard::now();
        // SAFETY: the call cannot fail.
        if u32::try_from(unsafe { libc::getpid() }) == Ok(pid) {
            return true;
        }
        let here = namespace();
        let usage = self.usage.usage();
        let is = |pid, namespace| {
            let mut all = usage.processes().map(|process| process.registration);
            all.any(|one| is_known_by(one, pid, namespace))
        };
        if is(pid, here) {
            return true;
        }
        let mut all = usage.processes().map(|process| process.registration);
        all.any(|one| one.pid_namespace != here)
            && inside(pid).is_some_and(|(pid, namespace)| is(pid, namespace))
    }
}

/// Whether a slot is that of a pid in a namespace.
const fn is_known_by(one: ProcessRegistration, pid: u32, namespace: u64) -> bool {
    namespace != 0 && one.pid_namespace == namespace && one.pid == pid
}

/// The pid that a process has in its own namespace, and which that is.
fn inside(pid: u32) -> Option<(u32, u64)> {
    let mut digits = [0; 10];
    let mut folder = [0_u8; 32];
    let mut text = [0_u8; 4096];
    let folder = concatenate(&mut folder, &[b"/proc/", decimal(pid, &mut digits)?])?;
    let (mut namespace, mut status) = (PathBuffer::default(), PathBuffer::default());
    let namespace = inode(namespace.join(folder, "ns/pid")?)?;
    let pid = own_pid(read(status.join(folder, "status")?, &mut text)?)?;
    Some((pid, namespace))
}

/// The last of the pids that `/proc/<pid>/status` has after `NSpid:`.
fn own_pid(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let line = lines.find(|line| line.starts_with(b"NSpid:"))?;
    let last = line.rsplit(|byte| byte.is_ascii_whitespace()).next()?;
    u32::try_from(number(last)?).ok()
}

fn inode(path: &CStr) -> Option<u64> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is a string and the buffer a `stat`.
    if unsafe { libc::stat(path.as_ptr(), status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded and so has filled the buffer.
    Some(unsafe { status.assume_init() }.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_pid_is_the_process_s_own() {
        let status = b"Name:\tx\nPid:\t700\nNSpid:\t700\t31\t4\nNSpgid:\t1\n";
        assert_eq!(own_pid(status), Some(4));
        assert_eq!(own_pid(b"NSpid:\t700\n"), Some(700));
        assert_eq!(own_pid(b"Pid:\t700\n"), None);
    }

    #[test]
    fn a_process_that_may_be_looked_at_tells_its_namespace() {
        let own = std::process::id();
        assert_eq!(inside(own), Some((own, namespace())));
        assert_eq!(inside(u32::MAX), None);
    }

    #[test]
    fn a_pid_means_nothing_without_its_namespace() {
        let one = ProcessRegistration {
            pid: 7,
            start_time: 1,
            pid_namespace: 9,
        };
        assert!(is_known_by(one, 7, 9));
        assert!(!is_known_by(one, 7, 8) && !is_known_by(one, 8, 9));
        let unknown = ProcessRegistration {
            pid_namespace: 0,
            ..one
        };
        assert!(!is_known_by(unknown, 7, 0), "nothing is in no namespace");
    }
}
