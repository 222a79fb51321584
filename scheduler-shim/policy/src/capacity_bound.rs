//! What counting can say about where pods could go if others left.
//!
//! A search for victims tries sets of them, and a try is dear. Most sets can be told to be too small by
//! adding up what would be free: that costs little and is never wrong, because what is added up is at least
//! what there would be. What counting can't say (topology, zones, neighbours, fairness) is left to the try.

use std::rc::Rc;

use crate::cluster::TaskGpuRequest;
use crate::node_resources::CardShareRequest;
use crate::session::Session;

mod free_capacity;
mod placement_counts;

pub(crate) use free_capacity::FreeCapacity;
pub(crate) use placement_counts::PlacementCounts;

/// Slack for sums of shares.
const SLACK: f64 = 1e-6;

/// Processor time, memory, places for pods and cards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ResourceVector([f64; 4]);

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
        // The cast rounds down what is not negative.
        times.fold(most, f64::min).max(0.0) as i64
    }
}

/// Where tasks that ask for the same could ever be, and what they would take there.
#[derive(Clone, Debug)]
pub(crate) struct TaskClass {
    /// One of them.
    task: usize,
    /// By node; none where they could never be.
    takes: Vec<Option<ResourceVector>>,
    /// The least that one takes on any node; none when they could be nowhere.
    least: Option<ResourceVector>,
}

/// What is asked for, and on which nodes there could ever be a place for it.
#[derive(Clone, Debug)]
pub(crate) struct CapacityBound {
    ground: Rc<FreeCapacity>,
    tasks: usize,
    sum: ResourceVector,
    /// Places for the tasks that there are without anybody leaving.
    places: Rc<PlacementCounts>,
}

impl CapacityBound {
    /// Counts for tasks of one job; none when one of them could be nowhere.
    pub(crate) fn of(session: &Session<'_>, tasks: &[usize]) -> Option<Self> {
        let mut kinds: Vec<Rc<TaskClass>> = Vec::new();
        let mut sum = ResourceVector::default();
        for &task in tasks {
            let mut known = kinds.iter();
            let known = known.rfind(|kind| session.asks_alike(kind.task, task));
            let kind = match known {
                Some(kind) => kind,
                None => {
                    kinds.push(session.kind_of(task));
                    kinds.last()?
                }
            };
            sum = sum.plus(kind.least?);
        }
        if session.moves_shrink {
            // Whoever moves to larger cards leaves more than what is free now: nothing can be said of the sum.
            let ResourceVector([.., cards]) = &mut sum;
            *cards = 0.0;
        }
        let ground = session.ground();
        Some(Self {
            places: session.places_for(kinds, tasks.len(), &ground),
            tasks: tasks.len(),
            ground,
            sum,
        })
    }

    /// Whether everything together could be there, with `lost` beside what is free.
    pub(crate) fn is_within(&self, lost: ResourceVector) -> bool {
        self.ground.total().plus(lost).covers(self.sum)
    }

    /// Whether there could be a place for every task if so much became free on these nodes.
    pub(crate) fn holds(&self, freed: impl IntoIterator<Item = (usize, ResourceVector)>) -> bool {
        let gained = freed.into_iter().map(|(node, freed)| {
            let free = self.ground.free(node).plus(freed);
            self.places.gained(node, free)
        });
        let places = self.places.sum() + gained.sum::<i64>();
        places >= i64::try_from(self.tasks).unwrap_or(i64::MAX)
    }
}

impl Session<'_> {
    /// Whether two tasks ask for the same and may be on the same nodes.
    pub(crate) fn asks_alike(&self, left: usize, right: usize) -> bool {
        let (l, r) = (&self.tasks[left], &self.tasks[right]);
        left == right
            || (l.claimed_cards == r.claimed_cards
                && l.task.cpu_millis == r.task.cpu_millis
                && l.task.memory == r.task.memory
                && l.task.cards == r.task.cards
                && l.task.is_legacy_mig == r.task.is_legacy_mig
                && l.task.node_affinity == r.task.node_affinity)
    }

    /// Where the task could ever be. That never changes in a session, so it is found once for all like it.
    fn kind_of(&self, task: usize) -> Rc<TaskClass> {
        let mut kinds = self.kinds.borrow_mut();
        if let Some(kind) = kinds.iter().rfind(|kind| self.asks_alike(kind.task, task)) {
            return Rc::clone(kind);
        }
        let nodes = 0..self.nodes.len();
        let takes = |node| {
            let could = self.could_ever_be(task, node);
            could.then(|| self.parts(task, node))
        };
        let takes: Vec<Option<ResourceVector>> = nodes.map(takes).collect();
        let everywhere = takes.iter().flatten().copied();
        let least = everywhere.reduce(|least, parts| least.with(parts, f64::min));
        let kind = Rc::new(TaskClass { task, least, takes });
        kinds.push(Rc::clone(&kind));
        kind
    }

    /// Whether the task could be on the node if nobody else were.
    fn could_ever_be(&self, task: usize, node: usize) -> bool {
        let need = self.need(task, node);
        let total = &self.stocks[node].total;
        let fitting = |share: &CardShareRequest| {
            let stock = &self.stocks[node];
            let listed = stock.sizes.is_listed();
            let counted = || share.of(stock.card_memory).map_or(0, |_| total.cards);
            let cards = listed.then(|| stock.sizes.fitting(share));
            cards.unwrap_or_else(counted)
        };
        let has_cards = need.share.is_none_or(|share| {
            i64::try_from(share.devices).is_ok_and(|devices| devices <= fitting(&share))
        });
        let partitions = need.stock.partitions.iter().zip(&total.partitions);
        has_cards
            && need.stock.cpu <= total.cpu
            && need.stock.memory <= total.memory
            && need.stock.pods <= total.pods
            && need.stock.cards <= total.cards
            && partitions.into_iter().all(|(asks, has)| asks <= has)
            && self.may_ever_be(task, node)
    }

    /// What a task takes of a node, or of one like it.
    pub(crate) fn parts(&self, task: usize, node: usize) -> ResourceVector {
        let facts = self.tasks[task].task;
        let card = self.stocks[node].largest();
        let cards = match &facts.cards {
            TaskGpuRequest::None => 0.0,
            cards => cards.count(card),
        };
        // A claim may be for cards that it has already.
        ResourceVector([facts.cpu_millis as f64, facts.memory as f64, 1.0, cards])
    }

    /// What would be free if a task left, with its cards: on which node.
    pub(crate) fn freed_by(&self, task: usize) -> Option<(usize, ResourceVector)> {
        let node = self.standings[task].node?;
        let ResourceVector([cpu, memory, pods, _]) = self.parts(task, node);
        Some((
            node,
            ResourceVector([cpu, memory, pods, self.gpus_of(task)]),
        ))
    }
}
