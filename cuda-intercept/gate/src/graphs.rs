//! Graphs that allocate: what each may take of a card at its first launch.
//!
//! Memory of a graph's nodes becomes physical when the graph is uploaded or launched. It stays in a pool of the
//! driver, one for each card, which also serves other graphs. That pool is charged like any other, by what it
//! reserves; its handle here is [`graph_pool`].
//!
//! # Decision: the first launch charges everything, later ones what others may have by then
//! Before a graph's first launch, the pool is charged for all that its nodes allocate, as if nothing could be reused.
//! What the pool did not grow by is given back. A later launch finds its memory in the pool, unless the pool was
//! trimmed; then it counts as a first one. But graphs that ran one after the other share memory, which they cannot do
//! when they run at once, or while one of them still has its allocations. So a later launch charges what does not fit
//! into the pool beside the following: what other graphs allocated and nobody freed, and what graphs allocate that
//! were launched into other streams and may still run.
//!
//! A graph may be set to free, when it is launched again, what its last launch left allocated. Trimming leaves that
//! memory. So while such a graph has everything that it allocates, a launch counts as a later one, trimmed or not.

use crate::Card;
use crate::fallible_map::FallibleMap;
use crate::linear::worst_case;
use crate::pools::worst_growth;

mod conditionals;
mod in_flight;

pub use conditionals::{ConditionalBodies, ConditionalNodes};
pub use in_flight::{GraphLaunch, InFlightLaunches};

/// Marks the handle of a device's graph pool. No pool of a program has such a handle.
const GRAPHS: u64 = 1 << 63;

/// The handle here of the pool from which a device's graphs allocate.
#[must_use]
pub fn graph_pool(device: i32) -> u64 {
    GRAPHS | u64::from(device.unsigned_abs())
}

/// The device, if this is a graph pool.
#[must_use]
pub fn device_of_graphs(pool: u64) -> Option<i32> {
    (pool & GRAPHS != 0).then(|| i32::try_from(pool & !GRAPHS).ok())?
}

/// What a graph allocates on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphFootprint {
    /// The card.
    pub card: Card,
    /// The driver's number of the same card.
    pub device: i32,
    /// The most by which the pool can grow for the graph.
    pub growth: u64,
    /// How much of the pool the graph needs.
    pub bytes: u64,
    /// Whether the graph was launched since the pool was last trimmed.
    pub is_resident: bool,
}

/// The allocation of a node. Its address is fixed from the start.
#[derive(Clone, Copy, Debug)]
struct NodeAllocation {
    exec: u64,
    card: Card,
    bytes: u64,
    is_live: bool,
}

/// Executable graphs that allocate, with what each needs of each card.
#[derive(Debug, Default)]
pub struct GraphTable {
    footprints: FallibleMap<(u64, Card), GraphFootprint>,
    allocations: FallibleMap<u64, NodeAllocation>,
    /// Which graph frees which address.
    frees: FallibleMap<(u64, u64), ()>,
    /// Graphs that free, at a launch, what their last launch left allocated.
    freeing: FallibleMap<u64, ()>,
    /// Launches that may be running.
    pub flights: InFlightLaunches,
    /// The conditional nodes of all graphs.
    pub conditionals: ConditionalNodes,
}

impl GraphTable {
    /// Counts one allocation of an executable graph.
    pub fn add(&mut self, exec: u64, card: Card, device: i32, address: u64, bytes: u64) {
        let key = (exec, card);
        let known = self.footprints.get(key).copied();
        let footprint = GraphFootprint {
            card,
            device,
            growth: known
                .map_or(0, |known| known.growth)
                .saturating_add(worst_growth(bytes)),
            bytes: known
                .map_or(0, |known| known.bytes)
                .saturating_add(worst_case(bytes)),
            is_resident: false,
        };
        self.footprints.enter(key, footprint);
        let allocation = NodeAllocation {
            exec,
            card,
            bytes: worst_case(bytes),
            is_live: false,
        };
        self.allocations.enter(address, allocation);
    }

    /// Records that an executable graph frees an address.
    pub fn add_free(&mut self, exec: u64, address: u64) {
        self.frees.enter((exec, address), ());
    }

    /// Records that an executable graph frees, at a launch, what its last launch left allocated.
    pub fn frees_at_launch(&mut self, exec: u64) {
        self.freeing.enter(exec, ());
    }

    /// Whether a graph's allocations on a card all still exist, and the next launch will reuse them.
    #[must_use]
    pub fn has_all(&self, exec: u64, card: Card) -> bool {
        let all = self.allocations.iter().map(|(_, allocation)| allocation);
        let mut own = all.filter(|of| of.exec == exec && of.card == card);
        self.freeing.get(exec).is_some() && own.all(|of| of.is_live)
    }

    /// Whether another graph allocates on a card.
    #[must_use]
    pub fn has_others(&self, exec: u64, card: Card) -> bool {
        let mut all = self.footprints.iter();
        all.any(|((of, on), _)| of != exec && on == card)
            || self
                .allocations
                .iter()
                .any(|(_, all)| all.is_live && all.card == card)
    }

    /// What other graphs allocated on a card and nobody freed.
    #[must_use]
    pub fn live_beside(&self, exec: u64, card: Card) -> u64 {
        let all = self.allocations.iter().map(|(_, allocation)| allocation);
        let live = all.filter(|of| of.is_live && of.card == card && of.exec != exec);
        live.map(|of| of.bytes).fold(0, u64::saturating_add)
    }

