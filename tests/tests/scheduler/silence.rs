//! Agents that stop writing: their `GpuNode`s report it, and no pod is placed on their cards.

use std::fs;
use std::path::Path;

use apportion_tests::{cards, eventually};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, pod};

const LONG_AGO: &str = "2026-01-02T03:04:05Z";

impl Cluster {
    /// Installs the CRD of the agent's chart.
    fn know_gpu_nodes(&self) {
        let manifest = "../deploy/chart/apportion/crds/gpunodes.apportion.dev.yaml";
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest);
        assert!(fs::exists(&manifest).expect("the folder is readable"));
        let _ = self
            .plane
            .kubectl(&["apply", "-f", &manifest.display().to_string()]);
        let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
        let _ = self
            .plane
            .kubectl(&[&wait[..], &["crd/gpunodes.apportion.dev"]].concat());
    }

    /// Writes a `GpuNode`'s status like an agent.
    fn say(&self, node: &str, heartbeat: &str) {
        let ready = json!({"type": "Ready", "status": "True", "reason": "Serving", "message": "",
            "lastTransitionTime": heartbeat});
        let status = json!({"status": {"lastHeartbeatTime": heartbeat, "conditions": [ready]}});
        let patch = [
            "patch",
            "gpunode",
            node,
            "--subresource=status",
            "--type=merge",
            "-p",
        ];
        let _ = self
            .plane
            .kubectl(&[&patch[..], &[&status.to_string()]].concat());
    }

    /// The `Ready` condition of a node's cards: status and reason.
    fn readiness(&self, node: &str) -> (String, String) {
        let objects = self.plane.all("gpunodes");
        let object = objects.iter().find(|one| one["metadata"]["name"] == node);
        let ready = object.map_or(&Value::Null, |one| &one["status"]["conditions"][0]);
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    fn becomes(&self, node: &str, status: &str, reason: &str) {
        let wanted = (status.to_owned(), reason.to_owned());
        eventually(PATIENCE * 2, reason, || self.readiness(node) == wanted);
    }
}

#[test]
fn no_whole_card_is_asked_of_a_node_whose_agent_is_silent() {
    let mut cluster = Cluster::with_cards(1);
    cluster.know_gpu_nodes();
    let room = json!({"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": "1"});
    cluster.plane.apply(&[
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2", "labels": {"pool": "two"}},
            "status": {"capacity": room, "allocatable": room,
                "conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"apiVersion": "apportion.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "node-2"}, "spec": {}}),
    ]);
    cluster.say("node-2", LONG_AGO);
    // A scheduler that started before the CRD does not know it.
    cluster.kill_scheduler();
    cluster.start_scheduler();
    cluster.becomes("node-2", "Unknown", "AgentSilent");
    let mut whole = pod("whole", json!({}));
    whole["spec"]["nodeSelector"] = json!({"pool": "two"});
    whole["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": "1"});
    cluster.plane.apply(&[whole]);
    let sentence = format!(
        "has no agent that answers, so its GPUs cannot be granted; the last heartbeat was at {LONG_AGO}"
    );
    eventually(PATIENCE, "it is explained", || {
        let address = cluster.address();
        let explained = cluster.ask(&["explain", "whole", "--address", &address]);
        explained.contains(&sentence)
    });
    cluster.say("node-2", "2026-01-02T03:04:35Z");
    cluster.bound(1);
}

#[test]
fn what_was_said_of_a_silent_agent_is_taken_back_once_it_is_heard() {
    let mut cluster = Cluster::bare();
    cluster.know_gpu_nodes();
    cluster.add_node("node-1", &cards(1));
    let kubeconfig = cluster.plane.kubeconfig();
    let node = cluster.nodes.get_mut("node-1").expect("it is there");
    if let Some(agent) = node.agent.take() {
        agent.kill();
    }
    let options = [
        "--tick",
        "100",
        "--context-reserve",
        "0",
        "--node-name",
        "node-1",
    ];
    let agent = node
        .host
        .agent_with(&options, &[("KUBECONFIG", &kubeconfig)]);
    node.agent = Some(agent);
    cluster.becomes("node-1", "True", "Serving");
    let silent = json!({"apiVersion": "apportion.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "node-1"}, "status": {"conditions": [{"type": "Ready",
            "status": "Unknown", "reason": "AgentSilent", "message": "", "lastTransitionTime": LONG_AGO}]}});
    let file = cluster.plane.dir().join("silent.json");
    fs::write(&file, silent.to_string()).expect("the folder is writable");
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--subresource=status",
    ];
    let manager = ["--field-manager=apportion-scheduler", "-f"];
    let path = file.display().to_string();
    let _ = cluster
        .plane
        .kubectl(&[&apply[..], &manager[..], &[&path]].concat());
    assert_eq!(cluster.readiness("node-1").0, "Unknown");
    // The agent has no reason to write, but the scheduler reaches it.
    cluster.start_scheduler();
    cluster.becomes("node-1", "True", "Serving");
}
