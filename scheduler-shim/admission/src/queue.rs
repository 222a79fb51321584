//! Queues: required fields, and quotas that do not fit those of the parent and the children.
//!
//! KAI refuses a queue without resources, and warns about quotas only if configured to. Its warnings compare the
//! numbers as they are, including the -1 that means unlimited. Some rules are not in KAI. A queue that is its own
//! ancestor causes a warning, because nothing in it would ever be scheduled. A minimum run time that is not a duration
//! is refused, and so are a burst limit that is not a number of GPUs, and a switch for suspensions that is neither true nor
//! false.

use std::collections::BTreeMap;

use apportion_abi::names::{ANNOTATION_QUEUE_BURST_LIMIT, ANNOTATION_QUEUE_SUSPENDS};
use apportion_kubernetes::{not_a_duration, parse_duration};
use serde::Deserialize;

/// The fields of a queue that the rules read.
#[expect(missing_docs, reason = "the fields are those of KAI's Queue")]
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedQueue {
    pub metadata: ReviewedQueueMetadata,
    pub spec: ReviewedQueueSpec,
    pub status: Option<ReviewedQueueStatus>,
}

/// A queue's metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedQueueMetadata {
    /// Its name.
    pub name: String,
    /// Its annotations.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// A queue's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReviewedQueueSpec {
    /// Its parent; empty at the top level.
    pub parent_queue: String,
    /// Its quotas.
    pub resources: Option<QueueQuotas>,
    /// How long its jobs run before they can be preempted.
    pub preempt_min_runtime: Option<String>,
    /// How long its jobs run before they can be reclaimed.
    pub reclaim_min_runtime: Option<String>,
}

/// A queue's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReviewedQueueStatus {
    /// Its child queues.
    pub child_queues: Vec<String>,
}

/// A queue's quotas.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueQuotas {
    /// CPU, in thousandths of a core.
    pub cpu: QueueQuota,
    /// Cards.
    pub gpu: QueueQuota,
    /// Memory, in megabytes.
    pub memory: QueueQuota,
}

/// A queue's quota of one resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueQuota {
    /// The deserved amount.
    pub quota: f64,
}

/// Why a queue is refused.
#[expect(missing_docs, reason = "the fields are those of KAI's Queue")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal {
    /// It has no resources.
    #[error("resources must be specified")]
    NoResources,
    /// It has children and is to be deleted.
    #[error("cannot delete queue {name}: it has child queues [{}]", children.join(" "))]
    HasChildren { name: String, children: Vec<String> },
    /// A field is not a duration.
    #[error("{field} {}", not_a_duration(text))]
    NoDuration { field: &'static str, text: String },
    /// Whether its pods are suspended is neither true nor false.
    #[error("{} {}", ANNOTATION_QUEUE_SUSPENDS, not_a_switch(.0))]
    NoSwitch(String),
    /// Its burst limit is not a number of GPUs.
    #[error("{} {}", ANNOTATION_QUEUE_BURST_LIMIT, not_a_burst_limit(.0))]
    NoBurstLimit(String),
    /// Its parent does not exist.
    #[error("failed to get parent queue {0}: queues.scheduling.run.ai \"{0}\" not found")]
    NoParent(String),
    /// Its parent has no resources.
    #[error("parent queue {0} has no resources defined")]
    ParentWithoutResources(String),
}

/// The verdict on a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueVerdict {
    /// Shown to the user whether or not the queue is admitted.
    pub warnings: Vec<String>,
    /// Why it is refused, if it is.
    pub refusal: Option<QueueRefusal>,
}

/// Finds queues by name.
pub trait QueueLookup {
    /// The queue with this name.
    fn find(&self, name: &str) -> Option<ReviewedQueue>;
}

impl<F: Fn(&str) -> Option<ReviewedQueue>> QueueLookup for F {
    fn find(&self, name: &str) -> Option<ReviewedQueue> {
        self(name)
    }
}

