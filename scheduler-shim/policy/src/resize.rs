//! Whether the queues of a running pod have room for a larger share of it, or a higher limit.
//!
//! The bounds are those of a pod that starts: no queue goes beyond its limit or its burst limit, and pods that can't be
//! preempted keep it within its quota. A pod that shrinks is always within them.

use apportion_abi::Share;

use crate::amounts::{ResourceAmounts, ResourceKind, rounded};
use crate::charges::CardCharge;
use crate::cluster::{Task, TaskGpuRequest};
use crate::session::Session;
use crate::share::QueueShare;
use crate::state::SessionState;

/// What pods ask of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueDemand {
    /// What they would be charged.
    pub amounts: ResourceAmounts,
    /// What their limits on cards add up to, in cards.
    pub limits: f64,
    /// Whether they can be preempted.
    pub is_preemptible: bool,
}

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
    pub more: QueueDemand,
}

/// A bound of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// Its limit.
    Limit,
    /// What the limits of its pods may add up to.
    BurstLimit,
    /// Its quota, for pods that can't be preempted.
    Quota,
}

/// The first queue, from the bottom up, that has no room for `more`.
pub fn queue_shortfall<'q>(
    queues: impl Iterator<Item = &'q QueueShare> + Clone,
    more: QueueDemand,
) -> Option<QueueShortfall> {
    let shortfall = |queue: &QueueShare, resource, bound| QueueShortfall {
        queue: queue.clone(),
        resource,
        bound,
        more,
    };
    for queue in queues.clone() {
        if let Some(resource) = queue.over_limit(more.amounts) {
            return Some(shortfall(queue, resource, QueueBound::Limit));
        }
    }
    if let Some(queue) = queues
        .clone()
        .find(|queue| queue.exceeds_burst_limit(more.limits))
    {
        return Some(shortfall(queue, ResourceKind::Gpu, QueueBound::BurstLimit));
    }
    let mut queues = queues.filter(|_| !more.is_preemptible);
    queues.find_map(|queue| {
        let resource = queue.over_quota(more.amounts)?;
        Some(shortfall(queue, resource, QueueBound::Quota))
    })
}

impl Session<'_> {
    /// The queue that has no room for the task with these cards and this limit in place of its own; `None` if all have.
    #[must_use]
    pub fn resize_shortfall(
        &self,
        task: &str,
        cards: &TaskGpuRequest,
        limit: Option<Share>,
    ) -> Option<QueueShortfall> {
        let facts = self.facts();
        let number = facts.find_task(task)?;
        let job = facts.job(facts.task(number).job);
        let queue = job.payer.filter(|_| facts.settings().has_quotas)?;
        let state = self.state();
        let now = facts.task(number).task;
        let before = charge(state, number, &now.cards, now.limit);
        let after = charge(state, number, cards, limit);
        let more = QueueDemand {
            amounts: ResourceAmounts::new(0.0, 0.0, after.cards - before.cards),
            limits: rounded(after.limits() - before.limits()),
            is_preemptible: job.job.is_preemptible,
        };
        let tree = state.queues();
        let path = tree.upward(queue);
        let path: Vec<&QueueShare> = path.map(|queue| tree.get(queue)).collect();
        queue_shortfall(path.into_iter(), more)
    }
}

/// The cards of a task in numbers, if it had this share and this limit on those that it is on.
fn charge(
    state: &SessionState,
    task: usize,
    cards: &TaskGpuRequest,
    limit: Option<Share>,
) -> CardCharge {
    let state_of_task = state.task(task);
    let Some(node) = state_of_task.node.map(|node| state.node(node)) else {
        return CardCharge::default();
    };
    let as_resized = Task {
        cards: cards.clone(),
        limit,
        ..Task::default()
    };
    let TaskGpuRequest::Shared { share, .. } = cards else {
        return CardCharge {
            cards: cards.count(node.card_memory),
            burst: 0.0,
        };
    };
    if !node.sizes.is_listed() {
        return CardCharge {
            cards: cards.count(node.card_memory),
            burst: as_resized.burst(node.card_memory),
        };
    }
    let on_one = TaskGpuRequest::Shared {
        share: *share,
        devices: 1,
    };
    let sizes = state_of_task.cards.shared.iter();
    let sizes = sizes.map(|&card| node.size(card));
    CardCharge {
        cards: sizes.clone().map(|size| on_one.count(size)).sum(),
        burst: sizes.map(|size| as_resized.burst_on(size)).sum(),
    }
}
