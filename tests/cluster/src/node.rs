//! The node objects.
//!
//! The real node is created before its kubelet starts, with loopback as its address, which no kubelet would choose by
//! itself. Silent nodes exist only in the API: they are ready and have capacity, but no kubelet. Pods are bound to them
//! and never run. A taint keeps away pods that do not ask for them.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cluster::LocalCluster;

/// Keeps pods away from silent nodes unless they tolerate this.
const SILENT: &str = "apportion.test/silent";
/// The capacity of a silent node.
const ROOM: [(&str, &str); 4] = [
    ("cpu", "32"),
    ("memory", "256Gi"),
    ("pods", "200"),
    ("ephemeral-storage", "1Ti"),
];

/// Creates the node object that the kubelet will use.
pub(crate) fn announce(cluster: &LocalCluster) -> Result<()> {
    let name = cluster.node();
    apply(
        cluster,
        &name,
        &json!({}),
        &json!({}),
        &json!({"addresses": addresses(&name)}),
    )
}

/// Creates `count` nodes without a kubelet.
pub(crate) fn add_silent(cluster: &LocalCluster, count: u32) -> Result<()> {
    for number in 1..=count {
        let name = format!("{}-silent-{number}", cluster.node());
        let capacity: Value = ROOM
            .iter()
            .map(|&(name, much)| (name.to_owned(), json!(much)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let taints = json!({"taints": [{"key": SILENT, "effect": "NoSchedule"}]});
        add(cluster, &name, &taints, &json!({}), &capacity)?;
    }
    Ok(())
}

/// Creates a node that exists only in the API, ready and with capacity.
pub(crate) fn add(
    cluster: &LocalCluster,
    name: &str,
    spec: &Value,
    labels: &Value,
    capacity: &Value,
) -> Result<()> {
    let status = json!({
        "addresses": addresses(name),
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Announced",
            "message": "exists at the API level only"}],
        "nodeInfo": {"architecture": "amd64", "operatingSystem": "linux", "bootID": "", "machineID": "",
            "systemUUID": "", "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "",
            "kubeletVersion": "", "kubeProxyVersion": ""},
    });
    apply(cluster, name, spec, labels, &status)
}

/// Whether the kubelet reports that pods can run.
pub(crate) fn is_ready(cluster: &LocalCluster) -> Result<bool> {
    let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status} {.spec.taints[*].key}";
    let told = cluster.kubectl(&["get", "node", &cluster.node(), "-o", path])?;
    Ok(told.trim() == "True")
}

fn addresses(name: &str) -> Value {
    json!([
        {"type": "InternalIP", "address": "127.0.0.1"},
        {"type": "Hostname", "address": name},
    ])
}

fn apply(
    cluster: &LocalCluster,
    name: &str,
    spec: &Value,
    more_labels: &Value,
    status: &Value,
) -> Result<()> {
    let mut labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
    });
    for (label, value) in more_labels.as_object().into_iter().flatten() {
        labels[label] = value.clone();
    }
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": status,
    });
    cluster.apply(&node)?;
    let patch = json!({"status": status}).to_string();
    cluster.kubectl(&[
        "patch",
        "node",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ])?;
    Ok(())
}
