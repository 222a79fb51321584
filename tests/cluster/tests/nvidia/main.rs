//! The chart beside NVIDIA's own parts of a node, as they are released: the device plugin and the container toolkit.
#![expect(clippy::unwrap_used, reason = "a test may")]

mod container_toolkit;
mod device_plugin;

use std::sync::{Mutex, MutexGuard, PoisonError};

use apportion_cluster::eventually;
use apportion_cluster::managed::LIMIT;
use apportion_cluster::release::ChartRelease;
use apportion_cluster::{LocalCluster, image};
use serde_json::{Value, json};

/// What a pod of KAI's users has on it.
const SCHEDULER: &str = "kai-scheduler";
/// The label of the pods of this suite.
const SUITE: &str = "suite=nvidia";
/// What a container says that has a share, and as many GPUs as it says.
const HOLD: &str = "victim total hold";

/// A pod of this suite that runs `script`.
fn pod(name: &str, script: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"suite": "nvidia"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [
            {"name": "main", "image": image::VICTIM, "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", script]}]}})
}

/// A pod with a share of [`LIMIT`].
fn share(name: &str, script: &str) -> Value {
    let mut share = pod(name, script);
    share["metadata"]["annotations"] = json!({"gpu-memory": "2000"});
    share["spec"]["schedulerName"] = SCHEDULER.into();
    share
}

/// A pod that asks a device plugin for a whole GPU.
fn whole(name: &str, script: &str) -> Value {
    let mut whole = pod(name, script);
    whole["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": 1}});
    whole
}

/// One test at a time: the node has one agent.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pods of this suite. They go with it, also where it fails.
struct NvidiaPods;

impl Drop for NvidiaPods {
    fn drop(&mut self) {
        let all = ["delete", "pods", "-l", SUITE, "--now"];
        let _ = LocalCluster::of_tests().kubectl(&all);
    }
}

/// What one looks at on a node with the chart.
trait NodeInspection {
    fn uuids(&self) -> Vec<String>;
    fn holders(&self, uuid: &str) -> Vec<String>;
    fn ready(&self) -> (String, String);
    fn says(&self, pod: &str, what: &str) -> String;
    fn told(&self, pod: &str) -> String;
    fn reaches(&self, pod: &str, phase: &str);
    fn is_phase(&self, pod: &str, phase: &str) -> bool;
    fn delete(&self, pod: &str);
}

impl NodeInspection for ChartRelease {
    /// The node's GPUs, in the order of their device files.
    fn uuids(&self) -> Vec<String> {
        let node = self.gpu_node();
        let cards = node["status"]["cards"].as_array().into_iter().flatten();
        cards
            .filter_map(|card| Some(card["uuid"].as_str()?.to_owned()))
            .collect()
    }

    /// The pods that hold parts of a GPU or all of it.
    fn holders(&self, uuid: &str) -> Vec<String> {
        let node = self.gpu_node();
        let mut cards = node["status"]["cards"].as_array().into_iter().flatten();
        let card = cards.find(|card| card["uuid"] == uuid);
        let holders = card.and_then(|card| card["holders"].as_array());
        let names = holders.into_iter().flatten();
        names
            .filter_map(|holder| holder["pod"].as_str().map(str::to_owned))
            .collect()
    }

    /// Status and reason of the condition `Ready` of the node's GPUs.
    fn ready(&self) -> (String, String) {
        let node = self.gpu_node();
        let ready = &node["status"]["conditions"][0];
        let text = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    }

    /// Waits until a pod has said something.
    fn says(&self, pod: &str, what: &str) -> String {
        let mut log = String::new();
        eventually(&format!("{pod} says {what:?}"), || {
            log = self.cluster.kubectl(&["logs", pod]).unwrap_or_default();
            log.contains(what)
        });
        log
    }

    /// What people read about a pod that waits: its condition and its events.
    fn told(&self, pod: &str) -> String {
        let condition = self.at(
            pod,
            ".status.conditions[?(@.type==\"PodScheduled\")].message",
        );
        let selector = format!("involvedObject.name={pod}");
        let path = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
        let events = ["get", "events", "--field-selector", &selector, "-o", path];
        condition + "\n" + &self.kubectl(&events)
    }

    fn reaches(&self, pod: &str, phase: &str) {
        eventually(&format!("{pod} is {phase}"), || self.is_phase(pod, phase));
    }

    fn is_phase(&self, pod: &str, phase: &str) -> bool {
        self.at(pod, ".status.phase") == phase
    }

    fn delete(&self, pod: &str) {
        self.kubectl(&["delete", "pod", pod, "--now"]);
    }
}

/// What a container with a share says first.
fn limited() -> String {
    format!("total 0 {LIMIT}")
}
