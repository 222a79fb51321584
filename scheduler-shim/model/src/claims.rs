//! Resource claims: which there are, for which pods, and who allocates devices for them.
//!
//! Slices, classes and claims are parsed when they come, because a round looks at all of them. As in KAI, a class is of
//! cards if its name says so: its devices are charged to the queue, and a claim on them that several pods may share
//! is for the queue in its label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use apportion_abi::names::LABEL_QUEUE;
use apportion_claims::DeviceInventory;
use apportion_claims::objects::{
    AllocationResult, DeviceClass, DeviceRequest, RequestTerms, ResourceClaim, ResourceSlice,
};
use apportion_groups::ObjectView;
use apportion_policy::cluster::ResourceClaim as PolicyClaim;
use apportion_policy::cluster::{Cluster, DeviceGrant, Job};
use serde_json::{Value, json};

use super::inventory::ObjectInventory;
use super::object_kinds::CLAIM_GROUP;
use super::pods;

mod allocator;
mod old_versions;
mod share_ids;

use allocator::{AllocatorData, ClaimAllocator, ClaimedDevices};
pub(crate) use old_versions::as_first_stable;

/// The annotation of a claim that was created from a template, for one pod.
const OF_POD: &str = "resource.kubernetes.io/pod-claim-name";
const CARDS: &str = "gpu";
const CLAIM: &str = "ResourceClaim";
const SLICE: &str = "ResourceSlice";
const CLASS: &str = "DeviceClass";

/// Allocations that were decided and that the API server does not show yet, by the claim's namespace and name.
pub type AssumedAllocations = BTreeMap<String, Arc<AllocationResult>>;

/// Claims, slices and classes, parsed.
#[derive(Debug, Default)]
pub struct ClaimStore {
    /// Shared with the allocators of rounds.
    devices: Arc<RwLock<DeviceInventory>>,
    /// By namespace and name.
    claims: BTreeMap<String, Arc<KnownClaim>>,
}

/// A claim.
#[derive(Debug)]
pub(crate) struct KnownClaim {
    pub(crate) claim: ResourceClaim,
    /// What it asks for, as text: the same for claims that ask for the same.
    pub(crate) shape: String,
    /// Which version it is, for share IDs.
    pub(crate) version: String,
    /// The queue in its label.
    queue: Option<String>,
    is_for_one_pod: bool,
    defect: Option<String>,
    /// What it counts for, and for which version of the devices.
    charge: Mutex<Option<(u64, f64)>>,
}

impl ClaimStore {
    /// Reads an object, if it is one of these kinds.
    pub(crate) fn set(&mut self, object: ObjectView<'_>) {
        if object.api_group() != CLAIM_GROUP {
            return;
        }
        let read = as_first_stable(object.json());
        match object.kind() {
            CLAIM => {
                let known = KnownClaim::of(object, &read);
                self.claims.insert(full_name(object), Arc::new(known));
            }
            SLICE => {
                let slice: Result<ResourceSlice, _> = serde_json::from_value(read);
                match slice {
                    Ok(slice) => self.change(|devices| devices.set_slice(slice)),
                    // What is not understood gives nothing.
                    Err(_) => self.change(|devices| devices.remove_slice(object.name())),
                }
            }
            CLASS => {
                let class: Result<DeviceClass, _> = serde_json::from_value(read);
                match class {
                    Ok(class) => self.change(|devices| devices.set_class(class)),
                    Err(_) => self.change(|devices| devices.remove_class(object.name())),
                }
                self.forget_conditions();
            }
            _ => {}
        }
    }

    /// Forgets an object.
    pub(crate) fn remove(&mut self, object: ObjectView<'_>) {
        if object.api_group() != CLAIM_GROUP {
            return;
        }
        match object.kind() {
            CLAIM => drop(self.claims.remove(&full_name(object))),
            SLICE => self.change(|devices| devices.remove_slice(object.name())),
            CLASS => {
                self.change(|devices| devices.remove_class(object.name()));
                self.forget_conditions();
            }
            _ => {}
        }
    }

    /// What a claim has in its status, by namespace and name.
    pub fn allocation(&self, claim: &str) -> Option<&AllocationResult> {
        self.claims.get(claim)?.claim.status.allocation.as_ref()
    }

    /// The UID of a claim, by namespace and name.
    pub fn uid(&self, claim: &str) -> Option<&str> {
        Some(&self.claims.get(claim)?.claim.metadata.uid)
    }

