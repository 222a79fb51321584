//! What is free in the cluster, cached across searches.
//!
//! The total is a sum of sums over blocks of nodes. A changed node costs only its block, and no error adds up.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::session::Session;
use crate::session::caches::{FreeCapacity, ResourceVector};

/// Nodes in a block.
const BLOCK: usize = 64;

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

    fn catch_up(&mut self, session: &Session<'_>) {
        let blocks: BTreeSet<usize> = match session.touched.since(&mut self.seen) {
            Some([]) => return,
            Some(nodes) => {
                nodes.iter().for_each(|&node| self.look_at(session, node));
                nodes.iter().map(|node| node / BLOCK).collect()
            }
            None => {
                let count = session.nodes.len();
                self.free = vec![ResourceVector::default(); count];
                self.sums = vec![ResourceVector::default(); count.div_ceil(BLOCK)];
                (0..count).for_each(|node| self.look_at(session, node));
                (0..self.sums.len()).collect()
            }
        };
        let sum = |parts: &[ResourceVector]| {
            parts
                .iter()
                .copied()
                .fold(ResourceVector::default(), ResourceVector::plus)
        };
        for block in blocks {
            let last = self.free.len().min((block + 1) * BLOCK);
            self.sums[block] = sum(&self.free[block * BLOCK..last]);
        }
        self.total = sum(&self.sums);
    }

    fn look_at(&mut self, session: &Session<'_>, node: usize) {
        let node_state = &session.node_states[node];
        let (idle, releasing) = (node_state.idle_gpus(), node_state.releasing_gpus());
        let parts = [
            (node_state.idle.cpu + node_state.releasing.cpu) as f64,
            (node_state.idle.memory + node_state.releasing.memory) as f64,
            (node_state.idle.pods + node_state.releasing.pods) as f64,
            idle + releasing,
        ];
        self.free[node] = ResourceVector(parts.map(|part| part.max(0.0)));
        if idle > 0.0 || releasing > 0.0 {
            self.with_cards.insert(node);
        } else {
            self.with_cards.remove(&node);
        }
    }
}

/// What is free now.
pub(crate) fn free_capacity(session: &Session<'_>) -> Rc<FreeCapacity> {
    let mut free_capacity = session.free_capacity.borrow_mut();
    // No caller holds an `Rc` across a change, so nothing is copied.
    Rc::make_mut(&mut free_capacity).catch_up(session);
    Rc::clone(&free_capacity)
}
