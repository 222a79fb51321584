//! When to write a node's status.
//!
//! A change of allocations is written after a short pause. A change of use is written only if it is large, because
//! use changes all the time. A heartbeat writes the whole status again, because others can undo it. After a failure the
//! agent waits, longer each time.

use std::time::Duration;

use apportion_abi::names::{HEARTBEAT, PACE, USE_PACE};
use apportion_crds::GpuNodeStatus;
use tokio::time::Instant;

/// How long to wait after the first failure.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest wait after failures.
const LONGEST: Duration = Duration::from_secs(30);
/// A change of more than one part in this many of a GPU's memory is large.
const MUCH: i64 = 16;

/// The last written status, and when.
pub(super) struct PublishSchedule {
    written: Option<GpuNodeStatus>,
    at: Instant,
    /// How long to wait after a failure; zero if the last write succeeded.
    back_off: Duration,
}

impl PublishSchedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            written: None,
            at: now,
            back_off: Duration::ZERO,
        }
    }

    /// When to write `wanted`; `None` if there is nothing to publish yet.
    pub(super) fn due(&self, wanted: &GpuNodeStatus) -> Option<Instant> {
        if self.back_off > Duration::ZERO {
            return Some(self.at + self.back_off);
        }
        let wait = match &self.written {
            _ if wanted.agent_version.is_empty() => return None,
            None => Duration::ZERO,
            Some(written) if but_use(written) != but_use(wanted) => PACE,
            Some(written) if moved(written, wanted) => USE_PACE,
            Some(_) => HEARTBEAT,
        };
        Some(self.at + wait)
    }

    pub(super) fn done(&mut self, now: Instant, written: GpuNodeStatus) {
        *self = Self {
            written: Some(written),
            at: now,
            back_off: Duration::ZERO,
        };
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.at = now;
        self.back_off = (self.back_off * 2).clamp(AGAIN, LONGEST);
    }
}

/// The status without the memory use.
fn but_use(status: &GpuNodeStatus) -> GpuNodeStatus {
    let mut status = status.clone();
    status.totals.used.clear();
    status.cards.iter_mut().for_each(|card| card.used_bytes = 0);
    status
}

/// Whether the use of a GPU changed by a large amount, or between zero and more. Both have the same GPUs.
fn moved(before: &GpuNodeStatus, now: &GpuNodeStatus) -> bool {
    let mut both = before.cards.iter().zip(&now.cards);
    both.any(|(before, now)| {
        let (before, of, now) = (before.used_bytes, now.memory_bytes, now.used_bytes);
        (before == 0) != (now == 0) || (now - before).abs() > of / MUCH
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apportion_crds::GpuCard;

    fn status(allocated: i64, used: i64) -> GpuNodeStatus {
        GpuNodeStatus {
            agent_version: "1".to_owned(),
            cards: vec![GpuCard {
                memory_bytes: 160,
                allocated_bytes: allocated,
                used_bytes: used,
                ..GpuCard::default()
            }],
            ..GpuNodeStatus::default()
        }
    }

    #[test]
    fn what_was_given_is_written_soon_and_all_else_at_the_next_heartbeat() {
        let start = Instant::now();
        let mut pace = PublishSchedule::new(start);
        assert_eq!(pace.due(&GpuNodeStatus::default()), None);
        assert_eq!(pace.due(&status(1, 1)), Some(start));
        pace.done(start, status(1, 1));
        assert_eq!(pace.due(&status(2, 1)), Some(start + PACE));
        assert_eq!(pace.due(&status(1, 11)), Some(start + HEARTBEAT));
        assert_eq!(pace.due(&status(1, 12)), Some(start + USE_PACE));
        assert_eq!(pace.due(&status(1, 0)), Some(start + USE_PACE));
        assert_eq!(pace.due(&status(1, 1)), Some(start + HEARTBEAT));
    }

    #[test]
    fn failures_slow_it_down_and_a_success_ends_that() {
        let start = Instant::now();
        let mut pace = PublishSchedule::new(start);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            pace.failed(start);
            let due = start + Duration::from_secs(seconds);
            assert_eq!(pace.due(&status(1, 1)), Some(due));
        }
        pace.done(start, status(1, 1));
        assert_eq!(pace.due(&status(2, 1)), Some(start + PACE));
    }
}
