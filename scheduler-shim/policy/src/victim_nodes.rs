//! The nodes that victims are on, those with the least room that could do first.
//!
//! Each new victim changes one node, or few, so the sums are updated, not computed again.

use std::collections::{BTreeMap, BTreeSet};

use crate::session::Session;

/// The cards that tasks ask for: all together, and the least of any task. Requests in bytes count as zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardDemand {
    pub(crate) sum: f64,
    pub(crate) least: f64,
}

/// The victims on one node.
#[derive(Clone, Debug)]
struct NodeVictims {
    /// Cards that are free there, or would be without the victims.
    free: f64,
    /// The order in which the nodes got their first victim.
    tried: usize,
    batches: Vec<usize>,
}

/// The nodes that victims are on.
#[derive(Clone, Debug)]
pub(crate) struct VictimNodes {
    demand: CardDemand,
    by_node: BTreeMap<usize, NodeVictims>,
    /// Cards that the recorded victims leave free, by node.
    freed: BTreeMap<usize, f64>,
    /// Nodes that the job may use without victims, and what is free on those of them without victims.
    feasible: BTreeSet<usize>,
    baseline: f64,
    tried: usize,
    /// The nodes in order, as of the last call of [`Self::sorted`].
    order: Vec<usize>,
}

impl VictimNodes {
    pub(crate) fn new(
        session: &Session<'_>,
        demand: CardDemand,
        recorded: &BTreeSet<usize>,
        feasible: &BTreeSet<usize>,
    ) -> Self {
        let mut freed = BTreeMap::new();
        for &task in recorded {
            if let Some(node) = session.state().task(task).node {
                *freed.entry(node).or_default() += session.state().gpus_of(session.facts(), task);
            }
        }
        let mut spans = Self {
            demand,
            by_node: BTreeMap::new(),
            freed,
            feasible: feasible.clone(),
            baseline: 0.0,
            tried: 0,
            order: Vec::new(),
        };
        let free_per_node = feasible.iter().map(|&node| spans.free(session, node));
        spans.baseline = free_per_node.sum();
        spans
    }

    fn free(&self, session: &Session<'_>, node: usize) -> f64 {
        session.state().node(node).free_gpus() + self.freed.get(&node).copied().unwrap_or(0.0)
    }

    /// Adds a batch of victims.
    pub(crate) fn add(&mut self, session: &Session<'_>, batch: usize, tasks: &[usize]) {
        for &task in tasks {
            if let Some(node) = session.state().task(task).node {
                if !self.by_node.contains_key(&node) {
                    let free = self.free(session, node);
                    if self.feasible.contains(&node) {
                        self.baseline -= free;
                    }
                    let span = NodeVictims {
                        free,
                        tried: self.tried,
                        batches: Vec::new(),
                    };
                    self.by_node.insert(node, span);
                }
                if let Some(span) = self.by_node.get_mut(&node) {
                    span.free += session.state().gpus_of(session.facts(), task);
                    if span.batches.last() != Some(&batch) {
                        span.batches.push(batch);
                    }
                }
            }
            self.tried += 1;
        }
    }

    /// The batches on a node.
    pub(crate) fn on_node(&self, node: usize) -> &[usize] {
        self.by_node.get(&node).map_or(&[], |span| &span.batches)
    }

    /// The batches on the first nodes.
    pub(crate) fn on_first(&self, count: usize) -> impl Iterator<Item = usize> {
        let nodes = self.order.iter().take(count);
        nodes.flat_map(|&node| self.on_node(node)).copied()
    }

    /// Sorts the nodes, least room first. Returns how many of them to take: as few as could do, then more.
    pub(crate) fn sorted(&mut self) -> impl Iterator<Item = usize> {
        let least = self.demand.least;
        let mut nodes: Vec<(f64, usize, usize)> = self
            .by_node
            .iter()
            .filter(|(_, span)| least <= 0.0 || span.free + 1e-6 >= least)
            .map(|(&node, span)| (span.free, span.tried, node))
            .collect();
        nodes.sort_by(|left, right| {
            let by_free = left.0.total_cmp(&right.0);
            by_free.then_with(|| left.1.cmp(&right.1))
        });
        let free_per_node: Vec<f64> = nodes.iter().map(|(free, ..)| *free).collect();
        self.order = nodes.into_iter().map(|(.., node)| node).collect();
        counts(&free_per_node, self.demand.sum - self.baseline).into_iter()
    }
}

/// How many nodes to take: as few as could do, then more in growing steps.
fn counts(free_per_node: &[f64], demand: f64) -> Vec<usize> {
    let mut sum = 0.0;
    let mut least = 0;
    while sum + 1e-6 < demand {
        let Some(free) = free_per_node.get(least) else {
            return Vec::new();
        };
        sum += free;
        least += 1;
    }
    let mut counts = vec![least];
    let (mut at, mut step) = (least, 1);
    while at < free_per_node.len() {
        at = (at + step).min(free_per_node.len());
        step *= 2;
        counts.push(at);
    }
    counts
}
