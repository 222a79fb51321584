//! An upper bound, by counting, on where pods could go if others left.
//!
//! A search for victims tries sets of them, and each try is expensive. Adding up what would be free rules out most
//! sets that are too small. That is cheap and never wrong, because the sum is at least what would be there. What
//! counting can't see (topology, zones, affinity, fairness) is left to the try.

use std::rc::Rc;

use crate::capacity_bound::free_capacity::free_capacity;
use crate::capacity_bound::placement_counts::places_for;
use crate::cluster::TaskGpuRequest;
use crate::fit::may_ever_be;
use crate::node_resources::CardShareRequest;
use crate::requests::need;
use crate::scenario::gpus_of;
use crate::session::Session;
use crate::session::caches::{FreeCapacity, PlacementCounts, ResourceVector, TaskClass};

pub(crate) mod free_capacity;
pub(crate) mod placement_counts;

/// Slack for sums of shares.
const SLACK: f64 = 1e-6;

impl ResourceVector {
    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(other, |mine, other| mine + other)
    }

    fn with(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        let mut parts = self;
        for (mine, other) in parts.0.iter_mut().zip(other.0) {
            *mine = of(*mine, other);
        }
        parts
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        let pairs = self.0.iter().zip(other.0);
        pairs.into_iter().all(|(has, asks)| asks <= has + SLACK)
    }

    /// How often `ask` fits, at most `most` times.
    fn times(self, ask: Self, most: f64) -> i64 {
        let asked = self.0.iter().zip(ask.0).filter(|(_, ask)| *ask > 0.0);
        let times = asked.map(|(has, ask)| (has + SLACK) / ask);
        // The value is not negative, so the cast rounds down.
        times.fold(most, f64::min).max(0.0) as i64
    }
}

/// What tasks ask for, and what the nodes could give them.
#[derive(Clone, Debug)]
pub(crate) struct CapacityBound {
    free_capacity: Rc<FreeCapacity>,
    tasks: usize,
    sum: ResourceVector,
    /// Places for the tasks if nobody leaves.
    places: Rc<PlacementCounts>,
}

impl CapacityBound {
    /// The bound for tasks of one job; `None` if one of them could run nowhere.
    pub(crate) fn of(session: &Session<'_>, tasks: &[usize]) -> Option<Self> {
        let mut kinds: Vec<Rc<TaskClass>> = Vec::new();
        let mut sum = ResourceVector::default();
        for &task in tasks {
            let mut known = kinds.iter();
            let known = known.rfind(|kind| asks_alike(session, kind.task, task));
            let kind = match known {
                Some(kind) => kind,
                None => {
                    kinds.push(kind_of(session, task));
                    kinds.last()?
                }
            };
            sum = sum.plus(kind.least?);
        }
        if session.moves_shrink {
            // A pod that moves to larger cards counts for fewer of them, so the sum of cards is no bound.
            let ResourceVector([.., cards]) = &mut sum;
            *cards = 0.0;
        }
        let free_capacity = free_capacity(session);
        Some(Self {
            places: places_for(session, kinds, tasks.len(), &free_capacity),
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
    pub(crate) fn holds(&self, freed: impl IntoIterator<Item = (usize, ResourceVector)>) -> bool {
        let gained = freed.into_iter().map(|(node, freed)| {
            let free = self.free_capacity.free(node).plus(freed);
            self.places.gained(node, free)
        });
        let places = self.places.sum() + gained.sum::<i64>();
        places >= i64::try_from(self.tasks).unwrap_or(i64::MAX)
    }
}

/// Whether two tasks ask for the same and may be on the same nodes.
pub(crate) fn asks_alike(session: &Session<'_>, left: usize, right: usize) -> bool {
    let (l, r) = (&session.tasks[left], &session.tasks[right]);
    left == right
        || (l.claimed_cards == r.claimed_cards
            && l.task.cpu_millis == r.task.cpu_millis
            && l.task.memory == r.task.memory
            && l.task.cards == r.task.cards
            && l.task.is_legacy_mig == r.task.is_legacy_mig
            && l.task.node_affinity == r.task.node_affinity)
}

/// The class of the task. It never changes in a session, so it is computed once for all tasks like it.
fn kind_of(session: &Session<'_>, task: usize) -> Rc<TaskClass> {
    let mut kinds = session.kinds.borrow_mut();
    if let Some(kind) = kinds
        .iter()
        .rfind(|kind| asks_alike(session, kind.task, task))
    {
        return Rc::clone(kind);
    }
    let nodes = 0..session.nodes.len();
    let takes = |node| {
        let could = could_ever_be(session, task, node);
        could.then(|| parts(session, task, node))
    };
    let takes: Vec<Option<ResourceVector>> = nodes.map(takes).collect();
    let everywhere = takes.iter().flatten().copied();
    let least = everywhere.reduce(|least, parts| least.with(parts, f64::min));
    let kind = Rc::new(TaskClass { task, least, takes });
    kinds.push(Rc::clone(&kind));
    kind
}

/// Whether the task could run on the node if it were empty.
fn could_ever_be(session: &Session<'_>, task: usize, node: usize) -> bool {
    let need = need(session, task, node);
    let total = &session.node_states[node].total;
    let fitting = |share: &CardShareRequest| {
        let node_state = &session.node_states[node];
        let listed = node_state.sizes.is_listed();
        let counted = || share.of(node_state.card_memory).map_or(0, |_| total.cards);
        let cards = listed.then(|| node_state.sizes.fitting(share));
        cards.unwrap_or_else(counted)
    };
    let has_cards = need.share.is_none_or(|share| {
        i64::try_from(share.devices).is_ok_and(|devices| devices <= fitting(&share))
    });
    let partitions = need.node_state.partitions.iter().zip(&total.partitions);
    has_cards
        && need.node_state.cpu <= total.cpu
        && need.node_state.memory <= total.memory
        && need.node_state.pods <= total.pods
        && need.node_state.cards <= total.cards
        && partitions.into_iter().all(|(asks, has)| asks <= has)
        && may_ever_be(session, task, node)
}

/// What a task takes of a node, or less: a share in bytes counts as a part of the largest card.
pub(crate) fn parts(session: &Session<'_>, task: usize, node: usize) -> ResourceVector {
    let facts = session.tasks[task].task;
    let card = session.node_states[node].largest();
    let cards = match &facts.cards {
        TaskGpuRequest::None => 0.0,
        cards => cards.count(card),
    };
    // Claimed cards don't count: the claim may have them already.
    ResourceVector([facts.cpu_millis as f64, facts.memory as f64, 1.0, cards])
}

/// The node of a task, and what would be free there if the task left.
pub(crate) fn freed_by(session: &Session<'_>, task: usize) -> Option<(usize, ResourceVector)> {
    let node = session.task_states[task].node?;
    let ResourceVector([cpu, memory, pods, _]) = parts(session, task, node);
    Some((
        node,
        ResourceVector([cpu, memory, pods, gpus_of(session, task)]),
    ))
}
