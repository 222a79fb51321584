//! Knative services: the pods of a revision start together, as many as its smallest scale.
//!
//! Where gangs are off, or where a pod of the revision already runs in a group of its own (an older version
//! put it there), every pod is a group.

use crate::group::PodGroup;
use crate::kinds::pods::each_alone;
use crate::malformed::Malformed;
use crate::names::ANNOTATION_GROUP;
use crate::object::Object;
use crate::table::Row;
use crate::workload::Workload;

const REVISION: &str = "serving.knative.dev/revision";
const MIN_SCALE: [&str; 2] = [
    "autoscaling.knative.dev/min-scale",
    "autoscaling.knative.dev/minScale",
];

pub(crate) fn service(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    if !workload.settings.gang_knative {
        return each_alone(row, workload);
    }
    let name = workload
        .pod
        .label(REVISION)
        .ok_or_else(|| Malformed::unset(workload.pod, REVISION))?;
    let namespace = workload.namespace();
    let revision = workload.objects.need("Revision", namespace, name)?;
    let mut siblings = workload.objects.pods(namespace).chain([workload.pod]);
    if siblings.any(|pod| pod.label(REVISION) == Some(name) && is_alone(pod)) {
        return each_alone(row, workload);
    }
    let mut group = workload.owned_by(revision).plain(row.priority);
    group.min_member = min_scale(revision)?;
    Ok(group)
}

/// Whether the pod was put into a group of its own, which is named after it.
fn is_alone(pod: Object<'_>) -> bool {
    pod.annotation(ANNOTATION_GROUP)
        .is_some_and(|group| group == format!("pg-{}-{}", pod.name(), pod.uid()))
}

fn min_scale(revision: Object<'_>) -> Result<u32, Malformed> {
    let stated = MIN_SCALE
        .iter()
        .find_map(|key| Some((*key, revision.annotation(key)?)));
    let Some((key, text)) = stated else {
        return Ok(1);
    };
    let wrong = |_| Malformed::field(revision, key, format!("'{text}' is not a count"));
    let scale: u32 = text.parse().map_err(wrong)?;
    // A service that may scale to zero still starts with one pod.
    Ok(scale.max(1))
}
