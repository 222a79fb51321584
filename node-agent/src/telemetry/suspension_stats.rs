//! Counts suspensions and resumes, and how long they took.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_process_checkpoints::transition::TransitionGoal;
use prometheus_client::metrics::histogram::Histogram;

/// Histogram buckets in seconds. A copy takes from milliseconds to minutes.
const BOUNDS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// What both were asked for and how it ended, for labels.
pub(crate) const ACTIONS: [&str; 2] = ["suspend", "resume"];
pub(crate) const RESULTS: [&str; 3] = ["done", "refused", "failed"];

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SuspensionResult {
    /// All processes were moved in this time.
    Done(Duration),
    /// Nothing was begun: the memory is not there, or the allocation cannot be suspended.
    Refused,
    /// The driver could not do it.
    Failed,
}

/// The counts since the agent started.
#[derive(Clone, Debug, Default)]
pub(crate) struct SuspensionStats {
    /// By action and result.
    counts: BTreeMap<(&'static str, &'static str), u64>,
    /// How long those took that were done, in seconds, by action.
    pub(crate) durations: BTreeMap<&'static str, Histogram>,
}

impl SuspensionStats {
    /// Counts a request that a client made.
    pub(crate) fn count(&mut self, goal: TransitionGoal, result: SuspensionResult) {
        let [suspend, resume] = ACTIONS;
        let [done, refused, failed] = RESULTS;
        let action = match goal {
            TransitionGoal::Asleep => suspend,
            TransitionGoal::Awake => resume,
        };
        let word = match result {
            SuspensionResult::Done(took) => {
                let durations = self.durations.entry(action);
                let durations = durations.or_insert_with(|| Histogram::new(BOUNDS));
                durations.observe(took.as_secs_f64());
                done
            }
            SuspensionResult::Refused => refused,
            SuspensionResult::Failed => failed,
        };
        *self.counts.entry((action, word)).or_default() += 1;
    }

    pub(crate) fn count_of(&self, action: &'static str, result: &'static str) -> u64 {
        let count = self.counts.get(&(action, result));
        count.copied().unwrap_or_default()
    }
}
