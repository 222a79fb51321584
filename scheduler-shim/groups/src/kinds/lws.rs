//! LeaderWorkerSets: each group of a leader and its workers is a gang.
//!
//! If workers wait for the leader to be ready, the leader starts alone, and the gang is whole only once it is
//! placed. A group may be split into segments (`segmented`).

use crate::error::{GroupingError, counted};
use crate::group::{DerivedPodGroup, DerivedSubGroup};
use crate::object::ObjectView;
use crate::segments;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

mod segmented;

use segmented::SegmentedGroup;

const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
const SIZE_FIELD: [&str; 3] = ["spec", "leaderWorkerTemplate", "size"];
const LEADER: &str = "leader";
const WORKERS: &str = "workers";

pub(crate) fn group(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let (owner, pod) = (workload.owner, workload.pod);
    let mut group = workload.plain(row.priority);
    let size = size(owner)?;
    worker_index(pod)?;
    let waits = match owner.string(&["spec", "startupPolicy"])? {
        None | Some("LeaderCreated") => false,
        Some("LeaderReady") => true,
        Some(other) => {
            let why = format!("'{other}' is not LeaderCreated or LeaderReady");
            return Err(GroupingError::field(owner, "spec.startupPolicy", why));
        }
    };
    if waits && is_leader(pod) && pod.text(&["spec", "nodeName"]).is_none() {
        group.min_member = 1;
        group.sub_groups = vec![leader(pod)];
    } else {
        // While the set is being resized, each pod carries the size of its own group.
        let own = pod.annotation(SIZE).and_then(|size| size.parse().ok());
        let size = own.filter(|_| waits).unwrap_or(size);
        group.min_member = counted(owner, "size", size)?;
        group.sub_groups = sub_groups(owner, pod, group.min_member)?;
    }
    let index = pod.label(GROUP_INDEX).and_then(|index| index.parse().ok());
    if let Some::<i64>(index) = index {
        group.name = format!("{}-group-{index}", group.name);
    }
    Ok(group)
}

/// The number of pods of one group.
fn size(owner: ObjectView<'_>) -> Result<i64, GroupingError> {
    let field = SIZE_FIELD.join(".");
    match owner.whole(&SIZE_FIELD)? {
        None => Err(GroupingError::unset(owner, &field)),
        Some(size) if size <= 0 => Err(GroupingError::field(owner, &field, "it must be >= 1")),
        Some(size) => Ok(size),
    }
}

/// The index of a pod in its group; the leader has zero.
fn worker_index(pod: ObjectView<'_>) -> Result<Option<i64>, GroupingError> {
    let value = pod.given_label(WORKER_INDEX);
    value.map(|value| segments::index(pod, value)).transpose()
}

fn is_leader(pod: ObjectView<'_>) -> bool {
    pod.label(WORKER_INDEX) == Some("0")
}

fn leader(pod: ObjectView<'_>) -> DerivedSubGroup {
    DerivedSubGroup::leaf(LEADER, 1).holding(pod, is_leader(pod))
}

/// The subgroups of one group of `size` pods.
pub fn sub_groups(
    owner: ObjectView<'_>,
    pod: ObjectView<'_>,
    size: u32,
) -> Result<Vec<DerivedSubGroup>, GroupingError> {
    if let Some(segmented) = SegmentedGroup::read(owner, pod, size)? {
        return segmented.parts();
    }
    let mut parts = vec![leader(pod)];
    let workers = size.saturating_sub(1);
    if workers > 0 {
        parts.push(DerivedSubGroup::leaf(WORKERS, workers).holding(pod, !is_leader(pod)));
    }
    Ok(parts)
}
