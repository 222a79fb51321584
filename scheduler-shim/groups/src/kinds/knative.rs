//! Knative services: as many pods of a revision start together as its minimum scale.
//!
//! If gangs are off, or the pods of the revision are in groups of their own (made by an older version), every pod
//! is a group.

use std::collections::BTreeSet;

use crate::error::{GroupingError, counted};
use crate::group::{DerivedPodGroup, DerivedTopologyConstraint, PodGroupOwner};
use crate::inherit::group_name;
use crate::names::ANNOTATION_GROUP;
use crate::object::ObjectView;
use crate::objects::RequiredResource;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

const REVISION: RequiredResource = RequiredResource {
    kind: "Revision",
    name: "revisions.serving.knative.dev",
};
const LABEL: &str = "serving.knative.dev/revision";
const MIN_SCALE: [&str; 2] = [
    "autoscaling.knative.dev/min-scale",
    "autoscaling.knative.dev/minScale",
];

pub(crate) fn service(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let pod = workload.pod;
    let name = pod
        .given_label(LABEL)
        .ok_or_else(|| GroupingError::unset(pod, LABEL))?;
    let revision = workload
        .objects
        .require(&REVISION, workload.namespace(), name)?;
    // A revision's settings for eviction, delay and topology have never been part of its group.
    let mut group = DerivedPodGroup {
        preemptibility: None,
        preemption_delay: None,
        topology: DerivedTopologyConstraint::default(),
        ..workload.owned_by(revision).plain(row.priority)
    };
    if !workload.settings.gang_knative || is_split(workload, revision)? {
        group.name = group_name(pod);
        group.owner = PodGroupOwner::of_pod(pod);
        row.priority.clone_into(&mut group.priority_class);
    } else {
        group.min_member = min_scale(revision)?;
    }
    Ok(group)
}

/// Whether the revision's pods have groups of their own: several groups, or one that a pod owns.
fn is_split(workload: &GroupingInput<'_>, revision: ObjectView<'_>) -> Result<bool, GroupingError> {
    let namespace = revision.namespace();
    let siblings = workload
        .objects
        .pods(namespace)
        .filter(|pod| pod.given_label(LABEL) == Some(revision.name()));
    let mut groups = BTreeSet::new();
    for group in siblings.filter_map(|pod| pod.given_annotation(ANNOTATION_GROUP)) {
        if !groups.insert(group) {
            return Ok(false);
        }
    }
    let only = match groups.len() {
        0 | 1 => groups.first(),
        _ => return Ok(true),
    };
    match only.and_then(|name| workload.objects.find("PodGroup", namespace, name)) {
        Some(group) => is_of_pod(group),
        None => Ok(false),
    }
}

fn is_of_pod(group: ObjectView<'_>) -> Result<bool, GroupingError> {
    let owners = group.list(&["metadata", "ownerReferences"])?;
    match owners.first().map(|owner| ObjectView::new(owner).kind()) {
        Some("Pod") => Ok(true),
        Some(kind) if kind == REVISION.kind => Ok(false),
        other => {
            let why = format!("'{}' is not a pod or a revision", other.unwrap_or_default());
            Err(GroupingError::field(group, "metadata.ownerReferences", why))
        }
    }
}

/// A service that may scale to zero needs no pod. An invalid scale counts as the default.
fn min_scale(revision: ObjectView<'_>) -> Result<u32, GroupingError> {
    let stated = MIN_SCALE
        .iter()
        .find_map(|key| revision.given_annotation(key));
    let scale = stated.and_then(|text| text.parse().ok()).unwrap_or(1);
    counted(revision, MIN_SCALE[0], scale)
}
