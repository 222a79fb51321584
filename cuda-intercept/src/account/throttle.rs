//! How often something that costs is done at most.
//!
//! # Decision: a charge that fails asks about each process, each time
//! A program that has waited for another, and is then refused memory which that one held, is refused wrongly. So a
//! charge that would fail looks for the dead at that moment, and at everyone whose end could make it fit: 0.2 us each,
//! some 15 us of 64 processes. What would be cheaper:
//!
//! - to remember for a while that all live: wrong for a process that ends within that while;
//! - one question for many: a lock says that *somebody* of a range lives, and what is wanted is whether *all* do. Each
//!   answer names one process, so it takes as many questions as there are processes;
//! - `kill(pid, 0)`: half the price, and wrong where the pid was used again;
//! - a word of each process that the kernel marks at its end: it does so for threads (robust futexes, which the C
//!   library's own list of locks must hold), and not for one whose memory was reaped before it ended;
//! - descriptors of processes, polled by one call: see [`super::liveness`];
//! - a counter that the kernel takes back (`SEM_UNDO`, the attachments of a shared segment): an object beside the
//!   account, of another namespace, with limits of its own, that somebody must remove.
//!
//! What is left is not to look where nothing could come of it: where the charge would not fit into the account if this
//! process were alone there, and at processes that have nothing on the card.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Something that is done at most once in so many milliseconds, by whichever thread comes first.
#[derive(Debug)]
pub(super) struct ScanThrottle {
    period: u64,
    /// When it may be done again, by the coarse clock.
    /// Written by: who does it. Read by: whoever would. Relaxed: nothing is handed over by it.
    next: AtomicU64,
}

impl ScanThrottle {
    pub(super) const fn of(milliseconds: u64) -> Self {
        Self {
            period: milliseconds,
            next: AtomicU64::new(0),
        }
    }

    /// Whether it is time, for one of all who ask.
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

/// Milliseconds since the system started. The coarse clock is read without a system call, and is up to 10 ms late.
fn now() -> u64 {
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
/// that has seen a child end knows that its memory is free.
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
