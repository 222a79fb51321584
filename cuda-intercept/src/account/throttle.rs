//! Limits how often expensive work is done.
//!
//! # Decision: a charge that fails checks every process, every time
//! A program that waited for another to end must not be refused the memory that the other held. So a charge that
//! would fail looks for dead processes at that moment, and checks everyone whose end could make it fit: 0.2 us each,
//! about 15 us for 64 processes. Cheaper ways do not work:
//!
//! - To remember for a while that all are alive: wrong for a process that ends within that time.
//! - One query for many: a lock can show that *somebody* in a range is alive, but the question is whether *all* are.
//!   Each answer names one process, so it takes as many queries as there are processes.
//! - `kill(pid, 0)`: half the price, but wrong if the pid was reused.
//! - A word of each process that the kernel marks at its end: the kernel does so for threads (robust futexes, which
//!   must be in the C library's own list of locks), but not for a process whose memory was reaped before it ended.
//! - Descriptors of processes, polled by one call: see [`super::liveness`].
//! - A counter that the kernel takes back (`SEM_UNDO`, the attachments of a shared segment): an object beside the
//!   account, in another namespace, with its own limits, that somebody must remove.
//!
//! What can be saved is a scan that cannot help: where the charge would not fit even if this process were alone in
//! the account, and for processes that have nothing on the card.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// By how many milliseconds a query may be behind with dead processes that nobody waited for.
pub(super) const SCAN: u64 = 10;
/// How many milliseconds pass between full scans.
pub(super) const DEEP_SCAN: u64 = 1000;

/// Work that is done at most once in so many milliseconds, by the first thread that comes.
#[derive(Debug)]
pub(super) struct ScanThrottle {
    period: u64,
    /// When the work is next due, by the coarse clock.
    /// Written by: the thread that does the work. Read by: all that would do it. Relaxed: it hands nothing over.
    next: AtomicU64,
}

impl ScanThrottle {
    pub(super) const fn of(milliseconds: u64) -> Self {
        Self {
            period: milliseconds,
            next: AtomicU64::new(0),
        }
    }

    /// Whether the work is due. Only one of several callers gets true.
    pub(super) fn is_due(&self) -> bool {
        self.is_due_at(now())
    }

    fn is_due_at(&self, now: u64) -> bool {
        let next = self.next.load(Relaxed);
        let then = now.saturating_add(self.period);
        now >= next
            && (self.next)
                .compare_exchange(next, then, Relaxed, Relaxed)
                .is_ok()
    }
}

/// Milliseconds since the system started. The coarse clock needs no system call, and is up to 10 ms late.
pub(super) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is a time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(rest)
}

/// A number that changes whenever this process waits for a child that has ended: what its children cost. A program
/// that has seen a child end knows that the child's memory is free.
pub(super) fn children() -> u64 {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the place is that of a `rusage`.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: the call succeeded and so has filled it.
    let usage = unsafe { usage.assume_init() };
    let counts = [usage.ru_minflt, usage.ru_nvcsw, usage.ru_nivcsw];
    counts
        .into_iter()
        .fold(0, |sum: u64, count| sum.wrapping_add(count.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_time_once_in_each_period() {
        let pace = ScanThrottle::of(10);
        let due: Vec<u64> = (100..130).filter(|now| pace.is_due_at(*now)).collect();
        assert_eq!(due, [100, 110, 120]);
        assert!(
            pace.is_due() && !pace.is_due(),
            "the clock goes on from there"
        );
    }

    #[test]
    fn a_child_that_was_waited_for_is_noticed() {
        let before = children();
        std::process::Command::new("true")
            .status()
            .expect("true runs");
        assert_ne!(children(), before);
    }
}
