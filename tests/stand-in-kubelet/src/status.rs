//! A kubelet's pod status as a strategic merge patch, so that conditions of other writers stay.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

/// The conditions of a running pod. `PodScheduled` is the scheduler's.
const CONDITIONS: [&str; 4] = [
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
];
/// The address of all pods.
const ADDRESS: &str = "127.0.0.1";

/// The pod runs and is ready. The UID makes the API server refuse the patch for a later pod of the same name.
pub(crate) fn running(pod: &Pod) -> Value {
    let now = Timestamp::now().to_string();
    let conditions = CONDITIONS.map(|kind| {
        json!({"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": null})
    });
    let running = json!({"running": {"startedAt": now}});
    json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {
            "phase": "Running", "conditions": conditions, "startTime": now,
            "hostIP": ADDRESS, "hostIPs": [{"ip": ADDRESS}], "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}],
            "initContainerStatuses": initial(pod).map(|one| container(one, &done(&now, 0), true)).collect::<Vec<_>>(),
            "containerStatuses": main(pod).map(|one| container(one, &running, true)).collect::<Vec<_>>(),
        },
    })
}

/// The node's Topology Manager has rejected the pod.
pub(crate) fn not_aligned(pod: &Pod) -> Value {
    json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {"phase": "Failed", "reason": "TopologyAffinityError",
            "message": "Pod was rejected: Resources cannot be allocated with Topology locality"},
    })
}

/// All containers of the pod have exited with this code.
pub(crate) fn ended(pod: &Pod, code: u8) -> Value {
    let now = Timestamp::now().to_string();
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let reason = if code == 0 {
        "PodCompleted"
    } else {
        "PodFailed"
    };
    let conditions = ["ContainersReady", "Ready"].map(|kind| {
        json!({"type": kind, "status": "False", "reason": reason, "lastTransitionTime": now})
    });
    let done = done(&now, code);
    json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {
            "phase": phase, "conditions": conditions,
            "containerStatuses": main(pod).map(|one| container(one, &done, false)).collect::<Vec<_>>(),
        },
    })
}

fn main(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| &spec.containers)
}

fn initial(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
}

fn done(now: &str, code: u8) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": now}})
}

fn container(container: &Container, state: &Value, is_ready: bool) -> Value {
    json!({"name": container.name, "image": container.image.clone().unwrap_or_default(), "imageID": "",
        "state": state, "ready": is_ready, "started": state["running"].is_object(), "restartCount": 0})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_failed_says_which_status_it_ended_with() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "a", "uid": "u"},
            "spec": {"containers": [{"name": "main", "image": "none"}]}}))
        .expect("it is a pod");
        let ended = ended(&pod, 3);
        let status = &ended["status"];
        assert_eq!(status["phase"], "Failed");
        let state = &status["containerStatuses"][0]["state"];
        assert_eq!(state["terminated"]["exitCode"], 3);
        assert_eq!(ended["metadata"]["uid"], "u");
    }
}
