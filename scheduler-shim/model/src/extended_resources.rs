//! Which pods need which claims in place of extended resources (KEP-5004), and on which nodes.
//!
//! A pod may ask for `nvidia.com/gpu`, and nodes may have it in two ways: by a device plugin, which counts it, or by
//! devices of a DeviceClass. Where a node has none by a device plugin, the pod needs a claim, which its scheduler
//! makes for it. As in kube-scheduler, that is decided for each resource and each node, and all such resources of a
//! pod share one claim. Until the pod has a node, the claim exists in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apportion_claims::objects::ResourceClaim;
use apportion_claims::{DeviceInventory, ExtendedRequests};
use apportion_groups::ObjectView;
use apportion_policy::Cluster;
use apportion_policy::cluster::{ExtendedResourceClaim, Task, TaskGpuRequest, TaskStatus};

use super::claim_store::{AssumedAllocations, KnownClaim};
use super::extended_requests::{
    ExtendedClaimContents, IN_MEMORY, RequestedResources, ResourceClasses, counts_by_name,
    name_in_memory,
};
use super::inventory::ObjectInventory;
use super::nodes;
use super::parsed_objects::ParsedPod;
use super::requests::WHOLE;

/// Names of resources.
type ResourceNames = Vec<String>;
/// Nodes by the resources, of some, that they lack.
type LackingNodes = BTreeMap<ResourceNames, Arc<BTreeSet<String>>>;

/// The claims of a cluster in place of extended resources.
#[derive(Debug, Default)]
pub(crate) struct ExtendedClaims {
    /// Those that exist in memory only, by name.
    pub(crate) in_memory: BTreeMap<String, Arc<KnownClaim>>,
    /// The charges of all of them that differ from those of other claims. What `nvidia.com/gpu` asks for is charged as
    /// such, and not once more with its claim.
    pub(crate) charges: BTreeMap<String, f64>,
    /// Those that an earlier attempt has left, with the reason why no pod can use them.
    pub(crate) left_behind: BTreeMap<String, String>,
}

/// Finds the claims, and gives them to the tasks of the cluster.
pub(crate) fn enter(
    inventory: &ObjectInventory,
    devices: &DeviceInventory,
    cluster: &mut Cluster,
    assumed: &AssumedAllocations,
) -> ExtendedClaims {
    let is_asked = devices.names_resources() || inventory.asks_by_class();
    if !is_asked && !inventory.claims.has_extended() {
        return ExtendedClaims::default();
    }
    let nodes = cluster.nodes.iter().map(|node| node.name.clone());
    let mut finder = ClaimFinder {
        inventory,
        devices,
        assumed,
        nodes: nodes.collect(),
        lacking: BTreeMap::new(),
        found: ExtendedClaims::default(),
    };
    for job in &mut cluster.jobs {
        let tasks = job.tasks.iter().enumerate();
        let needed: Vec<(usize, Box<[ExtendedResourceClaim]>)> = tasks
            .filter_map(|(place, task)| Some((place, finder.claims_of(task)?)))
            .collect();
        if needed.is_empty() {
            continue;
        }
        let job = Arc::make_mut(job);
        for (place, claims) in needed {
            job.tasks[place].extended = claims;
        }
    }
    finder.found
}

/// What to write for a pod that gets its devices on a node.
#[must_use]
pub fn contents(
    inventory: &ObjectInventory,
    pod: ObjectView<'_>,
    node: ObjectView<'_>,
) -> ExtendedClaimContents {
    let requested = RequestedResources::of(pod);
    let mut classes = requested.classes(&inventory.claims.devices());
    classes.retain(|resource, _| !nodes::offers(node, resource));
    ExtendedClaimContents::of(&requested.as_requests(&classes))
}

