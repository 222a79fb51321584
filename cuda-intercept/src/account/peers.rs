//! Identifies processes in the account, and tells which of them are dead.
//!
//! A pid alone does not identify a process: pids are reused, and mean something else in another pid namespace. So a
//! process is identified by its pid, start time and namespace. A process that is not visible from here is never taken
//! for dead; the agent, which sees all, retires it.

use apportion_abi::account::ProcessRegistration;

use super::path::PathBuffer;
use crate::errno;

pub(super) fn own() -> ProcessRegistration {
    // SAFETY: the call cannot fail.
    let pid = unsafe { libc::getpid() };
    let pid = u32::try_from(pid).unwrap_or(1);
    ProcessRegistration {
        pid,
        start_time: read_stat(pid).map_or(0, |stat| stat.start_time),
        pid_namespace: namespace(),
    }
}

/// Whether both are the same process.
pub(super) fn is_same(one: ProcessRegistration, other: ProcessRegistration) -> bool {
    one == other && one.start_time != 0
}

/// Whether a process is in the pid namespace `here`, and so visible.
pub(super) const fn is_from(process: ProcessRegistration, here: u64) -> bool {
    process.pid_namespace != 0 && process.pid_namespace == here
}

/// Whether a process is certainly dead, as seen from the pid namespace `here`.
pub(super) fn is_dead(process: ProcessRegistration, here: u64) -> bool {
    if !is_from(process, here) {
        return false;
    }
    let Ok(pid) = i32::try_from(process.pid) else {
        return false;
    };
    // SAFETY: signal 0 only asks whether the process is there.
    let asked = unsafe { libc::kill(pid, 0) };
    if asked != 0 && errno::get() == libc::ESRCH {
        return true;
    }
    read_stat(process.pid).is_some_and(|stat| {
        let other = process.start_time != 0 && stat.start_time != process.start_time;
        stat.is_gone || other
    })
}

struct ProcStat {
    is_gone: bool,
    start_time: u64,
}

/// The contents of `/proc/<pid>/stat`.
fn read_stat(pid: u32) -> Option<ProcStat> {
    let mut digits = [0; 10];
    let mut folder = [0_u8; 32];
    let mut text = [0_u8; 1024];
    let folder = concatenate(&mut folder, &[b"/proc/", decimal(pid, &mut digits)?])?;
    let mut path = PathBuffer::default();
    parse(read(path.join(folder, "stat")?, &mut text)?)
}

fn parse(stat: &[u8]) -> Option<ProcStat> {
    // The second field is the program's name in parentheses. It may itself contain any character.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = stat.get(end..)?.split(|byte| *byte == b' ').skip(1);
    let state = fields.next()?.first()?;
    let threads = number(fields.nth(16)?)?;
    let start_time = number(fields.nth(1)?)?;
    // If the first thread has called `pthread_exit`, it is a zombie while the others continue.
    let is_gone = matches!(state, b'Z' | b'X' | b'x') && threads <= 1;
    Some(ProcStat {
        is_gone,
        start_time,
    })
}

/// The pid namespace of this process; 0 if unknown.
pub(super) fn namespace() -> u64 {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is a string and the buffer a `stat`.
    if unsafe { libc::stat(c"/proc/self/ns/pid".as_ptr(), status.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: the call succeeded and so has filled the buffer.
    unsafe { status.assume_init() }.st_ino
}

pub(super) fn read<'a>(path: &core::ffi::CStr, into: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path is a string.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: the buffer has that many bytes.
    let length = unsafe { libc::read(file, into.as_mut_ptr().cast(), into.len()) };
    // SAFETY: the file was opened above and is closed once.
    unsafe { libc::close(file) };
    into.get(..usize::try_from(length).ok()?)
}

pub(super) fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

pub(super) fn decimal(mut number: u32, digits: &mut [u8; 10]) -> Option<&[u8]> {
    let mut used = 0_usize;
    for place in digits.iter_mut().rev() {
        *place = b'0'.wrapping_add((number % 10) as u8);
        number /= 10;
        used = used.wrapping_add(1);
        if number == 0 {
            break;
        }
    }
    digits.get(digits.len().checked_sub(used)?..)
}

pub(super) fn concatenate<'a>(buffer: &'a mut [u8; 32], parts: &[&[u8]]) -> Option<&'a [u8]> {
    let mut end = 0_usize;
    for part in parts {
        let next = end.checked_add(part.len())?;
        buffer.get_mut(end..next)?.copy_from_slice(part);
        end = next;
    }
    buffer.get(..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives() {
        let own = own();
        assert_eq!(own.pid, std::process::id());
        assert!(own.start_time > 0 && own.pid_namespace > 0);
        assert!(!is_dead(own, namespace()));
    }

    #[test]
    fn a_pid_that_was_used_again_is_dead() {
        let mut earlier = own();
        earlier.start_time -= 1;
        assert!(is_dead(earlier, namespace()));
    }

    #[test]
    fn a_process_of_another_namespace_is_not_ours_to_judge() {
        let mut elsewhere = own();
        elsewhere.pid_namespace += 1;
        elsewhere.start_time -= 1;
        assert!(!is_dead(elsewhere, namespace()));
    }

    #[test]
    fn a_child_that_nobody_waited_for_is_dead() {
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("true runs");
        let started = read_stat(child.id()).expect("it is there").start_time;
        let who = ProcessRegistration {
            pid: child.id(),
            start_time: started,
            pid_namespace: namespace(),
        };
        let dead = (0..2000).any(|_| {
            std::thread::yield_now();
            is_dead(who, namespace()) || {
                std::thread::park_timeout(std::time::Duration::from_millis(1));
                false
            }
        });
        assert!(dead);
        child.wait().expect("it ended");
        assert!(is_dead(who, namespace()));
    }

    #[test]
    fn a_process_outlives_its_first_thread() {
        let stat = |threads| {
            let stat = format!("7 (a) b) Z 3 7 7 0 -1 1 2 3 4 5 6 7 8 9 20 0 {threads} 0 1234 0 0");
            parse(stat.as_bytes()).expect("it is whole")
        };
        assert!(!stat(4).is_gone && stat(1).is_gone);
        assert_eq!(stat(4).start_time, 1234);
    }

    #[test]
    fn numbers_are_written_and_read() {
        for value in [0, 7, 10, 4_294_967_295] {
            let mut digits = [0; 10];
            let text = decimal(value, &mut digits).expect("ten digits hold it");
            assert_eq!(number(text), Some(u64::from(value)));
        }
        assert_eq!(number(b"1x"), None);
    }
}
