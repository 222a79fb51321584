//! Ray clusters: a head and groups of workers, and the cluster that a job or a service would create.

use std::collections::BTreeSet;

use apportion_groups::ObjectView;
use serde_json::{Value, json};

use super::{MOST, count, list, pod};
use apportion_model::inventory::ObjectInventory;

/// Kinds that create a cluster: where its spec is, and where its name is written.
const MAKERS: &[(&str, &str, &[&str])] = &[
    ("RayJob", "/spec/rayClusterSpec", &["rayClusterName"]),
    (
        "RayService",
        "/spec/rayClusterConfig",
        &["activeServiceStatus", "rayClusterName"],
    ),
];

/// The clusters that jobs and services would create, and these with the names of their clusters.
pub(super) fn clusters(inventory: &ObjectInventory) -> Vec<Value> {
    let makers = MAKERS.iter().flat_map(|(kind, spec, status)| {
        let all = inventory.all(kind);
        all.filter_map(|maker| Some((maker, maker.json().pointer(spec)?, *status)))
    });
    let made: BTreeSet<_> = inventory
        .all("RayCluster")
        .flat_map(super::owners_of)
        .collect();
    let unmade = makers.filter(|(maker, _, status)| {
        let written = status
            .iter()
            .fold(&maker.json()["status"], |at, field| &at[*field]);
        let key = [maker.kind(), maker.namespace(), maker.name()].map(str::to_owned);
        let is_made = made.contains(&key.into()) || written.is_string();
        !super::is_idle(*maker) && !is_made
    });
    unmade
        .flat_map(|(maker, spec, status)| {
            let name = format!("{}-raycluster", maker.name());
            let mut named = maker.json().clone();
            let conditions = status.iter().rev();
            named["status"] = conditions.fold(
                name.as_str().into(),
                |inner: Value, field| json!({ *field: inner }),
            );
            [named, cluster(maker, &name, spec)]
        })
        .collect()
}

fn cluster(maker: ObjectView<'_>, name: &str, spec: &Value) -> Value {
    let owner = super::owner(maker);
    let labels = &maker.json()["metadata"]["labels"];
    json!({"apiVersion": maker.api_version(), "kind": "RayCluster", "spec": spec,
        "metadata": {"name": name, "namespace": maker.namespace(), "uid": "raycluster",
            "labels": labels, "ownerReferences": [owner]}})
}

pub(super) fn pods(cluster: ObjectView<'_>) -> Vec<Value> {
    let json = cluster.json();
    let head = member(
        cluster,
        &json["spec"]["headGroupSpec"],
        "head",
        "headgroup",
        0,
    );
    let groups = list(json, "/spec/workerGroupSpecs").enumerate();
    let groups = groups.filter(|(_, group)| group["suspend"] != true);
    let workers = groups.flat_map(|(place, group)| {
        let unnamed = format!("worker-group-{place}");
        let name = group["groupName"].as_str().unwrap_or(&unnamed).to_owned();
        let least = count(group.get("minReplicas"), 0);
        let hosts = count(group.get("numOfHosts"), 1).max(1);
        let members = count(group.get("replicas"), least).saturating_mul(hosts);
        (0..members).map(move |number| member(cluster, group, "worker", &name, number))
    });
    std::iter::once(head).chain(workers).take(MOST).collect()
}

fn member(cluster: ObjectView<'_>, group: &Value, kind: &str, name: &str, number: u64) -> Value {
    let labels = json!({
        "ray.io/cluster": cluster.name(),
        "ray.io/node-type": kind,
        "ray.io/group": name,
    });
    let called = match kind {
        "head" => format!("{}-head", cluster.name()),
        _ => format!("{}-{name}-{number}", cluster.name()),
    };
    pod(cluster, &group["template"], &called, &labels)
}
