//! What tasks ask of queues, and what they are charged.
//!
//! Before a node is chosen, bytes count as a part of some card; afterwards as a part of the cards that they are on.

use apportion_abi::Bytes;

use crate::amounts::{ResourceAmounts, ResourceKind};
use crate::cluster::TaskGpuRequest;
use crate::node_resources::{CardAssignment, NodeState};
use crate::snapshot::ClusterSnapshot;

/// The cards of a pod in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CardCharge {
    /// How many it is charged for.
    pub cards: f64,
    /// How many it may use above those.
    pub burst: f64,
}

impl CardCharge {
    /// What its limits add up to.
    pub(crate) fn limits(self) -> f64 {
        self.cards + self.burst
    }
}

/// What a task is charged on cards with this memory.
pub(crate) fn charged(facts: &ClusterSnapshot<'_>, task: usize, card: Bytes) -> ResourceAmounts {
    let task = facts.task(task);
    let mut amounts = task.task.amounts(card);
    amounts[ResourceKind::Gpu] += task.claimed_cards;
    amounts
}

/// What a task is charged with these cards of a node. Bytes are charged by the cards that they are on.
pub(crate) fn charge_at(
    facts: &ClusterSnapshot<'_>,
    node_state: &NodeState,
    task: usize,
    cards: &CardAssignment,
) -> ResourceAmounts {
    let mut amounts = charged(facts, task, node_state.card_memory);
    let task = facts.task(task);
    if let TaskGpuRequest::Shared { share, .. } = &task.task.cards
        && node_state.sizes.is_listed()
    {
        let on_one = TaskGpuRequest::Shared {
            share: *share,
            devices: 1,
        };
        let parts = cards.shared.iter();
        let parts = parts.map(|&card| on_one.count(node_state.size(card)));
        amounts[ResourceKind::Gpu] = task.claimed_cards + parts.sum::<f64>();
    }
    amounts
}

/// How many cards a task may use above its charge, with these cards of a node.
pub(crate) fn burst_at(
    facts: &ClusterSnapshot<'_>,
    node_state: &NodeState,
    task: usize,
    cards: &CardAssignment,
) -> f64 {
    let task = facts.task(task).task;
    if task.limit.is_none() {
        return 0.0;
    }
    if !node_state.sizes.is_listed() {
        return task.burst(node_state.card_memory);
    }
    let parts = cards.shared.iter();
    parts
        .map(|&card| task.burst_on(node_state.size(card)))
        .sum()
}

/// What the limits of tasks add up to on cards with this memory, in cards. Without a limit of its own, a task's charge
/// is its limit.
pub(crate) fn limits(facts: &ClusterSnapshot<'_>, tasks: &[usize], card: Bytes) -> f64 {
    let limits = tasks.iter().map(|&task| {
        charged(facts, task, card)[ResourceKind::Gpu] + facts.task(task).task.burst(card)
    });
    limits.sum()
}

/// The least that tasks are charged: on the largest cards.
pub(crate) fn least_charge(facts: &ClusterSnapshot<'_>, tasks: &[usize]) -> ResourceAmounts {
    let largest = facts.card_sizes().largest();
    tasks
        .iter()
        .map(|&task| charged(facts, task, largest))
        .sum()
}

/// Whether a task wants any part of a card.
pub(crate) fn wants_cards(facts: &ClusterSnapshot<'_>, task: usize) -> bool {
    let task = facts.task(task);
    task.claimed_cards > 0.0 || task.task.wants_cards()
}

/// What tasks ask of a queue before a node is chosen; bytes count as parts of the smallest card that fits.
pub(crate) fn wants(facts: &ClusterSnapshot<'_>, tasks: &[usize]) -> ResourceAmounts {
    tasks.iter().map(|&task| facts.task(task).wants).sum()
}
