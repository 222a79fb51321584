//! One run of the policy on one cluster: the state of everything, with what is being tried.
//!
//! There is one primitive, [`Session::set`]: a task gets a new state, and the counts of nodes and queues follow.
//! Everything that is tried is a list of such changes. To undo it, the old states are set in reverse. Nothing else
//! is ever restored, so nothing can be forgotten.
//!
//! The cluster is sorted when the session opens; the order in which it was built has no influence.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use apportion_abi::Bytes;

use crate::amounts::ResourceAmounts;
use crate::changed_nodes::ChangedNodes;
use crate::charges::charge_at;
use crate::cluster::{ClusterTopology, Node, PolicySettings, Queue, TaskStatus};
use crate::gang::{Gang, JobView, TaskStatusLookup};
use crate::inter_pod_affinity::{self, InterPodAffinity};
use crate::node_resources::{CardKey, HoldState, NodeState};
use crate::requests::need;
use crate::tree::QueueTree;
use caches::{FreeCapacity, NodeRankings, PlacementCounts, PodMix, TaskClass};
use evictions::{EvictionCaution, EvictionCommitment};
use facts::{ClaimFacts, JobFacts, TaskFacts, TaskState, find};

pub(crate) mod caches;
pub(crate) mod evictions;
pub(crate) mod facts;
mod initial_placement;
mod open;

/// A run of the policy.
#[derive(Debug)]
pub struct Session<'a> {
    pub(crate) now: Duration,
    pub(crate) settings: &'a PolicySettings,
    pub(crate) topologies: Vec<&'a ClusterTopology>,
    pub(crate) nodes: Vec<&'a Node>,
    pub(crate) node_states: Vec<NodeState>,
    pub(crate) queues: QueueTree,
    pub(crate) queue_facts: BTreeMap<&'a str, &'a Queue>,
    pub(crate) total: ResourceAmounts,
    pub(crate) jobs: Vec<JobFacts<'a>>,
    pub(crate) tasks: Vec<TaskFacts<'a>>,
    pub(crate) task_states: Vec<TaskState>,
    /// The states when the session opened.
    pub(crate) initial_states: Vec<TaskState>,
    /// The memory of the smallest and the largest cards, for requests in bytes without a node.
    pub(crate) card_sizes: (Bytes, Bytes),
    /// The memory of all cards, each size once, the smallest first.
    sizes: Vec<Bytes>,
    /// Whether a pod may count for fewer cards after a move: so with bytes, on cards of several sizes.
    pub(crate) moves_shrink: bool,
    pub(crate) card_names: BTreeMap<CardKey, String>,
    pub(crate) claims: Vec<ClaimFacts<'a>>,
    /// How many NUMA zones the node with the most of them has.
    pub(crate) most_zones: usize,
    /// Which jobs may evict others.
    pub(crate) caution: EvictionCaution,
    /// How many pods match affinity terms, and where.
    pub(crate) inter_pod_affinity: InterPodAffinity,
    /// The places that were promised to jobs that evict.
    pub(crate) commitments: Vec<EvictionCommitment>,
    /// The jobs that found only victims that are spared, with those victims.
    pub(crate) sparing: BTreeMap<usize, BTreeSet<usize>>,
    pub(crate) profiles: Vec<String>,
    next_card: CardKey,
    log: Vec<(usize, TaskState)>,
    /// The effort so far, counted instead of timed.
    pub(crate) effort: Cell<u64>,
    /// Task classes, as far as they were asked for.
    pub(crate) kinds: RefCell<Vec<Rc<TaskClass>>>,
    /// The nodes that changed.
    pub(crate) touched: ChangedNodes,
    /// Caches: what is free, how many places that makes, and which nodes are best.
    pub(crate) free_capacity: RefCell<Rc<FreeCapacity>>,
    pub(crate) places: RefCell<Vec<Rc<PlacementCounts>>>,
    pub(crate) rankings: RefCell<NodeRankings>,
    /// The mix of pod kinds, once asked for.
    pub(crate) mix: OnceCell<PodMix>,
    /// The tasks by name, built on first use.
    names: OnceCell<BTreeMap<&'a str, usize>>,
}

impl TaskStatusLookup for Session<'_> {
    fn status(&self, task: usize) -> TaskStatus {
        self.task_states[task].status
    }

    fn is_tentative(&self, task: usize) -> bool {
        self.task_states[task].was.is_some()
    }
}

/// A point to return to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionCheckpoint(usize);

impl SessionCheckpoint {
    /// The last commit.
    pub(crate) const START: Self = Self(0);
}

