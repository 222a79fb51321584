//! What is free in the cluster, kept across searches.
//!
//! The total is a sum of sums over blocks of nodes. A changed node costs only its block, and no error adds up.

use std::collections::BTreeSet;

use crate::resource_vector::ResourceVector;
use crate::state::changed_nodes::{ChangeCursor, ChangedNodes};

/// Nodes in a block.
const BLOCK: usize = 64;

/// What is free, or being released.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FreeCapacity {
    cursor: ChangeCursor,
    /// What is free on each node.
    free: Vec<ResourceVector>,
    /// By block.
    sums: Vec<ResourceVector>,
    total: ResourceVector,
    with_cards: BTreeSet<usize>,
}

/// What is free on one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeOnNode {
    pub(crate) resources: ResourceVector,
    /// Whether any part of a card is free.
    pub(crate) has_cards: bool,
}

impl FreeCapacity {
    /// What is free on a node.
    pub(crate) fn free(&self, node: usize) -> ResourceVector {
        self.free[node]
    }

    /// What is free on all nodes together.
    pub(crate) fn total(&self) -> ResourceVector {
        self.total
    }

    /// The nodes where any part of a card is free.
    pub(crate) fn with_cards(&self) -> &BTreeSet<usize> {
        &self.with_cards
    }

    /// Looks again at the nodes that changed.
    pub(super) fn catch_up(
        &mut self,
        changed: &ChangedNodes,
        nodes: usize,
        free_on: impl Fn(usize) -> FreeOnNode,
    ) {
        let blocks: BTreeSet<usize> = match changed.since(&mut self.cursor) {
            Some([]) => return,
            Some(nodes) => {
                nodes.iter().for_each(|&node| self.set(node, free_on(node)));
                nodes.iter().map(|node| node / BLOCK).collect()
            }
            None => {
                self.free = vec![ResourceVector::default(); nodes];
                self.sums = vec![ResourceVector::default(); nodes.div_ceil(BLOCK)];
                (0..nodes).for_each(|node| self.set(node, free_on(node)));
                (0..self.sums.len()).collect()
            }
        };
        for block in blocks {
            let last = self.free.len().min((block + 1) * BLOCK);
            self.sums[block] = sum(&self.free[block * BLOCK..last]);
        }
        self.total = sum(&self.sums);
    }

    fn set(&mut self, node: usize, free: FreeOnNode) {
        self.free[node] = free.resources;
        if free.has_cards {
            self.with_cards.insert(node);
        } else {
            self.with_cards.remove(&node);
        }
    }
}

fn sum(parts: &[ResourceVector]) -> ResourceVector {
    let parts = parts.iter().copied();
    parts.fold(ResourceVector::default(), ResourceVector::plus)
}
