//! Evicting the pod of an offender, where that is the policy.
//!
//! It is asked for by the eviction API, so that disruption budgets and grace periods hold, and for this
//! very pod: one of the same name that came after it is left alone. An eviction that is refused is asked
//! for again by the ledger for as long as the offence goes on.

use std::time::Duration;

use apportion_abi::ContainerRef;
use apportion_proto::v1;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kube::api::PostParams;
use kube::{Api, Client, Error};
use serde_json::Value;
use tracing::{info, warn};

use super::events::pod_uid;
use crate::failure::chain;

/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Evicts the pod that the event is about, if the event asks for that.
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
    match tokio::time::timeout(PATIENCE, post(&pods, pod, uid)).await {
        Ok(Ok(_)) => info!(namespace, pod, "Pod evicted by offender policy"),
        // It is gone, or another has its name.
        Ok(Err(Error::Api(status))) if matches!(status.code, 404 | 409) => {}
        Ok(Err(error)) => {
            let problem = chain(&error);
            warn!(namespace, pod, problem, "Failed to evict pod");
        }
        Err(_) => warn!(namespace, pod, "Pod eviction timed out"),
    }
}

/// The client's own call names the options otherwise than the API does, and the pod would not be held to
/// its UID.
async fn post(pods: &Api<Pod>, pod: &str, uid: String) -> Result<Value, Error> {
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
    pods.create_subresource("eviction", pod, &how, &eviction)
        .await
}
