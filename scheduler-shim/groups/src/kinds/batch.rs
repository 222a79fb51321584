//! Jobs, and the CronJobs that create them.
//!
//! A Job's pods start one by one unless an annotation sets how many must start together: parallelism alone does not
//! mean that they need each other.

use crate::error::{GroupingError, counted};
use crate::group::DerivedPodGroup;
use crate::inherit::group_name;
use crate::names::ANNOTATION_MIN_MEMBER;
use crate::object::ObjectView;
use crate::objects::RequiredResource;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

const JOB: RequiredResource = RequiredResource {
    kind: "Job",
    name: "jobs.batch",
};

/// Older versions made one group per pod, named after the pod. While such a group exists, it stays the pod's group,
/// since a running pod does not change groups.
pub(crate) fn job(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let owner = workload.owner;
    let mut group = workload.plain(row.priority);
    let old = format!("pg-{}-{}", workload.pod.name(), owner.uid());
    if old != group_name(owner) && is_lazy(workload, &old) {
        group.name = old;
    } else if let Some(members) = annotated_minimum(owner)? {
        group.min_member = members;
    }
    Ok(group)
}

/// Each run is a group. The minimum annotation is not read here: a CronJob's template passes it to its Jobs, but
/// KAI reads it only on Jobs that nothing owns.
pub(crate) fn cron_job(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let references = workload.pod.list(&["metadata", "ownerReferences"])?;
    let reference = references
        .iter()
        .map(ObjectView::new)
        .find(|reference| reference.kind() == JOB.kind)
        .ok_or(GroupingError::NoJob)?;
    let name = reference.text(&["name"]).unwrap_or_default();
    let found = workload.objects.require(&JOB, workload.namespace(), name)?;
    Ok(workload.owned_by(found).plain(row.priority))
}

/// Whether a group of this name exists and this cluster keeps such groups.
pub(crate) fn is_lazy(workload: &GroupingInput<'_>, name: &str) -> bool {
    workload.settings.keeps_old_names
        && workload
            .objects
            .find("PodGroup", workload.namespace(), name)
            .is_some()
}

/// How many pods (or parts) must start together, by the owner's annotation.
pub(crate) fn annotated_minimum(owner: ObjectView<'_>) -> Result<Option<u32>, GroupingError> {
    let key = ANNOTATION_MIN_MEMBER;
    let Some(text) = owner.given_annotation(key) else {
        return Ok(None);
    };
    let count: i32 = text
        .parse()
        .map_err(|_| GroupingError::field(owner, key, format!("'{text}' is not a whole number")))?;
    counted(owner, key, count.into()).map(Some)
}

/// The same, but zero and less are refused.
pub(crate) fn positive_minimum(owner: ObjectView<'_>) -> Result<Option<u32>, GroupingError> {
    let key = ANNOTATION_MIN_MEMBER;
    match annotated_minimum(owner) {
        Ok(Some(0)) | Err(GroupingError::Count { .. }) => {
            Err(GroupingError::field(owner, key, "it must be >= 1"))
        }
        other => other,
    }
}
