//! JobSets: a tree of two levels, a subgroup per replicated job and below it one per replica.
//!
//! All replicated jobs must start together, unless they start in order: then the first must be able to start before
//! the second has a pod. Within a replica, as many pods as its parallelism start together.

use serde_json::Value;

use crate::error::{GroupingError, counted};
use crate::group::{DerivedPodGroup, DerivedSubGroup};
use crate::inherit::{group_name, template_topology};
use crate::kinds::batch::{annotated_minimum, positive_minimum};
use crate::names::ANNOTATION_MIN_MEMBER;
use crate::object::ObjectView;
use crate::segments::MAX_SEGMENTS;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

const REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";

pub(crate) fn group(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let owner = workload.owner;
    let jobs = owner.list(&["spec", "replicatedJobs"])?;
    if jobs.is_empty() {
        let why = format!("{owner} has no replicatedJobs");
        return Err(GroupingError::field(owner, "spec.replicatedJobs", why));
    }
    let group = workload.plain(row.priority);
    if workload
        .objects
        .has_flat(owner.namespace(), &group_name(owner))
    {
        flat(workload, group)
    } else {
        tree(workload, group, jobs)
    }
}

/// What an older version made of the JobSet, while such a group exists: no subgroups and, if the replicated jobs
/// start in order, a group for each.
fn flat(
    workload: &GroupingInput<'_>,
    mut group: DerivedPodGroup,
) -> Result<DerivedPodGroup, GroupingError> {
    let job = label(workload.pod, REPLICATED_JOB)?;
    if starts_in_order(workload.owner)? {
        group.name = format!("{}-{job}", group.name);
    }
    group.min_member = annotated_minimum(workload.owner)?.unwrap_or(1);
    Ok(group)
}

fn tree(
    workload: &GroupingInput<'_>,
    mut group: DerivedPodGroup,
    jobs: &[Value],
) -> Result<DerivedPodGroup, GroupingError> {
    let owner = workload.owner;
    let all = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    group.min_member = 0;
    group.min_sub_group = Some(match positive_minimum(owner)? {
        Some(stated) => stated.min(all),
        None if starts_in_order(owner)? => 1,
        None => all,
    });
    group.sub_groups = sub_groups(owner, jobs)?;
    assign(workload.pod, &mut group.sub_groups)?;
    Ok(group)
}

fn starts_in_order(owner: ObjectView<'_>) -> Result<bool, GroupingError> {
    let order = owner.string(&["spec", "startupPolicy", "startupPolicyOrder"])?;
    Ok(order == Some("InOrder"))
}

fn label<'a>(pod: ObjectView<'a>, key: &str) -> Result<&'a str, GroupingError> {
    pod.label(key).ok_or_else(|| GroupingError::unset(pod, key))
}

fn sub_groups(
    owner: ObjectView<'_>,
    jobs: &[Value],
) -> Result<Vec<DerivedSubGroup>, GroupingError> {
    let mut all = Vec::new();
    let mut total = 0_u64;
    for (index, job) in jobs.iter().map(ObjectView::new).enumerate() {
        let field = format!("spec.replicatedJobs[{index}].name");
        let name = job
            .text(&["name"])
            .ok_or_else(|| GroupingError::unset(owner, &field))?;
        let replicas = counted(owner, "replicas", job.whole(&["replicas"])?.unwrap_or(1))?;
        total += u64::from(replicas);
        if total > u64::from(MAX_SEGMENTS) {
            return Err(GroupingError::TooManySegments(total));
        }
        all.push(DerivedSubGroup::node(name, replicas));
        all.extend(leaves(owner, job, name, replicas)?);
    }
    Ok(all)
}

fn leaves(
    owner: ObjectView<'_>,
    job: ObjectView<'_>,
    name: &str,
    replicas: u32,
) -> Result<Vec<DerivedSubGroup>, GroupingError> {
    let parallelism = job
        .whole(&["template", "spec", "parallelism"])?
        .unwrap_or(1);
    let template = job.part(&["template"]).unwrap_or(job);
    template.string(&["metadata", "annotations", ANNOTATION_MIN_MEMBER])?;
    let stated = match template.annotation(ANNOTATION_MIN_MEMBER) {
        Some(_) => positive_minimum(template)?,
        None => None,
    };
    let topology = template_topology(template)?;
    let topology = topology
        .some()
        .filter(|constraint_found| !constraint_found.name.is_empty());
    let members = match stated {
        Some(members) => members,
        // A replica that does not exist has no members to count.
        None if replicas == 0 => 0,
        None => counted(owner, "parallelism", parallelism)?,
    };
    Ok((0..replicas)
        .map(|index| {
            DerivedSubGroup::leaf(format!("{name}-replica-{index}"), members)
                .under(name)
                .placed(topology.clone())
        })
        .collect())
}

/// Adds the pod to the replica that its labels name.
fn assign(pod: ObjectView<'_>, parts: &mut [DerivedSubGroup]) -> Result<(), GroupingError> {
    let job = label(pod, REPLICATED_JOB)?;
    let index = label(pod, JOB_INDEX)?;
    let name = format!("{job}-replica-{index}");
    let Some(part) = parts.iter_mut().find(|part| part.name == name) else {
        let why = format!("there is no replica {index} of a replicated job '{job}'");
        return Err(GroupingError::field(pod, JOB_INDEX, why));
    };
    part.pods.push(pod.name().to_owned());
    Ok(())
}
