//! Tasks that ask for the same: where they could ever run, and what they would take there.

use crate::resource_vector::ResourceVector;

/// A class of tasks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskClass {
    /// One of the tasks.
    task: usize,
    /// By node; `None` where they could never run.
    takes: Vec<Option<ResourceVector>>,
    /// The minimum of each resource over all nodes; `None` if they could run nowhere.
    least: Option<ResourceVector>,
}

impl TaskClass {
    /// The class of a task that takes this of each node.
    pub(crate) fn new(task: usize, takes: Vec<Option<ResourceVector>>) -> Self {
        let everywhere = takes.iter().flatten().copied();
        Self {
            task,
            least: everywhere.reduce(ResourceVector::least),
            takes,
        }
    }

    /// One of the tasks.
    pub(crate) fn task(&self) -> usize {
        self.task
    }

    /// What the tasks take of a node; `None` if they could never run there.
    pub(crate) fn takes(&self, node: usize) -> Option<ResourceVector> {
        self.takes[node]
    }

    /// For how many nodes this is known.
    pub(crate) fn nodes(&self) -> usize {
        self.takes.len()
    }

    /// The minimum of each resource over all nodes; `None` if they could run nowhere.
    pub(crate) fn least(&self) -> Option<ResourceVector> {
        self.least
    }
}
