//! The nodes for tasks of one kind, in order of their own score and then of what is free on them.
//!
//! Only changed nodes are looked at again. [`NodeRanking::best`] finds the best node by a sum of the node's own score
//! and a density, which compares it with all others: it looks at the first few nodes only, because the density is
//! bounded.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::node_resources::ResourceRequest;
use crate::state::changed_nodes::{ChangeCursor, ChangedNodes};

/// How many kinds of tasks are kept.
const KEPT: usize = 16;

/// A float with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OrderedFloat(f64);

impl Eq for OrderedFloat {}

impl Ord for OrderedFloat {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for OrderedFloat {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The rank of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NodeScore {
    /// Its own score, and its order among nodes with the same score; `None` if the task does not fit.
    pub(crate) worth: Option<(f64, f64)>,
    /// What is free of the resource that nodes are packed by; `None` if the node has none of it.
    pub(crate) free: Option<f64>,
}

/// The least and the most that nodes have free of the resource that they are packed by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FreeRange {
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Tasks that ask for the same of every node.
#[derive(Clone, Debug)]
pub(crate) struct RankedKind {
    pub(crate) task: usize,
    pub(crate) request: ResourceRequest,
    pub(crate) wants_cards: bool,
}

/// The ranked nodes for tasks of one kind.
#[derive(Clone, Debug)]
pub(crate) struct NodeRanking {
    kind: RankedKind,
    cursor: ChangeCursor,
    scores: Vec<NodeScore>,
    /// The nodes that fit, by their own score and then by their order.
    fitting: BTreeMap<OrderedFloat, BTreeSet<(OrderedFloat, usize)>>,
    /// How many nodes have each free amount.
    free: BTreeMap<OrderedFloat, usize>,
}

impl NodeRanking {
    /// An empty ranking of this many nodes.
    pub(crate) fn new(kind: RankedKind, nodes: usize) -> Self {
        Self {
            kind,
            cursor: ChangeCursor::default(),
            scores: vec![NodeScore::default(); nodes],
            fitting: BTreeMap::new(),
            free: BTreeMap::new(),
        }
    }

    /// Looks again at the nodes that changed.
    pub(crate) fn catch_up(
        &mut self,
        changed: &ChangedNodes,
        score: impl Fn(&RankedKind, usize) -> NodeScore,
    ) {
        match changed.since(&mut self.cursor) {
            Some(nodes) => {
                for &node in nodes {
                    self.set(node, score(&self.kind, node));
                }
            }
            None => {
                for node in 0..self.scores.len() {
                    self.set(node, score(&self.kind, node));
                }
            }
        }
    }

    fn set(&mut self, node: usize, now: NodeScore) {
        let before = std::mem::replace(&mut self.scores[node], now);
        if now == before {
            return;
        }
        if let Some((worth, tie_break)) = before.worth {
            self.remove(worth, tie_break, node);
        }
        if let Some((worth, tie_break)) = now.worth {
            let equals = self.fitting.entry(OrderedFloat(worth)).or_default();
            equals.insert((OrderedFloat(tie_break), node));
        }
        if let Some(free) = before.free
            && let Some(count) = self.free.get_mut(&OrderedFloat(free))
        {
            *count -= 1;
            if *count == 0 {
                self.free.remove(&OrderedFloat(free));
            }
        }
        if let Some(free) = now.free {
            *self.free.entry(OrderedFloat(free)).or_default() += 1;
        }
    }

    fn remove(&mut self, worth: f64, tie_break: f64, node: usize) {
        if let Some(equals) = self.fitting.get_mut(&OrderedFloat(worth)) {
            equals.remove(&(OrderedFloat(tie_break), node));
            if equals.is_empty() {
                self.fitting.remove(&OrderedFloat(worth));
            }
        }
    }

    /// The best node, if any fits, by the sum of its own score and its density, which is at most `highest`. The
    /// outer `None` means that the ranking can't tell.
    pub(crate) fn best(
        &self,
        highest: f64,
        density: impl Fn(&RankedKind, FreeRange, usize) -> f64,
    ) -> Option<Option<usize>> {
        let range = self.free_range();
        // If nothing is free anywhere, all nodes are packed alike, even those with less than nothing free.
        if range.most == 0.0 && range.least < 0.0 {
            return None;
        }
        let mut best: Option<(f64, usize)> = None;
        for (&OrderedFloat(worth), equals) in self.fitting.iter().rev() {
            // No density makes up for a score that is lower by more than the highest density.
            if best.is_some_and(|(best, _)| best > worth + highest) {
                break;
            }
            // When packing, nodes without the resource come last here but score like the emptiest one.
            let last = equals.range((OrderedFloat(f64::INFINITY), 0)..).next();
            for &(_, node) in equals.first().into_iter().chain(last) {
                let value = worth + density(&self.kind, range, node);
                let is_better = best.is_none_or(|(best, known)| match value.total_cmp(&best) {
                    Ordering::Greater => true,
                    Ordering::Equal => node < known,
                    Ordering::Less => false,
                });
                if is_better {
                    best = Some((value, node));
                }
            }
        }
        Some(best.map(|(_, node)| node))
    }

    fn free_range(&self) -> FreeRange {
        match (self.free.first_key_value(), self.free.last_key_value()) {
            (Some((least, _)), Some((most, _))) => FreeRange {
                least: least.0,
                most: most.0.max(0.0),
            },
            (None, _) | (_, None) => FreeRange {
                least: f64::MAX,
                most: 0.0,
            },
        }
    }
}

/// The rankings of all kinds that were asked for more than once, the most recent last.
#[derive(Debug, Default)]
pub(super) struct NodeRankings {
    rankings: Vec<NodeRanking>,
    /// Tasks of kinds that were asked for once.
    asked: Vec<usize>,
}

impl NodeRankings {
    /// Takes out the ranking of a task's kind; a new one if the kind was asked for once before, none if never.
    pub(super) fn take(
        &mut self,
        task: usize,
        is_like: impl Fn(usize) -> bool,
        new: impl FnOnce() -> NodeRanking,
    ) -> Option<NodeRanking> {
        let mut rankings = self.rankings.iter();
        if let Some(known) = rankings.rposition(|known| is_like(known.kind.task)) {
            return Some(self.rankings.remove(known));
        }
        if self.asked.iter().any(|&known| is_like(known)) {
            return Some(new());
        }
        self.asked.truncate(KEPT - 1);
        self.asked.insert(0, task);
        None
    }

    /// Puts a ranking back.
    pub(super) fn keep(&mut self, ranking: NodeRanking) {
        if self.rankings.len() == KEPT {
            self.rankings.remove(0);
        }
        self.rankings.push(ranking);
    }
}