    /// The program freed a graph's allocation.
    pub fn freed(&mut self, address: u64) {
        if let Some(allocation) = self.allocations.get_mut(address) {
            allocation.is_live = false;
            let exec = allocation.exec;
            if !self.footprints.iter().any(|((of, _), _)| of == exec) {
                self.allocations.remove(address);
            }
        }
    }

    /// What an executable graph needs on the first card after `after`.
    #[must_use]
    pub fn next_footprint(&self, exec: u64, after: Option<Card>) -> Option<GraphFootprint> {
        let all = self.footprints.iter().filter(|((of, _), _)| *of == exec);
        let later = all.filter(|((_, card), _)| after.is_none_or(|after| *card > after));
        later
            .map(|(_, footprint)| *footprint)
            .min_by_key(|footprint| footprint.card)
    }

    /// The graph was launched.
    pub fn launched(&mut self, exec: u64) {
        let mut after = None;
        while let Some(footprint) = self.next_footprint(exec, after) {
            after = Some(footprint.card);
            let resident = GraphFootprint {
                is_resident: true,
                ..footprint
            };
            self.footprints.enter((exec, footprint.card), resident);
        }
        let frees = &self.frees;
        for (address, allocation) in self.allocations.iter_mut() {
            let is_freed = frees.get((exec, address)).is_some();
            if allocation.exec == exec || is_freed {
                allocation.is_live = !is_freed;
            }
        }
    }

    /// The pool of a device's graphs was trimmed.
    pub fn trimmed(&mut self, device: i32) {
        let all = self
            .footprints
            .values_mut()
            .filter(|footprint| footprint.device == device);
        all.for_each(|footprint| footprint.is_resident = false);
    }

    /// The graph was destroyed. The pool keeps its memory, and the graph's allocations live on.
    pub fn destroyed(&mut self, exec: u64) {
        while self
            .footprints
            .remove_where(|(of, _), _| of == exec)
            .is_some()
        {}
        while self.frees.remove_where(|(of, _), ()| of == exec).is_some() {}
        self.freeing.remove(exec);
        self.allocations
            .retain(|all| all.exec != exec || all.is_live);
        // Another graph may get this handle.
        let of_it = self.allocations.values_mut().filter(|all| all.exec == exec);
        of_it.for_each(|allocation| allocation.exec = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_graph_needs_all_that_its_nodes_allocate_until_it_was_launched() {
        let mut graphs = GraphTable::default();
        for (card, device, mib) in [(1, 0, 32), (1, 0, 33), (4, 2, 1)] {
            graphs.add(7, card, device, mib, mib * MIB);
        }
        let first = graphs.next_footprint(7, None).unwrap();
        assert_eq!(
            (first.card, first.growth, first.bytes),
            (1, 96 * MIB, 66 * MIB)
        );
        graphs.launched(7);
        assert!(graphs.next_footprint(7, None).unwrap().is_resident);
        graphs.trimmed(0);
        let second = graphs.next_footprint(7, Some(1)).unwrap();
        assert_eq!((second.card, second.is_resident), (4, true));
        assert_eq!(graphs.next_footprint(7, None), Some(first));
        graphs.destroyed(7);
        assert_eq!(graphs.next_footprint(7, None), None);
    }

    #[test]
    fn what_a_graph_keeps_counts_beside_others_until_it_is_freed() {
        let mut graphs = GraphTable::default();
        for (exec, address) in [(7, 0x1000), (8, 0x2000), (9, 0x3000)] {
            graphs.add(exec, 0, 0, address, MIB);
        }
        graphs.add_free(8, 0x2000);
        graphs.add_free(8, 0x3000);
        for exec in [7, 8] {
            graphs.launched(exec);
        }
        assert_eq!(graphs.live_beside(8, 0), 2 * MIB);
        assert_eq!((graphs.live_beside(7, 0), graphs.live_beside(8, 1)), (0, 0));
        graphs.launched(9);
        assert_eq!(graphs.live_beside(7, 0), 2 * MIB);
        graphs.launched(8);
        assert_eq!(graphs.live_beside(7, 0), 0);
        graphs.destroyed(7);
        assert_eq!(graphs.live_beside(8, 0), 2 * MIB, "it outlives its graph");
        graphs.freed(0x1000);
        assert_eq!(graphs.live_beside(8, 0), 0);
        assert!(graphs.has_others(8, 0) && !graphs.has_others(8, 1));
    }

    #[test]
    fn a_graph_that_frees_at_its_launches_has_what_it_left() {
        let mut graphs = GraphTable::default();
        for address in [0x1000, 0x2000] {
            graphs.add(7, 0, 0, address, MIB);
        }
        graphs.launched(7);
        assert!(!graphs.has_all(7, 0), "it frees nothing by itself");
        graphs.frees_at_launch(7);
        graphs.trimmed(0);
        assert!(graphs.has_all(7, 0));
        graphs.freed(0x1000);
        assert!(!graphs.has_all(7, 0), "what is freed may be trimmed");
        graphs.launched(7);
        assert!(graphs.has_all(7, 0));
        graphs.destroyed(7);
        graphs.add(7, 0, 0, 0x3000, MIB);
        graphs.launched(7);
        assert!(!graphs.has_all(7, 0), "another has its handle");
    }

    #[test]
    fn the_pool_of_graphs_is_told_from_a_program_s_own() {
        assert_eq!(device_of_graphs(graph_pool(3)), Some(3));
        assert_eq!(device_of_graphs(0x7f00_0000_0000), None);
    }
}
