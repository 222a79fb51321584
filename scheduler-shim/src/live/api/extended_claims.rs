//! Makes the claim that a pod needs in place of extended resources (KEP-5004), and deletes it if the pod is not bound.
//!
//! The order is that of kube-scheduler: the claim, its devices, the status of the pod, then the binding. The claim is
//! controlled by its pod, so it goes with the pod. If the answer to its creation is lost, nobody knows its name. So it
//! is looked for among the claims of the namespace, by its owner.

use apportion_groups::ObjectView;
use apportion_model::claim_store::extended_pod;
use apportion_model::extended_requests::{ExtendedClaimContents, OF_EXTENDED};
use kube::ResourceExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams, Preconditions,
};
use serde_json::{Value, json};

use super::claims::{ClaimWriteError, FINALIZER};
use super::{ApiWriteError, ApiWriter};
use crate::live::claims::{ClaimReservation, ReservedClaim};
use crate::live::event::PodRef;

/// The field of a pod's status that names the claim.
const STATUS: &str = "extendedResourceClaimStatus";

impl ApiWriter {
    /// Makes and reserves the claim, and names it in the status of the pod.
    pub(super) async fn reserve_extended(
        &self,
        pod: &PodRef,
        one: &ClaimReservation,
        contents: &ExtendedClaimContents,
    ) -> Result<ReservedClaim, String> {
        let claim = claim_of(pod, &contents.spec).map_err(|error| error.to_string())?;
        let claims = self.claims_in(&pod.namespace);
        let parameters = PostParams::default();
        let made = claims.create(&parameters, &claim);
        let made = self.while_leading(made).await;
        let made = made.map_err(|error| format!("failed to create it: {error}"))?;
        let own = ClaimReservation {
            claim: made.name_any(),
            uid: made.uid().unwrap_or_default(),
            makes: None,
            ..one.clone()
        };
        let reserved = self.reserve_claim(pod, &own).await?;
        let status = json!({"resourceClaimName": own.claim, "requestMappings": contents.mappings});
        let stored = self.write_claim_status(pod, &status).await?;
        if stored[STATUS]["resourceClaimName"] != own.claim.as_str() {
            // Without the field no kubelet would give the devices to the containers.
            return Err(format!(
                "the API server does not keep {STATUS} of pods: turn on its feature gate DRAExtendedResource"
            ));
        }
        Ok(ReservedClaim {
            claim: one.claim.clone(),
            ..reserved
        })
    }

    /// Deletes what was made for a pod, if anything was.
    pub(super) async fn release_extended(&self, pod: &PodRef) -> Result<(), String> {
        let listed = self.claims_in(&pod.namespace);
        let parameters = ListParams::default();
        let listed = self.while_leading(listed.list(&parameters)).await;
        for claim in listed.map_err(|error| error.to_string())? {
            if is_for(&claim, pod) {
                self.delete_claim(pod, claim).await?;
            }
        }
        Ok(())
    }

    /// Deletes a claim that an earlier scheduler made for a pod, unless the pod has a node.
    pub(super) async fn delete_left_behind(&self, pod: &PodRef, claim: &str, uid: &str) {
        let found = self
            .while_leading(self.pods_as_json(pod).get_opt(&pod.name))
            .await;
        let has_node = match found {
            Ok(found) => found.is_some_and(|found| {
                let node = &found.data["spec"]["nodeName"];
                found.metadata.uid.as_ref() == Some(&pod.uid) && node.is_string()
            }),
            // It is asked again.
            Err(_) => return,
        };
        if has_node {
            return;
        }
        let claims = self.claims_in(&pod.namespace);
        let found = self.while_leading(claims.get_opt(claim)).await;
        let found = found.ok().flatten();
        let Some(found) = found.filter(|found| found.metadata.uid.as_deref() == Some(uid)) else {
            return;
        };
        match self.delete_claim(pod, found).await {
            Ok(()) => {
                tracing::info!(
                    pod = pod.full(),
                    claim,
                    "Left-behind resource claim deleted"
                );
            }
            Err(why) => {
                tracing::debug!(pod = pod.full(), claim, why, "Resource claim not deleted");
            }
        }
    }

    /// Deletes a claim that was made for a pod. No kubelet has its devices, so nothing keeps it.
    async fn delete_claim(&self, pod: &PodRef, claim: DynamicObject) -> Result<(), String> {
        let (name, uid) = (claim.name_any(), claim.metadata.uid.clone());
        self.forget_claim(pod, &name).await?;
        let claims = self.claims_in(&pod.namespace);
        let mut finalizers = claim.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if finalizers.len() != claim.finalizers().len() {
            match self.patch_finalizers(&claims, &claim, &finalizers).await {
                Ok(_) => {}
                Err(ClaimWriteError::Conflict) => return Err("somebody else wrote it".to_owned()),
                // It may be gone. The next request tells.
                Err(ClaimWriteError::Lost(_)) => {}
            }
        }
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid,
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        match self.while_leading(claims.delete(&name, &parameters)).await {
            Ok(_) => Ok(()),
            Err(ApiWriteError::Refused(status)) if [404, 409].contains(&status.code) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes a claim out of the status of its pod: the pod may get a node that needs none.
    async fn forget_claim(&self, pod: &PodRef, claim: &str) -> Result<(), String> {
        let pods = self.pods_as_json(pod);
        let found = self.while_leading(pods.get_opt(&pod.name)).await;
        let found = found.map_err(|error| error.to_string())?;
        let names_it = found.is_some_and(|found| {
            let status = &found.data["status"][STATUS];
            found.metadata.uid.as_ref() == Some(&pod.uid) && status["resourceClaimName"] == claim
        });
        if !names_it {
            return Ok(());
        }
        match self.write_claim_status(pod, &Value::Null).await {
            Ok(_) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// Writes the field of a pod's status, and returns the status that is stored.
    async fn write_claim_status(&self, pod: &PodRef, status: &Value) -> Result<Value, String> {
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {STATUS: status}});
        let pods = self.pods_as_json(pod);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = pods.patch_status(&pod.name, &parameters, &patch);
        let patched = self.while_leading(patched).await;
        let patched = patched.map_err(|error| format!("failed to write pod status: {error}"))?;
        Ok(patched.data["status"].clone())
    }

    /// Pods with all fields of their status, also those that came with a later Kubernetes.
    fn pods_as_json(&self, pod: &PodRef) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("", "v1", "Pod");
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.client.clone(), &pod.namespace, &resource)
    }
}

/// The claim of a pod. The API server gives it a name.
fn claim_of(pod: &PodRef, spec: &Value) -> serde_json::Result<DynamicObject> {
    serde_json::from_value(json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": format!("{}-extended-resources-", pod.name),
            "namespace": pod.namespace,
            "annotations": {OF_EXTENDED: "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid,
                "controller": true}],
        },
        "spec": spec,
    }))
}

/// Whether a claim was made for a pod.
fn is_for(claim: &DynamicObject, pod: &PodRef) -> bool {
    let Ok(json) = serde_json::to_value(claim) else {
        return false;
    };
    let owner = extended_pod(ObjectView::new(&json));
    owner.is_some_and(|(_, uid)| uid == pod.uid)
}
