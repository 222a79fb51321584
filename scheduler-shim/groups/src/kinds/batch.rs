//! Jobs and the CronJobs that make them.
//!
//! A Job's pods start one by one unless an annotation says how many must start together: its parallelism
//! alone does not mean that they need each other.

use crate::group::PodGroup;
use crate::inherit::group_name;
use crate::malformed::Malformed;
use crate::names::ANNOTATION_MIN_MEMBER;
use crate::object::Object;
use crate::table::Row;
use crate::workload::Workload;

pub(crate) fn job(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let mut group = workload.plain(row.priority);
    if let Some(members) = annotated_minimum(workload.owner)? {
        group.min_member = members;
    }
    keep_old_name(workload, &mut group);
    Ok(group)
}

pub(crate) fn cron_job(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let references = workload.pod.list(&["metadata", "ownerReferences"])?;
    let reference = references
        .iter()
        .map(Object::new)
        .find(|reference| reference.kind() == "Job")
        .ok_or(Malformed::NoJob)?;
    let name = reference.text(&["name"]).unwrap_or_default();
    let found = workload.objects.need("Job", workload.namespace(), name)?;
    job(row, &workload.owned_by(found))
}

/// Older versions made a group for a pod and named it after the pod; while one is there, it stays the
/// pod's group, since a running pod does not change groups.
pub(crate) fn keep_old_name(workload: &Workload<'_>, group: &mut PodGroup) {
    let old = format!("pg-{}-{}", workload.pod.name(), workload.owner.uid());
    let find = |name: &str| {
        workload
            .objects
            .find("PodGroup", workload.namespace(), name)
    };
    if workload.settings.keeps_old_names
        && old != group_name(workload.owner)
        && find(&old).is_some()
    {
        group.name = old;
    }
}

/// How many pods (or parts) must start together, if the owner's annotation says so.
pub(crate) fn annotated_minimum(owner: Object<'_>) -> Result<Option<u32>, Malformed> {
    let key = ANNOTATION_MIN_MEMBER;
    let Some(text) = owner.annotation(key) else {
        return Ok(None);
    };
    let wrong = |why: String| Malformed::field(owner, key, why);
    let count: i32 = text
        .parse()
        .map_err(|_| wrong(format!("'{text}' is not a whole number")))?;
    match u32::try_from(count) {
        Ok(count) if count >= 1 => Ok(Some(count)),
        _ => Err(wrong(format!("it must be >= 1, not {count}"))),
    }
}
