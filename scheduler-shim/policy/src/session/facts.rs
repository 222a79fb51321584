//! What the session knows of jobs, tasks and claims, and the state of a task.

use std::rc::Rc;
use std::time::Duration;

use crate::amounts::ResourceAmounts;
use crate::cluster::{Job, Node, ResourceClaim, Task, TaskStatus};
use crate::gang::{JobView, PodSetTree};
use crate::node_resources::{CardAssignment, CardKey};
use crate::numa::ZoneAssignment;

/// The state of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TaskState {
    pub(crate) status: TaskStatus,
    pub(crate) node: Option<usize>,
    pub(crate) cards: CardAssignment,
    /// What it takes of its node's NUMA zones.
    pub(crate) zones: ZoneAssignment,
    /// Where it still is while it waits for its new place.
    pub(crate) leaves: Option<(usize, CardAssignment)>,
    /// Its status before it was evicted tentatively.
    pub(crate) was: Option<TaskStatus>,
}

/// A task that the session may place.
#[derive(Debug)]
pub(crate) struct TaskFacts<'a> {
    pub(crate) task: &'a Task,
    pub(crate) job: usize,
    pub(crate) set: usize,
    /// What it asks of a queue before a node is chosen.
    pub(crate) wants: ResourceAmounts,
    /// The claims that it names, by index; `None` if one of them does not exist.
    pub(crate) claims: Option<Vec<usize>>,
    /// How many cards its claims are for.
    pub(crate) claimed_cards: i64,
}

/// A claim of the session.
#[derive(Debug)]
pub(crate) struct ClaimFacts<'a> {
    pub(crate) claim: &'a ResourceClaim,
    /// The node of its devices, and keys for those that are cards.
    pub(crate) given: Option<(usize, Vec<CardKey>)>,
    /// The tasks that name it.
    pub(crate) users: Vec<usize>,
}

/// A job of the session.
#[derive(Debug)]
pub(crate) struct JobFacts<'a> {
    pub(crate) job: &'a Job,
    /// Its queue, if that is a leaf and can run jobs.
    pub(crate) queue: Option<usize>,
    /// The queue that is charged for its pods. It may be an inner queue: what runs there counts all the same.
    pub(crate) payer: Option<usize>,
    /// Jobs with the same tree share it.
    pub(crate) tree: Rc<PodSetTree>,
    pub(crate) view: JobView,
    pub(crate) last_start: Option<Duration>,
}

pub(crate) fn find(nodes: &[&Node], name: &str) -> Option<usize> {
    nodes
        .binary_search_by(|node| node.name.as_str().cmp(name))
        .ok()
}
