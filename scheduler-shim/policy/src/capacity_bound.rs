//! An upper bound, by counting, on where pods could go if others left.
//!
//! A search for victims tries sets of them, and each try is expensive. Adding up what would be free rules out most
//! sets that are too small. That is cheap and never wrong, because the sum is at least what would be there. What
//! counting can't see (topology, zones, affinity, fairness) is left to the try.

use std::rc::Rc;

use crate::caches::free_capacity::{FreeCapacity, FreeOnNode};
use crate::caches::placement_counts::PlacementCounts;
use crate::caches::task_class::TaskClass;
use crate::cluster::{Task, TaskGpuRequest};
use crate::fit::may_ever_be;
use crate::node_resources::{CardShareRequest, NodeState};

use crate::requests::request_on;
use crate::resource_vector::ResourceVector;
use crate::session::Session;
use crate::snapshot::ClusterSnapshot;

/// What tasks ask for, and what the nodes could give them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CapacityBound {
    free_capacity: Rc<FreeCapacity>,
    tasks: usize,
    sum: ResourceVector,
    /// Places for the tasks if nobody leaves.
    counts: Rc<PlacementCounts>,
}

impl CapacityBound {
    /// The bound for tasks of one job; `None` if one of them could run nowhere.
    pub(crate) fn of(session: &Session<'_>, tasks: &[usize]) -> Option<Self> {
        let mut classes: Vec<Rc<TaskClass>> = Vec::new();
        let mut sum = ResourceVector::default();
        for &task in tasks {
            let mut known = classes.iter();
            let known = known.rfind(|class| asks_alike(session.facts(), class.task(), task));
            let class = match known {
                Some(class) => class,
                None => {
                    classes.push(task_class(session, task));
                    classes.last()?
                }
            };
            sum = sum.plus(class.least()?);
        }
        if session.facts().card_sizes().can_shrink_moves() {
            // A pod that moves to larger cards counts for fewer of them, so the sum of cards is no bound.
            let ResourceVector([.., cards]) = &mut sum;
            *cards = 0.0;
        }
        let free_capacity = free_capacity(session);
        let changed = session.state().changed_nodes();
        let caches = session.caches();
        Some(Self {
            counts: caches.placement_counts(classes, tasks.len(), changed, &free_capacity),
            tasks: tasks.len(),
            free_capacity,
            sum,
        })
    }

    /// Whether everything together fits into what is free and `lost`.
    pub(crate) fn is_within(&self, lost: ResourceVector) -> bool {
        self.free_capacity.total().plus(lost).covers(self.sum)
    }

    /// Whether every task could have a place if `freed` became free on these nodes.
    pub(crate) fn fits(&self, freed: impl IntoIterator<Item = (usize, ResourceVector)>) -> bool {
        let gained = freed.into_iter().map(|(node, freed)| {
            let free = self.free_capacity.free(node).plus(freed);
            self.counts.gained(node, free)
        });
        let counts = self.counts.sum() + gained.sum::<i64>();
        counts >= i64::try_from(self.tasks).unwrap_or(i64::MAX)
    }
}

/// Whether two tasks ask for the same and may be on the same nodes.
pub(crate) fn asks_alike(facts: &ClusterSnapshot<'_>, left: usize, right: usize) -> bool {
    if left == right {
        return true;
    }
    let (l, r) = (facts.task(left), facts.task(right));
    l.claimed_cards == r.claimed_cards
        && l.task.cpu_millis == r.task.cpu_millis
        && l.task.memory == r.task.memory
        && l.task.cards == r.task.cards
        && l.task.limit == r.task.limit
        && l.task.pinned == r.task.pinned
        && asks_alike_by_node(l.task, r.task)
        && l.task.is_legacy_mig == r.task.is_legacy_mig
        && l.task.node_affinity == r.task.node_affinity
}

