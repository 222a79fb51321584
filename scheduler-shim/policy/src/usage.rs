//! What queues used in the past, as parts of the cluster's capacity, for fair share over time.
//!
//! The window is cut into buckets. Each holds resource amounts times seconds, of each queue and of the cluster. Old
//! buckets leave a sliding window one by one and a tumbling window all at once. With a half-life, a bucket of that
//! age counts half. The usage of a queue is its sum over the buckets divided by the cluster's: 24 of 100 card-hours
//! are 0.24. Only sums are kept, so the whole store is small enough to be saved after each change and read after a
//! restart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::amounts::{ResourceAmounts, ResourceKind};

/// How far back usage counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageWindow {
    /// The time of this length that ends now.
    Sliding(Duration),
    /// The time since the latest `start + n * length`.
    Tumbling {
        /// When the first window began.
        start: Duration,
        /// How long each is.
        length: Duration,
    },
}

impl UsageWindow {
    /// A week, KAI's default.
    pub const WEEK: Self = Self::Sliding(Duration::from_secs(7 * 24 * 3600));

    const fn length(self) -> Duration {
        match self {
            Self::Sliding(length) | Self::Tumbling { length, .. } => length,
        }
    }

    /// The start of the window that contains `now`.
    fn began(self, now: Duration) -> Duration {
        match self {
            Self::Sliding(length) => now.saturating_sub(length),
            Self::Tumbling { start, length } => {
                let since = now.saturating_sub(start).as_nanos();
                let into = since.checked_rem(length.as_nanos()).unwrap_or(0);
                now.saturating_sub(Duration::from_nanos(
                    u64::try_from(into).unwrap_or(u64::MAX),
                ))
            }
        }
    }
}

/// Sums over a part of the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageBucket {
    /// When the bucket begins, since the epoch.
    pub start: Duration,
    /// When its last usage was recorded.
    pub end: Duration,
    /// The capacity of the cluster, times seconds.
    pub capacity: ResourceAmounts,
    /// What each queue held, times seconds.
    pub held: BTreeMap<String, ResourceAmounts>,
}

impl UsageBucket {
    /// This bucket merged with the next.
    fn joined(mut self, next: &Self) -> Self {
        self.end = next.end;
        self.capacity = self.capacity.plus(next.capacity);
        for (queue, amounts) in &next.held {
            let sum = self.held.entry(queue.clone()).or_default();
            *sum = sum.plus(*amounts);
        }
        self
    }
}

/// What queues used, within a window.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowedUsage {
    /// How far back it counts.
    pub window: UsageWindow,
    /// The age at which usage counts half; `None` for no decay.
    pub half_life: Option<Duration>,
    /// The sums, oldest first.
    pub buckets: Vec<UsageBucket>,
}

impl WindowedUsage {
    /// Into how many buckets the window is cut.
    const BUCKETS: u32 = 168;

    /// No usage yet.
    #[must_use]
    pub const fn new(window: UsageWindow, half_life: Option<Duration>) -> Self {
        Self {
            window,
            half_life,
            buckets: Vec::new(),
        }
    }

    /// Records that from `from` until `to` the queues held `held` and the cluster had `capacity`. Earlier records
    /// stay, unless they began after `to`: then a clock was wrong.
    pub fn record(
        &mut self,
        from: Duration,
        to: Duration,
        held: &BTreeMap<String, ResourceAmounts>,
        capacity: ResourceAmounts,
    ) {
        self.buckets.retain(|bucket| bucket.start <= to);
        let noted = self.buckets.last().map_or(Duration::ZERO, |last| last.end);
        let began = self.window.began(to);
        let mut at = from.max(noted).max(began);
        while at < to {
            let end = self.bucket_at(at).min(to);
            let seconds = end.saturating_sub(at).as_secs_f64();
            if let Some(bucket) = self.buckets.last_mut() {
                bucket.end = end;
                bucket.capacity = bucket.capacity.plus(capacity.times(seconds));
                for (queue, amounts) in held {
                    let sum = bucket.held.entry(queue.clone()).or_default();
                    *sum = sum.plus(amounts.times(seconds));
                }
            }
            at = end;
        }
        self.buckets.retain(|bucket| bucket.end > began);
    }

