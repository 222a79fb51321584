//! How long shares that sleep when they are idle have not been used, and who is to wake.
//!
//! # Decision: a share that is woken soon stays awake longer
//! A program that calls a little less often than the share's time would move its memory to and fro. So if it slept for
//! less than that time, the next sleep comes after twice the time, and so on up to an hour. The same holds for a share that
//! could not be put to sleep.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use apportion_ledger::AllocationId;

use crate::processes::threads::WakefulThreads;

/// The longest time after which a share is put to sleep because it was woken soon before. A longer one that it asks for is
/// kept.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The shares that sleep when they are idle.
#[derive(Default)]
pub(super) struct IdleShares {
    pub(super) watches: BTreeMap<AllocationId, IdleWatch>,
}

/// What is known about one of them.
pub(super) struct IdleWatch {
    /// When a use of the GPU was last seen.
    pub(super) used: Instant,
    /// How long it must not be used before it is put to sleep.
    pub(super) wait: Duration,
    /// Threads that must be seen elsewhere before that.
    pub(super) wakeful: Option<WakefulThreads>,
    /// Since when it sleeps.
    pub(super) asleep: Option<Instant>,
    /// Since when it is to wake.
    pub(super) called: Option<Instant>,
    /// Whether its memory was not free then.
    pub(super) has_waited: bool,
    /// Whether it was said why it is not put to sleep.
    pub(super) is_reported: bool,
}

impl IdleWatch {
    pub(super) fn new(wait: Duration) -> Self {
        Self {
            used: Instant::now(),
            wait,
            wakeful: None,
            asleep: None,
            called: None,
            has_waited: false,
            is_reported: false,
        }
    }

    pub(super) fn use_now(&mut self) {
        self.used = Instant::now();
        self.wakeful = None;
    }

    /// Notes that it runs. Returns whether it slept until now.
    pub(super) fn wake_up(&mut self, idle_after: Duration) {
        self.called = None;
        if let Some(since) = self.asleep.take() {
            if since.elapsed() < idle_after {
                self.wait_longer(idle_after)
            } else {
                self.wait = idle_after
            }
            self.use_now();
        }
    }

    pub(super) fn wait_longer(&mut self, idle_after: Duration) {
        let longest = LONGEST_WAIT.max(idle_after);
        self.wait = self.wait.saturating_mul(2).min(longest);
        self.use_now();
    }
}

impl IdleShares {
    /// Those that are to wake, in the order in which they were called.
    pub(super) fn called(&self) -> Vec<AllocationId> {
        let called = self.watches.iter();
        let mut called: Vec<_> = called
            .filter_map(|(id, watch)| Some((watch.called?, id.clone())))
            .collect();
        called.sort();
        called.into_iter().map(|(_, id)| id).collect()
    }

    /// Those that have not been used for long enough.
    pub(super) fn due(&self) -> Vec<AllocationId> {
        let idle = |watch: &IdleWatch| watch.asleep.is_none() && watch.used.elapsed() >= watch.wait;
        let due = self.watches.iter().filter(|(_, watch)| idle(watch));
        due.map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_woken_soon_waits_twice_as_long_and_no_longer_than_an_hour() {
        let idle_after = Duration::from_secs(600);
        let mut watch = IdleWatch::new(idle_after);
        let mut waits = Vec::new();
        for _ in 0..5 {
            watch.asleep = Some(Instant::now());
            watch.wake_up(idle_after);
            waits.push(watch.wait.as_secs());
        }
        assert_eq!(waits, [1200, 2400, 3600, 3600, 3600]);
        watch.asleep = Instant::now().checked_sub(idle_after * 2);
        if watch.asleep.is_some() {
            watch.wake_up(idle_after);
            assert_eq!(watch.wait, idle_after, "it slept long enough");
        }
        let mut long = IdleWatch::new(LONGEST_WAIT * 4);
        long.wait_longer(LONGEST_WAIT * 4);
        assert_eq!(long.wait, LONGEST_WAIT * 4);
    }
}
