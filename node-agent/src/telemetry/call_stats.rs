//! Counts guarantees that were called in, and how long the newcomers waited.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

/// Histogram buckets in seconds. A withdrawal takes milliseconds, a suspension as long as its copies.
const BOUNDS: [f64; 11] = [
    0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// How a call ended, for labels.
pub(crate) const RESULTS: [&str; 3] = ["withdrawn", "suspended", "refused"];

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallResult {
    /// What others did not use was enough.
    Withdrawn,
    /// Others were put to sleep.
    Suspended,
    /// The newcomer was refused.
    Refused,
}

/// The counts since the agent started.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallStats {
    counts: BTreeMap<&'static str, u64>,
    /// How long those waited that were served, in seconds, by result.
    pub(crate) durations: BTreeMap<&'static str, Histogram>,
}

impl CallStats {
    pub(crate) fn count(&mut self, result: CallResult, waited: Duration) {
        let [withdrawn, suspended, refused] = RESULTS;
        let (word, is_served) = match result {
            CallResult::Withdrawn => (withdrawn, true),
            CallResult::Suspended => (suspended, true),
            CallResult::Refused => (refused, false),
        };
        *self.counts.entry(word).or_default() += 1;
        if is_served {
            let durations = self.durations.entry(word);
            let durations = durations.or_insert_with(|| Histogram::new(BOUNDS));
            durations.observe(waited.as_secs_f64());
        }
    }

    pub(crate) fn count_of(&self, result: &'static str) -> u64 {
        self.counts.get(result).copied().unwrap_or_default()
    }
}
