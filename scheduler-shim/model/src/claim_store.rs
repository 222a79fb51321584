//! Resource claims, slices and classes. They are parsed when they come, because a round looks at all of them.
//!
//! As in KAI, a class is of cards if its name says so: its devices are charged to the queue, and a claim on them that
//! several pods may share is for the queue in its label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use apportion_abi::names::LABEL_QUEUE;
use apportion_claims::DeviceInventory;
use apportion_claims::objects::{
    AllocationResult, DeviceClass, DeviceRequest, RequestTerms, ResourceClaim, ResourceClaimStatus,
    ResourceSlice,
};
use apportion_groups::ObjectView;
use serde_json::Value;

use super::extended_requests::OF_EXTENDED;
use super::object_kinds::CLAIM_GROUP;
use super::requests::WHOLE;

mod old_versions;

pub(crate) use old_versions::as_first_stable;

/// The annotation of a claim that was created from a template, for one pod.
pub(crate) const OF_POD: &str = "resource.kubernetes.io/pod-claim-name";
const CARDS: &str = "gpu";
pub(crate) const CLAIM: &str = "ResourceClaim";
const SLICE: &str = "ResourceSlice";
const CLASS: &str = "DeviceClass";

/// Allocations that were decided and that the API server does not show yet, by the claim's namespace and name.
pub type AssumedAllocations = BTreeMap<String, Arc<AllocationResult>>;

/// Claims, slices and classes, parsed.
#[derive(Debug, Default)]
pub struct ClaimStore {
    /// Shared with the allocators of rounds.
    pub(crate) devices: Arc<RwLock<DeviceInventory>>,
    /// By namespace and name.
    pub(crate) claims: BTreeMap<String, Arc<KnownClaim>>,
    /// The claims that stand for extended resources of a pod: the pod and the claim, both with their namespace.
    extended: BTreeSet<(String, String)>,
}

