//! Turns Pod objects into the policy's tasks.

use apportion_abi::names::{LABEL_GPU_GROUP, LABEL_TASK_PRIORITY};
use apportion_groups::ObjectView;
use apportion_policy::cluster::{Task, TaskGpuRequest, TaskStatus};
use serde_json::Value;

use super::nodes::texts;
use super::numa;
use super::object_warnings::ObjectWarnings;
use super::pod_affinity;
use super::requests;

/// Labels of pods that start before the others of their set: masters and launchers, and heads of Ray.
const LEADERS: &[(&str, &str)] = &[
    ("training.kubeflow.org/job-role", "master"),
    ("training.kubeflow.org/job-role", "launcher"),
    ("ray.io/node-type", "head"),
];

/// Namespace and name.
pub fn name(pod: ObjectView<'_>) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

/// The task of a pod, without its set and its requirements about nodes.
pub fn task(pod: ObjectView<'_>, cards: TaskGpuRequest, warnings: &mut ObjectWarnings) -> Task {
    let is_guaranteed = numa::is_guaranteed(pod);
    let mut task = Task {
        name: name(pod),
        status: status(pod),
        node: node(pod).map(str::to_owned),
        on: groups(pod),
        cards,
        claims: claims(pod),
        is_guaranteed,
        containers: numa::containers(pod, is_guaranteed),
        zones: numa::written(pod),
        cpu_millis: requests::total(pod, "cpu").millis(),
        memory: requests::total(pod, "memory").units(),
        leads: LEADERS
            .iter()
            .any(|(label, value)| pod.label(label) == Some(value)),
        order: pod
            .label(LABEL_TASK_PRIORITY)
            .and_then(|text| text.parse().ok()),
        ..Task::default()
    };
    pod_affinity::enter(pod, &mut task, warnings);
    task
}

/// The node that a pod is bound to.
pub fn node(pod: ObjectView<'_>) -> Option<&str> {
    let node = pod.json().pointer("/spec/nodeName")?.as_str()?;
    Some(node).filter(|node| !node.is_empty())
}

/// The status of a pod.
pub fn status(pod: ObjectView<'_>) -> TaskStatus {
    let at = |path: &str| pod.json().pointer(path);
    let phase = at("/status/phase").and_then(Value::as_str);
    let gates = at("/spec/schedulingGates").and_then(Value::as_array);
    match phase.unwrap_or("Pending") {
        "Succeeded" => TaskStatus::Succeeded,
        "Failed" => TaskStatus::Failed,
        _ if is_deleted(pod) => TaskStatus::Releasing,
        _ if node(pod).is_none() && gates.is_some_and(|gates| !gates.is_empty()) => {
            TaskStatus::Gated
        }
        _ if node(pod).is_none() => TaskStatus::Pending,
        "Pending" => TaskStatus::Binding,
        _ => TaskStatus::Running,
    }
}

/// Whether a pod has ended.
pub fn is_over(pod: ObjectView<'_>) -> bool {
    matches!(status(pod), TaskStatus::Succeeded | TaskStatus::Failed)
}

/// Whether a pod is being deleted.
pub fn is_deleted(pod: ObjectView<'_>) -> bool {
    let at = pod.json().pointer("/metadata/deletionTimestamp");
    at.is_some_and(Value::is_string)
}

/// The shared cards of a running pod by KAI's labels: one label, or one for each of several.
pub fn groups(pod: ObjectView<'_>) -> Vec<String> {
    let labels = texts(&pod.json()["metadata"]["labels"]);
    let many = labels.iter().filter(|(key, _)| {
        let rest = key.strip_prefix(LABEL_GPU_GROUP);
        rest.is_some_and(|rest| rest.starts_with('/'))
    });
    let many: Vec<String> = many.map(|(_, value)| value.clone()).collect();
    match labels.get(LABEL_GPU_GROUP) {
        Some(one) if many.is_empty() => vec![one.clone()],
        _ => many,
    }
}

/// The claims that a pod names, with their namespace.
fn claims(pod: ObjectView<'_>) -> Vec<String> {
    let entries = pod.json()["spec"]["resourceClaims"].as_array();
    let entries = entries.into_iter().flatten();
    entries
        .filter_map(|entry| claim(pod, entry))
        .map(|claim| format!("{}/{claim}", pod.namespace()))
        .collect()
}

/// The claim of an entry of a pod: named, or made from a template under a name that the pod's status has. One that is
/// yet to be made gets a name here. `None` for an entry that turned out to need no claim.
pub fn claim(pod: ObjectView<'_>, entry: &Value) -> Option<String> {
    let named = entry["resourceClaimName"].as_str();
    let made = pod.json()["status"]["resourceClaimStatuses"].as_array();
    let made = made
        .into_iter()
        .flatten()
        .find(|one| one["name"] == entry["name"]);
    match (named, made) {
        (Some(name), _) => Some(name.to_owned()),
        (None, Some(made)) => made["resourceClaimName"].as_str().map(str::to_owned),
        (None, None) => {
            let entry = entry["name"].as_str().unwrap_or_default();
            Some(format!("{}-{entry}", pod.name()))
        }
    }
}
