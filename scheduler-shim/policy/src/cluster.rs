//! The cluster as the policy sees it: plain values, built by the caller that watches the real one.
//!
//! Names are the keys; nothing here is an index, so that a cluster can be built in any order. Times are
//! durations since one epoch of the caller's choice; `now` is on the same clock. Card memory is bytes,
//! host memory is bytes, processor time is milli-CPU.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_abi::{Bytes, OvercommitFactor, Share as CardShare};
use litemap::LiteMap;

use crate::amounts::UNLIMITED;

mod affinity;
mod allocator;
mod amounts;
mod devices;
mod settings;

pub use affinity::{
    ForeignPod, LabelRequirement, PodAffinityTerm, PreferredTerm, SpreadConstraint,
    WeightedPreference,
};
pub use allocator::{DeviceAccount, DeviceAllocation, DeviceAllocator, DeviceGrant};
pub use amounts::limit_of;
pub(crate) use amounts::{is_of_bytes, parts_of};
pub use devices::{
    ContainerZones, ExtendedResourceClaim, ListedCard, NumaPolicy, NumaScope, NumaZone,
    ResourceClaim, ZoneAmounts,
};
pub use settings::{KaiBehavior, PlacementStrategy, PolicySettings, SharedCardPreference};

/// Labels of a node or a pod. There are thousands of these maps, and a sorted list is the smallest.
pub type LabelMap = LiteMap<String, String>;

/// Labels of which a node must have one of the given values.
pub type RequiredLabels = Vec<(String, Vec<String>)>;

/// Everything that decisions depend on.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The nodes that can be used.
    pub nodes: Vec<Node>,
    /// The queues of all levels.
    pub queues: Vec<Queue>,
    /// The pod groups with their pods. Copies of a cluster share the groups that are the same.
    pub jobs: Vec<Arc<Job>>,
    /// The pods of other schedulers that have a node.
    pub bystanders: Vec<ForeignPod>,
    /// The topologies that jobs may name.
    pub topologies: Vec<ClusterTopology>,
    /// The claims on devices that pods may name.
    pub claims: Vec<ResourceClaim>,
    /// Who chooses devices for claims. Without one, devices are only counted by class, as in KAI's scenarios.
    pub allocator: Option<Arc<dyn DeviceAllocator>>,
    /// The settings of the policy.
    pub settings: PolicySettings,
}

/// A node with its resources and cards.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub name: String,
    /// Its CPU, in milli-CPU.
    pub cpu_millis: i64,
    pub memory: i64,
    /// How many pods it may run.
    pub pods: i64,
    /// How many whole cards it has.
    pub cards: i64,
    /// The allocatable memory of each of its cards.
    pub card_memory: Bytes,
    /// Its cards one by one, if they are known. Then the two fields above don't count.
    pub listed: Vec<ListedCard>,
    /// How far the limits on one of its cards may exceed the card, if its agent says so.
    pub overcommit: Option<OvercommitFactor>,
    /// How its cards are partitioned, if they are.
    pub mig: Option<MigStrategy>,
    /// Its MIG partitions, by resource name.
    pub partitions: BTreeMap<String, i64>,
    /// Devices for claims, by class; those that are cards are among its cards. Only where devices are counted.
    pub devices: BTreeMap<String, i64>,
    /// Cards that only claims get, and that queues divide like its other cards.
    pub claimable_cards: i64,
    pub labels: Arc<LabelMap>,
    /// How its kubelet aligns pods with NUMA zones.
    pub numa: NumaPolicy,
    /// Whether its kubelet aligns containers or pods.
    pub numa_scope: NumaScope,
    /// Its NUMA zones; what is available excludes the pods that run.
    pub zones: Vec<NumaZone>,
}

impl Node {
    /// Sets one of its labels.
    pub fn set_label(&mut self, label: &str, value: &str) {
        Arc::make_mut(&mut self.labels).insert(label.to_owned(), value.to_owned());
    }
}