/// Judges a queue that is created, or an update of `old`.
#[must_use]
pub fn check(
    old: Option<&ReviewedQueue>,
    queue: &ReviewedQueue,
    others: &dyn QueueLookup,
    compare_quotas: bool,
) -> QueueVerdict {
    let Some(resources) = &queue.spec.resources else {
        let refusal = QueueRefusal::NoResources;
        return QueueVerdict {
            warnings: vec![refusal.to_string()],
            refusal: Some(refusal),
        };
    };
    let refusal = no_duration(old, queue)
        .or_else(|| no_burst_limit(old, queue))
        .or_else(|| no_switch(old, queue));
    if let Some(refusal) = refusal {
        return QueueVerdict {
            warnings: Vec::new(),
            refusal: Some(refusal),
        };
    }
    let mut warnings: Vec<String> = cycle(queue, others).into_iter().collect();
    warnings.extend(unusable_quota(queue, resources));
    if compare_quotas && !queue.spec.parent_queue.is_empty() {
        match beside_parent(queue, resources, others) {
            Ok(found) => warnings.extend(found),
            Err(refusal) => {
                return QueueVerdict {
                    warnings,
                    refusal: Some(refusal),
                };
            }
        }
    }
    if compare_quotas && old.is_some_and(|old| !children(old).is_empty()) {
        warnings.extend(beside_children(queue, resources, others));
    }
    QueueVerdict {
        warnings,
        refusal: None,
    }
}

/// A minimum run time that cannot be parsed. KAI admits it, and can parse no queue at all from then on. An existing one
/// may stay, so that the rest of the queue can be edited.
fn no_duration(old: Option<&ReviewedQueue>, queue: &ReviewedQueue) -> Option<QueueRefusal> {
    let of = |queue: &ReviewedQueue| {
        let spec = &queue.spec;
        [
            ("preemptMinRuntime", spec.preempt_min_runtime.clone()),
            ("reclaimMinRuntime", spec.reclaim_min_runtime.clone()),
        ]
    };
    let known = old.map(of);
    let mut durations = of(queue).into_iter();
    let found = durations.find(|given| {
        let text = given.1.as_deref().unwrap_or_default();
        let is_new = known.as_ref().is_none_or(|known| !known.contains(given));
        is_new && !text.is_empty() && parse_duration(text).is_none()
    });
    let (field, text) = found?;
    Some(QueueRefusal::NoDuration { field, text: text? })
}

/// What the limits of a queue's pods may add up to, in cards. The outer `None` means that the text says no number of
/// cards, the inner that the sum is unlimited.
#[must_use]
pub fn burst_limit(text: &str) -> Option<Option<f64>> {
    const UNLIMITED: f64 = -1.0;
    let cards: f64 = text.parse().ok()?;
    if cards == UNLIMITED {
        return Some(None);
    }
    (cards.is_finite() && cards >= 0.0).then_some(Some(cards))
}

/// Why a text is no burst limit.
#[must_use]
pub fn not_a_burst_limit(text: &str) -> String {
    format!("{text:?} is not a number of GPUs: 0 or more, such as 4 or 2.5, or -1 for unlimited")
}

/// A burst limit that cannot be parsed. An existing one may stay, so that the rest of the queue can be edited.
fn no_burst_limit(old: Option<&ReviewedQueue>, queue: &ReviewedQueue) -> Option<QueueRefusal> {
    let text = burst_limit_of(queue)?;
    let is_kept = old.and_then(burst_limit_of) == Some(text);
    (!is_kept && burst_limit(text).is_none()).then(|| QueueRefusal::NoBurstLimit(text.to_owned()))
}

fn burst_limit_of(queue: &ReviewedQueue) -> Option<&str> {
    annotation(queue, ANNOTATION_QUEUE_BURST_LIMIT)
}

fn annotation<'q>(queue: &'q ReviewedQueue, key: &str) -> Option<&'q str> {
    let annotations = queue.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// Whether the pods of a queue are suspended before they are evicted; `None` if its annotation does not say.
#[must_use]
pub fn suspends(annotation: Option<&str>) -> Option<bool> {
    match annotation {
        None | Some("false") => Some(false),
        Some("true") => Some(true),
        Some(_) => None,
    }
}

/// Why a text does not say whether pods are suspended.
#[must_use]
pub fn not_a_switch(text: &str) -> String {
    format!("{text:?} is neither \"true\" nor \"false\"")
}

/// A switch for suspensions that cannot be parsed. An existing one may stay, so that the rest of the queue can be edited.
fn no_switch(old: Option<&ReviewedQueue>, queue: &ReviewedQueue) -> Option<QueueRefusal> {
    let of = |queue| annotation(queue, ANNOTATION_QUEUE_SUSPENDS);
    let text = of(queue)?;
    let is_kept = old.and_then(of) == Some(text);
    (!is_kept && suspends(Some(text)).is_none()).then(|| QueueRefusal::NoSwitch(text.to_owned()))
}

/// A warning if a queue can never use its quota of GPUs: a limit is at least what is guaranteed.
fn unusable_quota(queue: &ReviewedQueue, own: &QueueQuotas) -> Option<String> {
    let limit = burst_limit(burst_limit_of(queue)?)??;
    (own.gpu.quota > limit).then(|| {
        format!(
            "{ANNOTATION_QUEUE_BURST_LIMIT} ({limit}) is below the GPU quota ({}); the queue cannot use all of its quota",
            own.gpu.quota
        )
    })
}

