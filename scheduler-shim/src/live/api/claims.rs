//! Writes the resource claims of a pod before it is bound: the devices, and the pod as their user.
//!
//! The order is that of kube-scheduler: the finalizer, then allocation and user at once, then the binding of the pod. A
//! claim is written in the version that was read. If another scheduler was faster, the pod is decided again. If the
//! pod is not bound in the end, it is removed from its claims, and a claim without users loses the devices that it
//! got for the pod.

use apportion_claims::objects::AllocationResult;
use apportion_model::object_kinds::CLAIM_GROUP;
use apportion_policy::MOST_CLAIM_CONSUMERS;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{AGAIN, ApiWriteError, ApiWriter};
use crate::live::claims::{ClaimReservation, KIND, ReservedClaim};
use crate::live::event::PodRef;

/// Keeps a claim with devices until its users are gone. Kubernetes' controllers remove it.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// How often a claim is read again after somebody else wrote it.
const CONFLICTS: usize = 8;

/// Why a claim was not reserved.
pub(super) enum ClaimWriteError {
    /// Somebody else wrote it since it was read.
    Conflict,
    /// It cannot be reserved any more.
    Lost(String),
}

impl ApiWriter {
    /// Allocates and reserves claims for a pod. On failure they are as before.
    pub(super) async fn reserve_claims(
        &self,
        pod: &PodRef,
        claims: &[ClaimReservation],
    ) -> Result<Vec<ReservedClaim>, String> {
        let mut reserved = Vec::new();
        for (done, one) in claims.iter().enumerate() {
            let answer = match &one.makes {
                None => self.reserve_claim(pod, one).await,
                Some(contents) => self.reserve_extended(pod, one, contents).await,
            };
            match answer {
                Ok(claim) => reserved.push(claim),
                Err(why) => {
                    self.release_claims(pod, &claims[..=done]).await;
                    return Err(match &one.makes {
                        None => format!("resource claim {}: {why}", one.claim),
                        Some(_) => format!("resource claim for its extended resources: {why}"),
                    });
                }
            }
        }
        Ok(reserved)
    }

    /// Removes a pod from its claims, until the API server has answered for each of them.
    pub(super) async fn release_claims(&self, pod: &PodRef, claims: &[ClaimReservation]) {
        for one in claims.iter().rev() {
            loop {
                let released = match &one.makes {
                    None => self.release_claim(pod, one).await,
                    Some(_) => self.release_extended(pod).await,
                };
                let Err(why) = released else {
                    break;
                };
                tracing::debug!(
                    pod = pod.full(),
                    claim = one.claim,
                    why,
                    "Resource claim not released, trying again"
                );
                sleep(AGAIN).await;
            }
        }
    }

    pub(super) async fn reserve_claim(
        &self,
        pod: &PodRef,
        one: &ClaimReservation,
    ) -> Result<ReservedClaim, String> {
        for _ in 0..CONFLICTS {
            match self.try_reserve(pod, one).await {
                Ok(version) => {
                    return Ok(ReservedClaim {
                        claim: one.claim.clone(),
                        object: one.claim.clone(),
                        uid: one.uid.clone(),
                        version,
                    });
                }
                Err(ClaimWriteError::Conflict) => {}
                Err(ClaimWriteError::Lost(why)) => return Err(why),
            }
        }
        Err("others kept writing it".to_owned())
    }

