//! The resource claims of pending binds: what is written into them before their pod, and what counts until it shows.
//!
//! A claim's devices are given from the decision on. The watch shows the allocation later, in no order with the pod,
//! and may first show what the claim had and lost before. So an allocation counts until the watch shows the version
//! that was written, or a later one, or until the bind has failed and was undone.
//!
//! A claim in place of extended resources is made with the bind. Until then it has a name in memory, which follows from
//! the name of its pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apportion_claims::objects::AllocationResult;
use apportion_groups::ObjectView;
use apportion_model::claim_store::{AssumedAllocations, extended_pod};
use apportion_model::extended_requests::{ExtendedClaimContents, is_in_memory, name_in_memory};
use apportion_model::extended_resources::contents;
use apportion_policy::TaskPlacement;
use apportion_policy::cluster::Task;
use serde_json::Value;

use super::event::{PodRef, SchedulerEffect};
use super::model::ClusterModel;
use super::pending_binds::{PendingBind, PendingBinds};

pub(crate) const KIND: &str = "ResourceClaim";
/// How long until the API server is asked again to delete a claim.
const AGAIN: Duration = Duration::from_secs(30);

/// A claim to reserve for a pod before it is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimReservation {
    /// The claim, in the pod's namespace. One that is yet to be made has its name in memory.
    pub(crate) claim: String,
    /// Its UID; of one that is yet to be made the UID of its pod.
    pub(crate) uid: String,
    /// The devices that it has or gets, as its status has them.
    pub(crate) allocation: String,
    /// Whether it gets them now.
    pub(crate) is_new: bool,
    /// What to make, if the claim is in place of extended resources and yet to be made.
    pub(crate) makes: Option<ExtendedClaimContents>,
}

/// A claim that was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReservedClaim {
    /// Its name in the reservation.
    pub(crate) claim: String,
    /// The name and the UID of the object.
    pub(crate) object: String,
    pub(crate) uid: String,
    /// The version that was written.
    pub(crate) version: u64,
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
    /// The UID of the claim that was made for it, if it had none.
    made: Option<String>,
}

impl AssumedClaim {
    /// Whether an object is the claim that it was decided for.
    fn is_of(&self, claim: ObjectView<'_>, is_extended: bool) -> bool {
        if is_extended {
            self.made.as_deref() == Some(claim.uid())
        } else {
            self.uid == claim.uid()
        }
    }
}

