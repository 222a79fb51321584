//! The cluster as it was when the session opened: nodes, queues, jobs, tasks and claims, sorted and numbered.
//!
//! Nothing here changes during a session. The cluster is sorted by names, so the order in which it was built has no
//! influence.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use apportion_abi::{Bytes, Share};

use crate::amounts::ResourceAmounts;
use crate::cluster::{
    Cluster, ClusterTopology, DeviceAllocator, Job, Node, PolicySettings, Queue, ResourceClaim,
    Task, TaskGpuRequest,
};
use crate::gang::{JobView, PodSetTree};
use crate::inter_pod_affinity::AffinityTerms;
use crate::node_resources::CardKey;

mod build;

/// The facts of a session.
#[derive(Debug)]
pub(crate) struct ClusterSnapshot<'a> {
    now: Duration,
    cluster: &'a Cluster,
    nodes: Vec<&'a Node>,
    queues: BTreeMap<&'a str, &'a Queue>,
    jobs: Vec<JobFacts<'a>>,
    tasks: Vec<TaskFacts<'a>>,
    claims: Vec<ClaimFacts<'a>>,
    affinity_terms: AffinityTerms,
    card_sizes: ClusterCardSizes,
    /// The profiles of all partitions, by the index that [`NodeResources`](crate::NodeResources) uses.
    profiles: Vec<String>,
    /// What the queues divide.
    total: ResourceAmounts,
    most_zones: usize,
    /// The cards to which tasks are pinned, by node.
    pinned: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// The nodes and the size classes of these cards, by task.
    pinned_classes: BTreeMap<usize, (usize, usize)>,
    /// The tasks by name, built on first use.
    task_numbers: OnceCell<BTreeMap<&'a str, usize>>,
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
    /// Its claims in place of extended resources, by index, in their order.
    extended: Vec<Option<usize>>,
    /// How many cards its claims are for. Shares of cards are parts.
    pub(crate) claimed_cards: f64,
}

/// A claim of the session.
#[derive(Debug)]
pub(crate) struct ClaimFacts<'a> {
    pub(crate) claim: &'a ResourceClaim,
    pub(crate) given: Option<GivenDevices>,
    /// The tasks that name it.
    pub(crate) users: Vec<usize>,
}

/// The devices that a claim has.
#[derive(Debug)]
pub(crate) struct GivenDevices {
    pub(crate) node: usize,
    /// Keys for those that are cards.
    pub(crate) cards: Vec<CardKey>,
    /// The memory of each card, where cards are known one by one.
    pub(crate) sizes: Vec<Option<Bytes>>,
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
    /// All of its tasks.
    pub(crate) view: JobView,
}

/// The memory of the cluster's cards, for requests in bytes without a node.
#[derive(Debug)]
pub(crate) struct ClusterCardSizes {
    /// Each size once, the smallest first.
    sizes: Vec<Bytes>,
    asks_bytes: bool,
}

impl ClusterCardSizes {
    /// Card memory up to this does not count as a card size.
    const UNKNOWN: Bytes = Bytes::from_mib(100);

    pub(crate) fn smallest(&self) -> Bytes {
        self.sizes.first().copied().unwrap_or(Self::UNKNOWN)
    }

    pub(crate) fn largest(&self) -> Bytes {
        self.sizes.last().copied().unwrap_or(Self::UNKNOWN)
    }

    /// Whether a pod may count for fewer cards after a move: so with bytes, on cards of several sizes.
    pub(crate) fn can_shrink_moves(&self) -> bool {
        self.asks_bytes && self.sizes.len() > 1
    }

    /// The smallest cards that could hold a task; the smallest of all if none could.
    fn smallest_for(&self, task: &Task) -> Bytes {
        let TaskGpuRequest::Shared {
            share: Share::Memory(asked),
            ..
        } = &task.cards
        else {
            return self.smallest();
        };
        let mut sizes = self.sizes.iter().copied();
        let fitting = sizes.find(|size| size >= asked);
        fitting.unwrap_or(self.smallest())
    }
}

