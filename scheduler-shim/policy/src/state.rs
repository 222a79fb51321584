//! The only part of a session that changes: the state of each task, and what follows from it.
//!
//! There is one primitive, [`SessionState::set`]: a task gets a new state, and the totals of nodes, queues and
//! affinity terms follow. Everything that is tried is a list of such changes in the [undo log](undo_log). To undo it,
//! the old states are set in reverse. Nothing else is ever restored, so nothing can be forgotten: what could be, the
//! [`SessionTotals`], can only be changed together with a task.
//!
//! Keys of cards are never taken back. No key is given twice, so one that no task has any more changes nothing.

use std::collections::BTreeMap;

use crate::amounts::{ResourceAmounts, ResourceKind};
use crate::charges::{burst_at, charge_at};
use crate::cluster::TaskStatus;
use crate::gang::TaskStatusLookup;
use crate::inter_pod_affinity::AffinityCounts;
use crate::node_resources::{CardKey, NodeState};
use crate::snapshot::ClusterSnapshot;
use crate::task_state::TaskState;
use crate::tree::QueueTree;
use changed_nodes::ChangedNodes;
use claim_holdings::ClaimHoldings;
use totals::SessionTotals;
use undo_log::{Checkpoint, UndoLog};

pub(crate) mod changed_nodes;
pub(crate) mod claim_holdings;
mod initial_placement;
pub(crate) mod totals;
pub(crate) mod undo_log;

/// The state of all tasks.
#[derive(Debug)]
pub(crate) struct SessionState {
    tasks: Vec<TaskState>,
    /// The states when the session opened.
    initial: Vec<TaskState>,
    totals: SessionTotals,
    cards: CardKeys,
    undo_log: UndoLog,
}

/// The keys that were given to cards, and the names of those that pods named.
#[derive(Debug, Default)]
struct CardKeys {
    names: BTreeMap<CardKey, String>,
    last: CardKey,
}

impl TaskStatusLookup for SessionState {
    fn status(&self, task: usize) -> TaskStatus {
        self.tasks[task].status
    }

    fn is_tentative(&self, task: usize) -> bool {
        self.tasks[task].was.is_some()
    }
}

impl SessionState {
    /// The state of a cluster as it is.
    pub(crate) fn of(facts: &ClusterSnapshot<'_>, queues: QueueTree) -> Self {
        let mut state = Self {
            tasks: vec![TaskState::default(); facts.tasks().len()],
            initial: Vec::new(),
            totals: SessionTotals::of(facts, queues),
            cards: CardKeys::default(),
            undo_log: UndoLog::default(),
        };
        initial_placement::add_all(facts, &mut state);
        state.initial = state.tasks.clone();
        state
    }

    pub(crate) fn task(&self, task: usize) -> &TaskState {
        &self.tasks[task]
    }

    /// Whether a task runs, starts, or has a place that becomes free without another eviction.
    pub(crate) fn has_node(&self, task: usize) -> bool {
        self.tasks[task].status.is_active_allocated()
    }

    /// The state of a task when the session opened.
    pub(crate) fn initial(&self, task: usize) -> &TaskState {
        &self.initial[task]
    }

    /// All tasks, as they were when the session opened and as they are now.
    pub(crate) fn before_and_after(&self) -> impl Iterator<Item = (&TaskState, &TaskState)> {
        self.initial.iter().zip(&self.tasks)
    }

    pub(crate) fn nodes(&self) -> &[NodeState] {
        self.totals.nodes()
    }

    pub(crate) fn node(&self, node: usize) -> &NodeState {
        &self.totals.nodes()[node]
    }

    pub(crate) fn queues(&self) -> &QueueTree {
        self.totals.queues()
    }

    /// Which claims have which devices.
    pub(crate) fn claim_holdings(&self) -> &ClaimHoldings {
        self.totals.claim_holdings()
    }

    pub(crate) fn affinity_counts(&self) -> &AffinityCounts {
        self.totals.affinity()
    }

    /// The nodes that changed, for caches.
    pub(crate) fn changed_nodes(&self) -> &ChangedNodes {
        self.totals.changed_nodes()
    }

    /// The cards that have names, by their keys.
    pub(crate) fn card_names(&self) -> &BTreeMap<CardKey, String> {
        &self.cards.names
    }

    /// The charge of a task on its node.
    pub(crate) fn charge(
        &self,
        facts: &ClusterSnapshot<'_>,
        task: usize,
    ) -> Option<ResourceAmounts> {
        let state = &self.tasks[task];
        let node_state = self.node(state.node?);
        Some(charge_at(facts, node_state, task, &state.cards))
    }

    /// How many cards a task is charged for where it is.
    pub(crate) fn gpus_of(&self, facts: &ClusterSnapshot<'_>, task: usize) -> f64 {
        let charge = self.charge(facts, task);
        charge.map_or(0.0, |charge| charge[ResourceKind::Gpu])
    }

    /// How many cards a task may use above its charge where it is.
    pub(crate) fn burst_of(&self, facts: &ClusterSnapshot<'_>, task: usize) -> f64 {
        let state = &self.tasks[task];
        let node = state.node.map(|node| self.node(node));
        node.map_or(0.0, |node| burst_at(facts, node, task, &state.cards))
    }

    /// Gives a task a new state.
    pub(crate) fn set(&mut self, facts: &ClusterSnapshot<'_>, task: usize, state: TaskState) {
        let before = self.replace(facts, task, state);
        self.undo_log.push(task, before);
    }

    fn replace(&mut self, facts: &ClusterSnapshot<'_>, task: usize, state: TaskState) -> TaskState {
        let before = std::mem::replace(&mut self.tasks[task], state);
        self.totals.remove(facts, task, &before);
        self.totals.add(facts, task, &self.tasks[task]);
        before
    }

    /// The point to return to.
    pub(crate) fn mark(&self) -> Checkpoint {
        self.undo_log.mark()
    }

    /// Undoes everything since `mark`.
    pub(crate) fn roll_back(&mut self, facts: &ClusterSnapshot<'_>, mark: Checkpoint) {
        while let Some((task, before)) = self.undo_log.pop_after(mark) {
            self.replace(facts, task, before);
        }
    }

    /// Makes everything since the last commit final.
    pub(crate) fn commit(&mut self) {
        for task in self.undo_log.clear() {
            self.tasks[task].was = None;
        }
    }

    /// A task at the last commit, if it has changed since.
    pub(crate) fn committed(&self, task: usize) -> Option<&TaskState> {
        self.undo_log.first(task)
    }

    /// The tasks that changed since `mark`.
    pub(crate) fn changed_since(&self, mark: Checkpoint) -> Vec<usize> {
        self.undo_log.tasks_since(mark)
    }

    /// A key for a card of a node that nobody shares yet, of this size class if sizes are known.
    pub(crate) fn new_card(&mut self, node: usize, class: usize) -> CardKey {
        let key = self.cards.next();
        self.totals.know_card(node, key, class);
        key
    }
}

#[cfg(test)]
impl SessionState {
    /// What is left of the totals when every task is taken out of them.
    pub(crate) fn totals_without_tasks(&self, facts: &ClusterSnapshot<'_>) -> SessionTotals {
        let mut totals = self.totals.clone();
        for (task, state) in self.tasks.iter().enumerate() {
            totals.remove(facts, task, state);
        }
        totals
    }
}

impl CardKeys {
    fn next(&mut self) -> CardKey {
        self.last += 1;
        self.last
    }
}
