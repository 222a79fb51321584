//! Whether the queues of a running pod have room for a larger share of it.
//!
//! The bounds are those of a pod that starts: no queue goes beyond its limit, and pods that can't be preempted keep it
//! within its quota. A pod that shrinks is always within them.

use crate::amounts::{ResourceAmounts, ResourceKind};
use crate::cluster::TaskGpuRequest;
use crate::session::Session;
use crate::share::QueueShare;
use crate::state::SessionState;

/// What a queue lacks for more of its pods.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueShortfall {
    /// The queue, as it is without them.
    pub queue: QueueShare,
    /// What there is too little of.
    pub resource: ResourceKind,
    /// Which bound it would exceed.
    pub bound: QueueBound,
    /// What was asked for.
    pub more: ResourceAmounts,
}

/// A bound of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// Its limit.
    Limit,
    /// Its quota, for pods that can't be preempted.
    Quota,
}

/// The first queue, from the bottom up, that has no room for `more`.
pub fn queue_shortfall<'q>(
    queues: impl Iterator<Item = &'q QueueShare> + Clone,
    more: ResourceAmounts,
    is_preemptible: bool,
) -> Option<QueueShortfall> {
    let shortfall = |queue: &QueueShare, resource, bound| QueueShortfall {
        queue: queue.clone(),
        resource,
        bound,
        more,
    };
    for queue in queues.clone() {
        if let Some(resource) = queue.over_limit(more) {
            return Some(shortfall(queue, resource, QueueBound::Limit));
        }
    }
    let mut queues = queues.filter(|_| !is_preemptible);
    queues.find_map(|queue| {
        let resource = queue.over_quota(more)?;
        Some(shortfall(queue, resource, QueueBound::Quota))
    })
}

impl Session<'_> {
    /// The queue that has no room for the task with these cards in place of its own; `None` if all have.
    #[must_use]
    pub fn resize_shortfall(&self, task: &str, cards: &TaskGpuRequest) -> Option<QueueShortfall> {
        let facts = self.facts();
        let number = facts.find_task(task)?;
        let job = facts.job(facts.task(number).job);
        let queue = job.payer.filter(|_| facts.settings().has_quotas)?;
        let state = self.state();
        let now = &facts.task(number).task.cards;
        let gpus = gpus(state, number, cards) - gpus(state, number, now);
        if gpus <= 0.0 {
            return None;
        }
        let more = ResourceAmounts::new(0.0, 0.0, gpus);
        let tree = state.queues();
        let path = tree.upward(queue);
        let path: Vec<&QueueShare> = path.map(|queue| tree.get(queue)).collect();
        queue_shortfall(path.into_iter(), more, job.job.is_preemptible)
    }
}

/// How many GPUs a task would be charged for on the cards that it is on.
fn gpus(state: &SessionState, task: usize, cards: &TaskGpuRequest) -> f64 {
    let state_of_task = state.task(task);
    let Some(node) = state_of_task.node.map(|node| state.node(node)) else {
        return 0.0;
    };
    let TaskGpuRequest::Shared { share, .. } = cards else {
        return cards.count(node.card_memory);
    };
    if !node.sizes.is_listed() {
        return cards.count(node.card_memory);
    }
    let on_one = TaskGpuRequest::Shared {
        share: *share,
        devices: 1,
    };
    let shared = state_of_task.cards.shared.iter();
    shared.map(|&card| on_one.count(node.size(card))).sum()
}
