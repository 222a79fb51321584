//! How many places there are for the tasks of a job if nobody leaves, cached across searches.

use std::rc::Rc;

use crate::changed_nodes::ChangeCursor;
use crate::session::Session;
use crate::session::caches::{FreeCapacity, PlacementCounts, ResourceVector, TaskClass};

/// How many entries are kept.
const KEPT: usize = 8;

impl PlacementCounts {
    fn of(kinds: Vec<Rc<TaskClass>>, tasks: usize) -> Self {
        let count = kinds.first().map_or(0, |kind| kind.takes.len());
        let least = |node: usize| {
            let takes = kinds.iter().filter_map(|kind| kind.takes[node]);
            takes.reduce(|least, parts| least.with(parts, f64::min))
        };
        Self {
            least: (0..count).map(least).collect(),
            kinds,
            tasks,
            seen: ChangeCursor::default(),
            by_node: vec![0; count],
            sum: 0,
        }
    }

    fn are_for(&self, kinds: &[Rc<TaskClass>], tasks: usize) -> bool {
        let mut pairs = self.kinds.iter().zip(kinds);
        self.tasks == tasks
            && self.kinds.len() == kinds.len()
            && pairs.all(|(mine, theirs)| Rc::ptr_eq(mine, theirs))
    }

    fn catch_up(&mut self, session: &Session<'_>, free_capacity: &FreeCapacity) {
        match session.touched.since(&mut self.seen) {
            Some(nodes) => {
                for &node in nodes {
                    let places = self.on(node, free_capacity.free(node));
                    self.sum += places - std::mem::replace(&mut self.by_node[node], places);
                }
            }
            None => {
                for node in 0..self.by_node.len() {
                    self.by_node[node] = self.on(node, free_capacity.free(node));
                }
                self.sum = self.by_node.iter().sum();
            }
        }
    }

    /// How many places a node has with `free` resources.
    fn on(&self, node: usize, free: ResourceVector) -> i64 {
        self.least[node].map_or(0, |least| free.times(least, self.tasks as f64))
    }

    /// How many more places a node has with `free` resources.
    pub(crate) fn gained(&self, node: usize, free: ResourceVector) -> i64 {
        self.on(node, free) - self.by_node[node]
    }

    /// How many places all nodes have.
    pub(crate) fn sum(&self) -> i64 {
        self.sum
    }
}

/// The places for `tasks` tasks of these classes.
pub(crate) fn places_for(
    session: &Session<'_>,
    kinds: Vec<Rc<TaskClass>>,
    tasks: usize,
    free_capacity: &FreeCapacity,
) -> Rc<PlacementCounts> {
    let mut kept = session.places.borrow_mut();
    let known = kept.iter().position(|known| known.are_for(&kinds, tasks));
    let mut places = match known {
        Some(known) => kept.remove(known),
        None => Rc::new(PlacementCounts::of(kinds, tasks)),
    };
    if kept.len() == KEPT {
        kept.remove(0);
    }
    Rc::make_mut(&mut places).catch_up(session, free_capacity);
    kept.push(Rc::clone(&places));
    places
}
