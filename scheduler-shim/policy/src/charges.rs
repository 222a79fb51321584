//! What tasks ask of queues, and what they are charged.
//!
//! Before a node is chosen, bytes count as a part of some card; afterwards as a part of the cards that they are on.

use apportion_abi::Bytes;

use crate::amounts::{ResourceAmounts, ResourceKind};
use crate::cluster::{Task, TaskGpuRequest};
use crate::node_resources::{CardAssignment, CardKey};
use crate::session::Session;

/// What a task is charged on cards with this memory.
pub(crate) fn charged(session: &Session<'_>, task: usize, card: Bytes) -> ResourceAmounts {
    let facts = &session.tasks[task];
    let mut amounts = facts.task.amounts(card);
    amounts[ResourceKind::Gpu] += facts.claimed_cards as f64;
    amounts
}

/// The charge of a task on its node.
pub(crate) fn charge(session: &Session<'_>, task: usize) -> Option<ResourceAmounts> {
    let state = &session.task_states[task];
    let node = state.node?;
    Some(charge_at(session, task, node, &state.cards))
}

/// What a task is charged with these cards of a node. Bytes are charged by the cards that they are on.
pub(super) fn charge_at(
    session: &Session<'_>,
    task: usize,
    node: usize,
    cards: &CardAssignment,
) -> ResourceAmounts {
    let node_state = &session.node_states[node];
    let mut amounts = charged(session, task, node_state.card_memory);
    if let (TaskGpuRequest::Shared { share, .. }, true) = (
        &session.tasks[task].task.cards,
        node_state.sizes.is_listed(),
    ) {
        let part = |&card: &CardKey| {
            let alone = TaskGpuRequest::Shared {
                share: *share,
                devices: 1,
            };
            alone.count(node_state.size(card))
        };
        let claimed = session.tasks[task].claimed_cards as f64;
        amounts[ResourceKind::Gpu] = claimed + cards.shared.iter().map(part).sum::<f64>();
    }
    amounts
}

/// The least that tasks are charged: on the largest cards.
pub(crate) fn least_charge(session: &Session<'_>, tasks: &[usize]) -> ResourceAmounts {
    let charges = tasks.iter();
    charges
        .map(|&task| charged(session, task, session.card_sizes.1))
        .sum()
}

/// Whether a task wants any part of a card.
pub(crate) fn wants_cards(session: &Session<'_>, task: usize) -> bool {
    let facts = &session.tasks[task];
    facts.claimed_cards > 0 || facts.task.wants_cards()
}

/// What tasks ask of a queue before a node is chosen; bytes count as parts of the smallest card that fits.
pub(crate) fn wants(session: &Session<'_>, tasks: &[usize]) -> ResourceAmounts {
    tasks.iter().map(|&task| session.tasks[task].wants).sum()
}

impl Task {
    /// What it is charged on cards with this memory.
    #[must_use]
    pub fn amounts(&self, card: Bytes) -> ResourceAmounts {
        ResourceAmounts::new(
            self.cpu_millis as f64,
            self.memory as f64,
            self.cards.count(card),
        )
    }

    /// Whether it wants any part of a card.
    #[must_use]
    pub fn wants_cards(&self) -> bool {
        match &self.cards {
            TaskGpuRequest::None => false,
            TaskGpuRequest::Whole(count) => *count > 0,
            TaskGpuRequest::Shared { .. } => true,
            TaskGpuRequest::Partitions(partitions) => partitions.values().any(|count| *count > 0),
        }
    }
}
