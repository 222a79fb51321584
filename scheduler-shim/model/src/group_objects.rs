//! The PodGroup object of a group that is derived from owners, as KAI's pod grouper writes it.
//!
//! Tools and KAI's own programs read these objects. What others decide about a group stays: its queue, its node pool,
//! its back-off, and its topology if the owners name none. A pod may be its own owner; the annotations that say where
//! it went are not copied to its group.

use std::hash::{DefaultHasher, Hash, Hasher};

use apportion_abi::names::{
    ANNOTATION_ALLOCATED, ANNOTATION_CARDS, ANNOTATION_GRACE, ANNOTATION_GROUP,
    ANNOTATION_RECEIVED, ANNOTATION_TOP_OWNER, LABEL_GPU_GROUP, LABEL_NODE_POOL, LABEL_QUEUE,
    LABEL_SUBGROUP,
};
use apportion_groups::{
    DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint, GroupPreemptibility, ObjectView,
};
use apportion_kubernetes::{parse_duration, show_duration};
use serde_json::{Map, Value, json};

/// API version of the objects that are written.
pub const API_VERSION: &str = "scheduling.run.ai/v2alpha2";
/// Kind of the objects that are written.
pub const KIND: &str = "PodGroup";

/// What is written on pods when they start, and not copied.
const OF_PODS: &[&str] = &[
    ANNOTATION_ALLOCATED,
    ANNOTATION_CARDS,
    ANNOTATION_GROUP,
    ANNOTATION_RECEIVED,
    LABEL_GPU_GROUP,
    LABEL_SUBGROUP,
];
/// Fields of a group that follow from its owners, whether they are set or not.
const FIELDS: &[&str] = &[
    "priorityClassName",
    "preemptibility",
    "preemptionDelay",
    "stalenessGracePeriod",
    "minMember",
    "minSubGroup",
    "subGroups",
];
const LEVELS: &[&str] = &[
    "topology",
    "requiredTopologyLevel",
    "preferredTopologyLevel",
];

/// The PodGroup object of a group.
pub fn object(group: &DerivedPodGroup) -> Value {
    let owner = &group.owner;
    json!({"apiVersion": API_VERSION, "kind": KIND,
        "metadata": {"name": group.name, "namespace": group.namespace,
            "labels": texts(&group.labels), "annotations": texts(&group.annotations),
            "ownerReferences": [{"apiVersion": owner.api_version, "kind": owner.kind,
                "name": owner.name, "uid": owner.uid}]},
        "spec": spec(group)})
}

/// A hash that is equal for groups with equal objects.
pub fn stamp(group: &DerivedPodGroup) -> u64 {
    let mut hasher = DefaultHasher::new();
    object(group).to_string().hash(&mut hasher);
    hasher.finish()
}

/// The subgroup that holds a pod.
pub fn part_of<'g>(group: &'g DerivedPodGroup, pod: &str) -> Option<&'g str> {
    group
        .sub_groups
        .iter()
        .find(|part| part.pods.iter().any(|one| one == pod))
        .map(|part| part.name.as_str())
}

/// Whether an object was derived from owners, and not made by somebody else.
pub fn is_derived(object: ObjectView<'_>) -> bool {
    object.annotation(ANNOTATION_TOP_OWNER).is_some()
}

/// The merge patch that brings an object up to date; `None` if it is.
pub fn change(there: ObjectView<'_>, group: &DerivedPodGroup) -> Option<Value> {
    let (there, wanted) = (there.json(), object(group));
    let mut metadata = Map::new();
    for field in ["labels", "annotations"] {
        let new = new_texts(&there["metadata"][field], &wanted["metadata"][field]);
        if !new.is_empty() {
            metadata.insert(field.to_owned(), new.into());
        }
    }
    let owners = &wanted["metadata"]["ownerReferences"];
    if !is_same(&there["metadata"]["ownerReferences"], owners) {
        metadata.insert("ownerReferences".to_owned(), owners.clone());
    }
    let mut fields = differing(&there["spec"], &wanted["spec"], FIELDS);
    let topology = &wanted["spec"]["topologyConstraint"];
    if topology["topology"].is_string() {
        let levels = differing(&there["spec"]["topologyConstraint"], topology, LEVELS);
        if !levels.is_empty() {
            fields.insert("topologyConstraint".to_owned(), levels.into());
        }
    }
    if metadata.is_empty() && fields.is_empty() {
        return None;
    }
    metadata.insert("uid".to_owned(), there["metadata"]["uid"].clone());
    let mut change = json!({"metadata": metadata});
    if !fields.is_empty() {
        change["spec"] = fields.into();
    }
    Some(change)
}

