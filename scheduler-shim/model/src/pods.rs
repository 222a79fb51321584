//! What a Pod object says about itself.

use apportion_abi::names::LABEL_GPU_GROUP;
use apportion_groups::ObjectView;
use apportion_policy::cluster::TaskStatus;
use serde_json::Value;

use super::labels::texts;

/// Namespace and name.
pub fn name(pod: ObjectView<'_>) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

/// The node that a pod is bound to.
pub fn node(pod: ObjectView<'_>) -> Option<&str> {
    let node = pod.json().pointer("/spec/nodeName")?.as_str()?;
    Some(node).filter(|node| !node.is_empty())
}

/// The node where others were evicted for a pod, so that it gets their place.
pub fn nominated_node(pod: ObjectView<'_>) -> Option<&str> {
    let node = pod.json().pointer("/status/nominatedNodeName")?.as_str()?;
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
pub(crate) fn claims(pod: ObjectView<'_>) -> Vec<String> {
    let entries = pod.json()["spec"]["resourceClaims"]
        .as_array()
        .into_iter()
        .flatten();
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
            Some(format!("{}{OF_TEMPLATE}{entry}", pod.name()))
        }
    }
}

/// Separates the pod and the entry in the name of a claim that is yet to be made. No object has such a name.
const OF_TEMPLATE: char = ':';

/// The pod, with its namespace, and the entry of a claim that is yet to be made from a template.
#[must_use]
pub fn template_entry(claim: &str) -> Option<(&str, &str)> {
    claim.split_once(OF_TEMPLATE)
}

/// The PersistentVolumeClaims that a pod mounts, by name.
pub(crate) fn volume_claims(pod: ObjectView<'_>) -> Vec<String> {
    let volumes = pod.json()["spec"]["volumes"]
        .as_array()
        .into_iter()
        .flatten();
    volumes
        .filter_map(|volume| {
            let named = volume["persistentVolumeClaim"]["claimName"].as_str();
            named.map(str::to_owned).or_else(|| {
                let own = volume["name"].as_str()?;
                volume["ephemeral"]
                    .is_object()
                    .then(|| format!("{}-{own}", pod.name()))
            })
        })
        .collect()
}

/// The ConfigMaps without which a pod can't start.
pub(crate) fn config_maps(pod: ObjectView<'_>) -> Box<[Box<str>]> {
    let volumes = pod.json()["spec"]["volumes"].as_array();
    let maps = volumes.into_iter().flatten().map(|one| &one["configMap"]);
    let needed = maps.filter(|map| map["optional"] != true);
    needed
        .filter_map(|map| map["name"].as_str().map(Box::from))
        .collect()
}