impl<'a> ClusterSnapshot<'a> {
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn settings(&self) -> &'a PolicySettings {
        &self.cluster.settings
    }

    pub(crate) fn topologies(&self) -> &'a [ClusterTopology] {
        &self.cluster.topologies
    }

    pub(crate) fn nodes(&self) -> &[&'a Node] {
        &self.nodes
    }

    pub(crate) fn node(&self, node: usize) -> &'a Node {
        self.nodes[node]
    }

    /// A node by its name.
    pub(crate) fn find_node(&self, name: &str) -> Option<usize> {
        find_node(&self.nodes, name)
    }

    /// The settings of a queue.
    pub(crate) fn queue(&self, name: &str) -> Option<&'a Queue> {
        self.queues.get(name).copied()
    }

    pub(crate) fn jobs(&self) -> &[JobFacts<'a>] {
        &self.jobs
    }

    pub(crate) fn job(&self, job: usize) -> &JobFacts<'a> {
        &self.jobs[job]
    }

    /// A job by its name.
    pub(crate) fn find_job(&self, name: &str) -> Option<usize> {
        self.jobs.iter().position(|facts| facts.job.name == name)
    }

    pub(crate) fn tasks(&self) -> &[TaskFacts<'a>] {
        &self.tasks
    }

    pub(crate) fn task(&self, task: usize) -> &TaskFacts<'a> {
        &self.tasks[task]
    }

    /// A task by its name.
    pub(crate) fn find_task(&self, name: &str) -> Option<usize> {
        let numbers = self.task_numbers.get_or_init(|| {
            let names = self.tasks.iter().map(|facts| facts.task.name.as_str());
            names.zip(0..).collect()
        });
        numbers.get(name).copied()
    }

    /// Who chooses devices for claims; `None` if devices are only counted.
    pub(crate) fn allocator(&self) -> Option<&'a dyn DeviceAllocator> {
        self.cluster.allocator.as_deref()
    }

    pub(crate) fn claims(&self) -> &[ClaimFacts<'a>] {
        &self.claims
    }

    /// A claim by its name.
    pub(crate) fn find_claim(&self, name: &str) -> Option<usize> {
        let claims = &self.claims;
        claims
            .binary_search_by(|facts| facts.claim.name.as_str().cmp(name))
            .ok()
    }

    pub(crate) fn claim(&self, claim: usize) -> &ClaimFacts<'a> {
        &self.claims[claim]
    }

    /// The claims that a task needs on a node; `None` if one of them does not exist.
    pub(crate) fn claims_on(&self, task: usize, node: usize) -> Option<Cow<'_, [usize]>> {
        let facts = &self.tasks[task];
        let named = facts.claims.as_ref()?;
        if facts.extended.is_empty() {
            return Some(Cow::Borrowed(named));
        }
        let name = &self.node(node).name;
        let pairs = facts.task.extended.iter().zip(&facts.extended);
        let needed = pairs.filter(|(one, _)| one.nodes.contains(name));
        let extended: Option<Vec<usize>> = needed.map(|(_, claim)| *claim).collect();
        Some(Cow::Owned([named.as_slice(), &extended?].concat()))
    }

    /// What a task asks of the cards of a node.
    pub(crate) fn cards_on(&self, task: usize, node: usize) -> &'a TaskGpuRequest {
        let task = self.tasks[task].task;
        task.cards_on(&self.nodes[node].name)
    }

    pub(crate) fn affinity_terms(&self) -> &AffinityTerms {
        &self.affinity_terms
    }

    pub(crate) fn card_sizes(&self) -> &ClusterCardSizes {
        &self.card_sizes
    }

    pub(crate) fn profiles(&self) -> &[String] {
        &self.profiles
    }

    pub(crate) fn total(&self) -> ResourceAmounts {
        self.total
    }

    /// The cards of a node to which tasks are pinned.
    pub(crate) fn pinned_cards(&self, node: &str) -> BTreeSet<&'a str> {
        self.pinned.get(node).cloned().unwrap_or_default()
    }

    /// The size class of the card to which a task is pinned; `None` if it is not pinned. On another node, and if the card
    /// cannot be allocated, there is no card of that class.
    pub(crate) fn pinned_class(&self, task: usize, node: usize) -> Option<usize> {
        const NONE: usize = usize::MAX;
        self.tasks[task].task.pinned.as_ref()?;
        let found = self.pinned_classes.get(&task);
        Some(match found {
            Some(&(of, class)) if of == node => class,
            _ => NONE,
        })
    }

    /// How many NUMA zones the node with the most of them has.
    pub(crate) fn most_zones(&self) -> usize {
        self.most_zones
    }
}

fn find_node(nodes: &[&Node], name: &str) -> Option<usize> {
    nodes
        .binary_search_by(|node| node.name.as_str().cmp(name))
        .ok()
}
