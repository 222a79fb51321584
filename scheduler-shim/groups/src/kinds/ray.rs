//! Ray: the head and the minimum number of workers of each group start together.
//!
//! A RayJob or a RayService names the RayCluster that runs for it; the cluster has the pods.

use crate::error::{GroupingError, counted};
use crate::group::{DerivedPodGroup, DerivedSubGroup, DerivedTopologyConstraint, members};
use crate::inherit::template_topology;
use crate::names::ANNOTATION_TOPOLOGY;
use crate::object::ObjectView;
use crate::objects::RequiredResource;
use crate::table::OwnerKindEntry;
use crate::workload::GroupingInput;

const CLUSTER: RequiredResource = RequiredResource {
    kind: "RayCluster",
    name: "rayclusters.ray.io",
};
const PRIORITY: &str = "ray.io/priority-class-name";
const GROUP: &str = "ray.io/group";
const HEAD: &str = "headgroup";

const OF_JOB: &[&[&str]] = &[&["status", "rayClusterName"]];
const OF_SERVICE: &[&[&str]] = &[
    &["status", "activeServiceStatus", "rayClusterName"],
    &["status", "pendingServiceStatus", "rayClusterName"],
];

pub(crate) fn cluster(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    of_cluster(row, workload, workload.owner)
}

pub(crate) fn job(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    of_cluster(row, workload, named_cluster(workload, OF_JOB)?)
}

pub(crate) fn service(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    of_cluster(row, workload, named_cluster(workload, OF_SERVICE)?)
}

/// The cluster that the first of these fields that is set names.
fn named_cluster<'a>(
    workload: &GroupingInput<'a>,
    paths: &[&[&str]],
) -> Result<ObjectView<'a>, GroupingError> {
    let owner = workload.owner;
    let mut named = None;
    for path in paths {
        if named.is_none() {
            named = owner.string(path)?;
        }
    }
    let name = named.filter(|name| !name.is_empty()).ok_or_else(|| {
        let field = paths.first().map(|path| path.join("."));
        GroupingError::unset(owner, &field.unwrap_or_default())
    })?;
    workload.objects.require(&CLUSTER, owner.namespace(), name)
}

fn of_cluster(
    row: &OwnerKindEntry<'_>,
    workload: &GroupingInput<'_>,
    cluster: ObjectView<'_>,
) -> Result<DerivedPodGroup, GroupingError> {
    let mut group = workload.plain(row.priority);
    if let Some(class) = workload.owner.given_label(PRIORITY) {
        group.priority_class = class.to_owned();
    }
    let mut parts = parts(cluster)?;
    group.min_member = members(&parts);
    if !workload.objects.is_flat(workload.namespace(), &group.name) {
        let own = workload.pod.given_label(GROUP);
        if let Some(part) = parts.iter_mut().find(|part| own == Some(&part.name)) {
            part.pods.push(workload.pod.name().to_owned());
        }
        group.sub_groups = parts;
    }
    Ok(group)
}

fn parts(cluster: ObjectView<'_>) -> Result<Vec<DerivedSubGroup>, GroupingError> {
    let head = cluster
        .field(&["spec", "headGroupSpec"])?
        .map(ObjectView::new);
    let constraint_found = head
        .map(|head| placement(cluster, head, HEAD))
        .transpose()?;
    let mut parts = vec![DerivedSubGroup::leaf(HEAD, 1).placed(constraint_found.flatten())];
    let groups = cluster.list(&["spec", "workerGroupSpecs"])?;
    for (index, group) in groups.iter().map(ObjectView::new).enumerate() {
        let Some(least) = least_workers(cluster, group, index)? else {
            continue;
        };
        let unnamed = format!("worker-group-{index}");
        let name = group.text(&["groupName"]).unwrap_or(&unnamed);
        parts.push(DerivedSubGroup::leaf(name, least).placed(placement(cluster, group, name)?));
    }
    Ok(parts)
}

/// Whether a group has no workers for now. The operator's field is `suspend`, KAI's is `suspended`.
fn is_suspended(group: ObjectView<'_>) -> Result<bool, GroupingError> {
    let field = "suspended";
    match group.field(&[field])? {
        None => Ok(group.at(&["suspend"]).is_some_and(|value| value == true)),
        Some(value) => value.as_bool().ok_or_else(|| {
            GroupingError::field(group, field, format!("{value} is not true or false"))
        }),
    }
}

/// The workers of a group that must start together: its minimum, or all without one. A replica may span several
/// hosts. `None` if the group needs none.
fn least_workers(
    cluster: ObjectView<'_>,
    group: ObjectView<'_>,
    index: usize,
) -> Result<Option<u32>, GroupingError> {
    if is_suspended(group)? {
        return Ok(None);
    }
    let count = |field| Ok(group.whole(&[field])?.unwrap_or(0));
    let (replicas, least) = (count("replicas")?, count("minReplicas")?);
    if least > replicas {
        let why = format!("{least} is more than its replicas, {replicas}");
        let path = format!("spec.workerGroupSpecs[{index}].minReplicas");
        return Err(GroupingError::field(cluster, &path, why));
    }
    if (replicas, least) == (0, 0) {
        return Ok(None);
    }
    let hosts = group.whole(&["numOfHosts"])?.unwrap_or(1);
    let replicas = if least > 0 { least } else { replicas };
    counted(cluster, "numOfHosts", replicas.saturating_mul(hosts)).map(Some)
}

/// The topology constraint of a group. A level without a topology is an error; a topology without a level asks
/// nothing.
fn placement(
    cluster: ObjectView<'_>,
    group: ObjectView<'_>,
    name: &str,
) -> Result<Option<DerivedTopologyConstraint>, GroupingError> {
    let template = group.field(&["template"])?.map(ObjectView::new);
    let constraint_found = template.map(template_topology).transpose()?;
    match constraint_found.and_then(DerivedTopologyConstraint::some) {
        Some(constraint_found) if constraint_found.name.is_empty() => {
            let why = format!("the placement of {name} needs it");
            Err(GroupingError::field(cluster, ANNOTATION_TOPOLOGY, why))
        }
        constraint_found => Ok(constraint_found),
    }
}