/// A claim that stands for extended resources of a pod.
#[derive(Clone, Copy, Debug)]
pub struct ExtendedClaimOwner<'a> {
    /// The claim, in the namespace of the pod.
    pub claim: &'a str,
    /// The UID of the claim.
    pub uid: &'a str,
    /// The pod, with its namespace.
    pub pod: &'a str,
    /// The UID of the pod.
    pub pod_uid: &'a str,
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
    pub(crate) queue: Option<String>,
    pub(crate) is_for_one_pod: bool,
    /// The pod, with its namespace, whose extended resources it stands for, and the UID of the pod.
    pub(crate) extends: Option<(String, String)>,
    pub(crate) defect: Option<String>,
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
                self.forget_claim(&full_name(object));
                if let Some((pod, _)) = &known.extends {
                    self.extended.insert((pod.clone(), full_name(object)));
                }
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
            CLAIM => self.forget_claim(&full_name(object)),
            SLICE => self.change(|devices| devices.remove_slice(object.name())),
            CLASS => {
                self.change(|devices| devices.remove_class(object.name()));
                self.forget_conditions();
            }
            _ => {}
        }
    }

    fn forget_claim(&mut self, name: &str) {
        let known = self.claims.remove(name);
        if let Some((pod, _)) = known.as_ref().and_then(|known| known.extends.as_ref()) {
            self.extended.remove(&(pod.clone(), name.to_owned()));
        }
    }

    /// The slices and classes.
    pub(crate) fn devices(&self) -> RwLockReadGuard<'_, DeviceInventory> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claims that stand for extended resources of a pod with this name, by name.
    pub(crate) fn extended_of(&self, pod: &str) -> impl Iterator<Item = (&str, &Arc<KnownClaim>)> {
        let first = (pod.to_owned(), String::new());
        let all = self.extended.range(first..);
        let pod = pod.to_owned();
        let own = all.take_while(move |(of, _)| *of == pod);
        own.filter_map(|(_, claim)| Some((claim.as_str(), self.claims.get(claim)?)))
    }

    /// Whether any claim stands for extended resources.
    pub(crate) fn has_extended(&self) -> bool {
        !self.extended.is_empty()
    }

    /// All claims that stand for extended resources.
    pub fn extended(&self) -> impl Iterator<Item = ExtendedClaimOwner<'_>> {
        self.extended.iter().filter_map(|(_, claim)| {
            let known = self.claims.get(claim)?;
            let (pod, pod_uid) = known.extends.as_ref()?;
            let (_, claim) = claim.split_once('/')?;
            let uid = &known.claim.metadata.uid;
            Some(ExtendedClaimOwner {
                claim,
                uid,
                pod,
                pod_uid,
            })
        })
    }

    /// How many cards a claim counts for.
    pub(crate) fn charge(&self, devices: &DeviceInventory, claim: &ResourceClaim) -> f64 {
        devices.charge(claim, |class| is_of_cards(devices, class))
    }

    /// What a claim has in its status, by namespace and name.
    pub fn allocation(&self, claim: &str) -> Option<&AllocationResult> {
        self.claims.get(claim)?.claim.status.allocation.as_ref()
    }

    /// The status of a claim and the version of its object, by namespace and name.
    pub fn status(&self, claim: &str) -> Option<(&ResourceClaimStatus, &str)> {
        let known = self.claims.get(claim)?;
        Some((&known.claim.status, &known.version))
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
            is_for_one_pod: [OF_POD, OF_EXTENDED]
                .iter()
                .any(|annotation| object.annotation(annotation).is_some()),
            extends: extended_pod(object),
            defect,
            charge: Mutex::default(),
        }
    }

    /// A claim that is yet to be made for a pod.
    pub(crate) fn in_memory(claim: ResourceClaim, version: &str) -> Self {
        Self {
            shape: format!("{:?}", claim.spec.devices.requests),
            version: version.to_owned(),
            queue: None,
            is_for_one_pod: true,
            extends: None,
            defect: None,
            charge: Mutex::default(),
            claim,
        }
    }

    /// Whether it stands for extended resources of the pod with this UID.
    pub(crate) fn is_of_pod(&self, uid: &str) -> bool {
        self.extends.as_ref().is_some_and(|(_, of)| of == uid)
    }

    pub(crate) fn charge(&self, devices: &DeviceInventory) -> f64 {
        let version = devices.version();
        let mut known = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
        match *known {
            Some((of, charge)) if of == version => charge,
            Some(_) | None => {
                let charge = devices.charge(&self.claim, |class| is_of_cards(devices, class));
                *known = Some((version, charge));
                charge
            }
        }
    }
}

/// The terms of a request: its own, or those of its alternatives.
pub(crate) fn terms(request: &DeviceRequest) -> impl Iterator<Item = &RequestTerms> {
    request.exactly.iter().chain(&request.first_available)
}

/// Whether a class is of cards: by its name, or because whole cards are another name of it.
pub(crate) fn is_of_cards(devices: &DeviceInventory, class: &str) -> bool {
    class.to_lowercase().contains(CARDS)
        || devices.class(class).is_some_and(|class| {
            let resource = class.spec.extended_resource_name.as_deref();
            resource.is_some_and(|resource| WHOLE.contains(&resource))
        })
}

/// The pod whose extended resources a claim stands for: the pod that controls it, and its UID.
#[must_use]
pub fn extended_pod(claim: ObjectView<'_>) -> Option<(String, String)> {
    if claim.annotation(OF_EXTENDED) != Some("true") {
        return None;
    }
    let owners = claim.json()["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    let owner = owners.find(|owner| owner["kind"] == "Pod" && owner["controller"] == true)?;
    let name = owner["name"].as_str()?;
    Some((format!("{}/{name}", claim.namespace()), text(&owner["uid"])))
}

fn full_name(object: ObjectView<'_>) -> String {
    format!("{}/{}", object.namespace(), object.name())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