fn texts<'t>(all: impl IntoIterator<Item = (&'t String, &'t String)>) -> Value {
    let all = all.into_iter();
    let of_group = all.filter(|(key, _)| {
        let is_of_pods = OF_PODS.contains(&key.as_str());
        !is_of_pods && !key.starts_with(LABEL_GPU_GROUP)
    });
    of_group
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect::<Map<String, Value>>()
        .into()
}

fn spec(group: &DerivedPodGroup) -> Value {
    let mut spec = json!({"queue": group.queue, "priorityClassName": group.priority_class,
        "topologyConstraint": topology(&group.topology)});
    let mut set = |field: &str, value: Value| spec[field] = value;
    match group.min_sub_group {
        Some(count) => set("minSubGroup", count.into()),
        None => set("minMember", group.min_member.into()),
    }
    if let Some(word) = group.preemptibility.map(GroupPreemptibility::text) {
        set("preemptibility", word.into());
    }
    if let Some(delay) = group.preemption_delay {
        set("preemptionDelay", show_duration(delay).into());
    }
    let grace = group.annotations.get(ANNOTATION_GRACE);
    if let Some(grace) = grace.filter(|text| is_grace(text)) {
        set("stalenessGracePeriod", grace.as_str().into());
    }
    if !group.sub_groups.is_empty() {
        set("subGroups", group.sub_groups.iter().map(part).collect());
    }
    spec
}

fn is_grace(text: &str) -> bool {
    parse_duration(text.strip_prefix('-').unwrap_or(text)).is_some()
}

fn part(part: &DerivedSubGroup) -> Value {
    let mut json = json!({"name": part.name});
    match part.min_sub_group {
        Some(count) => json["minSubGroup"] = count.into(),
        None => json["minMember"] = part.min_member.into(),
    }
    if let Some(parent) = &part.parent {
        json["parent"] = parent.as_str().into();
    }
    if let Some(term) = &part.topology {
        json["topologyConstraint"] = topology(term);
    }
    json
}

fn topology(term: &DerivedTopologyConstraint) -> Value {
    let levels = [&term.name, &term.required, &term.preferred];
    let named = LEVELS
        .iter()
        .zip(levels)
        .filter(|(_, text)| !text.is_empty());
    named
        .map(|(level, text)| ((*level).to_owned(), Value::from(text.as_str())))
        .collect::<Map<String, Value>>()
        .into()
}

/// Labels or annotations to set, except those that others decide.
fn new_texts(there: &Value, wanted: &Value) -> Map<String, Value> {
    let wanted = wanted.as_object().into_iter().flatten();
    let new = wanted.filter(|(key, value)| match key.as_str() {
        LABEL_NODE_POOL => false,
        // Writers may format the first differently, and anybody may choose the second.
        ANNOTATION_TOP_OWNER | LABEL_QUEUE => there[key.as_str()].is_null(),
        key => there[key] != **value,
    });
    new.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The fields that are not as wanted; null for one that is not wanted.
fn differing(there: &Value, wanted: &Value, fields: &[&str]) -> Map<String, Value> {
    let differ = fields
        .iter()
        .filter(|field| !is_same(&there[**field], &wanted[**field]));
    differ
        .map(|field| ((*field).to_owned(), wanted[*field].clone()))
        .collect()
}

/// Whether two values say the same: some writers leave out empty ones.
fn is_same(left: &Value, right: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    match (left, right) {
        _ if is_empty(left) && is_empty(right) => true,
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| is_same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys());
            let of = |map: &Map<String, Value>, key: &String| map.get(key).cloned();
            keys.into_iter().all(|key| {
                let (left, right) = (of(left, key), of(right, key));
                is_same(&left.unwrap_or_default(), &right.unwrap_or_default())
            })
        }
        (left, right) => left == right,
    }
}

#[cfg(test)]
mod tests;
