//! Records what queues use while it happens, for this scheduler and the next leader.
//!
//! Pure. Whenever the reasons of waiting pods are reported, once a second while anything happens and every half
//! minute otherwise, it adds up what queues held since the last sample. The history is stored when a bucket of the
//! window is full, at least every minute and at most every five seconds. It goes to a `ConfigMap` beside the lease:
//! one small write for any number of queues, with permission for one object. On the Queue objects it would be as many
//! writes as queues, with permission to change everybody's quotas.
//!
//! Time without a leader, or while the machine stood still, counts for nobody, neither as used nor as available. So
//! does usage after the last write, at most a minute. Nothing is written before the stored history was read, so that
//! a failed read loses no history.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_policy::Cluster;
use apportion_policy::amounts::ResourceAmounts;
use apportion_policy::share::QueueShare;
use apportion_policy::tree::QueueTree;
use apportion_policy::usage::UsageBucket;
use serde_json::Value;
use tracing::warn;

use super::event::SchedulerEffect;
use apportion_model::usage_history::{UsageHistory, UsageParams};

mod store;

pub(crate) use store::UsageRecordStore;

/// The longest time between two samples. Beyond it nobody knows what happened.
const LONGEST: Duration = Duration::from_secs(5 * 60);
/// The shortest and the longest time between two writes.
const OFTEN: Duration = Duration::from_secs(5);
const SELDOM: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct UsageRecorder {
    usage: UsageHistory,
    last_sample: Option<UsageSample>,
    /// Whether the stored history was read.
    is_read: bool,
    written: Duration,
}

#[derive(Clone, Debug)]
struct UsageSample {
    at: Duration,
    held: BTreeMap<String, ResourceAmounts>,
    total: ResourceAmounts,
}

impl UsageRecorder {
    pub(crate) const fn new(params: UsageParams) -> Self {
        Self {
            usage: UsageHistory::new(params),
            last_sample: None,
            is_read: false,
            written: Duration::ZERO,
        }
    }

    /// Puts the stored history before what this scheduler recorded itself.
    pub(crate) fn recall(&mut self, now: Duration, text: Option<&str>) {
        self.is_read = true;
        let Some(text) = text else { return };
        let before = match UsageHistory::read(text) {
            Ok(usage) => usage.usage.buckets,
            Err(problem) => {
                warn!(%problem, "Usage history unreadable, ignored");
                return;
            }
        };
        let own = std::mem::take(&mut self.usage.usage.buckets);
        let began = own.first().map_or(now, |bucket| bucket.start);
        let known = before.into_iter().filter(|bucket| bucket.start < began);
        // The clock of the scheduler that wrote it may be ahead.
        let known = known.map(|bucket| UsageBucket {
            end: bucket.end.min(began),
            ..bucket
        });
        self.usage.usage.buckets = known.chain(own).collect();
        self.usage.settle(now);
    }

    /// Adds up what was held since the last sample. Returns the history if it is time to store it.
    pub(crate) fn sample(
        &mut self,
        now: Duration,
        queues: &QueueTree,
        total: ResourceAmounts,
    ) -> Option<SchedulerEffect> {
        let held = |queue: &QueueShare| {
            let held = queue.allocated();
            (held != ResourceAmounts::default()).then(|| (queue.uid.clone(), held))
        };
        let last_sample = UsageSample {
            at: now,
            held: queues.all().iter().filter_map(held).collect(),
            total,
        };
        if let Some(last) = self.last_sample.replace(last_sample)
            && now.saturating_sub(last.at) <= LONGEST
        {
            self.usage
                .usage
                .record(last.at, now, &last.held, last.total);
        }
        self.usage.settle(now);
        let often = self.usage.usage.bucket().clamp(OFTEN, SELDOM);
        if !self.is_read || now < self.written + often {
            return None;
        }
        self.written = now;
        Some(SchedulerEffect::StoreUsageHistory(self.usage.text()))
    }

    /// Whether the stored history was read.
    pub(crate) const fn is_read(&self) -> bool {
        self.is_read
    }

    /// Adds the history to the policy's cluster.
    pub(crate) fn enter(&self, cluster: &mut Cluster) {
        self.usage.enter(cluster);
    }

    /// The history as an object that `simulate` reads.
    pub(crate) fn object(&self) -> Value {
        UsageHistory::object("usage", &self.usage.text())
    }
}

#[cfg(test)]
mod tests {
    use apportion_policy::cluster::Queue;
    use apportion_policy::usage::UsageWindow;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(1_000_000);
    const TERMS: UsageParams = UsageParams {
        window: UsageWindow::WEEK,
        half_life: None,
        k_value: 2.0,
    };
    const TOTAL: ResourceAmounts = ResourceAmounts::new(0.0, 0.0, 4.0);

    fn queues() -> Vec<Queue> {
        [("top", None), ("a", Some("top")), ("b", Some("top"))]
            .map(|(name, parent)| Queue {
                parent: parent.map(str::to_owned),
                ..Queue::unbounded(name)
            })
            .into()
    }

