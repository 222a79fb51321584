//! Evicts the pod of an offender, if the policy says so.
//!
//! It uses the Eviction API, so disruption budgets and grace periods hold. It names the pod's UID, so a later pod of
//! the same name is left alone. The ledger requests a refused eviction again as long as the offence lasts.

use std::time::Duration;

use apportion_abi::ContainerRef;
use apportion_exit::error_chain;
use apportion_proto::v1;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::api::PostParams;
use kube::{Api, Client, Error};
use serde_json::Value;
use tracing::{info, warn};

use super::events::pod_uid;

/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Evicts the pod of the event, if it is an eviction event.
pub(super) async fn evict(client: &Client, event: &v1::Event, list: &v1::ListReply) {
    let workload = ContainerRef::of(&event.name);
    let (v1::EventKind::Evicted, Some(workload)) = (event.kind(), workload) else {
        return;
    };
    let Some(uid) = pod_uid(&event.allocation, list) else {
        return;
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), workload.namespace);
    let (namespace, pod) = (workload.namespace, workload.pod);
    match tokio::time::timeout(PATIENCE, evict_pod(&pods, pod, uid)).await {
        Ok(Ok(())) => info!(namespace, pod, "Pod evicted by offender policy"),
        Ok(Err(error)) => {
            let problem = error_chain(&error);
            warn!(namespace, pod, problem, "Failed to evict pod");
        }
        Err(_) => warn!(namespace, pod, "Pod eviction timed out"),
    }
}

/// Evicts the pod with this UID, if there still is one.
///
/// Not kube's own call: it serializes the delete options under another name than the API expects, so the UID
/// precondition would be lost.
pub(crate) async fn evict_pod(pods: &Api<Pod>, pod: &str, uid: String) -> Result<(), Error> {
    let this = Preconditions {
        uid: Some(uid),
        ..Preconditions::default()
    };
    let eviction = Eviction {
        metadata: ObjectMeta {
            name: Some(pod.to_owned()),
            ..ObjectMeta::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(this),
            ..DeleteOptions::default()
        }),
    };
    let how = PostParams::default();
    let asked = pods.create_subresource::<_, Value>("eviction", pod, &how, &eviction);
    match asked.await {
        Ok(_) => Ok(()),
        // The pod is gone, or another one has its name.
        Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}