    /// How long a bucket is.
    #[must_use]
    pub fn bucket(&self) -> Duration {
        (self.window.length() / Self::BUCKETS).max(Duration::from_secs(1))
    }

    /// Makes the bucket that holds `at` the last, and returns when it is full.
    fn bucket_at(&mut self, at: Duration) -> Duration {
        let length = self.bucket();
        // A bucket from before the window is full, too: a tumbling window forgets to the second.
        let is_full = self.buckets.last().is_none_or(|last| {
            let is_old = matches!(self.window, UsageWindow::Tumbling { .. })
                && last.start < self.window.began(at);
            is_old || at >= last.start + length
        });
        if is_full {
            self.buckets.push(UsageBucket {
                start: at,
                end: at,
                ..UsageBucket::default()
            });
        }
        let start = self.buckets.last().map_or(at, |last| last.start);
        start + length
    }

    /// Halves the number of buckets by joining each with the next.
    pub fn coarsen(&mut self) {
        let pairs = self.buckets.chunks(2);
        self.buckets = pairs
            .filter_map(|pair| {
                Some(
                    pair.iter()
                        .skip(1)
                        .fold(pair.first()?.clone(), UsageBucket::joined),
                )
            })
            .collect();
    }

    /// What each queue that used anything used until `now`, as a part of the cluster's capacity: CPU, memory, GPU.
    #[must_use]
    pub fn all(&self, now: Duration) -> BTreeMap<String, [f64; 3]> {
        let held = self.buckets.iter().flat_map(|bucket| bucket.held.keys());
        let names: BTreeSet<&String> = held.collect();
        names
            .into_iter()
            .map(|name| (name.clone(), self.of(name, now)))
            .collect()
    }

    /// What a queue used until `now`, as a part of the cluster's capacity: CPU, memory, GPU.
    #[must_use]
    pub fn of(&self, queue: &str, now: Duration) -> [f64; 3] {
        let began = self.window.began(now);
        let (mut used, mut had) = (ResourceAmounts::default(), ResourceAmounts::default());
        for bucket in self.buckets.iter().filter(|bucket| bucket.end > began) {
            let weight = self.weight(bucket, now);
            let held = bucket.held.get(queue).copied().unwrap_or_default();
            used = used.plus(held.times(weight));
            had = had.plus(bucket.capacity.times(weight));
        }
        ResourceKind::ALL.map(|resource| {
            if had[resource] > 0.0 {
                used[resource] / had[resource]
            } else {
                0.0
            }
        })
    }

