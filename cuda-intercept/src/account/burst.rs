//! Asks the agent for a larger allowance when a charge of an elastic share does not fit.
//!
//! Nothing here runs before a charge was refused, and nothing in a share whose limit is its guarantee. A program that
//! asks holds no lock of this library, uses no memory of the heap, and waits with a futex, for a bounded time. It looks
//! every [`PROBE_EVERY`] whether an agent still listens: a busy agent is waited for longer than an absent one, because a
//! refusal ends many programs. If there is no answer, the program is refused as on a full card, and asks again after
//! [`SILENCE`] at the earliest. A signal ends no wait; a fork ends it in the child as everything else: the child has only
//! the calling thread, which does not wait.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use apportion_abi::account::{AccountOpenError, BurstMap, BurstTicket, CardBurst, LimitsMap};
use apportion_abi::{Bytes, paths};

use super::open_retry::is_absence;
use super::path::{PathBuffer, environment};
use super::throttle;
use super::wake::{is_listened_to, wake_agent};

/// For how many milliseconds nobody asks after there was no answer.
const SILENCE: u64 = 1000;
/// How long one wait lasts, in nanoseconds, before it is checked that an agent listens.
pub(super) const PROBE_EVERY: u64 = 250_000_000;

/// The `burst` file of the account, and its FIFO.
#[derive(Debug)]
pub(super) struct BurstRequests {
    map: BurstMap,
    /// The path of the FIFO.
    wake: PathBuffer,
    /// Whether memory queries show what is guaranteed, instead of what could be had.
    pub(super) shows_guarantee: bool,
    /// Until when nobody asks, by the coarse clock.
    /// Written by: a charge that got no answer. Read by: charges that were refused. Relaxed: it hands nothing over.
    silent_until: AtomicU64,
}

impl BurstRequests {
    /// `None` for a share that is not elastic, and in a container that does not have the file: it keeps the allowance
    /// that it has.
    pub(super) fn open(
        folder: &[u8],
        limits: &LimitsMap,
    ) -> Result<Option<Self>, AccountOpenError> {
        if !limits.has_burst() {
            return Ok(None);
        }
        let mut wake = PathBuffer::default();
        let path = wake.join(folder, paths::BURST_FILE);
        let map = match BurstMap::open(path.ok_or(AccountOpenError::NotAnAccount)?) {
            Err(problem) if is_absence(problem) => return Ok(None),
            map => map?,
        };
        if !map.fits(limits) {
            return Err(AccountOpenError::NotAnAccount);
        }
        let mut wake = PathBuffer::default();
        wake.join(folder, paths::WAKE_FIFO);
        let shown = environment(paths::ENV_MEMORY_INFO);
        Ok(Some(Self {
            map,
            wake,
            shows_guarantee: shown == Some(paths::INFO_GUARANTEED.as_bytes()),
            silent_until: AtomicU64::new(0),
        }))
    }

    /// The card's words, if its limit is above its guarantee.
    pub(super) fn card(&self, card: usize) -> Option<(&CardBurst, Bytes)> {
        let words = self.map.cards().get(card)?;
        Some((words, words.guaranteed()?))
    }

    /// Asks for an allowance, and waits for the answer. Returns whether there was one. The caller must tell when the
    /// request is over.
    pub(super) fn ask(&self, words: &CardBurst, wanted: Bytes, deadline: u64) -> bool {
        let ticket = words.ask(wanted);
        let is_answered = self.wake_and_wait(words, ticket, deadline);
        if !is_answered {
            let until = throttle::now().saturating_add(SILENCE);
            self.silent_until.store(until, Relaxed);
        }
        is_answered
    }

    /// Wakes the agent and waits for its answer, until the deadline, or until no agent listens at the end of a probe. One
    /// that is restarted has that long to come back. Returns whether there was an answer.
    fn wake_and_wait(&self, words: &CardBurst, ticket: BurstTicket, deadline: u64) -> bool {
        let Some(path) = self.wake.get() else {
            return false;
        };
        loop {
            wake_agent(path);
            let now = nanoseconds();
            if wait(words, ticket, deadline.min(now.saturating_add(PROBE_EVERY))) {
                return true;
            }
            if nanoseconds() >= deadline || !is_listened_to(path) {
                return words.is_answered(ticket);
            }
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        throttle::now() < self.silent_until.load(Relaxed)
    }
}

/// Waits for an answer until the deadline. Returns whether there was one.
fn wait(words: &CardBurst, ticket: BurstTicket, deadline: u64) -> bool {
    loop {
        if words.is_answered(ticket) {
            return true;
        }
        let left = deadline.saturating_sub(nanoseconds());
        if left == 0 {
            return false;
        }
        words.wait(ticket, libc::c_long::try_from(left).unwrap_or(0));
    }
}

/// Nanoseconds since the system started.
pub(super) fn nanoseconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is a time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
