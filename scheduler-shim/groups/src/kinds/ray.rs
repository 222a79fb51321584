//! Ray: the head and the least number of workers of each group start together.
//!
//! A RayJob and a RayService name the RayCluster that runs for them, and it is the cluster that has pods.

use serde_json::Value;

use crate::group::{PodGroup, SubGroup, members};
use crate::inherit::template_topology;
use crate::malformed::Malformed;
use crate::object::Object;
use crate::table::Row;
use crate::workload::Workload;

const PRIORITY: &str = "ray.io/priority-class-name";
const GROUP: &str = "ray.io/group";
const NODE_TYPE: &str = "ray.io/node-type";
const HEAD: &str = "headgroup";

const OF_JOB: &[&[&str]] = &[&["status", "rayClusterName"]];
const OF_SERVICE: &[&[&str]] = &[
    &["status", "activeServiceStatus", "rayClusterName"],
    &["status", "pendingServiceStatus", "rayClusterName"],
];

pub(crate) fn cluster(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    of_cluster(row, workload, workload.owner)
}

pub(crate) fn job(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    of_cluster(row, workload, named_cluster(workload, OF_JOB)?)
}

pub(crate) fn service(row: &Row<'_>, workload: &Workload<'_>) -> Result<PodGroup, Malformed> {
    of_cluster(row, workload, named_cluster(workload, OF_SERVICE)?)
}

fn named_cluster<'a>(workload: &Workload<'a>, paths: &[&[&str]]) -> Result<Object<'a>, Malformed> {
    let owner = workload.owner;
    let namespace = match owner.namespace() {
        "" => workload.namespace(),
        namespace => namespace,
    };
    let names: Vec<&str> = paths.iter().filter_map(|path| owner.text(path)).collect();
    let find = |name: &&str| workload.objects.find("RayCluster", namespace, name);
    let first = paths.first().map(|path| path.join("."));
    match names.iter().find_map(find) {
        Some(cluster) => Ok(cluster),
        None => match names.first() {
            Some(name) => workload.objects.need("RayCluster", namespace, name),
            None => Err(Malformed::unset(owner, &first.unwrap_or_default())),
        },
    }
}

fn of_cluster(
    row: &Row<'_>,
    workload: &Workload<'_>,
    cluster: Object<'_>,
) -> Result<PodGroup, Malformed> {
    let mut group = workload.plain(row.priority);
    let named = [workload.owner, cluster]
        .iter()
        .find_map(|object| object.label(PRIORITY));
    if let Some(class) = named {
        group.priority_class = class.to_owned();
    }
    let parts = parts(workload, cluster)?;
    group.min_member = members(&parts);
    if !workload.objects.is_flat(cluster.namespace(), &group.name) {
        group.sub_groups = parts;
    }
    Ok(group)
}

fn parts(workload: &Workload<'_>, cluster: Object<'_>) -> Result<Vec<SubGroup>, Malformed> {
    let head = cluster
        .part(&["spec", "headGroupSpec"])
        .ok_or_else(|| Malformed::unset(cluster, "spec.headGroupSpec"))?;
    let mut parts = vec![part(workload, cluster, head, HEAD, 1)];
    let groups = cluster.list(&["spec", "workerGroupSpecs"])?;
    for (index, group) in groups.iter().map(Object::new).enumerate() {
        if is_suspended(group) {
            continue;
        }
        let unnamed = format!("worker-group-{index}");
        let name = group.text(&["groupName"]).unwrap_or(&unnamed);
        let least = least_workers(cluster, group, name)?;
        if least == 0 {
            continue;
        }
        parts.push(part(workload, cluster, group, name, least));
    }
    Ok(parts)
}

/// The field has had two names.
fn is_suspended(group: Object<'_>) -> bool {
    ["suspend", "suspended"]
        .iter()
        .any(|field| group.at(&[field]).and_then(Value::as_bool) == Some(true))
}

/// A group without a minimum needs all its replicas; a replica may span several hosts.
fn least_workers(cluster: Object<'_>, group: Object<'_>, name: &str) -> Result<u32, Malformed> {
    let replicas = group.count(&["replicas"])?;
    let least = group.count(&["minReplicas"])?.filter(|least| *least > 0);
    let hosts = group.count(&["numOfHosts"])?.filter(|hosts| *hosts > 0);
    let replicas = least.or(replicas).unwrap_or(0);
    replicas.checked_mul(hosts.unwrap_or(1)).ok_or_else(|| {
        let field = format!("spec.workerGroupSpecs.{name}.numOfHosts");
        Malformed::field(cluster, &field, "that is too many")
    })
}

fn part(
    workload: &Workload<'_>,
    cluster: Object<'_>,
    group: Object<'_>,
    name: &str,
    least: u32,
) -> SubGroup {
    let template = group.part(&["template"]);
    let pod = workload.pod;
    let is_head = name == HEAD && pod.label(NODE_TYPE) == Some("head");
    SubGroup::leaf(name, least)
        .placed(template.and_then(|template| template_topology(template, cluster)))
        .holding(pod, is_head || pod.label(GROUP) == Some(name))
}