    async fn try_reserve(
        &self,
        pod: &PodRef,
        one: &ClaimReservation,
    ) -> Result<u64, ClaimWriteError> {
        let lost = |why: &str| ClaimWriteError::Lost(why.to_owned());
        let claims = self.claims_in(&pod.namespace);
        let found = self.while_leading(claims.get_opt(&one.claim)).await;
        let found = found.map_err(|error| lost(&error.to_string()))?;
        let found = found.filter(|found| found.metadata.uid.as_ref() == Some(&one.uid));
        let Some(mut found) = found else {
            return Err(lost("it is gone"));
        };
        if found.metadata.deletion_timestamp.is_some() {
            return Err(lost("it is being deleted"));
        }
        let status = &found.data["status"];
        let has = &status["allocation"];
        if has.is_null() && !one.is_new {
            return Err(lost("it has lost its devices"));
        }
        if !has.is_null() && !has_same_devices(has, &one.allocation) {
            return Err(lost("it got other devices in the meantime"));
        }
        let mut users = users(status);
        let is_user = users.iter().any(|user| user["uid"] == pod.uid.as_str());
        if is_user && !has.is_null() {
            return Ok(version_of(&found));
        }
        if !is_user {
            if users.len() >= MOST_CLAIM_CONSUMERS {
                return Err(lost("it has as many users as it may have"));
            }
            users.push(json!({"resource": "pods", "name": pod.name, "uid": pod.uid}));
        }
        let mut change = json!({"reservedFor": users});
        if has.is_null() {
            let allocation = serde_json::from_str(&one.allocation);
            change["allocation"] = allocation.map_err(|error| lost(&error.to_string()))?;
            // The devices have their time to get ready from now on.
            let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second());
            let now = now.map_err(|error| lost(&error.to_string()))?;
            change["allocation"]["allocationTimestamp"] = json!(now);
            if !found.finalizers().iter().any(|name| name == FINALIZER) {
                let mut finalizers = found.finalizers().to_vec();
                finalizers.push(FINALIZER.to_owned());
                found = self.patch_finalizers(&claims, &found, &finalizers).await?;
            }
        }
        self.patch_claim_status(&claims, &found, change).await
    }

    async fn release_claim(&self, pod: &PodRef, one: &ClaimReservation) -> Result<(), String> {
        let conflict = "somebody else wrote it".to_owned();
        let claims = self.claims_in(&pod.namespace);
        let found = self.while_leading(claims.get_opt(&one.claim)).await;
        let found = found.map_err(|error| error.to_string())?;
        let found = found.filter(|found| found.metadata.uid.as_ref() == Some(&one.uid));
        let Some(found) = found else {
            return Ok(());
        };
        let status = &found.data["status"];
        let mut users = users(status);
        let before = users.len();
        users.retain(|user| user["uid"] != pod.uid.as_str());
        let has = &status["allocation"];
        let is_ours = one.is_new && !has.is_null() && has_same_devices(has, &one.allocation);
        let is_free = is_ours && users.is_empty();
        let mut change = json!({"reservedFor": users});
        if is_free {
            change["allocation"] = Value::Null;
        }
        if users.len() != before || is_free {
            match self.patch_claim_status(&claims, &found, change).await {
                Ok(_) => {}
                Err(ClaimWriteError::Conflict) => return Err(conflict),
                Err(ClaimWriteError::Lost(why)) => return Err(why),
            }
            // The finalizer goes in the version that is now there.
            return Box::pin(self.release_claim(pod, one)).await;
        }
        let is_kept = found.finalizers().iter().any(|name| name == FINALIZER);
        if !one.is_new || !has.is_null() || !is_kept {
            return Ok(());
        }
        let mut finalizers = found.finalizers().to_vec();
        finalizers.retain(|name| name != FINALIZER);
        match self.patch_finalizers(&claims, &found, &finalizers).await {
            Ok(_) => Ok(()),
            Err(ClaimWriteError::Conflict) => Err(conflict),
            Err(ClaimWriteError::Lost(why)) => Err(why),
        }
    }

    pub(super) async fn patch_finalizers(
        &self,
        claims: &Api<DynamicObject>,
        found: &DynamicObject,
        finalizers: &[String],
    ) -> Result<DynamicObject, ClaimWriteError> {
        let patch = json!({"metadata": {"uid": found.metadata.uid,
            "resourceVersion": found.metadata.resource_version, "finalizers": finalizers}});
        let (name, patch) = (found.name_any(), Patch::Merge(patch));
        let parameters = PatchParams::default();
        let patched = claims.patch(&name, &parameters, &patch);
        self.while_leading(patched).await.map_err(write_error)
    }

    async fn patch_claim_status(
        &self,
        claims: &Api<DynamicObject>,
        found: &DynamicObject,
        status: Value,
    ) -> Result<u64, ClaimWriteError> {
        let patch = json!({"metadata": {"uid": found.metadata.uid,
            "resourceVersion": found.metadata.resource_version}, "status": status});
        let (name, patch) = (found.name_any(), Patch::Merge(patch));
        let parameters = PatchParams::default();
        let patched = claims.patch_status(&name, &parameters, &patch);
        let done = self.while_leading(patched).await;
        done.map(|claim| version_of(&claim)).map_err(write_error)
    }

    pub(super) fn claims_in(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(CLAIM_GROUP, "v1", KIND);
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }
}

/// A write whose outcome is unknown is read again, like one that somebody else was ahead of.
fn write_error(error: ApiWriteError) -> ClaimWriteError {
    match error {
        ApiWriteError::Refused(status) if status.code == 409 => ClaimWriteError::Conflict,
        ApiWriteError::Refused(status) => ClaimWriteError::Lost(status.to_string()),
        ApiWriteError::Unknown(_) => ClaimWriteError::Conflict,
    }
}

fn version_of(claim: &DynamicObject) -> u64 {
    let version = claim.metadata.resource_version.as_deref();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn users(status: &Value) -> Vec<Value> {
    let users = status["reservedFor"].as_array();
    users.cloned().unwrap_or_default()
}

/// Whether an allocation in a claim is the one that was decided.
fn has_same_devices(has: &Value, decided: &str) -> bool {
    let has: Result<AllocationResult, _> = serde_json::from_value(has.clone());
    let decided: Result<AllocationResult, _> = serde_json::from_str(decided);
    match (has, decided) {
        (Ok(has), Ok(decided)) => has.devices.results == decided.devices.results,
        (Err(_), _) | (_, Err(_)) => false,
    }
}
