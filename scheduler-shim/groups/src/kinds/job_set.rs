//! JobSets: a tree of two levels, one subgroup a replicated job and below it one a replica.
//!
//! All replicated jobs must start together, unless they start in order: then the first must be able to
//! start before the second has a pod. Within a replica all pods of its parallelism start together.

use serde_json::Value;

use crate::group::{PodGroup, SubGroup};
use crate::inherit::{group_name, template_topology};
use crate::kinds::batch::annotated_minimum;
use crate::malformed::Malformed;
use crate::object::Object;
use crate::segments::MAX_SEGMENTS;
use crate::table::Row;
use crate::workload::Workload;

const REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";

/// Where a pod stands in its JobSet.
struct Place<'a> {
    job: &'a str,
    index: &'a str,
}

pub(crate) fn group(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    let owner = workload.owner;
    let place = place(workload.pod)?;
    let minimum = annotated_minimum(owner)?;
    let in_order = owner.text(&["spec", "startupPolicy", "startupPolicyOrder"]) == Some("InOrder");
    let mut group = workload.plain(row.priority);
    if let Some(old) = flat_name(workload, &place, in_order) {
        group.name = old;
        group.min_member = minimum.unwrap_or(1);
        return Ok(group);
    }
    let jobs = owner.list(&["spec", "replicatedJobs"])?;
    let all = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    if jobs.is_empty() {
        return Err(Malformed::unset(owner, "spec.replicatedJobs"));
    }
    group.min_member = 0;
    group.min_sub_group = Some(minimum.unwrap_or(if in_order { 1 } else { all }));
    group.sub_groups = sub_groups(workload, jobs, &place)?;
    Ok(group)
}

fn place(pod: Object<'_>) -> Result<Place<'_>, Malformed> {
    let label = |key| pod.label(key).ok_or_else(|| Malformed::unset(pod, key));
    Ok(Place {
        job: label(REPLICATED_JOB)?,
        index: label(JOB_INDEX)?,
    })
}

/// The group without parts that an older version made: one for the whole JobSet, or one for each replicated job
/// where these start in order.
fn flat_name(workload: &Workload<'_>, place: &Place<'_>, in_order: bool) -> Option<String> {
    let whole = group_name(workload.owner);
    let name = if in_order {
        format!("{whole}-{}", place.job)
    } else {
        whole
    };
    workload
        .objects
        .is_flat(workload.namespace(), &name)
        .then_some(name)
}

fn sub_groups(
    workload: &Workload<'_>,
    jobs: &[Value],
    place: &Place<'_>,
) -> Result<Vec<SubGroup>, Malformed> {
    let mut all = Vec::new();
    let mut total = 0_u64;
    for job in jobs.iter().map(Object::new) {
        let name = job.text(&["name"]).unwrap_or_default();
        let replicas = job.count(&["replicas"])?.unwrap_or(1);
        total += u64::from(replicas);
        if total > u64::from(MAX_SEGMENTS) {
            return Err(Malformed::TooManySegments(total));
        }
        all.push(SubGroup::node(name, replicas));
        all.extend(leaves(workload, job, name, replicas, place)?);
    }
    if all.iter().all(|part| part.pods.is_empty()) {
        let why = format!(
            "{} has no replica {} of a replicated job '{}'",
            workload.owner, place.index, place.job
        );
        return Err(Malformed::field(workload.pod, JOB_INDEX, why));
    }
    Ok(all)
}

fn leaves(
    workload: &Workload<'_>,
    job: Object<'_>,
    name: &str,
    replicas: u32,
    place: &Place<'_>,
) -> Result<Vec<SubGroup>, Malformed> {
    let template = job.part(&["template"]).unwrap_or(job);
    let parallelism = template.count(&["spec", "parallelism"])?.unwrap_or(1);
    let members = annotated_minimum(template)?.unwrap_or(parallelism);
    let topology = template_topology(template, workload.owner);
    let leaf = |index: u32| {
        let holds = place.job == name && place.index == index.to_string();
        SubGroup::leaf(format!("{name}-replica-{index}"), members)
            .under(name)
            .placed(topology.clone())
            .holding(workload.pod, holds)
    };
    Ok((0..replicas).map(leaf).collect())
}
