//! Puts all objects together: the cluster that the policy decides on, and what the policy does not see.
//!
//! Pods of other schedulers are not decided on. What they hold is subtracted from their nodes, and affinity terms
//! know about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apportion_groups::{GroupingSettings, ObjectView};
use apportion_policy::Cluster;
use apportion_policy::cluster::{Node, Task, TaskGpuRequest};
use serde_json::Value;

use super::admission::NodeAdmission;
use super::cards::CardInventory;
use super::gang::TopologyResolver;
use super::inventory::ObjectInventory;
use super::jobs::{JobBuilder, JobReadContext};
use super::namespaces::NamespaceResolver;
use super::object_warnings::{ObjectWarnings, called};
use super::occupancy::NodeOccupancy;
use super::parsed_objects::ParsedPod;
use super::pods;
use super::queues::{self, IgnoredFields};
use super::{config_maps, foreign_pods};

/// A cluster, read from its objects.
#[derive(Debug)]
pub struct ClusterSnapshot<'a> {
    /// The time of the snapshot, since 1970.
    pub now: Duration,
    /// The objects that it was made from.
    pub inventory: &'a ObjectInventory,
    /// The cluster that the policy decides on.
    pub cluster: Cluster,
    /// What pods hold that the policy does not count.
    pub occupancy: NodeOccupancy,
    /// Waiting pods that the policy does not see, and why.
    pub strays: BTreeMap<String, String>,
    /// Pods that would run without their share of a card, and why; the policy does not see them either.
    pub slotless: BTreeMap<String, String>,
    /// Unusable queues, and why.
    pub unusable: BTreeMap<String, String>,
    /// What is ignored of usable queues, and why.
    pub ignored: BTreeMap<String, IgnoredFields>,
    /// The queues whose pods are suspended before they are evicted.
    pub suspending_queues: BTreeSet<String>,
    /// How many pods belong to other schedulers.
    pub foreign: usize,
}

/// The indices of nodes, by name.
type NodeIndices<'a> = BTreeMap<&'a str, usize>;

/// Reads the cluster from its objects. `assumed` are pods that will be on a node that their object does not name yet.
/// `cards` is what is known beside the objects of nodes and pods.
pub fn snapshot<'a>(
    inventory: &'a ObjectInventory,
    schedulers: &[String],
    assumed: &BTreeMap<String, String>,
    cards: &CardInventory,
    now: Duration,
    warnings: &mut ObjectWarnings,
) -> ClusterSnapshot<'a> {
    // Parsed apart from the cache, and dropped before the policy decides: then most memory is needed.
    let objects: Vec<Value> = (inventory.all("Node"))
        .map(|node| node.read_apart().into_owned())
        .collect();
    let objects: Vec<ObjectView<'_>> = objects.iter().map(ObjectView::new).collect();
    let known = inventory.nodes().map(|(object, read)| {
        let is_listed = cards.listed.contains_key(object.name());
        read.node(is_listed, warnings)
    });
    let mut known: Vec<Node> = known.collect();
    known.iter_mut().for_each(|node| cards.list(node));
    let indices = inventory.all("Node").enumerate();
    let indices: NodeIndices<'_> = indices.map(|(index, node)| (node.name(), index)).collect();
    let reading = JobReadContext { inventory, now };
    let settings = GroupingSettings::default();
    let occupancy = NodeOccupancy::of(inventory, assumed);
    let mut admission = NodeAdmission::of(occupancy.clone());
    let mut jobs = JobBuilder::default();
    let (mut strays, mut slotless) = (BTreeMap::new(), BTreeMap::new());
    let mut foreign = 0;
    let mut namespaces = NamespaceResolver::of(inventory);
    let mut others: Vec<&ParsedPod> = Vec::new();
    for (pod, read) in inventory.pods() {
        if !schedulers.iter().any(|name| **name == *read.scheduler) {
            foreign += 1;
            take_off(pod, read, &mut known, &indices, cards);
            others.push(read);
            continue;
        }
        if let Some(why) = read.slotless().filter(|_| cards.takes_slots) {
            slotless.insert(pods::name(pod), why.to_owned());
            continue;
        }
        let result = read.task(warnings).and_then(|mut task| {
            namespaces.name_all(&mut task, warnings);
            if let Some(on) = cards.on.get(&task.name).filter(|_| task.status.is_active()) {
                task.on.clone_from(on);
            }
            let index = task.node.as_deref().and_then(|node| indices.get(node));
            if task.status.is_active() && index.is_none() {
                warnings.add(
                    called("Pod", pod.namespace(), pod.name()),
                    "its node is not known, so its resources are not counted",
                );
            }
            if let Some(why) = overfull(&task, index.map(|index| &known[*index])) {
                return Err(why);
            }
            let preferences = admission.prefer(&read.preferred, &objects, &mut known);
            task.prefers.extend(preferences);
            let takes = NodeAdmission::takes(&task.cards).filter(|_| cards.has_agents);
            let requirements_key = (&*read.requirements_key, takes);
            task.node_affinity =
                admission.node_affinity(pod, &objects, &mut known, requirements_key, inventory);
            config_maps::await_all(&mut task, pod.namespace(), &read.config_maps, inventory);
            let resolved = read.group(pod, inventory, &settings);
            let group = resolved.as_ref().as_ref().map_err(Clone::clone)?;
            jobs.add((pod, read), task, group, &reading, warnings)
        });
        // An invalid pod that is bound holds resources of its node, like a pod of another scheduler.
        if let Err(why) = result {
            if read.node().is_some() {
                others.push(read);
                take_off(pod, read, &mut known, &indices, cards);
            }
            if !read.is_over() {
                strays.insert(pods::name(pod), why);
            }
        }
    }
    let queues = queues::queues(inventory, now, warnings);
    let jobs = jobs.finish();
    others.retain(|read| {
        !read.is_over() && read.node().is_some_and(|node| indices.contains_key(node))
    });
    let cluster = Cluster {
        bystanders: foreign_pods::bystanders(&others, &jobs, &mut namespaces, warnings),
        nodes: known,
        queues: queues.usable.into_values().collect(),
        jobs,
        topologies: TopologyResolver(inventory).topologies(),
        ..Cluster::default()
    };
    ClusterSnapshot {
        now,
        cluster,
        occupancy,
        strays,
        slotless,
        unusable: queues.unusable,
        ignored: queues.ignored,
        suspending_queues: queues.suspending,
        foreign,
        inventory,
    }
}

