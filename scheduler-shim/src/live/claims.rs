//! The resource claims of pending binds: what is written into them before their pod, and what counts until it shows.
//!
//! A claim's devices are given from the decision on. The watch shows the allocation later, in no order with the pod,
//! and may first show what the claim had and lost before. So an allocation counts until the watch shows the version
//! that was written, or a later one, or until the bind has failed and was undone.

use std::collections::BTreeMap;
use std::sync::Arc;

use apportion_claims::objects::AllocationResult;
use apportion_groups::ObjectView;
use apportion_model::claims::AssumedAllocations;
use apportion_policy::TaskPlacement;
use apportion_policy::cluster::Task;
use serde_json::Value;

use super::event::{PodRef, SchedulerEffect};
use super::model::ClusterModel;
use super::pending_binds::{BindStage, PendingBind, PendingBinds};

pub(crate) const KIND: &str = "ResourceClaim";

/// A claim to reserve for a pod before it is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimReservation {
    /// The claim, in the pod's namespace.
    pub(crate) claim: String,
    pub(crate) uid: String,
    /// The devices that it has or gets, as its status has them.
    pub(crate) allocation: String,
    /// Whether it gets them now.
    pub(crate) is_new: bool,
}

/// An allocation that was decided and that the API server does not show yet.
#[derive(Clone, Debug)]
struct AssumedClaim {
    uid: String,
    allocation: Arc<AllocationResult>,
    /// The UIDs of the pods that it was decided for, and the version of the claim once it is written for a pod.
    pods: BTreeMap<String, Option<u64>>,
    /// Whether the API server was asked to write it.
    is_sent: bool,
}

/// The assumed allocations, by namespace and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct AssumedClaims(BTreeMap<String, AssumedClaim>);

/// The version of an object. Those of one kind can be compared as numbers.
pub(crate) fn version(text: &Value) -> u64 {
    let text = text.as_str().unwrap_or_default();
    text.parse().unwrap_or(0)
}

impl AssumedClaims {
    /// Assumes what a decided bind gives to claims.
    pub(crate) fn assume(&mut self, start: &PendingBind) {
        for one in start.claims.iter().filter(|one| one.is_new) {
            let Ok(allocation) = serde_json::from_str(&one.allocation) else {
                continue;
            };
            let name = format!("{}/{}", start.pod.namespace, one.claim);
            if self.0.get(&name).is_some_and(|known| known.uid != one.uid) {
                self.0.remove(&name);
            }
            let known = self.0.entry(name).or_insert_with(|| AssumedClaim {
                uid: one.uid.clone(),
                allocation: Arc::new(allocation),
                pods: BTreeMap::new(),
                is_sent: false,
            });
            known.pods.insert(start.pod.uid.clone(), None);
        }
    }

    /// Notes which allocations are being written.
    pub(crate) fn note_sent(&mut self, effects: &[SchedulerEffect]) {
        for effect in effects {
            let SchedulerEffect::Bind { pod, claims, .. } = effect else {
                continue;
            };
            for one in claims {
                let name = format!("{}/{}", pod.namespace, one.claim);
                if let Some(known) = self.0.get_mut(&name) {
                    known.is_sent = true;
                }
            }
        }
    }

    /// Claims were written for a pod, in these versions.
    pub(crate) fn written(&mut self, pod: &PodRef, versions: &[(String, u64)]) {
        for (claim, version) in versions {
            let known = self.0.get_mut(&format!("{}/{claim}", pod.namespace));
            if let Some(known) = known.and_then(|known| known.pods.get_mut(&pod.uid)) {
                *known = Some(*version);
            }
        }
    }

    /// Forgets what the API server shows by itself.
    pub(crate) fn shown(&mut self, claim: ObjectView<'_>) {
        let name = format!("{}/{}", claim.namespace(), claim.name());
        let Some(known) = self.0.get(&name) else {
            return;
        };
        let version = version(&claim.json()["metadata"]["resourceVersion"]);
        // Another pod of the claim may be undone, and take the allocation along that this one wrote again.
        let mut written = known.pods.values();
        let is_shown = written.all(|written| written.is_some_and(|written| written <= version));
        if is_shown || known.uid != claim.uid() {
            self.0.remove(&name);
        }
    }

    /// Forgets a claim that is gone.
    pub(crate) fn gone(&mut self, claim: ObjectView<'_>) {
        self.0
            .remove(&format!("{}/{}", claim.namespace(), claim.name()));
    }

    /// A bind failed, and what it wrote was undone.
    pub(crate) fn failed(&mut self, pod: &str) {
        self.0.retain(|_, known| {
            known.pods.remove(pod);
            !known.pods.is_empty()
        });
    }

    /// Forgets what was never sent and will not be: the pods are no longer on their way.
    pub(crate) fn keep_pending(&mut self, binds: &PendingBinds) {
        self.0.retain(|_, known| {
            known.is_sent
                || known.pods.keys().any(|pod| {
                    let start = binds.get(pod);
                    start.is_some_and(|start| start.stage != BindStage::Withdrawn)
                })
        });
    }

    /// All of them.
    pub(crate) fn allocations(&self) -> AssumedAllocations {
        let all = self.0.iter();
        all.map(|(name, known)| (name.clone(), Arc::clone(&known.allocation)))
            .collect()
    }
}

impl ClusterModel {
    /// The claims to reserve for a pod at its place; `None` if one of them is not there any more.
    pub(crate) fn claims_for(
        &self,
        task: &Task,
        place: &TaskPlacement,
        assumed: &AssumedAllocations,
    ) -> Option<Vec<ClaimReservation>> {
        let claims = task.claims.iter().map(|name| {
            let store = &self.inventory.claims;
            let new = place.claims.iter().find(|one| one.claim == *name);
            let known = assumed.get(name).map(|assumed| &**assumed);
            let known = known.or_else(|| store.allocation(name));
            let allocation = match (new, known) {
                (Some(new), _) => new.allocation.clone(),
                (None, Some(known)) => serde_json::to_string(known).ok()?,
                (None, None) => return None,
            };
            // An assumed allocation may be of a pod that is not bound in the end, so every pod writes it.
            let is_new = assumed.contains_key(name) || store.allocation(name).is_none();
            Some(ClaimReservation {
                claim: name.split_once('/')?.1.to_owned(),
                uid: store.uid(name)?.to_owned(),
                allocation,
                is_new,
            })
        });
        claims.collect()
    }
}

#[cfg(test)]
mod tests;
