//! Volume claims that wait for their first pod. The test creates the volumes and binds them.

use serde_json::{Value, json};

use crate::cluster::{Cluster, pod};

fn class(provisioner: &str) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "late"},
        "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"})
}

fn claim() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
}

fn volume() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "2Gi"}, "hostPath": {"path": "/disk"}}})
}

fn with_data() -> Value {
    let mut pod = pod("trains", json!({"gpu-fraction": "0.5"}));
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    pod
}

fn patch(cluster: &Cluster, object: &[&str], status: bool, patch: &Value) {
    let text = patch.to_string();
    let arguments = [&["patch"], object, &["--type=merge", "-p", &text]].concat();
    let subresource: &[&str] = if status {
        &["--subresource=status"]
    } else {
        &[]
    };
    let _ = cluster.plane.kubectl(&[&arguments, subresource].concat());
}

/// Does what the cluster's volume controller does once both sides are known.
fn bind(cluster: &Cluster) {
    let claim = ["pvc", "data"];
    patch(
        cluster,
        &claim,
        false,
        &json!({"spec": {"volumeName": "disk"}}),
    );
    patch(
        cluster,
        &claim,
        true,
        &json!({"status": {"phase": "Bound"}}),
    );
}

fn waits(cluster: &Cluster) {
    let pods = cluster.plane.all("pods");
    assert!(
        pods.iter().all(|pod| pod["spec"]["nodeName"].is_null()),
        "{pods:?}"
    );
}

#[test]
fn a_pod_with_a_claim_without_a_volume_is_bound_once_one_was_made_for_its_node() {
    let cluster = Cluster::with_cards(1);
    cluster
        .plane
        .apply(&[class("example.com/disks"), claim(), with_data()]);
    cluster.eventually("the node is written on the claim", |_| {
        let claims = cluster.plane.all("pvc");
        let on = &claims[0]["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
        (on == "node-1").then_some(())
    });
    waits(&cluster);
    assert_eq!(
        cluster.granted("node-1").values().flatten().count(),
        1,
        "its place is kept"
    );
    cluster.plane.apply(&[volume()]);
    bind(&cluster);
    cluster.bound(1);
}

#[test]
fn a_volume_that_is_there_is_given_to_the_claim_of_a_pod_that_got_a_place() {
    let cluster = Cluster::with_cards(1);
    cluster
        .plane
        .apply(&[class("kubernetes.io/no-provisioner"), claim(), volume()]);
    patch(
        &cluster,
        &["pv", "disk"],
        true,
        &json!({"status": {"phase": "Available"}}),
    );
    cluster.plane.apply(&[with_data()]);
    cluster.eventually("the volume is given", |_| {
        let volumes = cluster.plane.all("pv");
        (volumes[0]["spec"]["claimRef"]["name"] == "data").then_some(())
    });
    waits(&cluster);
    bind(&cluster);
    cluster.bound(1);
}
