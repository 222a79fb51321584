//! Counts what was done with shares that sleep when they are idle.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_process_checkpoints::transition::TransitionGoal;
use prometheus_client::metrics::histogram::Histogram;

use super::suspension_stats::ACTIONS;

/// Histogram buckets in seconds, from the call to the moment at which it goes on.
const BOUNDS: [f64; 11] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0];

/// How an attempt ended, for labels.
pub(crate) const RESULTS: [&str; 2] = ["done", "failed"];

/// The counts since the agent started.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdleStats {
    /// By action and result.
    counts: BTreeMap<(&'static str, &'static str), u64>,
    /// How long calls waited that woke their share, in seconds, by whether its memory was free.
    pub(crate) wakes: BTreeMap<&'static str, Histogram>,
}

impl IdleStats {
    pub(crate) fn count(&mut self, goal: TransitionGoal, is_done: bool) {
        let ([suspend, resume], [done, failed]) = (ACTIONS, RESULTS);
        let action = match goal {
            TransitionGoal::Asleep => suspend,
            TransitionGoal::Awake => resume,
        };
        let result = if is_done { done } else { failed };
        *self.counts.entry((action, result)).or_default() += 1;
    }

    /// Counts a wake. `was_free` says whether the share's memory was free when it was called.
    pub(crate) fn observe_wake(&mut self, waited: Duration, was_free: bool) {
        let result = if was_free { "at_once" } else { "after_waiting" };
        let wakes = self.wakes.entry(result);
        let wakes = wakes.or_insert_with(|| Histogram::new(BOUNDS));
        wakes.observe(waited.as_secs_f64());
    }

    pub(crate) fn count_of(&self, action: &'static str, result: &'static str) -> u64 {
        let count = self.counts.get(&(action, result));
        count.copied().unwrap_or_default()
    }
}