/// Whether a pod asks for a resource that a class names, by what was parsed of it.
fn asks_for_devices(devices: &DeviceInventory, read: &ParsedPod) -> bool {
    let is_named = |name: &str| devices.class_of_resource(name).is_some();
    let by_name = match &read.cards {
        Ok(TaskGpuRequest::Whole(_)) => WHOLE.iter().any(|name| is_named(name)),
        Ok(TaskGpuRequest::Partitions(all)) => all.keys().any(|name| is_named(name)),
        Ok(TaskGpuRequest::None | TaskGpuRequest::Shared { .. }) | Err(_) => false,
    };
    by_name || read.holds.resources().any(is_named)
}

struct ClaimFinder<'a> {
    inventory: &'a ObjectInventory,
    devices: &'a DeviceInventory,
    assumed: &'a AssumedAllocations,
    /// The nodes of the cluster.
    nodes: BTreeSet<String>,
    /// The nodes that lack some of these resources.
    lacking: BTreeMap<ResourceNames, LackingNodes>,
    found: ExtendedClaims,
}

impl ClaimFinder<'_> {
    /// The claims that a task needs on nodes without its extended resources; nothing if it asks for none.
    fn claims_of(&mut self, task: &Task) -> Option<Box<[ExtendedResourceClaim]>> {
        let (namespace, name) = task.name.split_once('/')?;
        let read = self.inventory.pod(namespace, name)?;
        let made = self.inventory.claims.extended_of(&task.name).next();
        let has_some = made.is_some() || !task.extended.is_empty();
        if !has_some && !asks_for_devices(self.devices, read) {
            return None;
        }
        let waits = task.status == TaskStatus::Pending;
        if !waits && !task.status.is_active() {
            return None;
        }
        let requested = read.requested(|| self.inventory.find("Pod", namespace, name))?;
        let mut made = self.inventory.claims.extended_of(&task.name);
        let made = made.find(|(_, known)| known.is_of_pod(&requested.uid));
        if let Some((claim, _)) = made.filter(|_| waits) {
            return Some([self.left_behind(task, claim)].into());
        }
        let mut all = task.extended.to_vec();
        self.await_claims(task, requested, &mut all);
        if let Some(node) = task.node.as_deref().filter(|_| all.is_empty()) {
            let claim = made.map(|(claim, _)| claim.to_owned());
            all.extend(self.of_node(task, requested, node, claim));
        }
        for one in &all {
            self.charge_made(requested, &one.claim);
        }
        let own: BTreeSet<String> = task.node.iter().cloned().collect();
        all.extend(self.of_other_nodes(task, requested, &own));
        Some(all.into())
    }

    /// Counts the assumed claim of a bound pod as long as the claim that its status names is not shown.
    fn await_claims(
        &mut self,
        task: &Task,
        requested: &RequestedResources,
        all: &mut [ExtendedResourceClaim],
    ) {
        let in_memory = name_in_memory(&task.name);
        if !self.assumed.contains_key(&in_memory) {
            return;
        }
        let store = &self.inventory.claims.claims;
        for one in all.iter_mut().filter(|one| !store.contains_key(&one.claim)) {
            one.claim.clone_from(&in_memory);
            let classes = requested.classes(self.devices);
            self.add_in_memory(&in_memory, requested, &requested.as_requests(&classes));
        }
    }

    /// The claim that a pod has on its node: the one that was made, or that is being made.
    fn of_node(
        &mut self,
        task: &Task,
        requested: &RequestedResources,
        node: &str,
        made: Option<String>,
    ) -> Option<ExtendedResourceClaim> {
        let in_memory = name_in_memory(&task.name);
        let is_being_made = self.assumed.contains_key(&in_memory);
        let claim = made.or_else(|| is_being_made.then_some(in_memory))?;
        let mut classes = requested.classes(self.devices);
        let object = self.inventory.find("Node", "", node)?.read_apart();
        classes.retain(|resource, _| !nodes::offers(ObjectView::new(&object), resource));
        if !self.inventory.claims.claims.contains_key(&claim) {
            self.add_in_memory(&claim, requested, &requested.as_requests(&classes));
        }
        Some(ExtendedResourceClaim {
            nodes: Arc::new([node.to_owned()].into()),
            claim,
            cards: requested.cards_without(&task.cards, |name| classes.contains_key(name)),
        })
    }

    /// The claims that a pod would get on other nodes than its own.
    fn of_other_nodes(
        &mut self,
        task: &Task,
        requested: &RequestedResources,
        own: &BTreeSet<String>,
    ) -> Vec<ExtendedResourceClaim> {
        let classes = requested.classes(self.devices);
        let mut all = Vec::new();
        for (lacking, on) in self.lacking(&classes) {
            let on = if on.is_disjoint(own) {
                on
            } else {
                Arc::new(on.difference(own).cloned().collect())
            };
            if on.is_empty() {
                continue;
            }
            let is_lacking = |name: &str| lacking.iter().any(|lacking| lacking == name);
            let mut needed = classes.clone();
            needed.retain(|name, _| is_lacking(name));
            let claim = match all.len() + own.len() {
                0 => name_in_memory(&task.name),
                number => format!("{}{IN_MEMORY}-{number}>", task.name),
            };
            self.add_in_memory(&claim, requested, &requested.as_requests(&needed));
            all.push(ExtendedResourceClaim {
                nodes: on,
                claim,
                cards: requested.cards_without(&task.cards, is_lacking),
            });
        }
        all
    }

    /// The nodes that lack some resources of these classes, by which they lack.
    fn lacking(&mut self, classes: &ResourceClasses) -> LackingNodes {
        let names: ResourceNames = classes.keys().cloned().collect();
        if let Some(known) = self.lacking.get(&names) {
            return known.clone();
        }
        let mut found: BTreeMap<ResourceNames, BTreeSet<String>> = BTreeMap::new();
        for node in self.inventory.all("Node") {
            if !self.nodes.contains(node.name()) {
                continue;
            }
            let object = node.read_apart();
            let mut lacking = names.clone();
            lacking.retain(|name| !nodes::offers(ObjectView::new(&object), name));
            if !lacking.is_empty() {
                let on = found.entry(lacking).or_default();
                on.insert(node.name().to_owned());
            }
        }
        let found = found.into_iter();
        let found: LackingNodes = found.map(|(lacking, on)| (lacking, Arc::new(on))).collect();
        self.lacking.insert(names, found.clone());
        found
    }

    /// A claim that an earlier attempt to bind the pod made. Its devices may be those of a node where the pod does not
    /// fit any more, so the pod waits until the claim is gone, as with kube-scheduler.
    fn left_behind(&mut self, task: &Task, claim: &str) -> ExtendedResourceClaim {
        let why = "it is left of an earlier attempt to bind the pod, and is being deleted";
        let known = &mut self.found.left_behind;
        known.insert(claim.to_owned(), why.to_owned());
        ExtendedResourceClaim {
            nodes: Arc::new(self.nodes.clone()),
            claim: claim.to_owned(),
            cards: task.cards.clone(),
        }
    }

    fn add_in_memory(
        &mut self,
        name: &str,
        requested: &RequestedResources,
        asked: &ExtendedRequests,
    ) {
        let claim = requested.as_claim(asked);
        let charge = self.charge(requested, &claim);
        self.found.charges.insert(name.to_owned(), charge);
        let known = KnownClaim::in_memory(claim, &requested.version);
        self.found
            .in_memory
            .insert(name.to_owned(), Arc::new(known));
    }

    fn charge_made(&mut self, requested: &RequestedResources, claim: &str) {
        if let Some(known) = self.inventory.claims.claims.get(claim) {
            let charge = self.charge(requested, &known.claim);
            self.found.charges.insert(claim.to_owned(), charge);
        }
    }

    /// How many cards a claim is charged for beside those that the pod is charged for by the names of its resources.
    fn charge(&self, requested: &RequestedResources, claim: &ResourceClaim) -> f64 {
        let mut rest = claim.clone();
        let requests = &mut rest.spec.devices.requests;
        requests.retain(|one| {
            let resource = requested.resource_of(&one.name);
            !resource.is_some_and(counts_by_name)
        });
        if requests.is_empty() {
            return 0.0;
        }
        self.inventory.claims.charge(self.devices, &rest)
    }
}

#[cfg(test)]
mod tests;
