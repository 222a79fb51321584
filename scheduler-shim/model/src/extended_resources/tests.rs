use std::time::Duration;

use apportion_claims::binding::BindingClock;
use serde_json::{Value, json};

use super::*;
use crate::cards::CardInventory;
use crate::claims;
use crate::extended_requests::OF_EXTENDED;
use crate::object_warnings::ObjectWarnings;
use crate::snapshot::snapshot;

const GPU: &str = "nvidia.com/gpu";
const NIC: &str = "example.com/nic";

fn node(name: &str, more: Value) -> Value {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}});
    for (resource, amount) in more.as_object().unwrap() {
        node["status"]["allocatable"][resource] = amount.clone();
    }
    node
}

fn class(name: &str, resource: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"extendedResourceName": resource}})
}

fn pod(requests: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "uid-p", "labels": {"kai.scheduler/queue": "q"}},
        "spec": {"schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "resources": {"requests": requests}}]}})
}

/// The task of the pod, in a cluster of these objects, and the claims of the cluster with their charges.
fn read(mut objects: Vec<Value>, pod: Value) -> (Task, Vec<(String, f64)>) {
    objects.push(pod);
    let mut warnings = ObjectWarnings::default();
    let inventory = ObjectInventory::of(objects, &mut warnings);
    let schedulers = ["kai-scheduler".to_owned()];
    let (nobody, nothing) = (BTreeMap::new(), CardInventory::default());
    let now = Duration::ZERO;
    let mut read = snapshot(
        &inventory,
        &schedulers,
        &nobody,
        &nothing,
        now,
        &mut warnings,
    );
    let (assumed, clock) = (AssumedAllocations::new(), BindingClock::at(now));
    claims::enter(&inventory, &mut read.cluster, &assumed, clock);
    let task = read.cluster.jobs[0].tasks[0].clone();
    let claims = read.cluster.claims.iter();
    let claims = claims.map(|claim| (claim.name.clone(), claim.charge));
    (task, claims.collect())
}

fn nodes_of(task: &Task) -> Vec<Vec<&str>> {
    let extended = task.extended.iter();
    extended
        .map(|one| one.nodes.iter().map(String::as_str).collect())
        .collect()
}

#[test]
fn a_pod_needs_a_claim_for_what_a_node_has_not() {
    let objects = vec![
        node("both", json!({GPU: "1", NIC: "1"})),
        node("neither", json!({})),
        node("none-left", json!({GPU: "0", NIC: "1"})),
        class("gpus", GPU),
        class("nics", NIC),
    ];
    let (task, claims) = read(objects, pod(json!({"cpu": "1", GPU: "2", NIC: "1"})));
    assert_eq!(nodes_of(&task), [vec!["neither"], vec!["none-left"]]);
    assert_eq!(task.cards, TaskGpuRequest::Whole(2));
    assert_eq!(*task.cards_on("both"), TaskGpuRequest::Whole(2));
    for node in ["neither", "none-left"] {
        assert_eq!(*task.cards_on(node), TaskGpuRequest::None, "{node}");
    }
    // The pod is charged for its GPUs by their name, and not for their claim as well.
    let names: Vec<&str> = claims.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "default/p<extended-resources-1>",
            "default/p<extended-resources>"
        ]
    );
    assert!(
        claims.iter().all(|(_, charge)| *charge == 0.0),
        "{claims:?}"
    );
}

#[test]
fn a_class_of_gpus_under_any_other_name_is_charged_by_its_claim() {
    let objects = vec![node("n", json!({})), class("gpus", "example.com/gpu")];
    let other = json!({"example.com/gpu": "3"});
    let (task, claims) = read(objects.clone(), pod(other));
    assert_eq!(task.cards, TaskGpuRequest::None);
    assert_eq!(claims, [("default/p<extended-resources>".to_owned(), 3.0)]);
    let implicit = json!({"deviceclass.resource.kubernetes.io/gpus": "2"});
    let (_, claims) = read(objects, pod(implicit));
    assert_eq!(claims, [("default/p<extended-resources>".to_owned(), 2.0)]);
}

#[test]
fn nothing_is_different_without_a_class_for_the_resource() {
    let objects = vec![node("n", json!({})), class("nics", NIC)];
    let (task, claims) = read(objects, pod(json!({GPU: "1"})));
    assert!(task.extended.is_empty() && claims.is_empty(), "{task:?}");
}

#[test]
fn what_an_agent_counts_is_no_device_plugin() {
    let mut counted = node("n", json!({}));
    nodes::keep_own_cards(&mut counted);
    counted["status"]["allocatable"][GPU] = json!("4");
    let (task, _) = read(
        vec![counted.clone(), class("gpus", GPU)],
        pod(json!({GPU: "1"})),
    );
    assert_eq!(nodes_of(&task), [["n"]]);
    // It is written again and again, and the first count stays the node's own.
    nodes::keep_own_cards(&mut counted);
    assert!(!nodes::offers(ObjectView::new(&counted), GPU));
    let mut with_plugin = node("n", json!({GPU: "4"}));
    nodes::keep_own_cards(&mut with_plugin);
    assert!(nodes::offers(ObjectView::new(&with_plugin), GPU));
}

#[test]
fn a_bound_pod_has_the_claim_that_its_status_names() {
    let mut bound = pod(json!({GPU: "1", NIC: "1"}));
    bound["spec"]["nodeName"] = json!("n");
    bound["status"] = json!({"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "made",
        "requestMappings": [{"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-1"}]}});
    let requests = json!([{"name": "container-0-request-1", "exactly": {"deviceClassName": "gpus", "count": 1}}]);
    let made = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "made", "namespace": "default", "uid": "made"},
        "spec": {"devices": {"requests": requests}}});
    let objects = vec![node("n", json!({NIC: "1"})), class("gpus", GPU), made];
    let (task, claims) = read(objects, bound);
    assert_eq!(nodes_of(&task), [["n"]]);
    assert_eq!(*task.cards_on("n"), TaskGpuRequest::None);
    assert_eq!(claims, [("default/made".to_owned(), 0.0)]);
}

#[test]
fn a_claim_that_was_left_behind_keeps_its_pod_waiting() {
    let owner = json!({"kind": "Pod", "name": "p", "uid": "uid-p", "controller": true});
    let left = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "left", "namespace": "default", "uid": "left",
            "annotations": {OF_EXTENDED: "true"}, "ownerReferences": [owner]}});
    let objects = vec![node("n", json!({})), class("gpus", GPU), left.clone()];
    let (task, _) = read(objects, pod(json!({GPU: "1"})));
    assert_eq!(task.extended[0].claim, "default/left");
    let mut of_another = left;
    of_another["metadata"]["ownerReferences"][0]["uid"] = json!("earlier");
    let objects = vec![node("n", json!({})), class("gpus", GPU), of_another];
    let (task, _) = read(objects, pod(json!({GPU: "1"})));
    assert_eq!(task.extended[0].claim, "default/p<extended-resources>");
}
