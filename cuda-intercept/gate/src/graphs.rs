//! Graphs that allocate: what each may take of a card at its first launch.
//!
//! Memory of a graph's nodes becomes physical when the graph is uploaded or launched, and stays in a pool
//! of the driver's own, one a card, from which other graphs are served. That pool is charged like any
//! other, by what it reserves; its handle in the books is [`graph_pool`].
//!
//! # Decision: the first launch asks, later ones do not
//! Before a graph's first launch the pool is charged for all that its nodes allocate, as if nothing could
//! be used again; what it did not grow by is given back. A later launch finds its memory in the pool,
//! unless that was trimmed, and then counts as a first one. Two graphs that shared memory one after the
//! other and are launched at once later may make the pool grow without a charge before; that is seen and
//! charged right after the launch. Charging it before would refuse programs that launch one after the other
//! what a smaller card gives them.

use crate::Card;
use crate::map::Map;
use crate::pools::worst_growth;

/// What stands before the number of a device in the handle of its graphs' pool; no pool of a program lies
/// there.
const GRAPHS: u64 = 1 << 63;

/// The handle in the books of the pool that a device's graphs allocate from.
#[must_use]
pub fn graph_pool(device: i32) -> u64 {
    GRAPHS | u64::from(device.unsigned_abs())
}

/// The device, if a pool is that of its graphs.
#[must_use]
pub fn device_of_graphs(pool: u64) -> Option<i32> {
    (pool & GRAPHS != 0).then(|| i32::try_from(pool & !GRAPHS).ok())?
}

/// What a graph allocates on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The card.
    pub card: Card,
    /// The same card as the driver numbers it.
    pub device: i32,
    /// How much the pool can grow by for it, at most.
    pub growth: u64,
    /// Whether it was launched since the pool was last trimmed.
    pub is_resident: bool,
}

/// Executable graphs that allocate, with what each needs of each card.
#[derive(Debug, Default)]
pub struct Graphs(Map<(u64, Card), Need>);

impl Graphs {
    /// Counts one allocation of an executable graph.
    pub fn add(&mut self, exec: u64, (card, device): (Card, i32), bytes: u64) {
        let key = (exec, card);
        let known = self.0.get(key).map_or(0, |need| need.growth);
        let need = Need {
            card,
            device,
            growth: known.saturating_add(worst_growth(bytes)),
            is_resident: false,
        };
        self.0.enter(key, need);
    }

    /// What an executable graph needs of the first card after `after`.
    #[must_use]
    pub fn need_after(&self, exec: u64, after: Option<Card>) -> Option<Need> {
        let all = self.0.iter().filter(|((of, _), _)| *of == exec);
        let later = all.filter(|((_, card), _)| after.is_none_or(|after| *card > after));
        later.map(|(_, need)| *need).min_by_key(|need| need.card)
    }

    /// It was launched.
    pub fn launched(&mut self, exec: u64) {
        let mut after = None;
        while let Some(need) = self.need_after(exec, after) {
            after = Some(need.card);
            let resident = Need {
                is_resident: true,
                ..need
            };
            self.0.enter((exec, need.card), resident);
        }
    }

    /// The pool of a device's graphs was trimmed.
    pub fn trimmed(&mut self, device: i32) {
        let all = self.0.values_mut().filter(|need| need.device == device);
        all.for_each(|need| need.is_resident = false);
    }

    /// It was destroyed; the pool keeps what it has.
    pub fn destroyed(&mut self, exec: u64) {
        while self.0.remove_where(|(of, _), _| of == exec).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_graph_needs_all_that_its_nodes_allocate_until_it_was_launched() {
        let mut graphs = Graphs::default();
        for (card, device, mib) in [(1, 0, 32), (1, 0, 33), (4, 2, 1)] {
            graphs.add(7, (card, device), mib * MIB);
        }
        let first = graphs.need_after(7, None).unwrap();
        assert_eq!((first.card, first.growth), (1, 96 * MIB));
        graphs.launched(7);
        assert!(graphs.need_after(7, None).unwrap().is_resident);
        graphs.trimmed(0);
        let second = graphs.need_after(7, Some(1)).unwrap();
        assert_eq!((second.card, second.is_resident), (4, true));
        assert_eq!(graphs.need_after(7, None), Some(first));
        graphs.destroyed(7);
        assert_eq!(graphs.need_after(7, None), None);
    }

    #[test]
    fn the_pool_of_graphs_is_told_from_a_program_s_own() {
        assert_eq!(device_of_graphs(graph_pool(3)), Some(3));
        assert_eq!(device_of_graphs(0x7f00_0000_0000), None);
    }
}
