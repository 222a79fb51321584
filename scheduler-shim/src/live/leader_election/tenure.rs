//! Until when the lease is certainly ours, and for how long the next record is valid.
//!
//! The holder writes into its record how long others must wait. While the API server answers quickly that is short,
//! so that a dead leader is soon replaced. The slower the answers, the longer it is, so that slow answers alone cost
//! nobody the lease. The holder renews halfway into that time, and stops at three quarters of it, before others begin.
//!
//! Others count from when they first see a record, which is after the holder asked for it; the holder counts from
//! when it asked. To take the lease is to replace the very version that was waited out, so a newer record protects
//! the holder even if it was not seen. A request without an answer may have been granted: it never makes the holder's
//! time longer, and may make it shorter from the moment that it is sent.

use std::time::{Duration, Instant};

/// The longest validity of a record while the API server is slow, unless a longer one was configured.
const SLOWEST: Duration = Duration::from_secs(15);
/// How many answers must fit into the validity of a record.
const ANSWERS: u32 = 8;
/// The shortest timeout of a renewal.
const PATIENCE: Duration = Duration::from_secs(2);

/// The holder's view of its time.
#[derive(Debug)]
pub(super) struct LeaseTenure {
    least: Duration,
    longest: Duration,
    /// The recent latency of answers.
    latency: Duration,
    /// The validity of the last record written.
    written: Duration,
    until: Instant,
}

impl LeaseTenure {
    pub(super) fn new(now: Instant, least: Duration) -> Self {
        Self {
            least,
            longest: SLOWEST.max(least),
            latency: Duration::ZERO,
            written: least,
            until: now,
        }
    }

    /// The time of a holder that does not renew: its records have no duration, so only the latency counts.
    pub(super) fn without_renewals(now: Instant) -> Self {
        Self {
            longest: Duration::ZERO,
            ..Self::new(now, Duration::ZERO)
        }
    }

    /// The validity of the next record, in full seconds, as the record has them.
    fn next(&self) -> Duration {
        let wanted = (self.latency * ANSWERS).clamp(self.least, self.longest);
        Duration::from_secs(wanted.as_secs() + u64::from(wanted.subsec_nanos() > 0))
    }

    /// A record is requested now. Returns its validity.
    pub(super) fn asks(&mut self, now: Instant) -> Duration {
        let next = self.next();
        self.until = self.until.min(now + deadline(next));
        next
    }

    /// The record was written.
    pub(super) fn granted(&mut self, asked: Instant, answered: Instant, valid: Duration) {
        self.answered(answered - asked);
        self.written = valid;
        self.until = asked + deadline(valid);
    }

    /// An answer took this long, or did not come within this time.
    pub(super) fn answered(&mut self, took: Duration) {
        self.latency = took.max(self.latency * 3 / 4);
    }

    /// Until when the lease is ours, whatever others do.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// The pause between an answer and the next renewal. Renewals are sent half a validity apart, whatever time their
    /// answers take.
    pub(super) fn pause(&self) -> Duration {
        (self.written / 2)
            .saturating_sub(self.latency)
            .max(self.written / 8)
    }

    /// The timeout of a renewal.
    pub(super) fn patience(&self) -> Duration {
        (self.latency * 2).clamp(PATIENCE, deadline(self.longest))
    }
}

/// How long after its request the holder of such a record stops.
fn deadline(valid: Duration) -> Duration {
    valid * 3 / 4
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEAST: Duration = Duration::from_secs(4);

    /// An API server that grants renewals, and another scheduler that waits for the lease.
    fn live(latencies: &[(u64, u64)]) -> Result<(), TestCaseError> {
        let start = Instant::now();
        let (mut now, mut tenure) = (start, LeaseTenure::new(start, LEAST));
        // The earliest moment at which another could take the lease. At first nobody waits.
        let mut free = start + Duration::from_secs(3600);
        for &(there, back) in latencies {
            let (there, back) = (Duration::from_millis(there), Duration::from_millis(back));
            let valid = tenure.asks(now);
            prop_assert!(tenure.until() <= free, "the record of before still counts");
            let written = now + there;
            if written >= free {
                // Another took it, so the API server refuses the renewal.
                return Ok(());
            }
            free = written + valid;
            prop_assert!(
                tenure.until() <= free,
                "it may be written without an answer"
            );
            if there + back < tenure.patience() {
                tenure.granted(now, now + there + back, valid)
            } else {
                tenure.answered(tenure.patience())
            }
            prop_assert!(
                tenure.until() <= free,
                "the holder stops before others begin"
            );
            now += (there + back).min(tenure.patience()) + tenure.pause();
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn the_holder_stops_before_another_may_begin(latencies in prop::collection::vec((0..6_000_u64, 0..6_000_u64), 1..60)) {
            live(&latencies)?;
        }
    }

    /// How long the lease was not certainly ours, at this latency.
    fn lost(latency: Duration) -> Duration {
        let start = Instant::now();
        let (mut now, mut tenure) = (start, LeaseTenure::new(start, LEAST));
        let (mut lost, rounds) = (Duration::ZERO, 40);
        for round in 0..rounds {
            let valid = tenure.asks(now);
            let answered = now + latency;
            let until = tenure.until();
            if latency <= tenure.patience() {
                tenure.granted(now, answered, valid)
            } else {
                tenure.answered(tenure.patience())
            }
            let next = answered.min(now + tenure.patience()) + tenure.pause();
            if round > rounds / 2 {
                lost += answered.min(next).saturating_duration_since(until);
                lost += next.saturating_duration_since(tenure.until().max(answered));
            }
            now = next;
        }
        lost
    }

    #[test]
    fn an_api_server_that_is_slow_all_the_time_takes_the_lease_from_nobody() {
        for millis in [1, 200, 500, 1000, 1500, 2000, 2500] {
            let latency = Duration::from_millis(millis);
            assert_eq!(lost(latency), Duration::ZERO, "{latency:?}");
        }
    }

    #[test]
    fn records_are_short_while_answers_are_quick_and_long_while_they_are_not() {
        let now = Instant::now();
        let mut tenure = LeaseTenure::new(now, LEAST);
        assert_eq!(tenure.asks(now), LEAST);
        tenure.answered(Duration::from_secs(1));
        assert_eq!(tenure.asks(now), Duration::from_secs(8));
        tenure.answered(Duration::from_secs(9));
        assert_eq!(tenure.asks(now), SLOWEST);
        (0..20).for_each(|_| tenure.answered(Duration::from_millis(5)));
        assert_eq!(tenure.asks(now), LEAST);
        let long = Duration::from_secs(60);
        assert_eq!(LeaseTenure::new(now, long).asks(now), long);
    }

    #[test]
    fn a_shorter_record_without_an_answer_counts_from_when_it_was_sent() {
        let now = Instant::now();
        let mut tenure = LeaseTenure::new(now, LEAST);
        tenure.granted(now, now, Duration::from_secs(15));
        assert_eq!(tenure.until(), now + Duration::from_millis(11_250));
        let sent = now + Duration::from_secs(1);
        assert_eq!(tenure.asks(sent), LEAST);
        assert_eq!(tenure.until(), sent + Duration::from_secs(3));
    }
}