impl ClusterSnapshot<'_> {
    /// Why a node does not admit a pod, apart from the resources that the policy counts.
    pub fn refused(&self, pod: ObjectView<'_>, node: ObjectView<'_>) -> Option<String> {
        self.occupancy.refused(pod, node, self.inventory)
    }
}

/// Why a pod can't be on the node that it names.
fn overfull(task: &Task, node: Option<&Node>) -> Option<String> {
    let TaskGpuRequest::Shared { devices, .. } = &task.cards else {
        return None;
    };
    let node = node?;
    let cards = node
        .card_count()
        .max(i64::try_from(task.on.len()).unwrap_or(i64::MAX));
    (task.status.is_active() && i64::from(*devices) > cards).then(|| {
        format!(
            "it uses {devices} GPUs, but its node has {}",
            node.card_count()
        )
    })
}

/// Subtracts from a node what a pod holds that is not decided on here.
fn take_off(
    pod: ObjectView<'_>,
    read: &ParsedPod,
    known: &mut [Node],
    indices: &NodeIndices<'_>,
    cards: &CardInventory,
) {
    let node = read.node().filter(|_| !read.is_over());
    let Some(node) = node.and_then(|name| known.get_mut(*indices.get(name)?)) else {
        return;
    };
    node.cpu_millis -= read.cpu_millis;
    node.memory -= read.memory;
    node.pods -= 1;
    if read.is_reservation {
        return;
    }
    // What came with a claim is counted with the claim.
    let held = match &read.extended {
        Some(extended) => Ok(&extended.cards),
        None => read.cards.as_ref(),
    };
    match held {
        Ok(TaskGpuRequest::Whole(count)) => cards.withdraw(node, &pods::name(pod), *count),
        Ok(TaskGpuRequest::Partitions(taken)) => {
            for (name, count) in taken {
                if let Some(left) = node.partitions.get_mut(name) {
                    *left = (*left - count).max(0);
                }
            }
        }
        Ok(TaskGpuRequest::None | TaskGpuRequest::Shared { .. }) | Err(_) => {}
    }
}