    /// Whether there are no claims.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    fn change(&self, change: impl FnOnce(&mut DeviceInventory)) {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut devices);
    }

    /// Forgets the conditions that no class and no claim has any more. Conditions of claims come and go with them.
    fn forget_conditions(&self) {
        let requests = self
            .claims
            .values()
            .flat_map(|known| &known.claim.spec.devices.requests);
        let selectors = requests.flat_map(terms).flat_map(|terms| &terms.selectors);
        let used: BTreeSet<&str> = selectors
            .filter_map(|selector| Some(selector.cel.as_ref()?.expression.as_str()))
            .collect();
        self.change(|devices| devices.forget_conditions(|text| used.contains(text)));
    }
}

impl KnownClaim {
    fn of(object: ObjectView<'_>, read: &Value) -> Self {
        let parsed: Result<ResourceClaim, _> = serde_json::from_value(read.clone());
        let (mut claim, mut defect) = match parsed {
            Ok(claim) => (claim, None),
            Err(error) => {
                let defect = format!("its fields are not understood: {error}");
                (ResourceClaim::default(), Some(defect))
            }
        };
        claim.metadata.name = full_name(object);
        if !object.json()["metadata"]["deletionTimestamp"].is_null() {
            defect = Some("it is being deleted".to_owned());
        }
        Self {
            claim,
            shape: read["spec"].to_string(),
            version: text(&object.json()["metadata"]["resourceVersion"]),
            queue: object.label(LABEL_QUEUE).map(str::to_owned),
            is_for_one_pod: object.annotation(OF_POD).is_some(),
            defect,
            charge: Mutex::default(),
        }
    }

    fn charge(&self, devices: &DeviceInventory) -> f64 {
        let version = devices.version();
        let mut known = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some((of, charge)) if of == version => charge,
            Some(_) | None => {
                let charge = devices.charge(&self.claim, is_of_cards);
                *known = Some((version, charge));
                charge
            }
        }
    }
}

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

/// Adds the claims to the cluster, and who allocates devices for them.
pub fn enter(inventory: &ObjectInventory, cluster: &mut Cluster, assumed: &AssumedAllocations) {
    let store = &inventory.claims;
    let devices = store.devices.read().unwrap_or_else(PoisonError::into_inner);
    let mut counted = devices.devices_of_nodes(is_of_cards);
    for node in &mut cluster.nodes {
        // Cards that the node reports itself are the same ones.
        if let Some(count) = counted.remove(node.name.as_str())
            && node.card_count() == 0
        {
            node.claimable_cards = i64::try_from(count).unwrap_or(i64::MAX);
        }
    }
    if store.is_empty() {
        return;
    }
    let users = users(&cluster.jobs);
    let claims = store.claims.iter();
    cluster.claims = claims
        .map(|(name, known)| {
            // What was decided last counts, until the claim shows it.
            let shown = || known.claim.status.allocation.clone().map(Arc::new);
            let allocation = assumed.get(name).cloned().or_else(shown);
            read(name, known, &devices, &users, allocation)
        })
        .collect();
    let labels = cluster.nodes.iter().map(|node| {
        let labels = node.labels.iter();
        let labels = labels.map(|(key, value)| (key.clone(), value.clone()));
        (node.name.clone(), labels.collect())
    });
    let data = AllocatorData {
        devices: Arc::clone(&store.devices),
        claims: store.claims.clone(),
        labels: labels.collect(),
    };
    cluster.allocator = Some(Arc::new(ClaimAllocator(Arc::new(data))));
}

/// The pods with a place that name claims, by claim.
fn users(jobs: &[Arc<Job>]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let tasks = jobs.iter().flat_map(|job| &job.tasks);
    for task in tasks.filter(|task| task.status.is_active()) {
        for claim in &task.claims {
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
        terms.find(|terms| is_of_cards(&terms.device_class_name))
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

/// The terms of a request: its own, or those of its alternatives.
fn terms(request: &DeviceRequest) -> impl Iterator<Item = &RequestTerms> {
    request.exactly.iter().chain(&request.first_available)
}

/// Whether a class is of cards, by its name.
fn is_of_cards(class: &str) -> bool {
    class.to_lowercase().contains(CARDS)
}

fn full_name(object: ObjectView<'_>) -> String {
    format!("{}/{}", object.namespace(), object.name())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list<'a>(json: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    let list = json.pointer(path).and_then(Value::as_array);
    list.into_iter().flatten()
}