    /// How much a bucket still counts, by the age of its middle.
    fn weight(&self, bucket: &UsageBucket, now: Duration) -> f64 {
        let Some(half_life) = self.half_life.filter(|half_life| !half_life.is_zero()) else {
            return 1.0;
        };
        let middle = (bucket.start + bucket.end) / 2;
        let age = now.saturating_sub(middle).as_secs_f64();
        0.5_f64.powf(age / half_life.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn cards(count: f64) -> ResourceAmounts {
        ResourceAmounts::new(0.0, 0.0, count)
    }

    fn held(queue: &str, count: f64) -> BTreeMap<String, ResourceAmounts> {
        [(queue.to_owned(), cards(count))].into()
    }

    #[test]
    fn a_part_of_the_card_hours_is_that_part_of_the_cluster() {
        let mut usage = WindowedUsage::new(UsageWindow::WEEK, None);
        usage.record(HOUR, HOUR * 3, &held("a", 6.0), cards(10.0));
        usage.record(HOUR * 3, HOUR * 11, &held("a", 1.5), cards(10.0));
        let [cpu, memory, gpu] = usage.of("a", HOUR * 11);
        assert!((gpu - 0.24).abs() < 1e-9, "{gpu}");
        assert_eq!((cpu, memory, usage.of("b", HOUR * 11)[2]), (0.0, 0.0, 0.0));
    }

    #[test]
    fn what_is_older_than_a_sliding_window_does_not_count() {
        let mut usage = WindowedUsage::new(UsageWindow::Sliding(HOUR * 10), None);
        usage.record(Duration::ZERO, HOUR, &held("a", 10.0), cards(10.0));
        usage.record(HOUR, HOUR * 30, &held("b", 10.0), cards(10.0));
        assert_eq!(usage.of("a", HOUR * 30)[2], 0.0);
        assert_eq!(usage.of("b", HOUR * 30)[2], 1.0);
        assert!(usage.buckets.len() <= 169, "{}", usage.buckets.len());
    }

    #[test]
    fn a_tumbling_window_forgets_all_at_once() {
        let window = UsageWindow::Tumbling {
            start: HOUR,
            length: HOUR * 10,
        };
        let mut usage = WindowedUsage::new(window, None);
        usage.record(HOUR, HOUR * 6, &held("a", 10.0), cards(10.0));
        assert_eq!(usage.of("a", HOUR * 10)[2], 1.0);
        assert_eq!(usage.of("a", HOUR * 11)[2], 0.0);
    }

    #[test]
    fn a_tumbling_window_forgets_what_was_noted_in_the_bucket_that_it_ends_in() {
        let (start, length) = (Duration::ZERO, HOUR * 168);
        let mut usage = WindowedUsage::new(UsageWindow::Tumbling { start, length }, None);
        let quarter = HOUR / 4;
        let (before, after) = (length - quarter, length + quarter);
        usage.record(before - quarter * 2, before, &held("a", 10.0), cards(10.0));
        usage.record(before, after, &held("b", 10.0), cards(10.0));
        assert_eq!(usage.of("a", after)[2], 0.0);
        assert_eq!(usage.of("b", after)[2], 1.0);
    }

    #[test]
    fn time_is_noted_once_whatever_clocks_say() {
        let mut usage = WindowedUsage::new(UsageWindow::WEEK, None);
        usage.record(HOUR, HOUR * 3, &held("a", 10.0), cards(10.0));
        usage.record(HOUR * 2, HOUR * 3, &held("b", 10.0), cards(10.0));
        assert_eq!(usage.of("a", HOUR * 3)[2], 1.0);
        // The clock was an hour ahead, and is right again.
        usage.record(HOUR, HOUR * 2 - HOUR / 2, &held("b", 10.0), cards(10.0));
        usage.record(HOUR * 2, HOUR * 4, &held("b", 10.0), cards(10.0));
        let (a, b) = (usage.of("a", HOUR * 4)[2], usage.of("b", HOUR * 4)[2]);
        assert!(
            (a - 1.0 / 3.0).abs() < 1e-9 && (a + b - 1.0).abs() < 1e-9,
            "{a} and {b}"
        );
    }

    #[test]
    fn half_the_buckets_hold_the_same_sums() {
        let mut usage = WindowedUsage::new(UsageWindow::WEEK, None);
        for hour in 0..5 {
            let queue = if hour < 2 { "a" } else { "b" };
            usage.record(
                HOUR * hour,
                HOUR * (hour + 1),
                &held(queue, 4.0),
                cards(10.0),
            );
        }
        let fine = usage.all(HOUR * 5);
        usage.coarsen();
        assert_eq!(usage.buckets.len(), 3);
        assert_eq!(usage.all(HOUR * 5), fine);
        assert_eq!(fine.keys().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn usage_counts_for_half_when_it_is_a_half_life_old() {
        let mut usage = WindowedUsage::new(UsageWindow::WEEK, Some(HOUR * 24));
        usage.record(Duration::ZERO, HOUR, &held("a", 10.0), cards(10.0));
        usage.record(HOUR * 24, HOUR * 25, &held("b", 10.0), cards(10.0));
        let (old, new) = (usage.of("a", HOUR * 25)[2], usage.of("b", HOUR * 25)[2]);
        assert!((old * 2.0 - new).abs() < 1e-9, "{old} and {new}");
        assert!((old + new - 1.0).abs() < 1e-9, "{old} and {new}");
    }

    #[test]
    fn a_store_that_is_read_back_says_the_same() {
        let mut usage = WindowedUsage::new(UsageWindow::WEEK, Some(HOUR));
        usage.record(Duration::ZERO, HOUR * 5, &held("a", 3.0), cards(10.0));
        let mut again = WindowedUsage {
            buckets: usage.buckets.clone(),
            ..WindowedUsage::new(UsageWindow::WEEK, Some(HOUR))
        };
        for usage in [&mut usage, &mut again] {
            usage.record(HOUR * 5, HOUR * 6, &held("a", 9.0), cards(10.0));
        }
        assert_eq!(usage.of("a", HOUR * 6), again.of("a", HOUR * 6));
    }
}
