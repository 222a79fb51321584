//! Queues: what one must say, and what is odd about its quotas beside its parent's and its children's.
//!
//! KAI refuses a queue without resources, and warns about quotas only where it is told to. Its warnings compare
//! the numbers as they stand, also the -1 that means unlimited. A queue that is its own ancestor is warned about
//! here and not in KAI: nothing in it would ever be scheduled. So is a minimum run time that is no duration refused.

use apportion_groups::{not_a_duration, parse_duration};
use serde::Deserialize;

/// A queue, as far as the rules look at it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedQueue {
    /// Who it is.
    pub metadata: ReviewedQueueMetadata,
    /// What it says.
    pub spec: ReviewedQueueSpec,
    /// What became of it.
    pub status: Option<ReviewedQueueStatus>,
}

/// Who a queue is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedQueueMetadata {
    /// Its name.
    pub name: String,
}

/// What a queue says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReviewedQueueSpec {
    /// Its parent; empty at the top.
    pub parent_queue: String,
    /// Its share of the cluster.
    pub resources: Option<QueueQuotas>,
    /// For how long its jobs run before they can be preempted.
    pub preempt_min_runtime: Option<String>,
    /// For how long its jobs run before they can be reclaimed.
    pub reclaim_min_runtime: Option<String>,
}

/// What became of a queue.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReviewedQueueStatus {
    /// The queues below it.
    pub child_queues: Vec<String>,
}

/// A queue's share of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueQuotas {
    /// Of processors, in thousandths.
    pub cpu: QueueQuota,
    /// Of cards.
    pub gpu: QueueQuota,
    /// Of memory, in megabytes.
    pub memory: QueueQuota,
}

/// A queue's share of one resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueQuota {
    /// What it deserves.
    pub quota: f64,
}

/// Why a queue is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueRefusal {
    /// It says nothing of resources.
    #[error("resources must be specified")]
    NoResources,
    /// It has children, and is to go.
    #[error("cannot delete queue {name}: it has child queues [{}]", children.join(" "))]
    HasChildren {
        /// Its name.
        name: String,
        /// Theirs.
        children: Vec<String>,
    },
    /// A text that is no duration.
    #[error("{field} {}", not_a_duration(text))]
    NoDuration {
        /// The field.
        field: &'static str,
        /// What it says.
        text: String,
    },
    /// Its parent isn't there.
    #[error("failed to get parent queue {0}: queues.scheduling.run.ai \"{0}\" not found")]
    NoParent(String),
    /// Its parent says nothing of resources.
    #[error("parent queue {0} has no resources defined")]
    ParentWithoutResources(String),
}

/// What comes of judging a queue: warnings, and whether it is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueVerdict {
    /// Said to whoever asked, whether or not the queue is taken.
    pub warnings: Vec<String>,
    /// Why it isn't.
    pub refusal: Option<QueueRefusal>,
}

/// Finds other queues by name.
pub trait QueueLookup {
    /// The queue of that name.
    fn find(&self, name: &str) -> Option<ReviewedQueue>;
}

impl<F: Fn(&str) -> Option<ReviewedQueue>> QueueLookup for F {
    fn find(&self, name: &str) -> Option<ReviewedQueue> {
        self(name)
    }
}

/// Judges a queue that is to be created, or what `old` is to become.
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
    if let Some(refusal) = no_duration(old, queue) {
        return QueueVerdict {
            warnings: Vec::new(),
            refusal: Some(refusal),
        };
    }
    let mut warnings: Vec<String> = cycle(queue, others).into_iter().collect();
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
    let has_children = |old: &ReviewedQueue| !children(old).is_empty();
    if compare_quotas && old.is_some_and(has_children) {
        warnings.extend(beside_children(queue, resources, others));
    }
    QueueVerdict {
        warnings,
        refusal: None,
    }
}

/// A minimum run time that cannot be read. KAI takes it, and can read no queue at all from then on; one that is there
/// already may stay as it is, so that the rest of the queue can be edited.
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

/// Judges a queue that is to go.
///
/// # Errors
/// [`QueueRefusal::HasChildren`].
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

/// Says so when a queue is its own ancestor.
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
    let parent = others.find(name);
    let parent = parent.ok_or_else(|| QueueRefusal::NoParent(name.clone()))?;
    let theirs = parent.spec.resources.as_ref();
    let theirs = theirs.ok_or_else(|| QueueRefusal::ParentWithoutResources(name.clone()))?;
    let siblings = children(&parent)
        .iter()
        .filter(|child| **child != queue.metadata.name)
        .filter_map(|child| others.find(child)?.spec.resources);
    let total: f64 = own.cpu.quota + siblings.map(|sibling| sibling.cpu.quota).sum::<f64>();
    let said = [
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
    Ok(said.into_iter().flatten().collect())
}

fn beside_children(
    queue: &ReviewedQueue,
    own: &QueueQuotas,
    others: &dyn QueueLookup,
) -> Vec<String> {
    let mut said = Vec::new();
    let (mut cpu, mut gpu, mut memory) = (0.0, 0.0, 0.0);
    for name in children(queue) {
        let Some(child) = others.find(name).and_then(|child| child.spec.resources) else {
            continue;
        };
        cpu += child.cpu.quota;
        gpu += child.gpu.quota;
        memory += child.memory.quota;
        said.extend(over(child.cpu.quota, own.cpu.quota, |child, own| {
            format!("child queue {name} CPU quota ({child:.0}) exceeds parent CPU quota ({own:.0})")
        }));
    }
    said.extend(over(cpu, own.cpu.quota, |all, own| {
        format!("total children CPU quota ({all:.0}) exceeds parent CPU quota ({own:.0})")
    }));
    said.extend(over(gpu, own.gpu.quota, |all, own| {
        format!("total children GPU quota ({all:.2}) exceeds parent GPU quota ({own:.2})")
    }));
    said.extend(over(memory, own.memory.quota, |all, own| {
        format!("total children Memory quota ({all:.0}) exceeds parent Memory quota ({own:.0})")
    }));
    said
}

/// What to say when one quota is above another.
fn over(below: f64, above: f64, say: impl Fn(f64, f64) -> String) -> Option<String> {
    (below > above).then(|| say(below, above))
}
