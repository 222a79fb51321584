//! What the session keeps to compute less. Each can be computed again from the facts and the states of the tasks; the
//! files that fill them say how.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::changed_nodes::ChangeCursor;
use crate::node_resources::ResourceRequest;

/// CPU, memory, pods and cards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ResourceVector(pub(crate) [f64; 4]);

/// Tasks that ask for the same: where they could ever run, and what they would take there.
#[derive(Clone, Debug)]
pub(crate) struct TaskClass {
    /// One of the tasks.
    pub(crate) task: usize,
    /// By node; `None` where they could never run.
    pub(crate) takes: Vec<Option<ResourceVector>>,
    /// The minimum of each resource over all nodes; `None` if they could run nowhere.
    pub(crate) least: Option<ResourceVector>,
}

/// What is free, or being released.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeCapacity {
    pub(crate) seen: ChangeCursor,
    /// By node.
    pub(crate) free: Vec<ResourceVector>,
    /// By block.
    pub(crate) sums: Vec<ResourceVector>,
    pub(crate) total: ResourceVector,
    pub(crate) with_cards: BTreeSet<usize>,
}

/// Places for a number of tasks of some classes.
#[derive(Clone, Debug)]
pub(crate) struct PlacementCounts {
    pub(crate) kinds: Vec<Rc<TaskClass>>,
    pub(crate) tasks: usize,
    pub(crate) seen: ChangeCursor,
    /// By node: the least that any of the tasks takes; `None` where none of them could ever run.
    pub(crate) least: Vec<Option<ResourceVector>>,
    pub(crate) by_node: Vec<i64>,
    pub(crate) sum: i64,
}

/// A float with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OrderedFloat(pub(crate) f64);

/// The rank of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NodeScore {
    /// Its own score, and its order among nodes with the same score; `None` if the task does not fit.
    pub(crate) worth: Option<(f64, f64)>,
    /// What is free of the resource that nodes are packed by; `None` if the node has none of it.
    pub(crate) free: Option<f64>,
}

/// The ranked nodes for tasks of one kind.
#[derive(Clone, Debug)]
pub(crate) struct NodeRanking {
    /// One of them.
    pub(crate) task: usize,
    pub(crate) need: ResourceRequest,
    pub(crate) wants_cards: bool,
    pub(crate) seen: ChangeCursor,
    pub(crate) places: Vec<NodeScore>,
    /// The nodes that fit, by their own score and then by their order.
    pub(crate) fitting: BTreeMap<OrderedFloat, BTreeSet<(OrderedFloat, usize)>>,
    /// How many nodes have each free amount.
    pub(crate) free: BTreeMap<OrderedFloat, usize>,
}

/// The rankings of all kinds that were asked for more than once, the most recent last.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeRankings {
    pub(crate) kept: Vec<NodeRanking>,
    /// Tasks of kinds that were asked for once.
    pub(crate) asked: Vec<usize>,
}

/// What a kind of pods needs: parts of a card, and of how many cards. A whole card is all parts.
pub(crate) type Ask = (u64, u64);

/// The kinds of pods, and the fraction of all requests that is theirs.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodMix(pub(crate) Vec<(Ask, f64)>);

/// The pods in the domains over which a task is spread.
#[derive(Debug)]
pub(crate) struct TopologySpread {
    pub(crate) task: usize,
    /// The count of changes when this was computed.
    pub(crate) moves: u64,
    /// One for each required constraint.
    pub(crate) must: Vec<DomainCounts>,
    /// One for each preference; `None` for those about something else.
    pub(crate) would: Vec<Option<DomainCounts>>,
}

/// The pods in the domains of one constraint.
#[derive(Debug)]
pub(crate) struct DomainCounts {
    /// By domain; `None` if the pod may not run there.
    pub(crate) counts: Vec<Option<u64>>,
    /// What the emptiest has.
    pub(crate) least: u64,
    /// 1 if the pod itself matches.
    pub(crate) own: u64,
    pub(crate) skew: u64,
}