    /// Takes a sample in which one queue holds this many cards.
    fn sample(
        recorder: &mut UsageRecorder,
        now: Duration,
        queue: &str,
        cards: f64,
    ) -> Option<String> {
        let mut tree = QueueTree::of(&queues());
        let place = tree.find(queue).unwrap();
        tree.charge(place, ResourceAmounts::new(0.0, 0.0, cards), true);
        match recorder.sample(now, &tree, TOTAL)? {
            SchedulerEffect::StoreUsageHistory(text) => Some(text),
            other => panic!("{other:?}"),
        }
    }

    /// The queues' usage of cards, as the policy gets it.
    fn used(recorder: &UsageRecorder) -> BTreeMap<String, f64> {
        let mut cluster = Cluster {
            queues: queues(),
            ..Cluster::default()
        };
        recorder.enter(&mut cluster);
        assert_eq!(cluster.settings.division.k_value, TERMS.k_value);
        let queues = cluster.queues.into_iter();
        queues.map(|queue| (queue.name, queue.usage[2])).collect()
    }

    #[test]
    fn what_is_held_between_two_looks_counts_for_a_queue_and_those_above() {
        let mut recorder = UsageRecorder::new(TERMS);
        sample(&mut recorder, NOW, "a", 4.0);
        sample(&mut recorder, NOW + SECOND * 30, "b", 2.0);
        sample(&mut recorder, NOW + SECOND * 60, "b", 0.0);
        let used = used(&recorder);
        assert_eq!((used["a"], used["b"], used["top"]), (0.5, 0.25, 0.75));
    }

    #[test]
    fn time_that_nobody_watched_counts_for_nobody() {
        let mut recorder = UsageRecorder::new(TERMS);
        sample(&mut recorder, NOW, "a", 4.0);
        sample(&mut recorder, NOW + LONGEST + SECOND, "b", 4.0);
        assert!(used(&recorder).values().all(|part| *part == 0.0));
        sample(&mut recorder, NOW + LONGEST + SECOND * 2, "b", 4.0);
        assert_eq!(used(&recorder)["b"], 1.0);
        // A clock that was set back.
        sample(&mut recorder, NOW, "a", 4.0);
        sample(&mut recorder, NOW + SECOND, "a", 4.0);
        assert_eq!(used(&recorder)["b"], 0.0);
    }

    #[test]
    fn nothing_is_written_before_what_was_written_is_known_and_then_each_minute() {
        let mut recorder = UsageRecorder::new(TERMS);
        assert_eq!(sample(&mut recorder, NOW, "a", 4.0), None);
        assert_eq!(sample(&mut recorder, NOW + SELDOM * 2, "a", 4.0), None);
        recorder.recall(NOW + SELDOM * 2, None);
        let now = NOW + SELDOM * 2 + SECOND;
        assert!(sample(&mut recorder, now, "a", 4.0).is_some());
        assert_eq!(sample(&mut recorder, now + SELDOM - SECOND, "a", 4.0), None);
        assert!(sample(&mut recorder, now + SELDOM, "a", 4.0).is_some());
    }

    #[test]
    fn who_leads_next_knows_what_was_used_and_not_what_nobody_saw() {
        let mut first = UsageRecorder::new(TERMS);
        first.recall(NOW, None);
        sample(&mut first, NOW, "a", 4.0);
        let text = sample(&mut first, NOW + SELDOM, "a", 4.0).unwrap();
        let mut second = UsageRecorder::new(TERMS);
        let later = NOW + SELDOM * 10;
        sample(&mut second, later, "b", 4.0);
        sample(&mut second, later + SECOND * 20, "b", 4.0);
        second.recall(later + SECOND * 20, Some(&text));
        let parts = used(&second);
        assert_eq!((parts["a"], parts["b"]), (0.75, 0.25));
        let text = sample(&mut second, later + SECOND * 20, "b", 4.0).unwrap();
        let mut third = UsageRecorder::new(TERMS);
        third.recall(later + SECOND * 20, Some(&text));
        assert_eq!(used(&third), parts);
        // The clock of the scheduler that wrote it was ahead.
        let mut behind = UsageRecorder::new(TERMS);
        behind.recall(NOW + SECOND * 30, Some(&text));
        sample(&mut behind, NOW + SECOND * 30, "b", 4.0);
        sample(&mut behind, NOW + SECOND * 90, "b", 4.0);
        assert_eq!(used(&behind)["b"], 0.5);
    }

    #[test]
    fn a_damaged_note_is_an_empty_history_that_is_written_over() {
        let mut recorder = UsageRecorder::new(TERMS);
        recorder.recall(NOW, Some("{\"windowType\":"));
        assert!(recorder.is_read());
        assert!(used(&recorder).values().all(|part| *part == 0.0));
        let text = sample(&mut recorder, NOW, "a", 4.0).unwrap();
        assert!(UsageHistory::read(&text).is_ok());
    }
}
