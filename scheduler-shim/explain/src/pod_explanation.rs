//! What is known about one pod, as a value and as text.

use std::fmt;

use apportion_abi::Bytes;
use serde::Serialize;

use super::formatting::line;
use super::queue_view::QueueView;
use super::unschedulable::NodeView;

/// How many nodes are printed in text; JSON has all.
const SHOWN: usize = 20;

/// A pod in full.
#[derive(Clone, Debug, Serialize)]
pub struct PodExplanation {
    pub(crate) pod: String,
    pub(crate) job: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) priority: Option<i32>,
    pub(crate) preemptible: Option<bool>,
    pub(crate) asks: Option<String>,
    pub(crate) decision: String,
    /// The resize that it waits for, and why. Only the running scheduler knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize: Option<String>,
    /// The devices that it waits for before it is bound. Only the running scheduler knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<String>,
    pub(crate) nodes: Vec<NodeView>,
    /// The pod's queue and those above it.
    pub(crate) queues: Vec<QueueView>,
    /// Single changes after which the pod would get a place.
    pub(crate) unblocked_if: Vec<String>,
    /// Whether they were tried as if no other pod waited, as in large clusters.
    pub(crate) unblocked_if_alone: bool,
}

impl PodExplanation {
    /// The explanation of a share that waits, as that of its pod, which is suspended.
    #[must_use]
    pub fn of_suspended(self, pod: &str) -> Self {
        Self {
            pod: pod.to_owned(),
            decision: format!("is suspended, and {}", self.decision),
            ..self
        }
    }
}

impl fmt::Display for PodExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, format_args!("pod {}", self.pod))?;
        line(f, format_args!("  {}", self.decision))?;
        for more in [&self.resize, &self.devices].into_iter().flatten() {
            line(f, format_args!("  {more}"))?;
        }
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
                    format_args!("  {}: {}", resource.resource, resource.message),
                )?;
            }
        }
        for change in &self.unblocked_if {
            let single_pod = if self.unblocked_if_alone {
                ", and no other pod takes the place"
            } else {
                ""
            };
            line(f, format_args!("would start if {change}{single_pod}"))?;
        }
        Ok(())
    }
}
