//! PyTorchJobs: a part for the master and one for the workers, which may be cut into segments.
//!
//! Of an elastic job's minimum the master takes its part first, then the segments in order, so that the
//! segments which must start are full ones.

use crate::group::{PodGroup, SubGroup};
use crate::kinds::kubeflow::replicas;
use crate::malformed::Malformed;
use crate::object::Object;
use crate::segments::{annotated_size, cut, topology};
use crate::workload::Workload;

const FIELD: &str = "pytorchReplicaSpecs";
const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
const MASTER: &str = "master";
const WORKER: &str = "worker";

pub(crate) fn refine(workload: &Workload<'_>, group: &mut PodGroup) -> Result<(), Malformed> {
    let owner = workload.owner;
    let has = |role| owner.at(&["spec", FIELD, role]).is_some();
    let mut left = group.min_member;
    if has("Master") {
        let members = replicas(owner, FIELD, "Master")?.min(left);
        left -= members;
        let master = SubGroup::leaf(MASTER, members);
        group
            .sub_groups
            .push(master.holding(workload.pod, plays(workload.pod, MASTER)));
    }
    if has("Worker") {
        group.sub_groups.extend(workers(workload, left)?);
    }
    Ok(())
}

fn plays(pod: Object<'_>, role: &str) -> bool {
    pod.label(REPLICA_TYPE)
        .is_some_and(|played| played.eq_ignore_ascii_case(role))
}

fn workers(workload: &Workload<'_>, members: u32) -> Result<Vec<SubGroup>, Malformed> {
    let owner = workload.owner;
    let count = replicas(owner, FIELD, "Worker")?;
    let template = owner.part(&["spec", FIELD, "Worker", "template"]);
    let size = match template {
        Some(template) => annotated_size(template)?,
        None => None,
    };
    match (template, size) {
        (Some(template), Some(size)) if count > 0 => {
            segmented(workload, template, size, count, members)
        }
        _ => {
            let holds = plays(workload.pod, WORKER);
            Ok(vec![
                SubGroup::leaf(WORKER, members).holding(workload.pod, holds),
            ])
        }
    }
}

fn segmented(
    workload: &Workload<'_>,
    template: Object<'_>,
    size: u32,
    count: u32,
    members: u32,
) -> Result<Vec<SubGroup>, Malformed> {
    let runs = cut(count, size)?;
    let wish = topology(template, workload.owner)?;
    let own = match plays(workload.pod, WORKER) {
        true => Some(index(workload.pod)? / size),
        false => None,
    };
    let mut left = members;
    let mut all = vec![SubGroup::node(
        WORKER,
        u32::try_from(runs.len()).unwrap_or(u32::MAX),
    )];
    for (number, run) in (0_u32..).zip(runs) {
        let members = run.min(left);
        left -= members;
        all.push(
            SubGroup::leaf(format!("{WORKER}-{number}"), members)
                .under(WORKER)
                .placed(wish.clone())
                .holding(workload.pod, own == Some(number)),
        );
    }
    Ok(all)
}

fn index(pod: Object<'_>) -> Result<u32, Malformed> {
    let text = pod
        .label(REPLICA_INDEX)
        .ok_or_else(|| Malformed::unset(pod, REPLICA_INDEX))?;
    text.parse()
        .map_err(|_| Malformed::field(pod, REPLICA_INDEX, format!("'{text}' is not an index")))
}
