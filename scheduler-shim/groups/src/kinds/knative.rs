//! Knative services: the pods of a revision start together, as many as its smallest scale.
//!
//! Where gangs are off, or where the pods of the revision are in groups of their own (an older version
//! put them there), every pod is a group.

use std::collections::BTreeSet;

use crate::group::{Owner, PodGroup, Topology};
use crate::inherit::group_name;
use crate::malformed::{Malformed, counted};
use crate::names::ANNOTATION_GROUP;
use crate::object::Object;
use crate::objects::Resource;
use crate::table::Row;
use crate::workload::Workload;

const REVISION: Resource = Resource {
    kind: "Revision",
    name: "revisions.serving.knative.dev",
};
const LABEL: &str = "serving.knative.dev/revision";
const MIN_SCALE: [&str; 2] = [
    "autoscaling.knative.dev/min-scale",
    "autoscaling.knative.dev/minScale",
];

pub(crate) fn service(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let pod = workload.pod;
    let name = pod
        .given_label(LABEL)
        .ok_or_else(|| Malformed::unset(pod, LABEL))?;
    let revision = workload
        .objects
        .need(&REVISION, workload.namespace(), name)?;
    // What a revision says about eviction, delays and placement has never been part of its group.
    let mut group = PodGroup {
        preemptibility: None,
        preemption_delay: None,
        topology: Topology::default(),
        ..workload.owned_by(revision).plain(row.priority)
    };
    if !workload.settings.gang_knative || is_split(workload, revision)? {
        group.name = group_name(pod);
        group.owner = Owner::of_pod(pod);
        row.priority.clone_into(&mut group.priority_class);
    } else {
        group.min_member = min_scale(revision)?;
    }
    Ok(group)
}

/// Whether the revision's pods are in groups of their own: in several groups, or in one that a pod owns.
fn is_split(workload: &Workload<'_>, revision: Object<'_>) -> Result<bool, Malformed> {
    let namespace = revision.namespace();
    let siblings = workload.objects.pods(namespace);
    let siblings = siblings.filter(|pod| pod.given_label(LABEL) == Some(revision.name()));
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

fn is_of_pod(group: Object<'_>) -> Result<bool, Malformed> {
    let owners = group.list(&["metadata", "ownerReferences"])?;
    match owners.first().map(|owner| Object::new(owner).kind()) {
        Some("Pod") => Ok(true),
        Some(kind) if kind == REVISION.kind => Ok(false),
        other => {
            let why = format!("'{}' is not a pod or a revision", other.unwrap_or_default());
            Err(Malformed::field(group, "metadata.ownerReferences", why))
        }
    }
}

/// A service that may scale to zero needs no pod; a scale that is no number is the usual one.
fn min_scale(revision: Object<'_>) -> Result<u32, Malformed> {
    let stated = MIN_SCALE
        .iter()
        .find_map(|key| revision.given_annotation(key));
    let scale = stated.and_then(|text| text.parse().ok()).unwrap_or(1);
    counted(revision, MIN_SCALE[0], scale)
}
