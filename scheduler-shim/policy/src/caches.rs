//! What a session keeps to compute less.
//!
//! Each cache is a plain structure that knows no rule: the rule that fills it hands in what it computes for one node
//! or one task. So each can be compared with a recomputation, and the tests in [`crate::session`] do that after
//! random changes and rollbacks. The caches learn what changed from the state: from its list of changed nodes, or
//! from the number of changes of its affinity counts.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use crate::state::changed_nodes::ChangedNodes;
use free_capacity::{FreeCapacity, FreeOnNode};
use node_ranking::{NodeRanking, NodeRankings};
use placement_counts::{PlacementCounts, PlacementCountsList};
use pod_mix::PodMix;
use task_class::TaskClass;
use topology_spread::TopologySpread;

pub(crate) mod free_capacity;
pub(crate) mod node_ranking;
pub(crate) mod placement_counts;
pub(crate) mod pod_mix;
pub(crate) mod task_class;
pub(crate) mod topology_spread;

/// The caches of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionCaches {
    task_classes: RefCell<Vec<Rc<TaskClass>>>,
    free_capacity: RefCell<Rc<FreeCapacity>>,
    placement_counts: RefCell<PlacementCountsList>,
    node_rankings: RefCell<NodeRankings>,
    pod_mix: OnceCell<PodMix>,
    topology_spread: RefCell<Option<Rc<TopologySpread>>>,
}

impl SessionCaches {
    /// The class of the tasks that `is_like` accepts. It never changes in a session.
    pub(crate) fn task_class(
        &self,
        is_like: impl Fn(usize) -> bool,
        compute: impl FnOnce() -> TaskClass,
    ) -> Rc<TaskClass> {
        let mut classes = self.task_classes.borrow_mut();
        if let Some(class) = classes.iter().rfind(|class| is_like(class.task())) {
            return Rc::clone(class);
        }
        let class = Rc::new(compute());
        classes.push(Rc::clone(&class));
        class
    }

    /// What is free now, given what is free on each node.
    pub(crate) fn free_capacity(
        &self,
        changed: &ChangedNodes,
        nodes: usize,
        free_on: impl Fn(usize) -> FreeOnNode,
    ) -> Rc<FreeCapacity> {
        let mut free_capacity = self.free_capacity.borrow_mut();
        // No caller holds an `Rc` across a change, so nothing is copied.
        Rc::make_mut(&mut free_capacity).catch_up(changed, nodes, free_on);
        Rc::clone(&free_capacity)
    }

    /// The places for `tasks` tasks of these classes.
    pub(crate) fn placement_counts(
        &self,
        classes: Vec<Rc<TaskClass>>,
        tasks: usize,
        changed: &ChangedNodes,
        free_capacity: &FreeCapacity,
    ) -> Rc<PlacementCounts> {
        let mut counts = self.placement_counts.borrow_mut();
        counts.up_to_date(classes, tasks, changed, free_capacity)
    }

    /// Looks at the kept ranking for tasks like this one; `None` if it is the first of its kind.
    pub(crate) fn with_node_ranking<T>(
        &self,
        task: usize,
        is_like: impl Fn(usize) -> bool,
        new: impl FnOnce() -> NodeRanking,
        read: impl FnOnce(&mut NodeRanking) -> T,
    ) -> Option<T> {
        let mut rankings = self.node_rankings.borrow_mut();
        let mut ranking = rankings.take(task, is_like, new)?;
        let found = read(&mut ranking);
        rankings.keep(ranking);
        Some(found)
    }

    /// The mix of pods, as it is when it is asked for first.
    pub(crate) fn pod_mix(&self, compute: impl FnOnce() -> PodMix) -> &PodMix {
        self.pod_mix.get_or_init(compute)
    }

    /// The spread of a task after this many changes of affinity counts.
    pub(crate) fn topology_spread(
        &self,
        task: usize,
        changes: u64,
        compute: impl FnOnce() -> Option<TopologySpread>,
    ) -> Option<Rc<TopologySpread>> {
        let mut known = self.topology_spread.borrow_mut();
        if let Some(known) = known.as_ref().filter(|known| known.is_of(task, changes)) {
            return Some(Rc::clone(known));
        }
        let spread = Rc::new(compute()?);
        Some(Rc::clone(known.insert(spread)))
    }
}
