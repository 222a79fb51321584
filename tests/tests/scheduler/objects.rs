//! The objects that tests put on the API server.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The scheduler's name, which is KAI's.
pub(crate) const SCHEDULER: &str = "kai-scheduler";

/// What makes a kubelet call the node's agent for a container with a share.
const SLOT: &str = "apportion.dev/gpu-slot";

/// A node that could take anything.
pub(crate) fn node(name: &str, annotations: &Value) -> Value {
    let room = json!({"cpu": "64", "memory": "512Gi", "pods": "250", SLOT: "250"});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "annotations": annotations},
        "status": {"capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// The card of each pod that is bound, or its node where it has no card.
pub(crate) fn placed(pods: &[Value]) -> BTreeMap<String, String> {
    let bound = pods
        .iter()
        .filter(|pod| pod["spec"]["nodeName"].is_string());
    let card = |pod: &Value| {
        let group = pod["metadata"]["labels"]["runai-gpu-group"].as_str();
        let place = group.or(pod["spec"]["nodeName"].as_str());
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        (name.to_owned(), place.unwrap_or_default().to_owned())
    };
    bound.map(card).collect()
}

/// A pod with annotations. One that asks for a share has its slot, as the webhook would have added it.
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

/// Gives the first container of a pod what the webhook gives one with a share.
pub(crate) fn take_slot(pod: &mut Value) {
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    for kind in ["requests", "limits"] {
        resources[kind][SLOT] = "1".into();
    }
}

/// A queue with so many cards; -1 is without bounds.
pub(crate) fn queue(name: &str, cards: i64) -> Value {
    let quota = |amount: i64| json!({"quota": amount, "limit": amount, "overQuotaWeight": 1});
    json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
        "spec": {"resources": {"gpu": quota(cards), "cpu": quota(-1), "memory": quota(-1)}}})
}

/// A kind of objects in which anything can be written.
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
