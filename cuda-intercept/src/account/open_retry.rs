//! Waits until the agent has opened the account to this process.
//!
//! Only its user can open an account. A program that was started as another user (`setpriv`, `su`, `runuser`) can
//! open it after the agent has seen the process. The agent looks for new processes once a second.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use apportion_abi::account::AccountOpenError;

/// The number of retries in the whole life of the process.
const LOOKS: u32 = 150;
/// The pause between retries, in nanoseconds.
const PAUSE: libc::c_long = 20_000_000;

/// The retries that are left.
/// Written by: threads that wait. Read by: the same. Relaxed: it only bounds the time.
static LEFT: AtomicU32 = AtomicU32::new(LOOKS);

/// Retries while the kernel denies this user access, for about three seconds in all.
pub(super) fn wait<T>(
    mut open: impl FnMut() -> Result<T, AccountOpenError>,
) -> Result<T, AccountOpenError> {
    loop {
        match open() {
            Err(AccountOpenError::System("open", libc::EACCES)) if take() => pause(),
            outcome => return outcome,
        }
    }
}

/// Whether a file could not be opened because it does not exist.
pub(super) fn is_absence(problem: AccountOpenError) -> bool {
    matches!(
        problem,
        AccountOpenError::System("open", libc::ENOENT | libc::ENOTDIR)
    )
}

fn take() -> bool {
    LEFT.fetch_update(Relaxed, Relaxed, |left: u32| left.checked_sub(1))
        .is_ok()
}

fn pause() {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: PAUSE,
    };
    // SAFETY: the time is valid, and the remaining time is not requested.
    unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_the_user_is_waited_for_and_not_for_ever() {
        let tries = |error: AccountOpenError, succeeds_at: u32| {
            let mut tries = 0;
            let outcome = wait(|| {
                tries += 1;
                if tries == succeeds_at {
                    Ok(())
                } else {
                    Err(error)
                }
            });
            (outcome.is_ok(), tries)
        };
        let refused = AccountOpenError::System("open", libc::EACCES);
        assert_eq!(
            tries(AccountOpenError::System("open", libc::ENOENT), 2),
            (false, 1)
        );
        assert_eq!(tries(refused, 3), (true, 3));
        LEFT.store(2, Relaxed);
        assert_eq!(tries(refused, 9), (false, 3));
        assert_eq!(tries(refused, 9), (false, 1));
    }
}
