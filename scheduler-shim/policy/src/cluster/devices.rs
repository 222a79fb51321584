//! Cards one by one, NUMA zones and resource claims: what a node has besides counts, and what pods name instead of
//! counting.

use std::collections::BTreeSet;
use std::sync::Arc;

use apportion_abi::Bytes;

use super::{DeviceGrant, Node, Task, TaskGpuRequest};

/// A card of a node, known by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedCard {
    /// Its name, unique on its node.
    pub name: String,
    /// Its allocatable memory.
    pub memory: Bytes,
    /// Whether it can be allocated.
    pub is_healthy: bool,
}

impl Node {
    /// How many whole cards it can allocate.
    #[must_use]
    pub fn card_count(&self) -> i64 {
        if self.listed.is_empty() {
            return self.cards;
        }
        let healthy = self.listed.iter().filter(|card| card.is_healthy);
        i64::try_from(healthy.count()).unwrap_or(i64::MAX)
    }

    /// The allocatable memory of its healthy cards, each size once, the smallest first.
    #[must_use]
    pub fn card_sizes(&self) -> Vec<Bytes> {
        let healthy = self.listed.iter().filter(|card| card.is_healthy);
        let mut sizes: Vec<Bytes> = healthy.map(|card| card.memory).collect();
        if self.listed.is_empty() && self.cards > 0 {
            sizes.push(self.card_memory);
        }
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Adds `count` times the amounts to what is available in zones, by zone name.
    pub fn add_to_zones(&mut self, amounts: &[(String, ZoneAmounts)], count: i64) {
        for (name, amounts) in amounts {
            for zone in self.zones.iter_mut().filter(|zone| zone.name == *name) {
                zone.available = zone.available.plus(*amounts, count);
            }
        }
    }

    /// The allocatable memory of the card with that name.
    #[must_use]
    pub fn size_of(&self, card: &str) -> Bytes {
        let found = self.listed.iter().find(|listed| listed.name == card);
        found.map_or(self.card_memory, |listed| listed.memory)
    }
}

/// How strictly the kubelet aligns a pod with NUMA zones (kubelet's `topologyManagerPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaPolicy {
    /// Zones are not taken into account.
    #[default]
    None,
    /// As well as it can.
    BestEffort,
    /// In the fewest zones that could ever do, or the pod is refused.
    Restricted,
    /// In one zone, or the pod is refused.
    SingleNode,
}

/// What the kubelet's Topology Manager aligns at a time (kubelet's `topologyManagerScope`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaScope {
    /// Each container by itself.
    #[default]
    Container,
    /// All containers of a pod together.
    Pod,
}

/// What each container of a pod asks of NUMA zones, where a pod has several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerZones {
    /// Containers that run at the same time: all but ordinary init containers.
    pub running: Vec<ZoneAmounts>,
    /// Init containers, which run one after the other and give back what they had.
    pub init: Vec<ZoneAmounts>,
    /// The whole pod.
    pub pod: ZoneAmounts,
}

/// A NUMA zone of a node, with what is free in it.
#[derive(Clone, Debug, Default)]
pub struct NumaZone {
    /// Its name.
    pub name: String,
    /// What it has.
    pub allocatable: ZoneAmounts,
    /// What of it is free.
    pub available: ZoneAmounts,
}

/// Amounts that are aligned with zones. A resource that no zone has is not aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneAmounts {
    /// Processor time, in milli-CPU.
    pub cpu: i64,
    /// Memory, in bytes.
    pub memory: i64,
    /// Cards.
    pub cards: i64,
}

impl ZoneAmounts {
    /// The sum with `count` times `other`.
    #[must_use]
    pub const fn plus(self, other: Self, count: i64) -> Self {
        Self {
            cpu: self.cpu + other.cpu * count,
            memory: self.memory + other.memory * count,
            cards: self.cards + other.cards * count,
        }
    }

    /// Whether it has at least as much of everything.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        other.cpu <= self.cpu && other.memory <= self.memory && other.cards <= self.cards
    }

    /// The smaller of each, at least zero.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.min(other.cpu).max(0),
            memory: self.memory.min(other.memory).max(0),
            cards: self.cards.min(other.cards).max(0),
        }
    }

    /// The sum over the resources, whatever their units.
    #[must_use]
    pub const fn sum(self) -> i64 {
        self.cpu
            .saturating_add(self.memory)
            .saturating_add(self.cards)
    }

    /// Only some of the resources.
    #[must_use]
    pub const fn only(self, cpu: bool, memory: bool, cards: bool) -> Self {
        Self {
            cpu: if cpu { self.cpu } else { 0 },
            memory: if memory { self.memory } else { 0 },
            cards: if cards { self.cards } else { 0 },
        }
    }
}

/// A resource claim: devices that pods name instead of counting cards.
#[derive(Clone, Debug, Default)]
pub struct ResourceClaim {
    /// Its name.
    pub name: String,
    /// The queue that it is for.
    pub queue: Option<String>,
    /// The class of its devices.
    pub class: String,
    /// How many devices it asks for.
    pub devices: i64,
    /// Whether its devices are cards; others are not counted.
    pub is_of_cards: bool,
    /// Whether it was made for one pod, which may use it whatever its queue.
    pub is_for_one_pod: bool,
    /// The node of its devices, once they are allocated.
    pub node: Option<String>,
    /// How many pods it is reserved for.
    pub consumers: usize,
    /// How many cards a pod that names it is charged for, where devices are allocated: a share of a card is a part.
    pub charge: f64,
    /// Its devices, once they are allocated.
    pub allocation: Option<DeviceGrant>,
    /// Whether it keeps its devices whatever happens to the pods of this cluster: others use it, or it is to keep them.
    pub is_kept: bool,
    /// Why no pod can use it, if so.
    pub defect: Option<String>,
}

/// The claim of one pod in place of extended resources, on nodes that do not have these resources (KEP-5004).
///
/// Where a node has them by a device plugin, the pod needs no claim. So a pod may have several of these, for different
/// nodes, and needs at most one of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtendedResourceClaim {
    /// The nodes on which the pod needs it, by name.
    pub nodes: Arc<BTreeSet<String>>,
    /// The name of the claim.
    pub claim: String,
    /// What the pod asks of the cards of these nodes besides.
    pub cards: TaskGpuRequest,
}

impl Task {
    /// The claim in place of extended resources that it needs on a node.
    #[must_use]
    pub fn extended_claim_on(&self, node: &str) -> Option<&ExtendedResourceClaim> {
        self.extended.iter().find(|one| one.nodes.contains(node))
    }

    /// What it asks of the cards of a node.
    #[must_use]
    pub fn cards_on(&self, node: &str) -> &TaskGpuRequest {
        let instead = self.extended_claim_on(node);
        instead.map_or(&self.cards, |instead| &instead.cards)
    }

    /// All claims that it names, or needs on some node.
    pub fn all_claims(&self) -> impl Iterator<Item = &String> {
        let extended = self.extended.iter().map(|one| &one.claim);
        self.claims.iter().chain(extended)
    }
}