/// Judges the deletion of a queue.
///
/// # Errors
/// [`QueueRefusal::HasChildren`] if it has any.
pub fn check_deletion(queue: &ReviewedQueue) -> Result<(), QueueRefusal> {
    let children = children(queue);
    if children.is_empty() {
        return Ok(());
    }
    Err(QueueRefusal::HasChildren {
        name: queue.metadata.name.clone(),
        children: children.to_vec(),
    })
}

fn children(queue: &ReviewedQueue) -> &[String] {
    let status = queue.status.as_ref();
    status.map_or(&[], |status| status.child_queues.as_slice())
}

/// A warning if a queue is its own ancestor.
fn cycle(queue: &ReviewedQueue, others: &dyn QueueLookup) -> Option<String> {
    let own = queue.metadata.name.as_str();
    let mut path = vec![own.to_owned()];
    let mut at = queue.spec.parent_queue.clone();
    while !at.is_empty() {
        let is_known = path.contains(&at);
        path.push(at.clone());
        if is_known {
            let found = at == own;
            return found.then(|| {
                format!(
                    "queue {own} is its own ancestor ({}); nothing in it will be scheduled",
                    path.join(" -> ")
                )
            });
        }
        at = others.find(&at)?.spec.parent_queue;
    }
    None
}

fn beside_parent(
    queue: &ReviewedQueue,
    own: &QueueQuotas,
    others: &dyn QueueLookup,
) -> Result<Vec<String>, QueueRefusal> {
    let name = &queue.spec.parent_queue;
    let parent = others
        .find(name)
        .ok_or_else(|| QueueRefusal::NoParent(name.clone()))?;
    let theirs = parent
        .spec
        .resources
        .as_ref()
        .ok_or_else(|| QueueRefusal::ParentWithoutResources(name.clone()))?;
    let siblings = children(&parent)
        .iter()
        .filter(|child| **child != queue.metadata.name)
        .filter_map(|child| others.find(child)?.spec.resources);
    let total: f64 = own.cpu.quota + siblings.map(|sibling| sibling.cpu.quota).sum::<f64>();
    let messages = [
        over(own.cpu.quota, theirs.cpu.quota, |child, parent| {
            format!(
                "child queue CPU quota ({child:.0}) exceeds parent queue {name} CPU quota ({parent:.0})"
            )
        }),
        over(total, theirs.cpu.quota, |all, parent| {
            format!(
                "total children CPU quota ({all:.0}) exceeds parent queue {name} CPU quota ({parent:.0})"
            )
        }),
        over(own.gpu.quota, theirs.gpu.quota, |child, parent| {
            format!(
                "child queue GPU quota ({child:.2}) exceeds parent queue {name} GPU quota ({parent:.2})"
            )
        }),
        over(own.memory.quota, theirs.memory.quota, |child, parent| {
            format!(
                "child queue Memory quota ({child:.0}) exceeds parent queue {name} Memory quota ({parent:.0})"
            )
        }),
    ];
    Ok(messages.into_iter().flatten().collect())
}

fn beside_children(
    queue: &ReviewedQueue,
    own: &QueueQuotas,
    others: &dyn QueueLookup,
) -> Vec<String> {
    let mut messages = Vec::new();
    let (mut cpu, mut gpu, mut memory) = (0.0, 0.0, 0.0);
    for name in children(queue) {
        let Some(child) = others.find(name).and_then(|child| child.spec.resources) else {
            continue;
        };
        cpu += child.cpu.quota;
        gpu += child.gpu.quota;
        memory += child.memory.quota;
        messages.extend(over(child.cpu.quota, own.cpu.quota, |child, own| {
            format!("child queue {name} CPU quota ({child:.0}) exceeds parent CPU quota ({own:.0})")
        }));
    }
    messages.extend(over(cpu, own.cpu.quota, |all, own| {
        format!("total children CPU quota ({all:.0}) exceeds parent CPU quota ({own:.0})")
    }));
    messages.extend(over(gpu, own.gpu.quota, |all, own| {
        format!("total children GPU quota ({all:.2}) exceeds parent GPU quota ({own:.2})")
    }));
    messages.extend(over(memory, own.memory.quota, |all, own| {
        format!("total children Memory quota ({all:.0}) exceeds parent Memory quota ({own:.0})")
    }));
    messages
}

/// The message for a quota that is above another.
fn over(below: f64, above: f64, message: impl Fn(f64, f64) -> String) -> Option<String> {
    (below > above).then(|| message(below, above))
}
