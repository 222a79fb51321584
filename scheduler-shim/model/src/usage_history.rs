//! What queues used in the past, as stored in a `ConfigMap`. A new leader and `simulate` read it.
//!
//! A record has its own parameters, so that a dump decides as its cluster did, without an option. Amounts are times
//! seconds: cards, CPU cores and MiB, with as many decimals as matter. A week in hours is 168 buckets, some 30 bytes
//! for each queue that held anything in one. A record that is too large for an object is written with half as many
//! buckets, and half of these, until it fits.
//!
//! KAI asks Prometheus for this, and counts usage against all that nodes have. Here it counts against what is divided
//! among queues, without what pods of other schedulers hold: a queue that had all of that used everything.

use std::collections::BTreeMap;
use std::time::Duration;

use apportion_policy::Cluster;
use apportion_policy::amounts::{ResourceAmounts, ResourceKind};
use apportion_policy::usage::{UsageBucket, UsageWindow, WindowedUsage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::object_warnings::{ObjectWarnings, called};
use apportion_groups::ObjectView;

/// The key of the record in the `ConfigMap`.
pub const KEY: &str = "apportion-usage.json";
/// The largest record. An object may have a million bytes, with its name and other metadata.
const LONGEST: usize = 900_000;

/// How past usage counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UsageParams {
    /// The time that counts.
    pub window: UsageWindow,
    /// After this time usage counts half; without it, all usage in the window counts the same.
    pub half_life: Option<Duration>,
    /// How much usage lowers a queue's part of what is beyond all quotas.
    pub k_value: f64,
}

/// What queues used, and their parts now.
#[derive(Clone, Debug)]
pub struct UsageHistory {
    k_value: f64,
    /// The usage of each queue in the window.
    pub usage: WindowedUsage,
    /// By queue that used anything, as of the last `settle`.
    parts: BTreeMap<String, [f64; 3]>,
}

impl UsageHistory {
    /// A history in which no queue has used anything.
    pub const fn new(params: UsageParams) -> Self {
        Self {
            k_value: params.k_value,
            usage: WindowedUsage::new(params.window, params.half_life),
            parts: BTreeMap::new(),
        }
    }

    /// Computes what every queue has used until now.
    pub fn settle(&mut self, now: Duration) {
        self.parts = self.usage.all(now);
    }

    /// Adds the usage to the policy's cluster.
    pub fn enter(&self, cluster: &mut Cluster) {
        cluster.settings.division.k_value = self.k_value;
        for queue in &mut cluster.queues {
            queue.usage = self.parts.get(&queue.name).copied().unwrap_or_default();
        }
    }

    /// The record as text.
    pub fn text(&self) -> String {
        let mut usage = self.usage.clone();
        loop {
            let text = UsageRecord::of(&usage, self.k_value).text();
            if text.len() <= LONGEST || usage.buckets.len() < 2 {
                return text;
            }
            usage.coarsen();
        }
    }

    /// The object that stores a record.
    pub fn object(name: &str, text: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {KEY: text}})
    }

    /// Reads a history from the text of its ConfigMap.
    pub fn read(text: &str) -> Result<Self, UsageRecordError> {
        let record: UsageRecord = serde_json::from_str(text)?;
        Ok(Self {
            k_value: record.k_value,
            parts: BTreeMap::new(),
            usage: record.usage()?,
        })
    }

    /// Takes the record out of the objects of a dump: the first by name, if there is more than one.
    pub fn take(objects: &mut Vec<Value>, warnings: &mut ObjectWarnings) -> Option<Self> {
        let mut records: Vec<Value> = objects
            .extract_if(.., |object| {
                object["kind"] == "ConfigMap" && object["data"][KEY].is_string()
            })
            .collect();
        records.sort_by_key(|record| {
            let object = ObjectView::new(record);
            (object.namespace().to_owned(), object.name().to_owned())
        });
        let mut found = None;
        for record in &records {
            let object = ObjectView::new(record);
            let name = called("ConfigMap", object.namespace(), object.name());
            if found.is_some() {
                warnings.add(
                    name,
                    "another object has the usage history already; this one is ignored",
                );
                continue;
            }
            match Self::read(record["data"][KEY].as_str().unwrap_or_default()) {
                Ok(history) => found = Some(history),
                Err(why) => warnings.add(name, format!("it is damaged: {why}; it is ignored")),
            }
        }
        found
    }
}

