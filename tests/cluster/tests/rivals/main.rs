//! Other owners of a node's GPUs with a real kubelet: a device plugin like NVIDIA's, and a DRA driver. No GPU is given
//! out twice, whatever the agent's settings are.
#![expect(clippy::unwrap_used, reason = "a test may")]

mod kai;
mod plugin;

use std::path::PathBuf;

use apportion_cluster::managed::{LIMIT, ManagedNode, ManagedPod};
use apportion_cluster::programs;
use apportion_cluster::{LocalCluster, eventually};
use serde_json::{Value, json};

const HOLD: &str = "victim total hold";

/// The kubelet's folder as this test sees it.
fn kubelet(node: &ManagedNode) -> PathBuf {
    node.cluster.folder().path().join("kubelet")
}

fn gpu_node(node: &ManagedNode) -> Value {
    let get = ["get", "gpunode", &node.cluster.node(), "-o", "json"];
    serde_json::from_str(&node.kubectl(&get)).unwrap_or_default()
}

/// The UUIDs of the node's GPUs, by device number.
fn uuids(node: &ManagedNode) -> Vec<String> {
    let mut uuids = Vec::new();
    eventually("the GpuNode has its GPUs", || {
        let found = gpu_node(node);
        let cards = found["status"]["cards"].as_array().into_iter().flatten();
        uuids = cards
            .filter_map(|card| Some(card["uuid"].as_str()?.to_owned()))
            .collect();
        !uuids.is_empty()
    });
    uuids
}

/// The pods with shares of a GPU.
fn holders(node: &ManagedNode, uuid: &str) -> Vec<String> {
    let found = gpu_node(node);
    let mut cards = found["status"]["cards"].as_array().into_iter().flatten();
    let card = cards.find(|card| card["uuid"] == uuid);
    let holders = card.and_then(|card| card["holders"].as_array());
    let holders = holders.into_iter().flatten();
    holders
        .filter_map(|holder| holder["pod"].as_str().map(str::to_owned))
        .collect()
}

fn condition(node: &ManagedNode) -> (String, String) {
    let found = gpu_node(node);
    let ready = &found["status"]["conditions"][0];
    let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// A pod that requests a GPU of the other device plugin.
fn whole(node: &ManagedNode, name: &str) -> ManagedPod {
    node.pod(name, "sleep 600", |pod| {
        pod["metadata"]["annotations"] = json!({});
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": 1}});
    })
}

fn shared(node: &ManagedNode, name: &str) -> ManagedPod {
    node.pod(name, HOLD, |_| {})
}

/// An agent that gives out no whole GPUs, which is the chart's default.
fn node_of_shares() -> ManagedNode {
    let node = ManagedNode::with(&["--whole-cards", "off"]);
    programs::install_kinds(&node.cluster);
    node
}

#[test]
fn beside_nvidias_device_plugin_no_gpu_is_given_twice_also_without_whole_gpus_of_ours() {
    let node = node_of_shares();
    let uuids = uuids(&node);
    let before = shared(&node, "before");
    before.says(&format!("total 0 {LIMIT}"));
    let mut idle = uuids.clone();
    eventually("its GPU is shown", || {
        idle.retain(|uuid| holders(&node, uuid).is_empty());
        idle.len() < uuids.len()
    });
    let plugin = plugin::start(&kubelet(&node), idle.clone());
    eventually("the GpuNode says that there is another owner", || {
        condition(&node) == ("False".to_owned(), "OtherDevicePlugin".to_owned())
    });
    let theirs = whole(&node, "theirs");
    theirs.runs();
    let late = shared(&node, "late");
    eventually("the events say why it does not start", || {
        late.events()
            .contains("allocates GPUs of this node, so this agent grants none")
    });
    assert_eq!(late.logs("main"), "", "it had a GPU");
    // Running pods keep running.
    assert_eq!(before.phase(), "Running");

    eventually("the GPU is its pod's", || {
        idle.iter().any(|uuid| holders(&node, uuid) == ["theirs"])
    });

    // The plugin stops, and its pod keeps its GPU.
    drop(plugin);
    eventually("shares are given again", || condition(&node).0 == "True");
    let after = shared(&node, "after");
    after.says(&format!("total 0 {LIMIT}"));
    eventually("it is shown", || {
        let mut all = uuids.iter().flat_map(|uuid| holders(&node, uuid));
        all.any(|pod| pod == "after")
    });
    for uuid in &uuids {
        let holders = holders(&node, uuid);
        let is_theirs = holders.iter().any(|pod| pod == "theirs");
        assert!(!is_theirs || holders.len() == 1, "{uuid}: {holders:?}");
    }
}

/// What NVIDIA's DRA driver publishes for a node: each GPU under its device number.
fn slice(node: &str, uuids: &[String]) -> Value {
    let device = |(number, uuid): (usize, &String)| {
        json!({"name": format!("gpu-{number}"), "attributes": {
            "type": {"string": "gpu"}, "uuid": {"string": uuid}}})
    };
    let devices: Vec<Value> = uuids.iter().enumerate().map(device).collect();
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "suite-gpus"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

/// A ResourceSlice that is deleted with the test. The agent grants nothing while it exists.
struct PublishedSlice(LocalCluster);

impl PublishedSlice {
    fn new(slice: Value) -> Self {
        let cluster = LocalCluster::of_tests();
        cluster.apply(&slice).unwrap();
        Self(cluster)
    }
}

impl Drop for PublishedSlice {
    fn drop(&mut self) {
        let delete = ["delete", "resourceslice", "suite-gpus"];
        let _ = self.0.kubectl(&delete);
    }
}

/// `tests/kubelet` tests the kubelet's list of claims and their GPUs: a driver's registration cannot be simulated here.
#[test]
fn while_nvidias_dra_driver_offers_gpus_of_the_node_none_is_shared() {
    let node = node_of_shares();
    let uuids = uuids(&node);
    let name = node.cluster.node();
    let published = PublishedSlice::new(slice(&name, &uuids));
    eventually("the GpuNode says that there is another owner", || {
        condition(&node) == ("False".to_owned(), "OtherDevicePlugin".to_owned())
    });
    let late = shared(&node, "late");
    eventually("the events say why it does not start", || {
        late.events()
            .contains("NVIDIA's DRA driver (gpu.nvidia.com) allocates GPUs")
    });
    assert_eq!(late.logs("main"), "", "it had a GPU");
    drop(late);
    drop(published);
    eventually("shares are given again", || condition(&node).0 == "True");
    shared(&node, "after").says(&format!("total 0 {LIMIT}"));
}
