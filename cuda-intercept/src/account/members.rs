//! Which processes are in the account, by the pids that this process sees.
//!
//! A record holds the pid and the pid namespace of the process that registered it. If that is the reader's own
//! namespace, the pids are the same. A process in a namespace inside it (a container in a container) has another pid
//! there. The kernel reveals that pid for processes that the reader may inspect. Without it, the process counts as
//! unknown.

use core::ffi::CStr;

use apportion_abi::account::ProcessRegistration;

use super::MappedAccount;
use super::path::PathBuffer;
use super::peers::{concatenate, decimal, namespace, number, read};
use crate::errno;

impl MappedAccount {
    /// Whether a process is in this account: this process itself, or one that has a record.
    pub(crate) fn has_process(&self, pid: u32) -> bool {
        let _errno = errno::ErrnoGuard::now();
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

/// Whether a record is that of a pid in a namespace.
const fn is_known_by(one: ProcessRegistration, pid: u32, namespace: u64) -> bool {
    namespace != 0 && one.pid_namespace == namespace && one.pid == pid
}

/// A process's pid in its own pid namespace, and that namespace.
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

/// The last pid in the `NSpid:` line of `/proc/<pid>/status`.
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
