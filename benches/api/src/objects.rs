//! Node, queue and pod objects.

use serde_json::{Value, json};

/// The scheduler of the pods.
const SCHEDULER: &str = "apportion-scheduler";
/// The namespace of all pods.
pub(crate) const NAMESPACE: &str = "default";

/// What the webhook adds to a container with a share.
const SLOT: &str = "apportion.dev/gpu-slot";

/// What a pod requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BenchPodRequest {
    Card,
    Half,
    /// So much of a card that nothing fits beside it.
    Most,
    /// A whole card, for the queue that reclaims its quota.
    Reclaim,
}

pub(crate) fn node(name: &str, address: &str) -> Value {
    let capacity = json!({"cpu": "128", "memory": "1Ti", "pods": "250", SLOT: "250"});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "annotations": {"apportion.dev/agent-address": address},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
                "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "status": {"capacity": capacity, "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

/// The queue that reclaims its quota.
pub(crate) const LENDER: &str = "lender";

pub(crate) fn queue(name: &str, cards: usize) -> Value {
    let any = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let cards = json!({"quota": cards, "limit": -1, "overQuotaWeight": 1});
    json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
        "spec": {"resources": {"gpu": cards, "cpu": any, "memory": any}}})
}

pub(crate) fn pod(name: &str, ask: BenchPodRequest) -> Value {
    // Admission adds this to each pod on a cluster with service accounts.
    let access = json!({"name": "kube-api-access", "projected": {"sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {},
            "labels": {"kai.scheduler/queue": "default-queue", "app": name}},
        "spec": {"schedulerName": SCHEDULER, "serviceAccountName": "default", "volumes": [access], "containers": [{"name": "main", "image": "none",
            "command": ["python", "-m", "train", "--steps", "1000"],
            "resources": {"requests": {"cpu": "1", "memory": "4Gi"}}}]}});
    let fraction = match ask {
        BenchPodRequest::Card | BenchPodRequest::Reclaim => {
            if matches!(ask, BenchPodRequest::Reclaim) {
                pod["metadata"]["labels"]["kai.scheduler/queue"] = LENDER.into();
            }
            pod["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
            return pod;
        }
        BenchPodRequest::Half => "0.5",
        BenchPodRequest::Most => "0.9",
    };
    pod["metadata"]["annotations"]["gpu-fraction"] = fraction.into();
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    for kind in ["requests", "limits"] {
        resources[kind][SLOT] = "1".into();
    }
    pod
}
