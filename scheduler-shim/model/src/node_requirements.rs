//! What a pod requires of its node, whatever runs there: node selector, node affinity, tolerations.

use apportion_groups::ObjectView;
use serde_json::Value;

use super::pod_occupancy::PodOccupancy;
use super::{nodes, pods};

/// A pod's preferred node affinity terms.
pub(crate) fn preferred(pod: ObjectView<'_>) -> Vec<Value> {
    let affinity = &pod.json()["spec"]["affinity"]["nodeAffinity"];
    let terms = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array();
    terms.cloned().unwrap_or_default()
}

/// A key for what a pod requires of its node, tolerates there and holds of it. Pods with the same key share a label.
/// A pod with volumes shares with nobody, because its requirements depend on more than its spec.
pub(crate) fn key(pod: ObjectView<'_>, holds: &PodOccupancy) -> String {
    let spec = &pod.json()["spec"];
    let affinity =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let (selector, tolerations) = (&spec["nodeSelector"], &spec["tolerations"]);
    let mut key = format!("{selector}{affinity}{tolerations}");
    if !holds.is_empty() {
        key.push_str(&format!("{holds:?}"));
    }
    if !pods::volume_claims(pod).is_empty() {
        key.push_str(&pods::name(pod));
    }
    key
}

/// Why a node does not admit a pod, whatever runs there.
pub(crate) fn refusal(pod: ObjectView<'_>, node: ObjectView<'_>) -> Option<String> {
    if let Some(closed) = nodes::closed(node) {
        return Some(closed.to_owned());
    }
    let spec = &pod.json()["spec"];
    let taints = node.json()["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten();
    let mut bad = taints.filter(|taint| taint["effect"] != "PreferNoSchedule");
    if let Some(taint) = bad.find(|taint| {
        !spec["tolerations"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|one| tolerates(one, taint))
    }) {
        let key = taint["key"].as_str().unwrap_or_default();
        return Some(format!(
            "has the taint {key}, which the pod does not tolerate"
        ));
    }
    let mut selector = spec["nodeSelector"].as_object().into_iter().flatten();
    if let Some((key, value)) = selector.find(|(key, value)| node.label(key) != value.as_str()) {
        let value = value.as_str().unwrap_or_default();
        return Some(format!("does not have the label {key}={value}"));
    }
    (!is_wanted(pod, node)).then(|| "does not match the node affinity".to_owned())
}

/// Whether a node matches a pod's node selector and required node affinity.
fn is_wanted(pod: ObjectView<'_>, node: ObjectView<'_>) -> bool {
    let spec = &pod.json()["spec"];
    let mut selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let affinity =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    selector.all(|(key, value)| node.label(key) == value.as_str())
        && has_one_of(&affinity["nodeSelectorTerms"], node)
}

/// Whether a node matches one of these terms. Without a list of terms every node does.
pub(crate) fn has_one_of(terms: &Value, node: ObjectView<'_>) -> bool {
    let terms = terms.as_array();
    terms.is_none_or(|terms| terms.iter().any(|term| matches(term, node)))
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (key, effect) = (text(&toleration["key"]), text(&toleration["effect"]));
    let is_any = toleration["operator"] == "Exists";
    (effect.is_empty() || effect == text(&taint["effect"]))
        && (key == text(&taint["key"]) || (key.is_empty() && is_any))
        && (is_any || text(&toleration["value"]) == text(&taint["value"]))
}

pub(crate) fn matches(term: &Value, node: ObjectView<'_>) -> bool {
    let list = |field: &str| term[field].as_array().into_iter().flatten();
    let labels = list("matchExpressions").all(|one| {
        let key = one["key"].as_str().unwrap_or_default();
        holds(one, node.label(key))
    });
    labels && list("matchFields").all(|one| holds(one, Some(node.name())))
}

fn holds(expression: &Value, found: Option<&str>) -> bool {
    let values = || expression["values"].as_array().into_iter().flatten();
    let is_in = || found.is_some_and(|found| values().any(|value| value == found));
    let number = |value: Option<&str>| value?.parse::<i64>().ok();
    let bound = || number(values().next().and_then(Value::as_str));
    match expression["operator"].as_str().unwrap_or_default() {
        "In" => is_in(),
        "NotIn" => !is_in(),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => number(found)
            .zip(bound())
            .is_some_and(|(found, bound)| found > bound),
        "Lt" => number(found)
            .zip(bound())
            .is_some_and(|(found, bound)| found < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_that_hold_the_same_share_a_key() {
        let key_of = |name: &str, port: u16, nics: u64, has_volumes: bool| {
            let volume = json!({"persistentVolumeClaim": {"claimName": "data"}});
            let volumes = vec![volume; usize::from(has_volumes)];
            let pod = json!({"metadata": {"name": name, "namespace": "default"},
                "spec": {"volumes": volumes, "containers": [{"ports": [{"hostPort": port}],
                    "resources": {"limits": {"example.com/nic": nics}}}]}});
            let pod = ObjectView::new(&pod);
            key(pod, &PodOccupancy::of(pod))
        };
        assert_eq!(key_of("a", 80, 1, false), key_of("b", 80, 1, false));
        assert_ne!(key_of("a", 80, 1, false), key_of("a", 81, 1, false));
        assert_ne!(key_of("a", 80, 1, false), key_of("a", 80, 2, false));
        assert_ne!(key_of("a", 80, 1, true), key_of("b", 80, 1, true));
    }
}