/// Whether claims take the place of the same extended resources on the same nodes.
fn asks_alike_by_node(left: &Task, right: &Task) -> bool {
    let mut pairs = left.extended.iter().zip(&right.extended);
    left.extended.len() == right.extended.len()
        && pairs.all(|(left, right)| left.nodes == right.nodes && left.cards == right.cards)
}

/// The class of the task, computed once for all tasks like it.
fn task_class(session: &Session<'_>, task: usize) -> Rc<TaskClass> {
    session.caches().task_class(
        |known| asks_alike(session.facts(), known, task),
        || compute_task_class(session, task),
    )
}

fn compute_task_class(session: &Session<'_>, task: usize) -> TaskClass {
    let nodes = 0..session.facts().nodes().len();
    let takes = nodes.map(|node| {
        let could = could_ever_be(session, task, node);
        could.then(|| parts(session, task, node))
    });
    TaskClass::new(task, takes.collect())
}

/// What is free now.
pub(crate) fn free_capacity(session: &Session<'_>) -> Rc<FreeCapacity> {
    session.caches().free_capacity(
        session.state().changed_nodes(),
        session.facts().nodes().len(),
        |node| free_on(session, node),
    )
}

/// What is free on a node, or being released there.
fn free_on(session: &Session<'_>, node: usize) -> FreeOnNode {
    let node_state = session.state().node(node);
    let (idle, releasing) = (node_state.idle_gpus(), node_state.releasing_gpus());
    let parts = [
        (node_state.idle.cpu + node_state.releasing.cpu) as f64,
        (node_state.idle.memory + node_state.releasing.memory) as f64,
        (node_state.idle.pods + node_state.releasing.pods) as f64,
        idle + releasing,
    ];
    FreeOnNode {
        resources: ResourceVector(parts.map(|part| part.max(0.0))),
        has_cards: idle > 0.0 || releasing > 0.0,
    }
}

/// Whether the task could run on the node if it were empty.
fn could_ever_be(session: &Session<'_>, task: usize, node: usize) -> bool {
    let request = request_on(session.facts(), task, node);
    let node_state = session.state().node(node);
    let (asked, total) = (&request.resources, &node_state.total);
    let mut partitions = asked.partitions.iter().zip(&total.partitions);
    let has_cards = request.share.is_none_or(|share| {
        let fitting = cards_that_fit(node_state, &share);
        i64::try_from(share.devices).is_ok_and(|devices| devices <= fitting)
    });
    has_cards
        && asked.cpu <= total.cpu
        && asked.memory <= total.memory
        && asked.pods <= total.pods
        && asked.cards <= total.cards
        && partitions.all(|(asks, has)| asks <= has)
        && may_ever_be(session, task, node)
}

/// How many cards of a node could ever hold a share.
fn cards_that_fit(node_state: &NodeState, share: &CardShareRequest) -> i64 {
    if node_state.sizes.is_listed() {
        return node_state.sizes.fitting(share);
    }
    match share.of(node_state.card_memory) {
        Some(_) => node_state.total.cards,
        None => 0,
    }
}

/// What a task takes of a node, or less: a share in bytes counts as a part of the largest card.
pub(crate) fn parts(session: &Session<'_>, task: usize, node: usize) -> ResourceVector {
    let facts = session.facts().task(task).task;
    let card = session.state().node(node).largest();
    let cards = match session.facts().cards_on(task, node) {
        TaskGpuRequest::None => 0.0,
        cards => cards.count(card),
    };
    // Claimed cards don't count: the claim may have them already.
    ResourceVector([facts.cpu_millis as f64, facts.memory as f64, 1.0, cards])
}

/// The node of a task, and what would be free there if the task left.
pub(crate) fn freed_by(session: &Session<'_>, task: usize) -> Option<(usize, ResourceVector)> {
    let node = session.state().task(task).node?;
    let ResourceVector([cpu, memory, pods, _]) = parts(session, task, node);
    Some((
        node,
        ResourceVector([
            cpu,
            memory,
            pods,
            session.state().gpus_of(session.facts(), task),
        ]),
    ))
}
