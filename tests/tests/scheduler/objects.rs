//! The objects that tests create on the API server.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The scheduler's name, which is KAI's.
pub(crate) const SCHEDULER: &str = "kai-scheduler";

/// The resource that makes a kubelet call the node's agent for a container with a share.
const SLOT: &str = "apportion.dev/gpu-slot";

/// A node with room for everything.
pub(crate) fn node(name: &str, annotations: &Value) -> Value {
    let room = json!({"cpu": "64", "memory": "512Gi", "pods": "250", SLOT: "250"});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "annotations": annotations},
        "status": {"capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// The card of each bound pod, or its node if it has no card.
pub(crate) fn placed(pods: &[Value]) -> BTreeMap<String, String> {
    let bound = pods
        .iter()
        .filter(|pod| pod["spec"]["nodeName"].is_string());
    bound
        .map(|pod| {
            let group = pod["metadata"]["labels"]["runai-gpu-group"].as_str();
            let place = group.or(pod["spec"]["nodeName"].as_str());
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            (name.to_owned(), place.unwrap_or_default().to_owned())
        })
        .collect()
}

/// A pod with annotations. If it asks for a share, it has its slot, as from the webhook.
pub(crate) fn pod(name: &str, annotations: Value) -> Value {
    let shares = ["gpu-fraction", "gpu-memory"];
    let shares = shares.iter().any(|key| annotations.get(key).is_some());
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations,
            "labels": {"kai.scheduler/queue": "default-queue"}},
        "spec": {"schedulerName": SCHEDULER, "containers": [{"name": "main", "image": "none",
            "resources": {"requests": {"cpu": "100m"}}}]}});
    if shares {
        take_slot(&mut pod);
    }
    pod
}

/// Gives a pod's first container what the webhook adds to a container with a share.
pub(crate) fn take_slot(pod: &mut Value) {
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    for kind in ["requests", "limits"] {
        resources[kind][SLOT] = "1".into();
    }
}

/// A queue with a limit of `cards` cards. -1 is unlimited.
pub(crate) fn queue(name: &str, cards: i64) -> Value {
    let quota = |amount: i64| json!({"quota": amount, "limit": amount, "overQuotaWeight": 1});
    json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
        "spec": {"resources": {"gpu": quota(cards), "cpu": quota(-1), "memory": quota(-1)}}})
}

/// A CRD without a schema.
pub(crate) fn kind(plural: &str, kind: &str, version: &str, scope: &str) -> Value {
    let anything = json!({"openAPIV3Schema": {"type": "object",
        "x-kubernetes-preserve-unknown-fields": true}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.scheduling.run.ai")},
        "spec": {"group": "scheduling.run.ai", "scope": scope,
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": version, "served": true, "storage": true, "schema": anything,
                "subresources": {"status": {}}}]}})
}
