//! A lock for a few instructions of bookkeeping.
//!
//! It is never held across a wait for the driver, the dynamic linker, a file or another process: a thread that is
//! cancelled in a system call would never release it. A thread that finds the lock taken spins a little, then yields,
//! then sleeps. The lock does not survive `fork`. The child abandons what it guards (see [`crate::process`]), so
//! nobody waits for a copy that was taken at the fork.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A value behind a spinning lock.
#[derive(Debug, Default)]
pub(crate) struct SpinLock<T> {
    /// Written by: threads that lock or unlock. Read by: threads that wait. Acquire/Release with the value.
    is_locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

#[derive(Debug)]
pub(crate) struct SpinGuard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            is_locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        let mut spins = 0_u32;
        while self
            .is_locked
            .compare_exchange_weak(false, true, Acquire, Relaxed)
            .is_err()
        {
            spins = spins.saturating_add(1);
            wait(spins);
        }
        SpinGuard(self)
    }

    /// The value, if the lock is free.
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let locked = (self.is_locked).compare_exchange(false, true, Acquire, Relaxed);
        locked.is_ok().then(|| SpinGuard(self))
    }
}

/// Repeats `attempt` until it succeeds; `None` after some seconds.
pub(crate) fn wait_for<T>(attempt: impl Fn() -> Option<T>) -> Option<T> {
    (1..PATIENCE.saturating_mul(16)).find_map(|spins| {
        let answer = attempt();
        if answer.is_none() {
            wait(spins);
        }
        answer
    })
}

/// After so many turns a waiting thread sleeps between attempts.
const PATIENCE: u32 = 64 * 64;

fn wait(spins: u32) {
    match spins {
        PATIENCE.. => sleep(20_000),
        // SAFETY: yielding has no preconditions.
        _ if spins.is_multiple_of(64) => drop(unsafe { libc::sched_yield() }),
        _ => core::hint::spin_loop(),
    }
}

/// Sleeps for less than a second. If a thread of a real-time class only yielded, a normal thread on the same processor
/// could never run to release the lock. The C library's sleep functions are cancellation points; the bare system call
/// is not.
pub(crate) fn sleep(nanoseconds: libc::c_long) {
    let errno_before = crate::errno::ErrnoGuard::now();
    let instant = libc::timespec {
        tv_sec: 0,
        tv_nsec: nanoseconds,
    };
    let nowhere = core::ptr::null_mut::<libc::timespec>();
    // SAFETY: the kernel only reads the time. The pointer for the remaining time is null, so it writes nothing.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const instant, nowhere) };
    drop(errno_before);
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so nobody else refers to the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, so nobody else refers to the value.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_addition_is_lost() {
        let sum = SpinLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *sum.lock() += 1));
            }
        });
        assert_eq!(*sum.lock(), 40_000);
    }
}
