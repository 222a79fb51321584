//! Which pods a node admits: node selector, node affinity, taints, cordons.
//!
//! The policy knows labels with sets of values. Everything that Kubernetes can require of a node is brought to that
//! form: each different requirement gets an internal label, and the nodes that meet it carry the label.

use std::collections::BTreeMap;
use std::sync::Arc;

use apportion_groups::ObjectView;
use apportion_policy::cluster::{
    Node, PreferredTerm, RequiredLabels, TaskGpuRequest, WeightedPreference,
};
use serde_json::Value;

use super::inventory::ObjectInventory;
use super::nodes;
use super::occupancy::{NodeOccupancy, PodOccupancy};
use super::volumes;

/// An internal label of nodes that take shares. No user can set it, because of the space.
pub const TAKES_SHARES: &str = " takes-shares";
/// The same for whole cards.
pub const TAKES_CARDS: &str = " takes-cards";

/// The value of internal labels.
const YES: &str = "yes";

/// An internal label, and what pods with it require of their nodes, by the label that cards need besides.
#[derive(Debug, Default)]
struct AdmissionLabel {
    label: String,
    required: BTreeMap<Option<&'static str>, Arc<RequiredLabels>>,
}

/// The internal labels so far, by requirement.
#[derive(Debug, Default)]
pub struct NodeAdmission {
    labels: BTreeMap<String, AdmissionLabel>,
    /// Internal labels by preferred term.
    preferred: BTreeMap<String, String>,
    occupancy: NodeOccupancy,
}

impl NodeAdmission {
    /// For a cluster with this occupancy.
    pub fn of(occupancy: NodeOccupancy) -> Self {
        Self {
            occupancy,
            ..Self::default()
        }
    }

    /// A pod's preferences about its node, as internal labels. Sets the labels on the nodes.
    pub fn prefer(
        &mut self,
        preferred: &[Value],
        objects: &[ObjectView<'_>],
        known: &mut [Node],
    ) -> Vec<WeightedPreference> {
        let mut preferences = Vec::new();
        for term in preferred {
            let (wanted, number) = (&term["preference"], self.preferred.len());
            let label = self.preferred.entry(wanted.to_string()).or_insert_with(|| {
                let label = format!(" prefer-{number}");
                for (object, node) in objects.iter().zip(known.iter_mut()) {
                    if matches(wanted, *object) {
                        node.set_label(&label, YES);
                    }
                }
                label
            });
            preferences.push(WeightedPreference {
                wish: PreferredTerm::Label(label.clone()),
                weight: term["weight"].as_i64().unwrap_or(0),
            });
        }
        preferences
    }

    /// The label of nodes that take pods with such a request.
    pub fn takes(cards: &TaskGpuRequest) -> Option<&'static str> {
        match cards {
            TaskGpuRequest::Shared { .. } => Some(TAKES_SHARES),
            TaskGpuRequest::Whole(_) => Some(TAKES_CARDS),
            TaskGpuRequest::None | TaskGpuRequest::Partitions(_) => None,
        }
    }

    /// The internal labels that a pod requires of its node: one for its `key`, and `takes`. Sets the first on the
    /// nodes that admit the pod. Pods with the same requirements share them.
    pub fn wish(
        &mut self,
        pod: ObjectView<'_>,
        objects: &[ObjectView<'_>],
        known: &mut [Node],
        (key, takes): (&str, Option<&'static str>),
        inventory: &ObjectInventory,
    ) -> Arc<RequiredLabels> {
        if !self.labels.contains_key(key) {
            let label = format!(" wish-{}", self.labels.len());
            for (object, node) in objects.iter().zip(known.iter_mut()) {
                if self.occupancy.refused(pod, *object, inventory).is_none() {
                    node.set_label(&label, YES);
                }
            }
            let required = BTreeMap::new();
            self.labels
                .insert(key.to_owned(), AdmissionLabel { label, required });
        }
        self.labels.get_mut(key).map_or_else(Arc::default, |known| {
            let all = [Some(known.label.as_str()), takes];
            let required = known.required.entry(takes).or_insert_with(|| {
                let all = all.into_iter().flatten();
                Arc::new(
                    all.map(|label| (label.to_owned(), vec![YES.to_owned()]))
                        .collect(),
                )
            });
            Arc::clone(required)
        })
    }
}

/// A pod's preferred node affinity terms.
pub fn preferred(pod: ObjectView<'_>) -> Vec<Value> {
    let affinity = &pod.json()["spec"]["affinity"]["nodeAffinity"];
    let terms = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array();
    terms.cloned().unwrap_or_default()
}

/// A key for what a pod requires of its node, tolerates there and holds of it. Pods with the same key share a label.
/// A pod with volumes shares with nobody, because its requirements depend on more than its spec.
pub fn key(pod: ObjectView<'_>, holds: &PodOccupancy, has_volumes: bool) -> String {
    let spec = &pod.json()["spec"];
    let affinity =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let (selector, tolerations) = (&spec["nodeSelector"], &spec["tolerations"]);
    let mut key = format!("{selector}{affinity}{tolerations}");
    if !holds.is_empty() {
        key.push_str(&format!("{holds:?}"));
    }
    if has_volumes {
        key.push_str(&super::pods::name(pod));
    }
    key
}

impl NodeOccupancy {
    /// Why a node does not admit a pod, apart from the resources that the policy counts.
    pub fn refused(
        &self,
        pod: ObjectView<'_>,
        node: ObjectView<'_>,
        inventory: &ObjectInventory,
    ) -> Option<String> {
        refusal(pod, node)
            .or_else(|| volumes::refusal(pod, node, inventory))
            .or_else(|| self.refusal(pod, node))
    }
}

/// Why a node does not admit a pod, whatever runs there.
fn refusal(pod: ObjectView<'_>, node: ObjectView<'_>) -> Option<String> {
    if let Some(closed) = nodes::closed(node) {
        return Some(closed.to_owned());
    }
    let spec = &pod.json()["spec"];
    let tolerations = || spec["tolerations"].as_array().into_iter().flatten();
    let taints = node.json()["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten();
    let mut bad = taints.filter(|taint| taint["effect"] != "PreferNoSchedule");
    if let Some(taint) = bad.find(|taint| !tolerations().any(|one| tolerates(one, taint))) {
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
pub fn has_one_of(terms: &Value, node: ObjectView<'_>) -> bool {
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

fn matches(term: &Value, node: ObjectView<'_>) -> bool {
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
            let pod = json!({"metadata": {"name": name, "namespace": "default"},
                "spec": {"containers": [{"ports": [{"hostPort": port}],
                    "resources": {"limits": {"example.com/nic": nics}}}]}});
            let pod = ObjectView::new(&pod);
            key(pod, &PodOccupancy::of(pod), has_volumes)
        };
        assert_eq!(key_of("a", 80, 1, false), key_of("b", 80, 1, false));
        assert_ne!(key_of("a", 80, 1, false), key_of("a", 81, 1, false));
        assert_ne!(key_of("a", 80, 1, false), key_of("a", 80, 2, false));
        assert_ne!(key_of("a", 80, 1, true), key_of("b", 80, 1, true));
    }
}