/// The name under which the allocation of a claim is assumed, and whether the claim is in place of extended resources:
/// these have no name of their own when they are decided.
fn assumed_name(claim: ObjectView<'_>) -> (String, bool) {
    match extended_pod(claim) {
        Some((pod, _)) => (name_in_memory(&pod), true),
        None => (format!("{}/{}", claim.namespace(), claim.name()), false),
    }
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
                made: None,
            });
            known.pods.insert(start.pod.uid.clone(), None);
        }
    }

    /// Notes which allocations are being written.
    pub(crate) fn note_sent(&mut self, effects: &[SchedulerEffect]) {
        for effect in effects {
            let (SchedulerEffect::Bind { pod, claims, .. }
            | SchedulerEffect::ReserveClaims { pod, claims }) = effect
            else {
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
    pub(crate) fn written(&mut self, pod: &PodRef, reserved: &[ReservedClaim]) {
        for one in reserved {
            let name = format!("{}/{}", pod.namespace, one.claim);
            let Some(known) = self.0.get_mut(&name) else {
                continue;
            };
            if is_in_memory(&name) {
                known.made = Some(one.uid.clone());
            }
            if let Some(version) = known.pods.get_mut(&pod.uid) {
                *version = Some(one.version);
            }
        }
    }

    /// Forgets what the API server shows by itself.
    pub(crate) fn shown(&mut self, claim: ObjectView<'_>) {
        let (name, is_extended) = assumed_name(claim);
        let Some(known) = self.0.get(&name) else {
            return;
        };
        let is_it = known.is_of(claim, is_extended);
        if is_extended && !is_it {
            // It is left of an earlier attempt.
            return;
        }
        let version = version(&claim.json()["metadata"]["resourceVersion"]);
        // Another pod of the claim may be undone, and take the allocation along that this one wrote again.
        let mut written = known.pods.values();
        let is_shown = written.all(|written| written.is_some_and(|written| written <= version));
        if is_shown || !is_it {
            self.0.remove(&name);
        }
    }

    /// Forgets a claim that is gone.
    pub(crate) fn gone(&mut self, claim: ObjectView<'_>) {
        let (name, is_extended) = assumed_name(claim);
        let known = self.0.get(&name);
        if known.is_some_and(|known| !is_extended || known.is_of(claim, true)) {
            self.0.remove(&name);
        }
    }

    /// Forgets claims that were made for pods that are gone and not on their way any more: nobody would show them if
    /// they are gone, too.
    pub(crate) fn forget_gone_pods(&mut self, is_known: impl Fn(&str) -> bool) {
        self.0
            .retain(|_, known| known.made.is_none() || known.pods.keys().any(|pod| is_known(pod)));
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
                    start.is_some() && !binds.is_withdrawn(pod)
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
        let named = task.claims.iter();
        let named = named.map(|name| self.reservation(name, place, assumed));
        let extended = task.extended_claim_on(&place.node);
        let extended = extended.map(|one| self.extended_reservation(task, &one.claim, place));
        named.chain(extended).collect()
    }

    fn reservation(
        &self,
        name: &str,
        place: &TaskPlacement,
        assumed: &AssumedAllocations,
    ) -> Option<ClaimReservation> {
        let store = &self.inventory.claims;
        let new = place.claims.iter().find(|one| one.claim == name);
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
            makes: None,
        })
    }

    /// The claim to make for a pod in place of extended resources.
    fn extended_reservation(
        &self,
        task: &Task,
        claim: &str,
        place: &TaskPlacement,
    ) -> Option<ClaimReservation> {
        let new = place.claims.iter().find(|one| one.claim == claim)?;
        let (namespace, name) = task.name.split_once('/')?;
        let pod = self.inventory.find("Pod", namespace, name)?;
        let node = self.inventory.find("Node", "", &place.node)?;
        Some(ClaimReservation {
            claim: name_in_memory(name),
            uid: pod.uid().to_owned(),
            allocation: new.allocation.clone(),
            is_new: true,
            makes: Some(contents(&self.inventory, pod, node)),
        })
    }

    /// Deletes claims that were made in place of extended resources for pods that were not bound after all: an earlier
    /// scheduler was stopped in between.
    pub(crate) fn left_behind_claims(&mut self, now: Duration) -> Vec<SchedulerEffect> {
        self.deleted_claims.retain(|_, at| now < *at + AGAIN);
        let claims = self.inventory.claims.extended();
        let left: Vec<(PodRef, String, String)> = claims
            .filter(|claim| !self.deleted_claims.contains_key(claim.uid))
            .filter_map(|claim| {
                let (namespace, name) = claim.pod.split_once('/')?;
                let read = self.inventory.pod(namespace, name)?;
                if read.node().is_some() {
                    return None;
                }
                let pod = self.pod(claim.pod)?;
                let is_ours = self.schedulers.iter().any(|name| **name == *read.scheduler);
                let is_binding = self.pending_binds.get(&pod.uid).is_some();
                let is_left = is_ours && !is_binding && pod.uid == claim.pod_uid;
                is_left.then(|| (pod, claim.claim.to_owned(), claim.uid.to_owned()))
            })
            .collect();
        let effects = left.into_iter().map(|(pod, claim, uid)| {
            self.deleted_claims.insert(uid.clone(), now);
            SchedulerEffect::DeleteClaim { pod, claim, uid }
        });
        effects.collect()
    }
}

#[cfg(test)]
mod tests;
