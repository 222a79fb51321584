//! PyTorchJobs: a subgroup for the master and one for the workers, which may be split into segments.
//!
//! An elastic job's minimum covers the master first, then workers. Segments needed for those workers must start
//! whole; the others are elastic.

use serde_json::Value;

use crate::error::{GroupingError, counted};
use crate::group::{DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint};
use crate::names::ANNOTATION_SEGMENT_SIZE;
use crate::object::ObjectView;
use crate::segments;
use crate::workload::GroupingInput;

const FIELD: &str = "pytorchReplicaSpecs";
const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
const MASTER: &str = "master";
const WORKER: &str = "worker";
/// The fields with a minimum; the first that is set counts.
const MINIMA: [&[&str]; 2] = [
    &["spec", "runPolicy", "schedulingPolicy", "minAvailable"],
    &["spec", "elasticPolicy", "minReplicas"],
];

pub(crate) fn refine(
    workload: &GroupingInput<'_>,
    group: &mut DerivedPodGroup,
) -> Result<(), GroupingError> {
    let owner = workload.owner;
    let stated = MINIMA.iter().find_map(|path| owner.whole(path).ok()?);
    if let Some(stated) = stated {
        group.min_member = counted(owner, "minAvailable", stated)?;
    }
    let roles = ["spec", FIELD];
    let specs = owner
        .field(&roles)?
        .filter(|specs| specs.is_object())
        .ok_or_else(|| GroupingError::unset(owner, &roles.join(".")))?;
    let masters = owner.whole(&["spec", FIELD, "Master", "replicas"])?;
    let masters = counted(owner, "Master.replicas", masters.unwrap_or(0))?;
    if masters > 0 {
        let part = DerivedSubGroup::leaf(MASTER, masters);
        group
            .sub_groups
            .push(part.holding(workload.pod, plays(workload.pod, MASTER)));
    }
    if let Some(spec) = specs.get("Worker") {
        let members = group.min_member.saturating_sub(masters);
        group.sub_groups.extend(workers(workload, spec, members)?);
    }
    Ok(())
}

fn plays(pod: ObjectView<'_>, role: &str) -> bool {
    pod.label(REPLICA_TYPE) == Some(role)
}

/// The subgroups of the workers, of which `members` must start together.
fn workers(
    workload: &GroupingInput<'_>,
    spec: &Value,
    members: u32,
) -> Result<Vec<DerivedSubGroup>, GroupingError> {
    let (owner, pod) = (workload.owner, workload.pod);
    let count = owner
        .whole(&["spec", FIELD, "Worker", "replicas"])?
        .unwrap_or(1);
    let spec = ObjectView::new(spec);
    let whole = || DerivedSubGroup::leaf(WORKER, members).holding(pod, plays(pod, WORKER));
    let Some(size) = segment_size(pod, spec)? else {
        return Ok(vec![whole()]);
    };
    match segments::count(count, size)? {
        0 => Ok(vec![whole()]),
        number => WorkerSegments {
            number,
            size,
            last: match count % size {
                0 => size,
                rest => rest,
            },
            own: own_segment(pod, size)?,
            constraint_found: segments::topology(pod, spec.part(&["template"]), owner),
        }
        .parts(workload, members),
    }
}

/// The segment size: from the pod, else from the template of the workers.
fn segment_size(pod: ObjectView<'_>, spec: ObjectView<'_>) -> Result<Option<i64>, GroupingError> {
    let path = [
        "template",
        "metadata",
        "annotations",
        ANNOTATION_SEGMENT_SIZE,
    ];
    let value = match pod.annotation(ANNOTATION_SEGMENT_SIZE) {
        Some(value) => Some(value),
        None => spec.string(&path)?.filter(|value| !value.is_empty()),
    };
    value.map(|value| segments::size(value, 1)).transpose()
}

/// The segment of a pod, if it is a worker.
fn own_segment(pod: ObjectView<'_>, size: i64) -> Result<Option<i64>, GroupingError> {
    if !plays(pod, WORKER) {
        return Ok(None);
    }
    let value = pod
        .given_label(REPLICA_INDEX)
        .ok_or_else(|| GroupingError::unset(pod, REPLICA_INDEX))?;
    segments::index(pod, value).map(|index| Some(index / size))
}

/// Workers split into segments.
struct WorkerSegments {
    number: u32,
    size: i64,
    /// The number of pods of the last segment.
    last: i64,
    own: Option<i64>,
    constraint_found: Option<DerivedTopologyConstraint>,
}

impl WorkerSegments {
    fn parts(
        &self,
        workload: &GroupingInput<'_>,
        members: u32,
    ) -> Result<Vec<DerivedSubGroup>, GroupingError> {
        let needed = i64::from(members).div_euclid(self.size)
            + i64::from(i64::from(members) % self.size != 0);
        let mut all = vec![DerivedSubGroup::node(WORKER, self.number)];
        for index in 0..self.number {
            let pods = match i64::from(index) {
                index if index >= needed => 0,
                _ if index + 1 == self.number => self.last,
                _ => self.size,
            };
            let pods = counted(workload.owner, ANNOTATION_SEGMENT_SIZE, pods)?;
            all.push(
                DerivedSubGroup::leaf(format!("{WORKER}-{index}"), pods)
                    .under(WORKER)
                    .placed(self.constraint_found.clone())
                    .holding(workload.pod, self.own == Some(i64::from(index))),
            );
        }
        Ok(all)
    }
}