/// The MIG strategy of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigStrategy {
    /// All partitions are alike and count as whole cards.
    Single,
    /// Partitions are allocated by profile.
    Mixed,
}

/// One resource of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// What it is guaranteed; -1 is everything.
    pub deserved: f64,
    /// The most that it may hold; -1 is no limit.
    pub limit: f64,
    /// Its weight when the surplus is divided.
    pub weight: f64,
}

impl Quota {
    /// No bound at all.
    pub const UNLIMITED: Self = Self {
        deserved: UNLIMITED,
        limit: UNLIMITED,
        weight: 1.0,
    };
}

/// A queue with its quotas, in a tree of queues.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug)]
pub struct Queue {
    pub name: String,
    /// The queue above it.
    pub parent: Option<String>,
    /// When it was created.
    pub created: Duration,
    /// Higher is served first.
    pub priority: i32,
    /// Its processor quota, in milli-CPU.
    pub cpu: Quota,
    /// Its memory quota, in bytes.
    pub memory: Quota,
    pub gpu: Quota,
    /// What the limits of its pods on cards may add up to, in cards, if that is bounded.
    pub burst_limit: Option<f64>,
    /// What it used of each resource in the past, as a part of the cluster: CPU, memory, GPU.
    pub usage: [f64; 3],
    /// How long its pods run before a job of the same queue may preempt them.
    pub preempt_min_runtime: Option<Duration>,
    /// How long its pods run before another queue may reclaim their place.
    pub reclaim_min_runtime: Option<Duration>,
}

impl Queue {
    /// A queue at the top of the tree without any bound.
    #[must_use]
    pub fn unbounded(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            parent: None,
            created: Duration::ZERO,
            priority: 100,
            cpu: Quota::UNLIMITED,
            memory: Quota::UNLIMITED,
            gpu: Quota::UNLIMITED,
            burst_limit: None,
            usage: [0.0; 3],
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
        }
    }
}

/// The domains in which the parts of a job must or should be together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyConstraint {
    /// The topology's name.
    pub topology: String,
    /// The level of which one domain must hold all.
    pub required: Option<String>,
    /// The level of which one domain should hold all.
    pub preferred: Option<String>,
}

/// Node labels from the widest domain to the narrowest.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, Default)]
pub struct ClusterTopology {
    pub name: String,
    pub levels: Vec<String>,
}

/// Pods that start together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSet {
    /// Its name; pods refer to it.
    pub name: String,
    /// How many of them must run for any to run.
    pub min_available: usize,
    /// Its topology constraint.
    pub topology: Option<TopologyConstraint>,
}

/// An inner node of the tree of pod sets.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubGroupSet {
    pub name: String,
    /// How many of its direct members must be satisfied; all when not given.
    pub min_members: Option<usize>,
    pub topology: Option<TopologyConstraint>,
    pub groups: Vec<SubGroupSet>,
    pub sets: Vec<PodSet>,
}

/// A pod group: pods that start together or not at all.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Its name, with the namespace where there is one.
    pub name: String,
    pub queue: String,
    /// Higher goes first, and may preempt lower ones of the same queue.
    pub priority: i32,
    /// Whether its pods may be evicted for others.
    pub is_preemptible: bool,
    /// When it was created.
    pub created: Duration,
    /// When its pods last started.
    pub last_start: Option<Duration>,
    /// When it last lost a pod.
    pub last_eviction: Option<Duration>,
    /// How long it waits before others may be evicted for it.
    pub preemption_delay: Duration,
    /// Since when too few of its pods run.
    pub stale_since: Option<Duration>,
    /// How long that may last; the policy's setting if not given.
    pub grace: Option<StalenessGracePeriod>,
    /// How its pods belong together.
    pub root: SubGroupSet,
    pub tasks: Vec<Task>,
}

/// How long a gang may go on with too few pods.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StalenessGracePeriod {
    For(Duration),
    Forever,
}

