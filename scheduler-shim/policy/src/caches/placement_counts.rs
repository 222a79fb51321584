//! How many places there are for the tasks of a job if nobody leaves, kept across searches.

use std::rc::Rc;

use crate::caches::free_capacity::FreeCapacity;
use crate::caches::task_class::TaskClass;
use crate::resource_vector::ResourceVector;
use crate::state::changed_nodes::{ChangeCursor, ChangedNodes};

/// How many entries are kept.
const KEPT: usize = 8;

/// Places for a number of tasks of some classes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlacementCounts {
    classes: Vec<Rc<TaskClass>>,
    tasks: usize,
    cursor: ChangeCursor,
    /// By node: the least that any of the tasks takes; `None` where none of them could ever run.
    least: Vec<Option<ResourceVector>>,
    by_node: Vec<i64>,
    sum: i64,
}

/// The counts that were asked for, the most recent last.
#[derive(Debug, Default)]
pub(super) struct PlacementCountsList(Vec<Rc<PlacementCounts>>);

impl PlacementCountsList {
    /// The counts for these tasks as of now.
    pub(super) fn up_to_date(
        &mut self,
        classes: Vec<Rc<TaskClass>>,
        tasks: usize,
        changed: &ChangedNodes,
        free_capacity: &FreeCapacity,
    ) -> Rc<PlacementCounts> {
        let mut known = self.0.iter();
        let mut counts = match known.position(|known| known.are_for(&classes, tasks)) {
            Some(known) => self.0.remove(known),
            None => Rc::new(PlacementCounts::of(classes, tasks)),
        };
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        Rc::make_mut(&mut counts).catch_up(changed, free_capacity);
        self.0.push(Rc::clone(&counts));
        counts
    }
}

impl PlacementCounts {
    fn of(classes: Vec<Rc<TaskClass>>, tasks: usize) -> Self {
        let nodes = classes.first().map_or(0, |class| class.nodes());
        let least = |node: usize| {
            let takes = classes.iter().filter_map(|class| class.takes(node));
            takes.reduce(ResourceVector::least)
        };
        Self {
            least: (0..nodes).map(least).collect(),
            classes,
            tasks,
            cursor: ChangeCursor::default(),
            by_node: vec![0; nodes],
            sum: 0,
        }
    }

    fn are_for(&self, classes: &[Rc<TaskClass>], tasks: usize) -> bool {
        let mut pairs = self.classes.iter().zip(classes);
        self.tasks == tasks
            && self.classes.len() == classes.len()
            && pairs.all(|(mine, theirs)| Rc::ptr_eq(mine, theirs))
    }

    fn catch_up(&mut self, changed: &ChangedNodes, free_capacity: &FreeCapacity) {
        match changed.since(&mut self.cursor) {
            Some(nodes) => {
                for &node in nodes {
                    let counts = self.on(node, free_capacity.free(node));
                    self.sum += counts - std::mem::replace(&mut self.by_node[node], counts);
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
