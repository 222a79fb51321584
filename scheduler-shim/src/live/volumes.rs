//! Binds the volumes of a pod before the pod itself.
//!
//! A claim gets its volume, or the node for which one is to be provisioned. The cluster's controllers do the rest,
//! and then the pod is bound. Meanwhile its place is kept, as long as its reservation lasts. Objects are replaced in
//! the version that was read, so of two pods that want one volume the second fails.

use std::time::Duration;

use apportion_exit::error_chain;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt};
use tokio::time::timeout;

use super::event::PodRef;
use apportion_model::volumes::{SELECTED, VolumeBinding};

/// Timeout for all volumes of a pod: less than its reservation lasts.
const PATIENCE: Duration = Duration::from_secs(45);
/// The annotation that says that a controller chose the volume, and may choose another.
const CHOSEN: &str = "pv.kubernetes.io/bound-by-controller";

/// Binds a pod's volumes and waits until they are bound. The error says why they are not.
pub(crate) async fn bind(
    client: &Client,
    node: &str,
    pod: &PodRef,
    volumes: &[VolumeBinding],
) -> Result<(), String> {
    if volumes.is_empty() {
        return Ok(());
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &pod.namespace);
    let done = timeout(PATIENCE, async {
        for binding in volumes {
            write(client, &claims, node, binding).await?;
        }
        for VolumeBinding { claim, .. } in volumes {
            let bound = await_condition(claims.clone(), claim, is_bound);
            bound.await.map_err(|error| error_chain(&error))?;
        }
        Ok(())
    });
    done.await
        .unwrap_or_else(|_| Err(format!("its volumes were not bound within {PATIENCE:?}")))
}

fn is_bound(claim: Option<&PersistentVolumeClaim>) -> bool {
    let phase = claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref());
    phase == Some("Bound")
}

async fn write(
    client: &Client,
    claims: &Api<PersistentVolumeClaim>,
    node: &str,
    binding: &VolumeBinding,
) -> Result<(), String> {
    let name = &binding.claim;
    let message = |error: kube::Error| format!("volume claim {name}: {}", error_chain(&error));
    let mut claim = claims.get(name).await.map_err(message)?;
    if is_named(&claim) {
        return Err(format!("volume claim {name} got a volume in the meantime"));
    }
    let parameters = PostParams::default();
    let Some(volume) = &binding.volume else {
        let chosen = claim.annotations().get(SELECTED);
        if let Some(other) = chosen.filter(|other| *other != node) {
            return Err(format!(
                "the volume of claim {name} is being provisioned for {other}"
            ));
        }
        let annotations = claim.annotations_mut();
        annotations.insert(SELECTED.to_owned(), node.to_owned());
        let replaced = claims.replace(name, &parameters, &claim).await;
        return replaced.map(|_| ()).map_err(message);
    };
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let mut found = volumes.get(volume).await.map_err(message)?;
    let reference = found.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if reference.is_some_and(|one| {
        one.name != claim.metadata.name || one.namespace != claim.metadata.namespace
    }) {
        return Err(format!("volume {volume} was given to another claim"));
    }
    if reference.is_none() {
        let annotations = found.annotations_mut();
        annotations.insert(CHOSEN.to_owned(), "yes".to_owned());
    }
    if let Some(spec) = &mut found.spec {
        spec.claim_ref = Some(reference_to(&claim));
    }
    let replaced = volumes.replace(volume, &parameters, &found).await;
    replaced.map(|_| ()).map_err(message)
}

fn is_named(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref());
    volume.is_some_and(|name| !name.is_empty())
}

fn reference_to(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}