/// What a pod asks of the node's cards.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TaskGpuRequest {
    /// Nothing.
    #[default]
    None,
    /// This many whole cards.
    Whole(i64),
    /// A share of each of several cards.
    Shared {
        /// The share of each card.
        share: CardShare,
        /// The number of cards.
        devices: u32,
    },
    /// Partitions, by resource name.
    Partitions(BTreeMap<String, i64>),
}

/// A pod with what it requests and where it runs.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// Its name; unique in the cluster.
    pub name: String,
    pub set: String,
    pub status: TaskStatus,
    pub node: Option<String>,
    /// The cards of the node that it is on. Where cards are only counted, any names will do.
    pub on: Vec<String>,
    /// What it asks of the cards. Of a share this is what it is guaranteed, and all that decisions count.
    pub cards: TaskGpuRequest,
    /// How much of each card it may use, if that is more than its share.
    pub limit: Option<CardShare>,
    /// What the limits of the shares that it stands for add up to, if it is no pod.
    pub foreign_limits: Option<Bytes>,
    /// Claims on devices, by name.
    pub claims: Vec<String>,
    /// Claims in place of extended resources, for the nodes that do not have these. On such nodes they count, and not
    /// `cards`. The charge of the pod is for `cards` all the same.
    pub extended: Box<[ExtendedResourceClaim]>,
    /// Whether its requests equal its limits, so that the kubelet gives it exclusive CPUs.
    pub is_guaranteed: bool,
    /// What its containers ask of NUMA zones, if it has several containers; else it follows from the other fields.
    pub containers: Option<Box<ContainerZones>>,
    /// What it holds of the NUMA zones of its node, by zone name.
    pub zones: Vec<(String, ZoneAmounts)>,
    /// Its CPU request, in milli-CPU.
    pub cpu_millis: i64,
    /// Its memory request, in bytes.
    pub memory: i64,
    /// Whether it goes before all other pods of its set.
    pub leads: bool,
    /// Whether others were evicted for it and it is to get their place. Its job is placed before all others.
    pub is_nominated: bool,
    /// Its order in its set: higher first, then pods without one.
    pub order: Option<i64>,
    /// What it requires of its node. Most pods require the same and share it.
    pub node_affinity: Arc<RequiredLabels>,
    pub labels: Arc<LabelMap>,
    pub near: Vec<PodAffinityTerm>,
    pub apart: Vec<PodAffinityTerm>,
    pub even: Vec<SpreadConstraint>,
    pub prefers: Vec<WeightedPreference>,
    /// The card that it must have, if only one will do. Its pod runs on that node already, so it takes no more pods there.
    pub pinned: Option<PinnedCard>,
    /// Whether it is a legacy MIG pod, which can't be placed and keeps other pods from the partitions of its node.
    pub is_legacy_mig: bool,
}

/// One card of one node, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedCard {
    /// The node.
    pub node: String,
    /// The card.
    pub card: String,
}

/// The status of a pod.
#[expect(missing_docs, reason = "the names of the fields say what they are")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskStatus {
    /// Waits for a place.
    #[default]
    Pending,
    /// Waits for something other than a place.
    Gated,
    /// Has a place and is being started there.
    Binding,
    Running,
    /// Has a reserved place that others have yet to leave.
    Pipelined,
    Releasing,
    /// Has been terminating for so long that nobody should wait for it.
    StuckInReleasing,
    Succeeded,
    Failed,
}

impl TaskStatus {
    /// Holds resources that its queue is charged for.
    #[must_use]
    pub const fn is_allocated(self) -> bool {
        matches!(self, Self::Binding | Self::Running)
    }

    /// Counts for the minimum of its gang.
    #[must_use]
    pub const fn is_active_allocated(self) -> bool {
        self.is_allocated() || matches!(self, Self::Pipelined)
    }

    /// Holds resources of its node.
    #[must_use]
    pub const fn is_active(self) -> bool {
        self.is_active_allocated() || matches!(self, Self::Releasing | Self::StuckInReleasing)
    }

    /// Has a place or waits for one.
    #[must_use]
    pub const fn is_alive(self) -> bool {
        self.is_active_allocated() || matches!(self, Self::Pending | Self::Gated)
    }
}
