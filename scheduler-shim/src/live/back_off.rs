//! Back-off: until when a pod waits before its next try.
//!
//! Each pod has its own delay, which doubles with each failure up to a minute. Failures of other pods do not count.
//! During a short delay the pod keeps its turn: the room that evictions made for it stays its own, and nobody is
//! evicted for it again. A pod that fails more often lets others pass.

use std::collections::BTreeMap;
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Up to this delay a pod keeps its turn.
const SHORT: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug)]
struct BackOffDelay {
    until: Duration,
    length: Duration,
}

/// Delays by pod UID.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackOff(BTreeMap<String, BackOffDelay>);

impl BackOff {
    pub(crate) fn failed(&mut self, uid: &str, now: Duration) {
        let known = self.0.get(uid);
        let length = known.map_or(FIRST, |wait| (wait.length * 2).min(LONGEST));
        let until = now + length;
        self.0
            .insert(uid.to_owned(), BackOffDelay { until, length });
    }

    /// Lets a pod wait that has not failed: it is tried again after the shortest delay.
    pub(crate) fn tries_again(&mut self, uid: &str, now: Duration) {
        let (until, length) = (now + FIRST, FIRST);
        self.0
            .insert(uid.to_owned(), BackOffDelay { until, length });
    }

    pub(crate) fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether a pod has to wait.
    pub(crate) fn is_delayed(&self, uid: &str, now: Duration) -> bool {
        self.0.get(uid).is_some_and(|wait| now < wait.until)
    }

    /// Whether a pod's delay is so long that others go before it.
    pub(crate) fn lets_others_pass(&self, uid: &str, now: Duration) -> bool {
        let wait = self.0.get(uid);
        wait.is_some_and(|wait| now < wait.until && wait.length > SHORT)
    }

    /// When the next delay ends.
    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        let waits = self.0.values().map(|wait| wait.until);
        waits.filter(|until| now < *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_concern_one_pod() {
        let mut waits = BackOff::default();
        let mut now = Duration::ZERO;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            waits.failed("a", now);
            assert!(waits.is_delayed("a", now + Duration::from_millis(seconds * 1000 - 1)));
            now += Duration::from_secs(seconds);
            assert!(!waits.is_delayed("a", now));
        }
        assert!(!waits.is_delayed("b", Duration::ZERO));
        waits.failed("b", now);
        assert!(waits.is_delayed("b", now) && !waits.lets_others_pass("b", now));
        (0..3).for_each(|_| waits.failed("b", now));
        assert!(waits.lets_others_pass("b", now), "it failed four times");
        waits.tries_again("b", now);
        assert!(waits.is_delayed("b", now) && !waits.lets_others_pass("b", now));
        assert!(!waits.is_delayed("b", now + FIRST));
        waits.forget("b");
        waits.forget("a");
        waits.failed("a", now);
        assert_eq!(waits.next(now), Some(now + FIRST));
    }
}
