//! Training jobs of single vendors.

use crate::error::{GroupingError, counted};
use crate::group::DerivedPodGroup;
use crate::kinds::batch::is_lazy;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

const NODE_COUNT: [&str; 5] = ["spec", "job", "options", "envs", "AZUREML_NODE_COUNT"];

/// An Azure ML job has its number of nodes in an environment variable.
pub(crate) fn aml_job(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let owner = workload.owner;
    let mut group = workload.plain(row.priority);
    let nodes = owner
        .whole(&NODE_COUNT)?
        .ok_or_else(|| GroupingError::unset(owner, &NODE_COUNT.join(".")))?;
    group.min_member = counted(owner, NODE_COUNT[4], nodes)?;
    Ok(group)
}

/// Pods of a run.ai job may be trials of a search, each a group of its own. A pod's name begins with its trial's.
pub(crate) fn runai_job(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let owner = workload.owner;
    let mut group = workload.plain(row.priority);
    let of = |name: &str| format!("pg-{name}-{}", owner.uid());
    let old = of(old_name(workload));
    group.name = if is_lazy(workload, &old) {
        old
    } else {
        let pod = workload.pod.name();
        of(pod.rsplit_once('-').map_or(pod, |(trial, _)| trial))
    };
    Ok(group)
}

/// Older versions named a group after the pod if several ran at once, else after the job.
fn old_name<'a>(workload: &GroupingInput<'a>) -> &'a str {
    let at_once = workload.owner.whole(&["spec", "parallelism"]);
    match at_once.ok().flatten() {
        Some(2..) => workload.pod.name(),
        _ => workload.owner.name(),
    }
}