/// Why a record can't be read.
#[derive(Debug, thiserror::Error)]
pub enum UsageRecordError {
    /// It is not a record.
    #[error("{0}")]
    Text(#[from] serde_json::Error),
    /// It has an impossible value.
    #[error("its {0} is not valid")]
    Number(&'static str),
}

/// A record as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UsageRecord {
    window_type: RecordedWindowType,
    window_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tumbling_window_start: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    half_life_seconds: Option<u64>,
    k_value: f64,
    buckets: Vec<RecordedBucket>,
}

/// KAI's word for a window.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordedWindowType {
    Sliding,
    Tumbling,
}

/// Cards, CPU cores and MiB, times seconds.
type RecordedAmounts = [f64; 3];

/// A bucket; times are milliseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct RecordedBucket {
    start: u64,
    end: u64,
    capacity: RecordedAmounts,
    held: BTreeMap<String, RecordedAmounts>,
}

/// One of each in the policy's amounts, and how finely it is written.
const UNITS: [(ResourceKind, f64, f64); 3] = [
    (ResourceKind::Gpu, 1.0, 1000.0),
    (ResourceKind::Cpu, 1000.0, 10.0),
    (ResourceKind::Memory, 1_048_576.0, 1.0),
];

fn sums(amounts: ResourceAmounts) -> RecordedAmounts {
    UNITS.map(|(resource, unit, decimals)| (amounts[resource] / unit * decimals).round() / decimals)
}

fn amounts(sums: &RecordedAmounts) -> Option<ResourceAmounts> {
    let mut amounts = ResourceAmounts::default();
    for ((resource, unit, _), sum) in UNITS.into_iter().zip(sums) {
        amounts[resource] = Some(sum * unit).filter(|sum| sum.is_finite() && *sum >= 0.0)?;
    }
    Some(amounts)
}

fn millis(at: Duration) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

