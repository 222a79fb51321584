//! One pod in full: its request, the decision, all nodes and cards, its queues, and what would help.

use std::fmt;

use apportion_abi::Bytes;
use apportion_policy::amounts::ResourceKind;
use apportion_policy::cluster::Task;
use serde::Serialize;

use super::decided_cluster::DecidedCluster;
use super::formatting::{self, line};
use super::report::DecisionReport;
use super::unblock;
use super::unschedulable::{self, NodeView};
use apportion_model::snapshot::ClusterSnapshot;

/// How many nodes are printed in text; JSON has all.
const SHOWN: usize = 20;

/// A pod in full.
#[derive(Clone, Debug, Serialize)]
pub struct PodExplanation {
    pod: String,
    job: Option<String>,
    queue: Option<String>,
    priority: Option<i32>,
    preemptible: Option<bool>,
    asks: Option<String>,
    decision: String,
    nodes: Vec<NodeView>,
    /// The pod's queue and those above it.
    queues: Vec<QueueView>,
    /// Single changes after which the pod would get a place.
    unblocked_if: Vec<String>,
    /// Whether they were tried as if no other pod waited, as in large clusters.
    unblocked_if_alone: bool,
}

/// A queue in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct QueueView {
    queue: String,
    resources: Vec<ResourceView>,
}

/// One resource of a queue; -1 is unlimited. CPU is milli-CPU, memory bytes.
#[derive(Clone, Debug, Serialize)]
struct ResourceView {
    resource: &'static str,
    quota: f64,
    limit: f64,
    allocated: f64,
    allocated_non_preemptible: f64,
    requested: f64,
    fair_share: f64,
    /// Past usage, as a part of what was available; left out if it does not count.
    #[serde(skip_serializing_if = "is_zero")]
    usage: f64,
    #[serde(skip)]
    words: String,
}

/// Explains one pod.
pub fn explain(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    report: &DecisionReport,
    pod: &str,
) -> PodExplanation {
    let waits = report.waiting.iter().find(|one| one.pod == pod);
    let mut decisions = report
        .decisions
        .iter()
        .filter(|one| one.pod == pod)
        .map(ToString::to_string);
    let found = decided.task(pod);
    let decision = match (waits, decisions.next()) {
        (Some(waiting), _) => format!("waits because {}", waiting.message),
        (None, Some(first)) => decisions.fold(first, |all, one| format!("{all}; {one}")),
        (None, None) => match found {
            Some((_, task)) => format!("no change: {:?}", task.status).to_lowercase(),
            None => "belongs to another scheduler".to_owned(),
        },
    };
    let Some((job, task)) = found else {
        return PodExplanation {
            pod: pod.to_owned(),
            job: None,
            queue: None,
            priority: None,
            preemptible: None,
            asks: None,
            decision,
            nodes: Vec::new(),
            queues: Vec::new(),
            unblocked_if: Vec::new(),
            unblocked_if_alone: false,
        };
    };
    PodExplanation {
        pod: pod.to_owned(),
        job: Some(job.name.clone()),
        queue: Some(job.queue.clone()),
        priority: Some(job.priority),
        preemptible: Some(job.is_preemptible),
        asks: Some(unblock::ask(task)),
        decision,
        nodes: match waits {
            Some(_) => unschedulable::nodes(snapshot, decided, task),
            None => here(snapshot, decided, task),
        },
        queues: queues(decided, &job.queue),
        unblocked_if_alone: unblock::is_large(decided),
        unblocked_if: match waits {
            Some(_) => unblock::changes(snapshot, decided, job, task),
            None => Vec::new(),
        },
    }
}

/// The node on which a pod is or will be.
fn here(
    snapshot: &ClusterSnapshot<'_>,
    decided: &DecidedCluster<'_>,
    task: &Task,
) -> Vec<NodeView> {
    let outcome = decided.outcomes.get(task.name.as_str());
    let place = outcome.and_then(|outcome| outcome.place.as_ref());
    let mut views = unschedulable::nodes(snapshot, decided, task);
    views.retain(|view| place.is_some_and(|place| place.node == view.node));
    for view in &mut views {
        view.lacks = None;
        view.message = "the pod's node".to_owned();
    }
    views
}

