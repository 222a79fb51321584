//! One run of the policy on one cluster.
//!
//! A session has four parts. The [facts](ClusterSnapshot) are the cluster as it was when the session opened. The
//! [state](SessionState) is what changes: every change is logged and can be undone. The [caches](SessionCaches) can
//! be computed again from these two. The [record](PlanRecord) says what was decided about evictions. The rules are
//! functions in modules of their own: with a shared session they can read all of it and change none of it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::caches::SessionCaches;
use crate::cluster::{Cluster, TaskStatus};
use crate::gang::{Gang, JobView};
use crate::node_resources::CardKey;
use crate::plan_record::{EvictionCaution, PlanRecord};
use crate::snapshot::ClusterSnapshot;
use crate::state::SessionState;
use crate::state::undo_log::Checkpoint;
use crate::task_state::TaskState;
use crate::tree::QueueTree;

/// A run of the policy.
#[derive(Debug)]
pub struct Session<'a> {
    facts: ClusterSnapshot<'a>,
    state: SessionState,
    caches: SessionCaches,
    plan: PlanRecord,
    /// The effort so far, counted instead of timed.
    effort: Cell<u64>,
}

impl<'a> Session<'a> {
    /// Opens a session on a cluster.
    #[must_use]
    pub fn open(now: Duration, cluster: &'a Cluster) -> Self {
        Self::with_caution(now, cluster, EvictionCaution::default())
    }

    /// Opens a session that may make these evictions.
    pub(crate) fn with_caution(
        now: Duration,
        cluster: &'a Cluster,
        caution: EvictionCaution,
    ) -> Self {
        // The tree numbers the queues, and the snapshot names them by these numbers. Only the state keeps the tree,
        // because usage changes with every decision.
        let queues = QueueTree::of(&cluster.queues);
        let facts = ClusterSnapshot::of(now, cluster, &queues);
        Self {
            state: SessionState::of(&facts, queues),
            facts,
            caches: SessionCaches::default(),
            plan: PlanRecord::with(caution),
            effort: Cell::new(0),
        }
    }

    /// How often a pod was checked against a node, or counted as a victim, so far.
    #[must_use]
    pub fn effort(&self) -> u64 {
        self.effort.get()
    }

    pub(crate) fn spend(&self, effort: usize) {
        self.effort.set(self.effort.get() + effort as u64);
    }

    pub(crate) fn facts(&self) -> &ClusterSnapshot<'a> {
        &self.facts
    }

    pub(crate) fn state(&self) -> &SessionState {
        &self.state
    }

    pub(crate) fn caches(&self) -> &SessionCaches {
        &self.caches
    }

    pub(crate) fn plan(&self) -> &PlanRecord {
        &self.plan
    }

    pub(crate) fn plan_mut(&mut self) -> &mut PlanRecord {
        &mut self.plan
    }

    /// The tasks with a reserved place that are to get it before all others.
    pub(crate) fn nominated(&self) -> BTreeSet<usize> {
        let tasks = self.facts.tasks().iter().enumerate();
        let before = tasks.filter(|(_, facts)| facts.task.is_nominated);
        let before = before.map(|(task, _)| task);
        before
            .chain(self.plan.nominated())
            .filter(|&task| self.state.task(task).status == TaskStatus::Pipelined)
            .collect()
    }

    /// A view of a job as a gang.
    pub(crate) fn gang<'s>(&'s self, view: &'s JobView) -> Gang<'s, SessionState> {
        Gang {
            tree: &self.facts.job(view.job).tree,
            view,
            task_states: &self.state,
        }
    }

    /// Gives a task a new state.
    pub(crate) fn set(&mut self, task: usize, state: TaskState) {
        self.state.set(&self.facts, task, state);
    }

    /// Undoes everything since `mark`.
    pub(crate) fn roll_back(&mut self, mark: Checkpoint) {
        self.state.roll_back(&self.facts, mark);
    }

    /// Makes everything since the last commit final.
    pub(crate) fn commit(&mut self) {
        self.state.commit();
    }

    /// A key for a card of a node that nobody shares yet, of this size class if sizes are known.
    pub(crate) fn new_card(&mut self, node: usize, class: usize) -> CardKey {
        self.state.new_card(node, class)
    }
}

#[cfg(test)]
mod tests;
