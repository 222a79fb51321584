//! Groups in the JSON form that the cases check.

use apportion_groups::{DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint};
use apportion_kubernetes::show_duration;
use serde_json::{Value, json};

pub(super) fn group(group: &DerivedPodGroup) -> Value {
    let owner = &group.owner;
    json!({
        "name": group.name,
        "namespace": group.namespace,
        "queue": group.queue,
        "priorityClassName": group.priority_class,
        "preemptibility": group.preemptibility.map_or("", |word| word.text()),
        "preemptionDelay": group.preemption_delay.map(show_duration),
        "minAvailable": group.min_member,
        "minSubGroup": group.min_sub_group,
        "labels": group.labels,
        "annotations": group.annotations,
        "owner": {
            "kind": owner.kind,
            "apiVersion": owner.api_version,
            "name": owner.name,
            "uid": owner.uid,
        },
        "topology": group.topology.name,
        "requiredTopologyLevel": group.topology.required,
        "preferredTopologyLevel": group.topology.preferred,
        "subGroups": sub_groups(&group.sub_groups),
    })
}

pub(super) fn sub_groups(all: &[DerivedSubGroup]) -> Value {
    all.iter().map(sub_group).collect()
}

pub(super) fn sub_group(part: &DerivedSubGroup) -> Value {
    json!({
        "name": part.name,
        "parent": part.parent,
        "minAvailable": part.min_member,
        "minSubGroup": part.min_sub_group,
        "podsReferences": part.pods,
        "topologyConstraints": part.topology.as_ref().map(topology),
    })
}

fn topology(wish: &DerivedTopologyConstraint) -> Value {
    json!({
        "topology": wish.name,
        "requiredTopologyLevel": wish.required,
        "preferredTopologyLevel": wish.preferred,
    })
}
