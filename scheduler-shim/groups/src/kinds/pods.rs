//! Groups of single pods: a pod that nothing owns, a pod of a service, and Spark's executors.

use crate::error::GroupingError;
use crate::group::{DerivedPodGroup, PodGroupOwner};
use crate::inherit::group_name;
use crate::object::ObjectView;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

const SPARK_APP: &str = "spark-app-name";
const SPARK_SELECTOR: &str = "spark-app-selector";

/// A pod that nothing owns. Spark makes such pods; those of one application are one group.
pub(crate) fn bare(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let mut group = workload.plain(row.priority);
    group.owner = PodGroupOwner::of_pod(workload.owner);
    if let Some(selector) = spark_selector(workload.pod) {
        group.name = selector.to_owned();
    }
    Ok(group)
}

/// Whether the pod belongs to a Spark application.
pub fn is_spark(pod: ObjectView<'_>) -> bool {
    spark_selector(pod).is_some()
}

fn spark_selector(pod: ObjectView<'_>) -> Option<&str> {
    pod.given_label(SPARK_APP)?;
    pod.given_label(SPARK_SELECTOR)
}

/// One group for the owner, on its terms alone: owners between it and the pod don't count.
pub(crate) fn of_owner(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    Ok(workload.plain(row.priority))
}

/// Replicas of a service do not need each other: each is a group, on the terms of the topmost owner.
pub(crate) fn one_group_per_pod(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let mut group = workload.plain(row.priority);
    group.name = group_name(workload.pod);
    group.owner = PodGroupOwner::of_pod(workload.pod);
    Ok(group)
}