impl<'a> Session<'a> {
    /// How often a pod was checked against a node, or counted as a victim, so far.
    #[must_use]
    pub fn effort(&self) -> u64 {
        self.effort.get()
    }

    pub(crate) fn spend(&self, effort: usize) {
        self.effort.set(self.effort.get() + effort as u64);
    }

    /// A task and a node by their names.
    pub(crate) fn named(&self, task: &str, node: &str) -> Option<(usize, usize)> {
        let tasks = || self.tasks.iter().map(|facts| facts.task.name.as_str());
        let names = self.names.get_or_init(|| tasks().zip(0..).collect());
        Some((*names.get(task)?, find(&self.nodes, node)?))
    }

    pub(crate) fn queue_facts(&self, queue: usize) -> Option<&Queue> {
        let name = &self.queues.get(queue).uid;
        self.queue_facts.get(name.as_str()).copied()
    }

    /// A view of a job as a gang.
    pub(crate) fn gang<'s>(&'s self, view: &'s JobView) -> Gang<'s, Self> {
        Gang {
            tree: &self.jobs[view.job].tree,
            view,
            task_states: self,
        }
    }

    /// A key for a card of a node that nobody shares yet, of this size class if sizes are known.
    pub(crate) fn new_card(&mut self, node: usize, class: usize) -> CardKey {
        let key = self.next_key();
        self.node_states[node].sizes.know(key, class);
        key
    }

    /// A new key.
    fn next_key(&mut self) -> CardKey {
        self.next_card += 1;
        self.next_card
    }

    /// The point to return to.
    pub(crate) fn mark(&self) -> SessionCheckpoint {
        SessionCheckpoint(self.log.len())
    }

    /// Undoes everything since `mark`.
    pub(crate) fn roll_back(&mut self, mark: SessionCheckpoint) {
        while self.log.len() > mark.0 {
            if let Some((task, state)) = self.log.pop() {
                self.replace(task, state);
            }
        }
    }

    /// Makes everything since the last commit final.
    pub(crate) fn commit(&mut self) {
        for (task, _) in std::mem::take(&mut self.log) {
            self.task_states[task].was = None;
        }
    }

    /// The tasks that changed since `mark`.
    pub(crate) fn changed_since(&self, mark: SessionCheckpoint) -> Vec<usize> {
        let mut tasks: Vec<usize> = self.log[mark.0..].iter().map(|(task, _)| *task).collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }

    /// Gives a task a new state.
    pub(crate) fn set(&mut self, task: usize, state: TaskState) {
        let before = self.replace(task, state);
        self.log.push((task, before));
    }

    fn replace(&mut self, task: usize, state: TaskState) -> TaskState {
        self.update_used(task, -1);
        let before = std::mem::replace(&mut self.task_states[task], state);
        self.update_used(task, 1);
        before
    }

    /// Counts what a task takes (`count` 1) or removes it from the counts (-1).
    fn update_used(&mut self, task: usize, count: i64) {
        let state = self.task_states[task].clone();
        for (node, presence) in inter_pod_affinity::places(&state) {
            self.inter_pod_affinity
                .note(task, node, presence, count > 0);
        }
        if let Some((node, cards)) = &state.leaves {
            let need = need(self, task, *node);
            self.node_states[*node].update_used(&need, cards, HoldState::Releasing, count);
            self.touched.note(*node);
        }
        let (Some(node), true) = (state.node, state.status.is_active()) else {
            return;
        };
        let hold = match state.status {
            TaskStatus::Releasing => HoldState::Releasing,
            TaskStatus::Pipelined => HoldState::Reserved,
            _ => HoldState::Held,
        };
        let need = need(self, task, node);
        self.node_states[node].update_used(&need, &state.cards, hold, count);
        self.touched.note(node);
        if hold != HoldState::Releasing {
            self.node_states[node]
                .zones
                .update_used(&state.zones, count);
        }
        let facts = &self.tasks[task];
        if facts.task.is_legacy_mig {
            let legacy = &mut self.node_states[node].legacy;
            *legacy = if count > 0 { *legacy + 1 } else { *legacy - 1 };
        }
        let job = &self.jobs[facts.job];
        if let (Some(queue), true) = (job.payer, state.status.is_active_allocated()) {
            let is_preemptible = job.job.is_preemptible;
            let charged = charge_at(self, task, node, &state.cards);
            let charged = if count > 0 {
                charged
            } else {
                ResourceAmounts::default().minus(charged)
            };
            self.queues.charge(queue, charged, is_preemptible);
        }
    }
}