/// A queue and those above it, in numbers.
fn queues(decided: &DecidedCluster<'_>, name: &str) -> Vec<QueueView> {
    let found = decided.queues.find(name).into_iter();
    let path = found.flat_map(|queue| decided.queues.upward(queue));
    path.map(|queue| view(decided, queue)).collect()
}

/// All queues, in numbers.
pub fn all_queues(decided: &DecidedCluster<'_>) -> Vec<QueueView> {
    (0..decided.queues.all().len())
        .map(|queue| view(decided, queue))
        .collect()
}

fn view(decided: &DecidedCluster<'_>, queue: usize) -> QueueView {
    let queue = decided.queues.get(queue);
    let resource = |resource: ResourceKind| {
        let share = queue.of(resource);
        let amount = |number| formatting::amount(resource, number);
        ResourceView {
            resource: formatting::name(resource),
            quota: share.deserved,
            limit: share.limit,
            allocated: share.allocated,
            allocated_non_preemptible: share.non_preemptible,
            requested: share.request,
            fair_share: share.fair,
            usage: share.usage,
            words: format!(
                "quota {}, limit {}, allocated {} ({} non-preemptible), requested {}, fair share {}{}",
                amount(share.deserved),
                amount(share.limit),
                amount(share.allocated),
                amount(share.non_preemptible),
                amount(share.request),
                amount(share.fair),
                before(share.usage)
            ),
        }
    };
    QueueView {
        queue: queue.uid.clone(),
        resources: [ResourceKind::Gpu, ResourceKind::Cpu, ResourceKind::Memory]
            .map(resource)
            .to_vec(),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(part: &f64) -> bool {
    *part == 0.0
}

/// Past usage, which lowers a queue's fair share, or raises it if others used more.
fn before(usage: f64) -> String {
    if is_zero(&usage) {
        String::new()
    } else {
        format!(", past usage {:.1} %", usage * 100.0)
    }
}

impl fmt::Display for PodExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, format_args!("pod {}", self.pod))?;
        line(f, format_args!("  {}", self.decision))?;
        if let (Some(job), Some(queue), Some(priority)) = (&self.job, &self.queue, self.priority) {
            let kind = match self.preemptible {
                Some(true) => "preemptible",
                _ => "non-preemptible",
            };
            line(
                f,
                format_args!("  group {job}, queue {queue}, priority {priority}, {kind}"),
            )?;
        }
        if let Some(asks) = &self.asks {
            line(f, format_args!("  asks for {asks}"))?;
        }
        for node in self.nodes.iter().take(SHOWN) {
            line(
                f,
                format_args!(
                    "node {}: {}; {} idle GPUs",
                    node.node, node.message, node.idle_cards
                ),
            )?;
            for card in &node.cards {
                let holders: Vec<String> = (card.holders.iter())
                    .map(|holder| format!("{} with {}", holder.pod, Bytes(holder.bytes)))
                    .collect();
                let (free, total) = (Bytes(card.free_bytes), Bytes(card.total_bytes));
                line(
                    f,
                    format_args!(
                        "  {}: {free} free of {total}, held by {}",
                        card.card,
                        holders.join(", ")
                    ),
                )?;
            }
        }
        if let Some(more) = self.nodes.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            line(f, format_args!("and {more} more nodes; --json lists all"))?;
        }
        for queue in &self.queues {
            line(f, format_args!("queue {}", queue.queue))?;
            for resource in &queue.resources {
                line(
                    f,
                    format_args!("  {}: {}", resource.resource, resource.words),
                )?;
            }
        }
        for change in &self.unblocked_if {
            let alone = if self.unblocked_if_alone {
                ", and no other pod takes the place"
            } else {
                ""
            };
            line(f, format_args!("would start if {change}{alone}"))?;
        }
        Ok(())
    }
}
