//! Resource claims, slices and classes. They are parsed when they come, because a round looks at all of them.
//!
//! As in KAI, a class is of cards if its name says so: its devices are charged to the queue, and a claim on them that
//! several pods may share is for the queue in its label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use apportion_abi::names::LABEL_QUEUE;
use apportion_claims::DeviceInventory;
use apportion_claims::objects::{
    AllocationResult, DeviceClass, DeviceRequest, RequestTerms, ResourceClaim, ResourceSlice,
};
use apportion_groups::ObjectView;
use serde_json::Value;

use super::object_kinds::CLAIM_GROUP;

mod old_versions;

pub(crate) use old_versions::as_first_stable;

/// The annotation of a claim that was created from a template, for one pod.
pub(crate) const OF_POD: &str = "resource.kubernetes.io/pod-claim-name";
const CARDS: &str = "gpu";
pub(crate) const CLAIM: &str = "ResourceClaim";
const SLICE: &str = "ResourceSlice";
const CLASS: &str = "DeviceClass";

/// Claims, slices and classes, parsed.
#[derive(Debug, Default)]
pub struct ClaimStore {
    /// Shared with the allocators of rounds.
    pub(crate) devices: Arc<RwLock<DeviceInventory>>,
    /// By namespace and name.
    pub(crate) claims: BTreeMap<String, Arc<KnownClaim>>,
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

    pub(crate) fn charge(&self, devices: &DeviceInventory) -> f64 {
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

/// The terms of a request: its own, or those of its alternatives.
pub(crate) fn terms(request: &DeviceRequest) -> impl Iterator<Item = &RequestTerms> {
    request.exactly.iter().chain(&request.first_available)
}

/// Whether a class is of cards, by its name.
pub(crate) fn is_of_cards(class: &str) -> bool {
    class.to_lowercase().contains(CARDS)
}

fn full_name(object: ObjectView<'_>) -> String {
    format!("{}/{}", object.namespace(), object.name())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
