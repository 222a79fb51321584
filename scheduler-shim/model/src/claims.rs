//! Resource claims of a round: which there are, for which pods, and who allocates devices for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use apportion_claims::DeviceInventory;
use apportion_claims::binding::BindingClock;
use apportion_claims::objects::AllocationResult;
use apportion_policy::cluster::ResourceClaim as PolicyClaim;
use apportion_policy::cluster::{Cluster, DeviceGrant, Job};
use serde_json::{Value, json};

use super::claim_store::{AssumedAllocations, CLAIM, KnownClaim, OF_POD, is_of_cards, terms};
use super::extended_requests::name_in_memory;
use super::extended_resources::{self, ExtendedClaims};
use super::inventory::ObjectInventory;
use super::pods;

mod allocator;
mod share_ids;

use allocator::{AllocatorData, ClaimAllocator, ClaimedDevices};

/// The claims that would be created from templates, for pods without theirs.
pub fn of_templates(inventory: &ObjectInventory) -> Vec<Value> {
    let made = inventory.all("Pod").flat_map(|pod| {
        let entries = list(pod.json(), "/spec/resourceClaims");
        entries.filter_map(move |entry| {
            let name = entry["resourceClaimTemplateName"].as_str()?;
            let template = inventory.find("ResourceClaimTemplate", pod.namespace(), name)?;
            let claim = pods::claim(pod, entry)?;
            let spec = &template.json()["spec"];
            let metadata = json!({"name": claim, "namespace": pod.namespace(),
                "labels": spec["metadata"]["labels"], "annotations": {OF_POD: entry["name"]}});
            let is_new = inventory.find(CLAIM, pod.namespace(), &claim).is_none();
            is_new.then(|| {
                json!({"apiVersion": template.api_version(), "kind": CLAIM,
                    "metadata": metadata, "spec": spec["spec"]})
            })
        })
    });
    made.collect()
}

/// Adds the claims to the cluster, and who allocates devices for them. A claim whose devices do not get ready is
/// unusable until it has lost them.
pub fn enter(
    inventory: &ObjectInventory,
    cluster: &mut Cluster,
    assumed: &AssumedAllocations,
    clock: BindingClock,
) {
    let store = &inventory.claims;
    let devices = store.devices.read().unwrap_or_else(PoisonError::into_inner);
    let mut counted = devices.devices_of_nodes(|class| is_of_cards(&devices, class));
    for node in &mut cluster.nodes {
        // Cards that the node reports itself are the same ones.
        if let Some(count) = counted.remove(node.name.as_str())
            && node.card_count() == 0
        {
            node.claimable_cards = i64::try_from(count).unwrap_or(i64::MAX);
        }
    }
    let extended = extended_resources::enter(inventory, &devices, cluster, assumed);
    let mut claims = store.claims.clone();
    claims.extend(extended.in_memory.clone());
    if claims.is_empty() && assumed.is_empty() {
        return;
    }
    let users = users(&cluster.jobs);
    // The assumed allocations that belong to none of these claims.
    let mut unclaimed = assumed.clone();
    cluster.claims = claims
        .iter()
        .map(|(name, known)| {
            // What was decided last counts, until the claim shows it.
            let shown = || known.claim.status.allocation.clone().map(Arc::new);
            let pod = known.extends.as_ref().map(|(pod, _)| name_in_memory(pod));
            let names = || [Some(name), pod.as_ref()].into_iter().flatten();
            names().for_each(|name| drop(unclaimed.remove(name)));
            let decided = names().find_map(|name| assumed.get(name)).cloned();
            let failure = || clock.failure(&known.claim.status);
            let failure = decided.is_none().then(failure).flatten();
            let allocation = decided.or_else(shown);
            let mut claim = read(name, known, &devices, &users, allocation);
            claim.defect = claim.defect.or(failure);
            as_extended(claim, &extended)
        })
        .collect();
    // Their pods are gone, and their claims are being made or are not deleted yet.
    let without_pods = unclaimed.into_iter().map(|(name, allocation)| PolicyClaim {
        name,
        allocation: Some(Arc::new(ClaimedDevices(allocation)) as DeviceGrant),
        is_kept: true,
        ..PolicyClaim::default()
    });
    cluster.claims.extend(without_pods);
    let labels = cluster.nodes.iter().map(|node| {
        let labels = node.labels.iter();
        let labels = labels.map(|(key, value)| (key.clone(), value.clone()));
        (node.name.clone(), labels.collect())
    });
    let data = AllocatorData {
        devices: Arc::clone(&store.devices),
        claims,
        labels: labels.collect(),
    };
    cluster.allocator = Some(Arc::new(ClaimAllocator(Arc::new(data))));
}

/// The pods with a place that name claims, by claim.
fn users(jobs: &[Arc<Job>]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let tasks = jobs.iter().flat_map(|job| &job.tasks);
    for task in tasks.filter(|task| task.status.is_active()) {
        for claim in task.all_claims() {
            users.entry(claim).or_default().insert(&task.name);
        }
    }
    users
}

fn read(
    name: &str,
    known: &KnownClaim,
    devices: &DeviceInventory,
    users: &BTreeMap<&str, BTreeSet<&str>>,
    allocation: Option<Arc<AllocationResult>>,
) -> PolicyClaim {
    let requests = &known.claim.spec.devices.requests;
    let of_cards = requests.iter().find_map(|request| {
        let mut terms = terms(request);
        terms.find(|terms| is_of_cards(devices, &terms.device_class_name))
    });
    let consumers = &known.claim.status.reserved_for;
    let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
    let own = users.get(name);
    let is_own =
        |pod: &str| own.is_some_and(|own| own.contains(format!("{namespace}/{pod}").as_str()));
    let is_kept = own.is_none()
        || consumers
            .iter()
            .any(|consumer| consumer.resource != "pods" || !is_own(&consumer.name));
    PolicyClaim {
        name: name.to_owned(),
        queue: known.queue.clone(),
        class: of_cards.map_or_else(String::new, |terms| terms.device_class_name.clone()),
        is_of_cards: of_cards.is_some(),
        is_for_one_pod: known.is_for_one_pod,
        consumers: consumers.len(),
        charge: known.charge(devices),
        allocation: allocation.map(|found| Arc::new(ClaimedDevices(found)) as DeviceGrant),
        is_kept,
        defect: known.defect.clone(),
        ..PolicyClaim::default()
    }
}

/// A claim with what is particular to those in place of extended resources.
fn as_extended(mut claim: PolicyClaim, extended: &ExtendedClaims) -> PolicyClaim {
    if let Some(charge) = extended.charges.get(&claim.name) {
        claim.charge = *charge;
    }
    if let Some(why) = extended.left_behind.get(&claim.name) {
        claim.defect = Some(why.clone());
    }
    claim
}

fn list<'a>(json: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    let list = json.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten()
}
