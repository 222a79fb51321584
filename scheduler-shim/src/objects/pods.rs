//! Pod objects to tasks: what a pod does, where, and near whom it may be.

use std::collections::BTreeMap;

use apportion_groups::Object;
use apportion_policy::cluster::{Cards, Neighbours, Preference, Status, Task, Wish};
use serde_json::Value;

use super::inventory::called;
use super::nodes::{HOSTNAME, texts};
use super::occupancy;
use super::quantity;
use super::remark::Remarks;
use super::requests;

const GROUP: &str = "runai-gpu-group";
const ORDER: &str = "kai.scheduler/task-priority";
/// Labels of pods that start before the others of their set: masters and launchers, and heads of Ray.
const LEADERS: &[(&str, &str)] = &[
    ("training.kubeflow.org/job-role", "master"),
    ("training.kubeflow.org/job-role", "launcher"),
    ("ray.io/node-type", "head"),
];
/// The namespace of a pod, as a label that no pod can have.
const NAMESPACE: &str = " namespace";

/// Namespace and name.
pub(crate) fn name(pod: Object<'_>) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

/// The task of a pod, without its set and its wishes about nodes.
pub(crate) fn task(pod: Object<'_>, cards: Cards, remarks: &mut Remarks) -> Task {
    let mut labels = texts(&pod.json()["metadata"]["labels"]);
    labels.insert(NAMESPACE.to_owned(), pod.namespace().to_owned());
    let mut neighbours = |kind: &str| neighbours(pod, kind, remarks);
    // Two pods that take one port of their host are kept apart.
    let ports: Vec<Neighbours> = (occupancy::ports(pod).into_iter())
        .map(|port| Neighbours {
            labels: [(format!(" port {port}"), String::new())].into(),
            domain: HOSTNAME.to_owned(),
        })
        .collect();
    labels.extend(ports.iter().flat_map(|port| port.labels.clone()));
    Task {
        name: name(pod),
        status: status(pod),
        node: node(pod).map(str::to_owned),
        on: groups(pod),
        cards,
        claims: claims(pod),
        cpu_millis: quantity::whole(requests::total(pod, "cpu") * 1000.0),
        memory: quantity::whole(requests::total(pod, "memory")),
        leads: LEADERS
            .iter()
            .any(|(label, value)| pod.label(label) == Some(value)),
        order: pod.label(ORDER).and_then(|text| text.parse().ok()),
        near: neighbours("podAffinity"),
        apart: neighbours("podAntiAffinity")
            .into_iter()
            .chain(ports)
            .collect(),
        labels,
        prefers: preferences(pod),
        ..Task::default()
    }
}

/// The node that a pod is bound to.
pub(crate) fn node(pod: Object<'_>) -> Option<&str> {
    let node = pod.json().pointer("/spec/nodeName")?.as_str()?;
    Some(node).filter(|node| !node.is_empty())
}

/// What a pod does.
pub(crate) fn status(pod: Object<'_>) -> Status {
    let at = |path: &str| pod.json().pointer(path);
    let phase = at("/status/phase").and_then(Value::as_str);
    let gates = at("/spec/schedulingGates").and_then(Value::as_array);
    match phase.unwrap_or("Pending") {
        "Succeeded" => Status::Succeeded,
        "Failed" => Status::Failed,
        _ if is_deleted(pod) => Status::Releasing,
        _ if node(pod).is_none() && gates.is_some_and(|gates| !gates.is_empty()) => Status::Gated,
        _ if node(pod).is_none() => Status::Pending,
        "Pending" => Status::Binding,
        _ => Status::Running,
    }
}

/// Whether a pod has ended.
pub(crate) fn is_over(pod: Object<'_>) -> bool {
    matches!(status(pod), Status::Succeeded | Status::Failed)
}

/// Whether somebody wants a pod to end.
pub(crate) fn is_deleted(pod: Object<'_>) -> bool {
    let at = pod.json().pointer("/metadata/deletionTimestamp");
    at.is_some_and(Value::is_string)
}

/// The cards that a running pod shares, as KAI labels it: one label, or one for each of several.
pub(crate) fn groups(pod: Object<'_>) -> Vec<String> {
    let labels = texts(&pod.json()["metadata"]["labels"]);
    let many = labels.iter().filter(|(key, _)| {
        let rest = key.strip_prefix(GROUP);
        rest.is_some_and(|rest| rest.starts_with('/'))
    });
    let many: Vec<String> = many.map(|(_, value)| value.clone()).collect();
    match labels.get(GROUP) {
        Some(one) if many.is_empty() => vec![one.clone()],
        _ => many,
    }
}

/// The claims that a pod names, with their namespace.
fn claims(pod: Object<'_>) -> Vec<String> {
    let entries = pod.json()["spec"]["resourceClaims"].as_array();
    let entries = entries.into_iter().flatten();
    entries
        .filter_map(|entry| claim(pod, entry))
        .map(|claim| format!("{}/{claim}", pod.namespace()))
        .collect()
}

/// The claim that an entry of a pod stands for: named, or made of a template under a name that the pod's status
/// has. One that is yet to be made gets a name here; none for an entry that wants no claim after all.
pub(crate) fn claim(pod: Object<'_>, entry: &Value) -> Option<String> {
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

/// How much it counts that pods are spread evenly where that is only wished for: as the dearest affinity.
const EVENLY: i64 = 100;

/// The pods near which a pod would rather be, or rather not, and among which it would rather be spread.
fn preferences(pod: Object<'_>) -> Vec<Preference> {
    let kinds = [("podAffinity", 1), ("podAntiAffinity", -1)].into_iter();
    let all = kinds.flat_map(|(kind, sign)| {
        let terms = &pod.json()["spec"]["affinity"][kind];
        let terms = &terms["preferredDuringSchedulingIgnoredDuringExecution"];
        let terms = terms.as_array().into_iter().flatten();
        terms.filter_map(move |term| {
            Some(Preference {
                wish: Wish::Near(wanted(pod, &term["podAffinityTerm"])?),
                weight: sign * term["weight"].as_i64()?,
            })
        })
    });
    all.chain(spreads(pod)).collect()
}

/// The rules about even spreading that are only wishes.
fn spreads(pod: Object<'_>) -> impl Iterator<Item = Preference> {
    let rules = pod.json()["spec"]["topologySpreadConstraints"].as_array();
    let soft = |rule: &&Value| {
        rule["whenUnsatisfiable"] == "ScheduleAnyway" && rule["labelSelector"].is_object()
    };
    let soft = rules.into_iter().flatten().filter(soft);
    soft.filter_map(move |rule| {
        let like = wanted(pod, rule)?;
        let skew = rule["maxSkew"].as_u64().unwrap_or(1);
        Some(Preference {
            wish: Wish::Even { like, skew },
            weight: EVENLY,
        })
    })
}

fn neighbours(pod: Object<'_>, kind: &str, remarks: &mut Remarks) -> Vec<Neighbours> {
    let terms =
        &pod.json()["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"];
    let mut all = Vec::new();
    for term in terms.as_array().into_iter().flatten() {
        match wanted(pod, term) {
            Some(wanted) => all.push(wanted),
            None => remarks.note(
                called("Pod", pod.namespace(), pod.name()),
                format!(
                    "one term of its {kind} is not simulated: only labels in one namespace are"
                ),
            ),
        }
    }
    all
}

/// A term, if it is about labels with one value each, of pods of one namespace.
fn wanted(pod: Object<'_>, term: &Value) -> Option<Neighbours> {
    let selector = &term["labelSelector"];
    let mut labels: BTreeMap<String, String> = texts(&selector["matchLabels"]);
    for one in selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let values = one["values"].as_array()?;
        let [value] = values.as_slice() else {
            return None;
        };
        (one["operator"] == "In").then_some(())?;
        labels.insert(one["key"].as_str()?.to_owned(), value.as_str()?.to_owned());
    }
    let namespaces = term["namespaces"].as_array().map_or(&[][..], Vec::as_slice);
    let namespace = match namespaces {
        [] if term["namespaceSelector"].is_null() => pod.namespace(),
        [one] if term["namespaceSelector"].is_null() => one.as_str()?,
        _ => return None,
    };
    labels.insert(NAMESPACE.to_owned(), namespace.to_owned());
    Some(Neighbours {
        labels,
        domain: term["topologyKey"].as_str()?.to_owned(),
    })
}