impl UsageRecord {
    fn of(usage: &WindowedUsage, k_value: f64) -> Self {
        let (window_type, length, start) = match usage.window {
            UsageWindow::Sliding(length) => (RecordedWindowType::Sliding, length, None),
            UsageWindow::Tumbling { start, length } => {
                (RecordedWindowType::Tumbling, length, Some(start.as_secs()))
            }
        };
        Self {
            window_type,
            window_seconds: length.as_secs(),
            tumbling_window_start: start,
            half_life_seconds: usage.half_life.map(|long| long.as_secs()),
            k_value,
            buckets: usage
                .buckets
                .iter()
                .map(|bucket| RecordedBucket {
                    start: millis(bucket.start),
                    end: millis(bucket.end),
                    capacity: sums(bucket.capacity),
                    held: (bucket.held.iter())
                        .map(|(queue, amounts)| (queue.clone(), sums(*amounts)))
                        .collect(),
                })
                .collect(),
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("maps have texts as keys, and numbers are finite")
    }

    fn usage(self) -> Result<WindowedUsage, UsageRecordError> {
        if !self.k_value.is_finite() || self.k_value < 0.0 {
            return Err(UsageRecordError::Number("kValue"));
        }
        let length = Duration::from_secs(self.window_seconds);
        let window = match self.window_type {
            RecordedWindowType::Sliding => UsageWindow::Sliding(length),
            RecordedWindowType::Tumbling => UsageWindow::Tumbling {
                start: Duration::from_secs(self.tumbling_window_start.unwrap_or(0)),
                length,
            },
        };
        let half_life = self.half_life_seconds.map(Duration::from_secs);
        let mut usage = WindowedUsage::new(window, half_life);
        for row in self.buckets {
            let bucket = row.bucket()?;
            let before = usage.buckets.last().map_or(Duration::ZERO, |last| last.end);
            if bucket.start < before || bucket.end < bucket.start {
                return Err(UsageRecordError::Number("order of buckets"));
            }
            usage.buckets.push(bucket);
        }
        Ok(usage)
    }
}

impl RecordedBucket {
    fn bucket(self) -> Result<UsageBucket, UsageRecordError> {
        let read = |sums: &RecordedAmounts| amounts(sums).ok_or(UsageRecordError::Number("amount"));
        let held = self
            .held
            .into_iter()
            .map(|(queue, sums)| Ok((queue, read(&sums)?)));
        Ok(UsageBucket {
            start: Duration::from_millis(self.start),
            end: Duration::from_millis(self.end),
            capacity: read(&self.capacity)?,
            held: held.collect::<Result<_, UsageRecordError>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const TERMS: UsageParams = UsageParams {
        window: UsageWindow::WEEK,
        half_life: Some(HOUR),
        k_value: 2.0,
    };

    fn history(queues: usize, hours: u32) -> UsageHistory {
        let mut history = UsageHistory::new(TERMS);
        let held = |queue| {
            (
                format!("team-{queue:04}"),
                ResourceAmounts::new(1500.0, 3e9, 0.25),
            )
        };
        let held: BTreeMap<String, ResourceAmounts> = (0..queues).map(held).collect();
        let capacity = ResourceAmounts::new(64_000.0, 512e9, 8.0);
        for hour in 0..hours {
            history
                .usage
                .record(HOUR * hour, HOUR * (hour + 1), &held, capacity);
        }
        history
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let mut before = history(3, 5);
        let mut after = UsageHistory::read(&before.text()).unwrap();
        assert_eq!(
            (after.usage.window, after.usage.half_life),
            (TERMS.window, TERMS.half_life)
        );
        before.settle(HOUR * 6);
        after.settle(HOUR * 6);
        assert_eq!(after.parts.len(), 3);
        for (queue, part) in &before.parts {
            let pairs = part.iter().zip(&after.parts[queue]);
            assert!(
                pairs
                    .clone()
                    .all(|(left, right)| (left - right).abs() < 1e-6),
                "{queue}: {pairs:?}"
            );
        }
        let tumbling = UsageParams {
            window: UsageWindow::Tumbling {
                start: HOUR,
                length: HOUR * 9,
            },
            half_life: None,
            ..TERMS
        };
        let read = UsageHistory::read(&UsageHistory::new(tumbling).text()).unwrap();
        assert_eq!(read.usage, UsageHistory::new(tumbling).usage);
    }

    #[test]
    fn a_note_of_many_queues_is_no_more_than_an_object_may_be() {
        let mut history = history(600, 168);
        let text = history.text();
        assert!(text.len() <= LONGEST, "{}", text.len());
        let mut read = UsageHistory::read(&text).unwrap();
        assert!(
            read.usage.buckets.len() >= 20,
            "{}",
            read.usage.buckets.len()
        );
        let now = HOUR * 168;
        (history.usage.half_life, read.usage.half_life) = (None, None);
        let (before, after) = (
            history.usage.of("team-0007", now),
            read.usage.of("team-0007", now),
        );
        assert!((before[2] - after[2]).abs() < 1e-6, "{before:?} {after:?}");
    }

    #[test]
    fn a_damaged_note_is_a_sentence() {
        let text = history(1, 2).text();
        let cut = &text[..text.len() / 2];
        let error = |text: &str| UsageHistory::read(text).unwrap_err().to_string();
        assert!(error(cut).contains("EOF"), "{}", error(cut));
        let negative = text.replace("[900.0", "[-900.0");
        assert_eq!(error(&negative), "its amount is not valid");
        let turned = text.replace("\"start\":3600000", "\"start\":1");
        assert_eq!(error(&turned), "its order of buckets is not valid");
        assert!(UsageHistory::read(&text.replace("900.0", "1e999")).is_err());
        let huge = text.replace("\"end\":7200000", &format!("\"end\":{}", u64::MAX));
        let mut far = UsageHistory::read(&huge).unwrap();
        far.settle(HOUR);
    }

    #[test]
    fn the_note_of_a_dump_is_found_and_others_are_left_out() {
        let mut second = UsageHistory::object("b", &history(1, 1).text());
        second["metadata"]["namespace"] = "x".into();
        let mut objects = vec![
            json!({"kind": "ConfigMap", "metadata": {"name": "other"}, "data": {"a": "b"}}),
            second,
            UsageHistory::object("broken", "{"),
        ];
        let mut warnings = ObjectWarnings::default();
        assert!(UsageHistory::take(&mut objects, &mut warnings).is_some());
        assert_eq!(objects.len(), 1);
        let error: Vec<String> = warnings.0.iter().map(ToString::to_string).collect();
        assert!(
            error[0].starts_with("ConfigMap broken: it is damaged"),
            "{error:?}"
        );
    }
}
